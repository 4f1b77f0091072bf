// Package publicurl has the public URL of the installation: under which carriers and
// recipients reach it. It guarantees:
//
//   - All processes on a database use one public URL, whatever their own settings: at
//     their start, and within two seconds of a change.
//   - It is the setting of the process that started last, also when that has ended. A
//     process without the setting changes nothing.
//   - An http URL, which is on a loopback address, does not replace the https URL of a
//     process that runs.
//
// Each process that has the setting stores it, with the time when it last ran.
package publicurl

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"lemma"
	"lemma/loop"
)

const (
	every = 2 * time.Second  // how often the stored URLs are read
	fresh = 5 * time.Second  // how old the time in a row may become while a process runs
	inUse = 20 * time.Second // for how long after that time a process is taken to run

	keptFor = 30 * 24 * time.Hour // for carriers that still call a URL that no process has
)

// Deps are what a process needs to find its public URL.
type Deps struct {
	Pool       *pgxpool.Pool
	Configured string // of this process; empty: none
	Log        *slog.Logger
	Metrics    *Metrics
}

// Metrics are documented in docs/reference/metrics.md.
type Metrics struct{ values prometheus.Gauge }

// NewMetrics registers the metrics; with nil they are not exported.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{prometheus.NewGauge(prometheus.GaugeOpts{Name: "lemma_public_urls",
		Help: "Different values of LEMMA_PUBLIC_URL of the processes that run."})}
	if r != nil {
		r.MustRegister(m.values)
	}
	return m
}

// Stored is a URL that a process has, or had.
type Stored struct {
	URL       string
	StartedAt time.Time // when the last process with it started
	SeenAt    time.Time // when a process with it ran last, to a few seconds
	InUse     bool      // a process with it runs
}

// URL is the public URL, as one process sees it. It is safe for concurrent use.
type URL struct {
	pool       *pgxpool.Pool
	configured string
	log        *slog.Logger
	metrics    *Metrics

	mu        sync.Mutex
	current   string
	startedAt time.Time // by the clock of the database; zero: nothing was read yet
	known     []string  // all that are stored, the current one first
	others    []string  // values of other processes that ran since this one started
}

// New returns the URL of the setting, until Sync has read what is stored.
func New(d Deps) *URL {
	u := &URL{pool: d.Pool, configured: strings.TrimSuffix(d.Configured, "/"), log: d.Log, metrics: d.Metrics}
	if u.log == nil {
		u.log = slog.Default()
	}
	if u.metrics == nil {
		u.metrics = NewMetrics(nil)
	}
	if u.current = u.configured; u.current != "" {
		u.known = []string{u.current}
	}
	return u
}

// Get is the public URL, without a slash at its end. It is empty if there is none.
func (u *URL) Get() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.current
}

// Missing reports that there is no public URL.
func (u *URL) Missing() bool { return u.Get() == "" }

// Known are the public URL and those before it, under which carriers may still call.
func (u *URL) Known() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.known
}

// Loop calls Sync until ctx ends. Of a series of errors it logs the first.
func (u *URL) Loop(ctx context.Context) {
	failing := false
	loop.Every(ctx, every, func(ctx context.Context) error {
		err := u.Sync(ctx)
		failing = failing && err != nil
		return err
	}, func(err error) {
		if !failing {
			u.log.ErrorContext(ctx, "the public URL cannot be read, and that of the last time is used", "error", err)
		}
		failing = true
	})
}

// Sync stores the setting of this process, if it has one, and reads the public URL.
func (u *URL) Sync(ctx context.Context) error {
	u.mu.Lock()
	started := u.startedAt
	u.mu.Unlock()
	if started.IsZero() {
		if err := u.pool.QueryRow(ctx, `select now()`).Scan(&started); err != nil {
			return fmt.Errorf("read the time: %w", err)
		}
		if err := u.deleteOld(ctx); err != nil {
			return err
		}
	}
	if u.configured != "" {
		if err := u.store(ctx, started); err != nil {
			return err
		}
	}
	all, err := List(ctx, u.pool)
	if err != nil {
		return err
	}
	u.adopt(started, all)
	return nil
}

// store writes the row of the setting, unless it is fresh.
func (u *URL) store(ctx context.Context, started time.Time) error {
	_, err := u.pool.Exec(ctx, `
		insert into public_urls (url, started_at) values ($1, $2)
		on conflict (url) do update set started_at = greatest(public_urls.started_at, excluded.started_at), seen_at = now()
		where public_urls.started_at < excluded.started_at or public_urls.seen_at < now() - $3::interval`, u.configured, started, fresh)
	return lemma.Wrap(err, "store the public URL")
}

// deleteOld deletes URLs under which no carrier calls any more. The newest one stays.
func (u *URL) deleteOld(ctx context.Context) error {
	_, err := u.pool.Exec(ctx, `
		delete from public_urls where seen_at < now() - $1::interval and started_at < (select max(started_at) from public_urls)`, keptFor)
	return lemma.Wrap(err, "delete old public URLs")
}

// adopt takes over what is stored, and logs what the operator should know.
func (u *URL) adopt(started time.Time, all []Stored) {
	current, running := "", 0
	var known, others []string
	for i, s := range all {
		if i == 0 {
			current = s.URL
		}
		if s.InUse {
			running++
		}
		if known = append(known, s.URL); s.URL != u.configured && s.SeenAt.After(started) {
			others = append(others, s.URL)
		}
	}
	slices.Sort(others)
	u.metrics.values.Set(float64(running))
	u.mu.Lock()
	defer u.mu.Unlock()
	first := u.startedAt.IsZero()
	switch {
	case first && current == "":
		u.log.Info("there is no public URL: carriers and recipients cannot reach Lemma; set LEMMA_PUBLIC_URL")
	case current != u.configured && (first || current != u.current):
		u.log.Info("the public URL of the installation is used", "public_url", current, "configured", u.configured)
	}
	if u.configured != "" && len(others) > 0 && !slices.Equal(others, u.others) {
		u.log.Warn("processes have different values of LEMMA_PUBLIC_URL: that of the process that started last is used",
			"public_url", current, "configured", u.configured, "others", others)
	}
	u.current, u.startedAt, u.known, u.others = current, started, known, others
}

// List returns the stored URLs. The first one is used.
func List(ctx context.Context, pool *pgxpool.Pool) ([]Stored, error) {
	rows, _ := pool.Query(ctx, `
		select url, started_at, seen_at, seen_at > now() - $1::interval as in_use from public_urls
		order by starts_with(url, 'https:') and seen_at > now() - $1::interval desc, started_at desc, url`, inUse)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[Stored])
	return all, lemma.Wrap(err, "read the public URLs")
}

// Remove forgets a URL. It refuses one of a process that runs, which would store it again.
func Remove(ctx context.Context, pool *pgxpool.Pool, url string) error {
	var there bool
	tag, err := pool.Exec(ctx, `delete from public_urls where url = $1 and seen_at < now() - $2::interval`, url, inUse)
	if err != nil || tag.RowsAffected() > 0 {
		return lemma.Wrap(err, "remove the public URL")
	}
	if err := pool.QueryRow(ctx, `select exists (select from public_urls where url = $1)`, url).Scan(&there); err != nil {
		return fmt.Errorf("find the public URL: %w", err)
	}
	if !there {
		return fmt.Errorf("%s is not stored: `lemma public-urls list` lists the URLs that are", url)
	}
	return fmt.Errorf("a process with LEMMA_PUBLIC_URL=%s runs: stop it, or unset the setting, and try again after %v", url, inUse)
}

// Package settings has the settings that concern all processes of an installation. It
// guarantees:
//
//   - All processes on a database use one public URL, whatever their own settings: at
//     their start, and within two seconds of a change. It is the setting of the process that
//     started last, also when that has ended. A process without the setting changes nothing.
//     An http URL, which is on a loopback address, does not replace the https URL of a
//     process that runs.
//   - Different values of processes that run are logged and counted.
//   - The values of processes that have ended are known for 30 days, and the newest of each
//     setting longer, so that a process that is restarted or away still counts.
//
// Each process stores its values, with the time when it last ran. What follows from them is
// decided by the packages that read them, such as retention.
package settings

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"lemma"
	"lemma/loop"
)

// PublicURL is the setting under which carriers and recipients reach the installation.
const PublicURL = "LEMMA_PUBLIC_URL"

// InUse is how long a process is taken to run after it was seen last.
const InUse = 20 * time.Second

const (
	every = 2 * time.Second // how often the stored values are read
	fresh = 5 * time.Second // how old the time in a row may become while a process runs

	keptFor = 30 * 24 * time.Hour // for carriers that still call a URL that no process has, and for processes that are away
)

// Deps are what a process needs to share its settings.
type Deps struct {
	Pool    *pgxpool.Pool
	Own     map[string]string // values of this process, by the name of the setting
	Log     *slog.Logger
	Metrics *Metrics
}

// Metrics are documented in docs/reference/metrics.md.
type Metrics struct{ values *prometheus.GaugeVec }

// NewMetrics registers the metrics; with nil they are not exported.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "lemma_setting_values",
		Help: "Different values of a setting that concerns all processes, of the processes that run."}, []string{"setting"})}
	if r != nil {
		r.MustRegister(m.values)
	}
	return m
}

// Settings are those of all processes, as one process sees them. It is safe for concurrent use.
type Settings struct {
	pool    *pgxpool.Pool
	own     map[string]string
	log     *slog.Logger
	metrics *Metrics

	mu        sync.Mutex
	publicURL string
	startedAt time.Time           // by the clock of the database; zero: nothing was read yet
	cleanedAt time.Time           // when old values were deleted last
	knownURLs []string            // all that are stored, the current one first
	others    map[string][]string // values of other processes that ran since this one started
}

// New returns the settings of this process, until Sync has read those of others.
func New(d Deps) *Settings {
	s := &Settings{pool: d.Pool, own: maps.Clone(d.Own), log: d.Log, metrics: d.Metrics, others: map[string][]string{}}
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.metrics == nil {
		s.metrics = NewMetrics(nil)
	}
	if at := canonicalURL(s.own[PublicURL]); at != "" {
		s.own[PublicURL], s.publicURL, s.knownURLs = at, at, []string{at}
	}
	return s
}

// canonicalURL returns a URL in the form in which it is compared: the scheme and host in lower
// case, without the default port and a slash at the end.
func canonicalURL(text string) string {
	u, err := url.Parse(strings.TrimSuffix(text, "/"))
	if err != nil || text == "" {
		return text
	}
	u.Host = strings.ToLower(u.Host)
	u.Host = strings.TrimSuffix(u.Host, map[string]string{"https": ":443", "http": ":80"}[u.Scheme])
	return u.String()
}

// PublicURL is the public URL of the installation, without a slash at its end. It is empty if
// there is none.
func (s *Settings) PublicURL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.publicURL
}

// PublicURLs are the public URL and those before it, under which carriers may still call.
func (s *Settings) PublicURLs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.knownURLs
}

// Loop calls Sync until ctx ends. Of a series of errors it logs the first.
func (s *Settings) Loop(ctx context.Context) {
	failing := false
	loop.Every(ctx, every, func(ctx context.Context) error {
		err := s.Sync(ctx)
		failing = failing && err != nil
		return err
	}, func(err error) {
		if !failing {
			s.log.ErrorContext(ctx, "the settings of all processes cannot be read, and those of the last time are used", "error", err)
		}
		failing = true
	})
}

// Sync stores the values of this process, unless they are fresh, and reads those of all.
func (s *Settings) Sync(ctx context.Context) error {
	s.mu.Lock()
	started, clean := s.startedAt, time.Since(s.cleanedAt) > time.Hour
	s.mu.Unlock()
	first := started.IsZero()
	if first {
		if err := s.pool.QueryRow(ctx, `select now()`).Scan(&started); err != nil {
			return fmt.Errorf("read the time: %w", err)
		}
	}
	if clean {
		if err := s.deleteOld(ctx); err != nil {
			return err
		}
	}
	all, err := List(ctx, s.pool)
	if err != nil {
		return err
	}
	if !first {
		started = s.repaired(started, all)
	}
	if s.stale(all, first) {
		if err := s.store(ctx, started); err != nil {
			return err
		}
		if all, err = List(ctx, s.pool); err != nil {
			return err
		}
	}
	s.adopt(started, all)
	return nil
}

// stale reports whether a value of this process must be stored again.
func (s *Settings) stale(all []Stored, first bool) bool {
	fresh := 0
	for _, v := range all {
		if value, ok := s.own[v.Name]; ok && v.Value == value && v.fresh {
			fresh++
		}
	}
	return first || fresh < len(s.own)
}

// store writes the rows of the values of this process, in one order in all processes.
func (s *Settings) store(ctx context.Context, started time.Time) error {
	names := slices.Sorted(maps.Keys(s.own))
	values := make([]string, len(names))
	for i, name := range names {
		values[i] = s.own[name]
	}
	_, err := s.pool.Exec(ctx, `
		insert into settings (name, value, started_at)
		select name, value, $3 from unnest($1::text[], $2::text[]) as own (name, value)
		on conflict (name, value) do update set started_at = greatest(settings.started_at, excluded.started_at), seen_at = now()
		where settings.started_at < excluded.started_at or settings.seen_at < now() - $4::interval`, names, values, started, fresh)
	if err == nil {
		err = s.claimHost(ctx)
	}
	return lemma.Wrap(err, "store the settings of this process")
}

// claimHost makes the host of the public URL one of all workspaces, for ever: links in sent messages lead
// there. A workspace that had it in its tracking URL loses it.
func (s *Settings) claimHost(ctx context.Context) error {
	to, err := url.Parse(s.own[PublicURL])
	if err != nil || to.Hostname() == "" {
		return nil //nolint:nilerr // this process has none
	}
	_, err = s.pool.Exec(ctx, `
		insert into tracking_hosts (host, workspace_id) values ($1, null)
		on conflict (host) do update set workspace_id = null where tracking_hosts.workspace_id is not null`,
		lemma.HostName(to.Hostname()))
	return err
}

// deleteOld deletes values that no process has had for long. The newest of each setting stays.
func (s *Settings) deleteOld(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, `
		delete from settings o where seen_at < now() - $1::interval
		and started_at < (select max(started_at) from settings n where n.name = o.name)`, keptFor)
	if err != nil {
		return fmt.Errorf("delete old settings: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanedAt = time.Now()
	return nil
}

// adopt takes over what is stored, and logs what the operator should know.
func (s *Settings) adopt(started time.Time, all []Stored) {
	var known []string
	running, others := map[string]int{}, map[string][]string{}
	for _, v := range all {
		if v.Name == PublicURL {
			known = append(known, v.Value)
		}
		if running[v.Name] += 0; v.InUse {
			running[v.Name]++
		}
		if own, ok := s.own[v.Name]; ok && v.Value != own && v.SeenAt.After(started) {
			others[v.Name] = append(others[v.Name], v.Value)
		}
	}
	current := ""
	if len(known) > 0 {
		current = known[0]
	}
	for name, n := range running {
		s.metrics.values.WithLabelValues(name).Set(float64(n))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	first, configured := s.startedAt.IsZero(), s.own[PublicURL]
	switch {
	case first && current == "":
		s.log.Info("there is no public URL: carriers and recipients cannot reach Lemma; set LEMMA_PUBLIC_URL")
	case current != configured && (first || current != s.publicURL):
		s.log.Info("the public URL of the installation is used", "public_url", current, "configured", configured)
	}
	for _, name := range slices.Sorted(maps.Keys(others)) {
		slices.Sort(others[name])
		if !slices.Equal(others[name], s.others[name]) {
			s.log.Warn("processes have different values of a setting that must be equal",
				"setting", name, "configured", s.own[name], "others", others[name])
		}
	}
	s.publicURL, s.startedAt, s.knownURLs, s.others = current, started, known, others
}

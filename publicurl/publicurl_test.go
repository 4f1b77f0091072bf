package publicurl

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"lemma/pgtest"
)

const (
	first  = "https://first.example"
	second = "https://second.example"
	local  = "http://127.0.0.1:8080"
)

// process is one process, with its log.
type process struct {
	*URL
	t       *testing.T
	log     bytes.Buffer
	metrics *prometheus.Registry
}

func start(t *testing.T, pool *pgxpool.Pool, configured string) *process {
	t.Helper()
	p := &process{t: t, metrics: prometheus.NewRegistry()}
	p.URL = New(Deps{Pool: pool, Configured: configured, Log: slog.New(slog.NewTextHandler(&p.log, nil)), Metrics: NewMetrics(p.metrics)})
	p.sync()
	return p
}

func (p *process) sync() {
	p.t.Helper()
	if err := p.Sync(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

// wants checks what processes use, after each of them has read again.
func wants(t *testing.T, want string, all ...*process) {
	t.Helper()
	for i, p := range all {
		p.sync()
		if got := p.Get(); got != want {
			t.Errorf("process %d with %q uses %q, want %q", i, p.configured, got, want)
		}
	}
}

// stop lets the time pass in which a process with the URL counts as running.
func stop(t *testing.T, pool *pgxpool.Pool, url string) {
	t.Helper()
	pgtest.Exec(t, pool, `update public_urls set seen_at = seen_at - interval '1 minute' where url = $1`, url)
}

// All processes use the setting of the one that started last, whatever their own.
func TestAllProcessesUseOneURL(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	worker := start(t, pool, "")
	wants(t, "", worker)
	if !worker.Missing() || !strings.Contains(worker.log.String(), "there is no public URL") {
		t.Errorf("%s", worker.log.String())
	}
	api := start(t, pool, first+"/")
	wants(t, first, worker, api, start(t, pool, ""))
	if !strings.Contains(worker.log.String(), "public_url="+first) {
		t.Errorf("%s", worker.log.String())
	}
	other := start(t, pool, second)
	wants(t, second, worker, api, other, start(t, pool, ""))
	wants(t, first, start(t, pool, first), worker, api, other)
	if got := api.Known(); len(got) != 2 || got[0] != first || got[1] != second {
		t.Errorf("known are %v", got)
	}
	stop(t, pool, first)
	stop(t, pool, second)
	wants(t, first, worker, start(t, pool, "")) // no process with a setting runs
}

// A process on the machine of a developer does not take over an installation that runs.
func TestALoopbackURLReplacesNoOther(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	api := start(t, pool, first)
	laptop := start(t, pool, local)
	wants(t, first, api, laptop)
	stop(t, pool, first)
	wants(t, local, laptop, start(t, pool, "")) // the https URL is that of no process
	wants(t, first, api, laptop)
}

// Different values are in the log and in the metric, and a change by a restart is not.
func TestDifferentValuesAreReported(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	const warning = "different values"
	check := func(name string, p *process, values float64, warned int) {
		t.Helper()
		p.sync()
		found, err := p.metrics.Gather()
		if err != nil || len(found) != 1 {
			t.Fatal(found, err)
		}
		if got := found[0].GetMetric()[0].GetGauge().GetValue(); got != values || strings.Count(p.log.String(), warning) != warned {
			t.Errorf("%s: %v values; %s", name, got, p.log.String())
		}
	}
	before, same, none := start(t, pool, first), start(t, pool, first), start(t, pool, "")
	check("equal", before, 1, 0)
	check("equal", same, 1, 0)
	after := start(t, pool, second)
	check("a restart with another value", after, 2, 0)
	stop(t, pool, first)
	check("the old process has ended", after, 1, 0)
	check("the old process runs", before, 2, 1)
	check("the old process runs", after, 2, 1)
	check("the same state again", before, 2, 1)
	check("without a setting", none, 2, 0)
}

// A URL that no process has is removed, and old ones are deleted but for the newest.
func TestURLsAreRemoved(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	worker := start(t, pool, "")
	start(t, pool, first)
	start(t, pool, second)
	if err := Remove(t.Context(), pool, second); err == nil || !strings.Contains(err.Error(), "runs") {
		t.Errorf("removed: %v", err)
	}
	stop(t, pool, second)
	if err := Remove(t.Context(), pool, second); err != nil {
		t.Error(err)
	}
	wants(t, first, worker)
	if err := Remove(t.Context(), pool, second); err == nil || !strings.Contains(err.Error(), "not stored") {
		t.Errorf("removed twice: %v", err)
	}
	api := start(t, pool, second)
	pgtest.Exec(t, pool, `update public_urls set seen_at = seen_at - interval '31 days'`)
	start(t, pool, "")
	if got, err := List(t.Context(), pool); err != nil || len(got) != 1 || got[0].URL != second {
		t.Errorf("kept are %v, %v", got, err)
	}
	stop(t, pool, second)
	if err := Remove(t.Context(), pool, second); err != nil {
		t.Error(err)
	}
	wants(t, second, api, worker) // a process that was taken for stopped stores it again
}

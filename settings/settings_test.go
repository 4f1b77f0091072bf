package settings

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

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
	*Settings
	configured string
	t          *testing.T
	log        bytes.Buffer
	metrics    *prometheus.Registry
}

func start(t *testing.T, pool *pgxpool.Pool, configured string) *process {
	t.Helper()
	own := map[string]string{}
	if configured != "" {
		own[PublicURL] = configured
	}
	return startWith(t, pool, own)
}

func startWith(t *testing.T, pool *pgxpool.Pool, own map[string]string) *process {
	t.Helper()
	p := &process{t: t, configured: own[PublicURL], metrics: prometheus.NewRegistry()}
	p.Settings = New(Deps{Pool: pool, Own: own, Log: slog.New(slog.NewTextHandler(&p.log, nil)), Metrics: NewMetrics(p.metrics)})
	p.sync()
	return p
}

func (p *process) sync() {
	p.t.Helper()
	if err := p.Sync(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

// values are how many different values of each setting are used, by the metric.
func (p *process) values() map[string]float64 {
	p.t.Helper()
	found, err := p.metrics.Gather()
	if err != nil || len(found) != 1 || found[0].GetName() != "lemma_setting_values" {
		p.t.Fatal(found, err)
	}
	all := map[string]float64{}
	for _, m := range found[0].GetMetric() {
		all[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
	}
	return all
}

// wants checks what processes use, after each of them has read again.
func wants(t *testing.T, want string, all ...*process) {
	t.Helper()
	for i, p := range all {
		p.sync()
		if got := p.PublicURL(); got != want {
			t.Errorf("process %d with %q uses %q, want %q", i, p.configured, got, want)
		}
	}
}

// stop lets the time pass in which a process with the URL counts as running.
func stop(t *testing.T, pool *pgxpool.Pool, url string) {
	t.Helper()
	pgtest.Exec(t, pool, `update settings set seen_at = seen_at - interval '1 minute' where value = $1`, url)
}

// All processes use the setting of the one that started last, whatever their own.
func TestAllProcessesUseOneURL(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	worker := start(t, pool, "")
	wants(t, "", worker)
	if worker.PublicURL() != "" || !strings.Contains(worker.log.String(), "there is no public URL") {
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
	if got := api.PublicURLs(); len(got) != 2 || got[0] != first || got[1] != second {
		t.Errorf("known are %v", got)
	}
	stop(t, pool, first)
	stop(t, pool, second)
	wants(t, first, worker, start(t, pool, "")) // no process with a setting runs
}

// The newest URL is used while its process is restarted, also if one with an older URL runs.
func TestTheNewestURLIsUsed(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	before := start(t, pool, first)
	start(t, pool, second)
	stop(t, pool, second)
	wants(t, second, before, start(t, pool, ""))
}

// Spellings of a URL are one URL.
func TestSpellingsOfAURL(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	start(t, pool, first)
	for _, spelling := range []string{strings.ToUpper(first), first + ":443", first + ":443/", first + "/"} {
		wants(t, first, start(t, pool, spelling))
	}
	wants(t, "https://shop.example:8443/Lemma", start(t, pool, "HTTPS://Shop.example:8443/Lemma"))
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
		if got := p.values()[PublicURL]; got != values || strings.Count(p.log.String(), warning) != warned {
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
	if err := Remove(t.Context(), pool, PublicURL, second); err == nil || !strings.Contains(err.Error(), "runs") {
		t.Errorf("removed: %v", err)
	}
	stop(t, pool, second)
	if err := Remove(t.Context(), pool, PublicURL, second); err != nil {
		t.Error(err)
	}
	wants(t, first, worker) // a process with it runs
	start(t, pool, second)
	stop(t, pool, first)
	stop(t, pool, second)
	if err := Remove(t.Context(), pool, PublicURL, second); err != nil {
		t.Error(err)
	}
	wants(t, "", worker)
	if err := Remove(t.Context(), pool, PublicURL, second); err == nil || !strings.Contains(err.Error(), "not stored") {
		t.Errorf("removed twice: %v", err)
	}
	api := start(t, pool, second)
	pgtest.Exec(t, pool, `insert into settings (name, value, started_at) values ('LEMMA_OTHER', 'x', now() - interval '1 year')`)
	pgtest.Exec(t, pool, `update settings set seen_at = seen_at - interval '31 days'`)
	start(t, pool, "")
	if got, err := List(t.Context(), pool); err != nil || len(got) != 2 || got[1].Value != second {
		t.Errorf("kept are %v, %v", got, err)
	}
	stop(t, pool, second)
	if err := Remove(t.Context(), pool, PublicURL, second); err != nil {
		t.Error(err)
	}
	wants(t, second, api, worker) // a process that was taken for stopped stores it again
}

// Each setting is compared with that of other processes.
func TestSettingsAreCompared(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	const wait, archive = "LEMMA_EVENT_WAIT", "LEMMA_ARCHIVE"
	worker := startWith(t, pool, map[string]string{wait: "10m0s", archive: "true"})
	api := start(t, pool, first)
	startWith(t, pool, map[string]string{wait: "20m0s", archive: "true"})
	stop(t, pool, "20m0s")
	startWith(t, pool, map[string]string{wait: "15m0s"})
	worker.sync()
	worker.sync()
	api.sync()
	got, want := worker.log.String(), "setting="+wait+" configured=10m0s others=[15m0s]"
	if strings.Count(got, "different values") != 1 || !strings.Contains(got, want) {
		t.Error(got)
	}
	if got := api.log.String(); strings.Contains(got, "different values") {
		t.Error(got)
	}
	for name, want := range map[string]float64{wait: 2, archive: 1, PublicURL: 1} {
		for _, p := range []*process{worker, api} {
			if got := p.values()[name]; got != want {
				t.Errorf("%s has %v values, want %v", name, got, want)
			}
		}
	}
}

// A process stores its values when they are not fresh, so that reading does not write.
func TestFreshValuesAreNotStored(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	const version = `select string_agg(ctid::text || xmax::text, ' ' order by name) from settings`
	p := startWith(t, pool, map[string]string{"LEMMA_A": "1", "LEMMA_B": "2"})
	before := pgtest.One[string](t, pool, version)
	p.sync()
	if after := pgtest.One[string](t, pool, version); after != before {
		t.Errorf("stored again: %s, %s", before, after)
	}
	pgtest.Exec(t, pool, `update settings set seen_at = now() - interval '6 seconds' where name = 'LEMMA_B'`)
	p.sync()
	if n := pgtest.One[int](t, pool, `select count(*)::int from settings where seen_at > now() - interval '5 seconds'`); n != 2 {
		t.Errorf("%d are fresh", n)
	}
	pgtest.Exec(t, pool, `delete from settings`)
	p.sync()
	if n := pgtest.One[int](t, pool, `select count(*)::int from settings`); n != 2 {
		t.Errorf("%d are stored after a loss", n)
	}
}

func TestLongest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ stored, want string }{
		{"", ""}, {"1h0m0s", "1h0m0s"}, {"1h0m0s 3h0m0s 2h0m0s", "3h0m0s"}, {"1h0m0s 0s 2h0m0s", "0s"}, {"0s 1h0m0s", "0s"},
	} {
		all := []Stored{{Name: "other", Value: "9h0m0s"}}
		for value := range strings.FieldsSeq(c.stored) {
			all = append(all, Stored{Name: "kept", Value: value})
		}
		longest, d, err := Longest(all, "kept")
		if err != nil || (longest == nil) != (c.want == "") || longest != nil && (longest.Value != c.want || d.String() != c.want) {
			t.Errorf("of %q: %v, %v, %v", c.stored, longest, d, err)
		}
	}
	if _, _, err := Longest([]Stored{{Name: "kept", Value: "x"}}, "kept"); err == nil {
		t.Error("a value that is no duration is no error")
	}
}

// A process that started while the clock of the database was ahead is not newer than those that
// start when it is right again.
func TestTimesOfProcessesThatAreTooFarAhead(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	before := start(t, pool, first)
	pgtest.Exec(t, pool, `update settings set started_at = now() + interval '1 day', seen_at = now() + interval '1 day'`)
	before.startedAt = before.startedAt.Add(24 * time.Hour)
	if n, err := before.Repairs()[0].Run(t.Context()); n != 1 || err != nil {
		t.Fatalf("%d repaired, %v", n, err)
	}
	wants(t, first, before)
	after := start(t, pool, second)
	wants(t, second, before, after)
	stop(t, pool, first) // it stores its row again
	wants(t, second, before, after)
}

// The host of a public URL is of all workspaces from then on, also one that a workspace had before.
func TestTheHostOfAPublicURLIsOfAll(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	ws := pgtest.Workspace(t, pool)
	pgtest.Exec(t, pool, `insert into tracking_hosts (host, workspace_id) values ('second.example', $1), ('other.example', $1)`, ws)
	start(t, pool, first)
	start(t, pool, "https://Second.example:8443")
	start(t, pool, "https://go.Müller.example")
	start(t, pool, "")
	got := pgtest.Column[string](t, pool, `select host || ' ' || (workspace_id is null) from tracking_hosts order by host`)
	if want := "first.example true, go.xn--mller-kva.example true, other.example false, second.example true"; strings.Join(got, ", ") != want {
		t.Errorf("%q, want %s", got, want)
	}
}

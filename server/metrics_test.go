package server

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"lemma/pgtest"
	"lemma/pgtest/shop"
)

// docs/reference/metrics.md explains exactly the metrics of Lemma, with their labels.
func TestMetricsAreExplained(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	explained := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(lemma_[^`]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		explained[m[1]] = true
	}
	registered := registeredMetrics(newServer(t, pgtest.DB(t), Config{}).metrics)
	for _, name := range slices.Sorted(maps.Keys(registered)) {
		if !explained[name] {
			t.Errorf("docs/reference/metrics.md does not explain %s", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(explained)) {
		if !registered[name] {
			t.Errorf("docs/reference/metrics.md explains %s, which is not registered", name)
		}
	}
}

// The metrics of dev/alerts.yaml are registered.
func TestAlertsNameMetrics(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile("../dev/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	registered := map[string]bool{}
	for name := range registeredMetrics(newServer(t, pgtest.DB(t), Config{}).metrics) {
		name, _, _ = strings.Cut(name, "{")
		registered[name] = true
	}
	for _, name := range regexp.MustCompile(`\blemma_[a-z_]+`).FindAllString(string(rules), -1) {
		if !registered[name] && !registered[strings.TrimSuffix(name, "_bucket")] {
			t.Errorf("dev/alerts.yaml names %s, which is not registered", name)
		}
	}
}

// Each rule of dev/alerts.yaml has a row in docs/reference/metrics.md, and each row a rule.
func TestAlertsAreExplained(t *testing.T) {
	t.Parallel()
	named := func(path, pattern string) map[string]bool {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			names[m[1]] = true
		}
		return names
	}
	rules := named("../dev/alerts.yaml", "alert: (Lemma[A-Za-z]+)")
	rows := named("../docs/reference/metrics.md", "(?m)^\\| `(Lemma[A-Za-z]+)` \\|")
	if len(rules) == 0 || !maps.Equal(rules, rows) {
		t.Errorf("the rules are %q, and the rows %q", slices.Sorted(maps.Keys(rules)), slices.Sorted(maps.Keys(rows)))
	}
}

// Each metric of docs/guides/what-waits-for-a-person.md has a rule in dev/alerts.yaml.
func TestWhatWaitsForAPersonHasAnAlert(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../docs/guides/what-waits-for-a-person.md")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := os.ReadFile("../dev/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("`(lemma_[a-z_]+)`").FindAllStringSubmatch(string(guide), -1)
	if len(names) == 0 {
		t.Error("the guide names no metric")
	}
	for _, name := range names {
		if !regexp.MustCompile(`expr: .*\b` + name[1] + `\b`).Match(rules) {
			t.Errorf("dev/alerts.yaml has no rule with %s", name[1])
		}
	}
}

// The gauge of scheduled campaigns counts from the time of the campaign that is due longest,
// while no worker runs.
func TestDueCampaignsAreMeasured(t *testing.T) {
	t.Parallel()
	p := &planned{Fixture: shop.New(pgtest.NewShop(t, `create table people (id text, email text, name text)`), shop.Local, nil)}
	p.Fill("select id, email, name from people")
	p.Server = newServer(t, p.Fixture.Pool, Config{PublicURL: "https://lemma.shop.example"})
	gauge := func() float64 { return queueGauge(t, p.Pool, "lemma_campaign_oldest_due_seconds") }
	for range 2 {
		_, err := p.Campaigns.Schedule(t.Context(), p.Workspace, p.newCampaign(), time.Now().Add(time.Hour), uuid.Nil)
		p.Must(err)
	}
	if got := gauge(); got != 0 {
		t.Errorf("none is due: %v", got)
	}
	p.Exec(`update campaigns set scheduled_at = now() - interval '10 minutes'
		where id = (select id from campaigns where status = 'scheduled' order by id limit 1)`)
	if got := gauge(); got < 600 || got > 700 {
		t.Errorf("one is due for ten minutes: %v", got)
	}
	p.Exec(`update campaigns set status = 'draft', scheduled_at = null where scheduled_at < now()`)
	if got := gauge(); got != 0 {
		t.Errorf("it is a draft again: %v", got)
	}
}

// The gauge of A/B tests counts those that wait for a person.
func TestInconclusiveTestsAreMeasured(t *testing.T) {
	t.Parallel()
	p := &planned{Fixture: shop.New(pgtest.NewShop(t, `create table people (id text, email text, name text)`), shop.Local, nil)}
	p.Fill("select id, email, name from people")
	p.Server = newServer(t, p.Fixture.Pool, Config{PublicURL: "https://lemma.shop.example"})
	for i, status := range []string{"inconclusive", "evaluating", "inconclusive"} {
		if got := queueGauge(t, p.Pool, "lemma_iterations_inconclusive"); int(got) != (i+1)/2 {
			t.Errorf("%v wait of the first %d", got, i)
		}
		p.Exec(`insert into iterations (workspace_id, id, campaign_id, status, sample_percent, holdout_percent)
			values ($1, gen_random_uuid(), $2, $3, 50, 0)`, p.Workspace, p.newCampaign(), status)
	}
	if got := queueGauge(t, p.Pool, "lemma_iterations_inconclusive"); got != 2 {
		t.Errorf("%v wait", got)
	}
}

// A provider that fails counts while messages are due over it. They do not count as late, for which
// workers would be missing.
func TestFailingProvidersAreMeasured(t *testing.T) {
	t.Parallel()
	p := &planned{Fixture: shop.New(pgtest.NewShop(t, `create table people (id text, email text, name text)`), shop.Local, nil)}
	p.Fill("select id, email, name from people")
	p.Server = newServer(t, p.Fixture.Pool, Config{PublicURL: "https://lemma.shop.example"})
	p.Exec(`insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, max_attempts, due_at)
		select $1, gen_random_uuid(), id, id, $2, gen_random_uuid(), 1, 1, now() - interval '1 hour' from gen_random_uuid() id`,
		p.Workspace, p.Provider)
	p.Exec(`insert into provider_meters (workspace_id, provider_id) values ($1, $2) on conflict do nothing`, p.Workspace, p.Provider)
	want := func(circuits, late float64) {
		t.Helper()
		if got := queueGauge(t, p.Pool, "lemma_circuits_open"); got != circuits {
			t.Errorf("%v circuits are open, want %v", got, circuits)
		}
		if got := queueGauge(t, p.Pool, "lemma_queue_oldest_due_seconds"); got < late || got > late+60 {
			t.Errorf("the oldest waits for %v s, want %v", got, late)
		}
	}
	want(0, 3600)
	p.Exec(`update provider_meters set failures = 1, opened_at = now(), open_until = now() where provider_id = $1`, p.Provider)
	want(1, 0)
	p.Exec(`update batches set due_at = now() + interval '10 seconds'`) // after a call
	want(1, 0)
	p.Exec(`update provider_meters set open_until = now() + interval '15 minutes'`) // as the provider asks for
	p.Exec(`update batches set due_at = now() + interval '16 minutes'`)
	want(1, 0)
	p.Exec(`update batches set gate = 'held'`) // its campaign is paused
	want(0, 0)
}

// The gauge of pauses counts what Lemma has paused, and not what a request has.
func TestPausesAreMeasured(t *testing.T) {
	t.Parallel()
	p := &planned{Fixture: shop.New(pgtest.NewShop(t, `create table people (id text, email text, name text)`), shop.Local, nil)}
	p.Fill("select id, email, name from people")
	p.Server = newServer(t, p.Fixture.Pool, Config{PublicURL: "https://lemma.shop.example"})
	for _, reason := range []string{"provider_refused", "provider_refused", "query_failed", "requested"} {
		p.Exec(`update campaigns set status = 'paused', paused_at = now(), status_reason = $2 where id = $1`, p.newCampaign(), reason)
	}
	for _, reason := range []string{"batch_crashed", ""} {
		p.Exec(`with f as (
				insert into flows (workspace_id, id, name, status, status_reason, live_version)
				values ($1, gen_random_uuid(), 'flow ' || $2, 'paused', nullif($2, ''), 1) returning workspace_id, id
			) insert into flow_versions (workspace_id, flow_id, version, definition, request) select workspace_id, id, 1, '{}', id from f`,
			p.Workspace, reason)
	}
	got := map[string]float64{}
	for _, m := range queueMetrics(t, p.Pool, "lemma_paused") {
		got[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetGauge().GetValue()
	}
	want := map[string]float64{"campaign provider_refused": 2, "campaign query_failed": 1, "flow batch_crashed": 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// queueGauge reads a gauge anew: a collector keeps what it has read for a while.
func queueGauge(t *testing.T, pool *pgxpool.Pool, name string) float64 {
	t.Helper()
	return queueMetrics(t, pool, name)[0].GetGauge().GetValue()
}

func queueMetrics(t *testing.T, pool *pgxpool.Pool, name string) []*dto.Metric {
	t.Helper()
	fresh := prometheus.NewRegistry()
	fresh.MustRegister(&queue{pool: pool})
	found, err := fresh.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.GetName() == name {
			return f.GetMetric()
		}
	}
	t.Fatalf("there is no %s", name)
	return nil
}

var describedMetric = regexp.MustCompile(`fqName: "(lemma_[a-z_]+)".*variableLabels: \{([^}]*)\}`)

// registeredMetrics are the names of all metrics of Lemma, as in name{label,label}.
func registeredMetrics(r *prometheus.Registry) map[string]bool {
	descriptions := make(chan *prometheus.Desc)
	go func() {
		defer close(descriptions)
		r.Describe(descriptions)
	}()
	names := map[string]bool{}
	for d := range descriptions {
		if m := describedMetric.FindStringSubmatch(d.String()); m != nil {
			names[strings.ReplaceAll(m[1]+"{"+m[2]+"}", "{}", "")] = true
		}
	}
	return names
}

// A scrape that takes long is not repeated at once: its numbers are answered again.
func TestScrapesReadTheQueueSeldom(t *testing.T) {
	t.Parallel()
	q := &queue{pool: pgtest.DB(t)}
	collect := func() (all []prometheus.Metric) {
		ch := make(chan prometheus.Metric, 100)
		q.Collect(ch)
		close(ch)
		for m := range ch {
			all = append(all, m)
		}
		return all
	}
	first := collect()
	q.next = time.Now().Add(time.Hour)
	if !slices.Equal(collect(), first) || len(first) == 0 {
		t.Errorf("the queue is read again, or has no metrics")
	}
	q.next = time.Now()
	if again := collect(); slices.Equal(again, first) || len(again) != len(first) || q.next.After(time.Now().Add(queueOldMost)) {
		t.Errorf("%d metrics are not read again", len(again))
	}
}

package campaigns

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/abtest"
	"lemma/pgtest"
)

// ab is an experiment with two variants and a sample of half the audience.
func ab(change ...func(*Experiment)) *Experiment {
	e := &Experiment{Variants: []Variant{{Name: "A", Weight: 50}, {Name: "B", Weight: 50, Subject: "Look, {{ name }}"}},
		SamplePercent: 50, Metric: &Metric{Event: "bought"}, Duration: time.Hour, MinSample: 10}
	for _, c := range change {
		c(e)
	}
	return e
}

// experiments is setup with timings for tests.
func experiments(t *testing.T, n int, change ...func(*Config)) *bundle {
	t.Helper()
	atOnce := func(cfg *Config) { cfg.CutOffGrace, cfg.EventGrace = time.Nanosecond, time.Nanosecond }
	return setup(t, n, append([]func(*Config){atOnce}, change...)...)
}

// experiment sends a campaign with an experiment. The plan is by the random id of the iteration:
// one in some thousand has a ratio of variants with which no winner is decided, and is cancelled.
func (b *bundle) experiment(e *Experiment) Campaign {
	b.T.Helper()
	ctx := context.Background()
	for {
		c, err := b.Create(ctx, b.Workspace, b.tested(e))
		b.Must(err)
		c, err = b.Send(ctx, b.Workspace, c.ID, uuid.Nil)
		b.Must(err)
		if b.ratio(b.iteration(c)) >= 0.001 {
			return c
		}
		_, _, err = b.Cancel(ctx, b.Workspace, c.ID, uuid.Nil)
		b.Must(err)
	}
}

// ratio is the probability that the variants of the sample differ as much from their weights.
func (b *bundle) ratio(it Iteration) float64 {
	recipients, weights := make([]int64, len(it.Variants)), make([]int, len(it.Variants))
	for i, v := range it.Variants {
		recipients[i], weights[i] = int64(len(b.members(it, b.customers, i))), v.Weight
	}
	return abtest.SampleRatioMismatch(recipients, weights)
}

// tested is a new campaign with an experiment.
func (b *bundle) tested(e *Experiment) NewCampaign {
	return NewCampaign{ID: lemma.NewID(), Name: "c", AudienceID: b.Audience, TemplateID: b.Template,
		ProviderID: b.Provider, FromName: "Shop", FromEmail: "news@shop.example", Experiment: e}
}

func (b *bundle) iteration(c Campaign) Iteration {
	b.T.Helper()
	it, err := b.GetIteration(context.Background(), b.Workspace, *c.IterationID)
	b.Must(err)
	return it
}

// sampled sends an experiment and the notifications of its sample.
func (b *bundle) sampled(e *Experiment) (Campaign, Iteration) {
	b.T.Helper()
	c := b.experiment(e)
	b.fanout(c.ID)
	b.endBatches()
	return c, b.iteration(c)
}

// members are the profiles of a variant in the sample, or of the holdout (-1), by the plan.
func (b *bundle) members(it Iteration, n, variant int) (profiles []string) {
	plan := assignmentPlan(it.ID, it.Experiment)
	for i := 1; i <= n; i++ {
		a := plan.Assign(fmt.Sprint(i))
		if a.Group == abtest.Sample && a.Variant == variant || a.Group == abtest.Holdout && variant == holdout {
			profiles = append(profiles, fmt.Sprint(i))
		}
	}
	return profiles
}

// convert records an event for each profile.
func (b *bundle) convert(profiles []string, name string) {
	b.T.Helper()
	b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at)
		select $1, gen_random_uuid(), p, $3, now() from unnest($2::text[]) p`, b.Workspace, profiles, name)
}

// endTest moves the cut-off to now.
func (b *bundle) endTest(it Iteration) {
	b.T.Helper()
	b.Exec(`update iterations set cut_off_at = now() where id = $1`, it.ID)
}

func (b *bundle) evaluate() {
	b.T.Helper()
	_, err := b.EvaluateDue(context.Background())
	b.Must(err)
}

// sentBy counts the notifications of a campaign by the variant's name, and by rollout.
func (b *bundle) sentBy(c Campaign) map[string]int {
	b.T.Helper()
	it := b.iteration(c)
	names := map[uuid.UUID]string{}
	for _, v := range it.Variants {
		names[v.contentID] = v.Name
	}
	if it.rolloutID != nil {
		names[*it.rolloutID] = "rollout"
	}
	got := map[string]int{}
	for _, id := range pgtest.Column[uuid.UUID](b.T, b.Pool, `
		select b.content_id from notifications n
		join batches b on b.workspace_id = n.workspace_id and b.origin_id = n.origin_id and b.id = n.batch_id
		where n.workspace_id = $1 and n.origin_id = $2`, b.Workspace, c.ID) {
		got[names[id]]++
	}
	return got
}

func TestTheBestVariantIsRolledOut(t *testing.T) {
	const n = 1200
	b := experiments(t, n)
	ctx := context.Background()
	c, it := b.sampled(ab(func(e *Experiment) { e.HoldoutPercent = 10 }))
	first, second, out := b.members(it, n, 0), b.members(it, n, 1), b.members(it, n, holdout)
	if it.Status != IterationRunning {
		t.Fatalf("after the sample it is %s", it.Status)
	}
	if d := cmp.Diff(map[string]int{"A": len(first), "B": len(second)}, b.sentBy(c)); d != "" {
		t.Error(d)
	}
	got := b.get(c.ID)
	if got.Counts.SkippedBy["holdout"] != int64(len(out)) || !got.Counts.Balanced {
		t.Errorf("%d in the holdout: %+v", len(out), got.Counts)
	}
	b.Must(b.Tick(ctx))
	if got := b.get(c.ID).Status; got != Sending {
		t.Errorf("without a winner it is %s", got)
	}
	b.convert(first[:20], "bought")
	b.convert(second[:80], "bought")
	b.convert(second[:80], "bought") // again
	b.convert(out[:5], "bought")
	b.convert(first, "looked")
	if _, err := b.MeasureDue(ctx); err != nil {
		t.Error(err)
	}
	b.evaluate()
	if got := b.iteration(c).Status; got != IterationRunning {
		t.Fatalf("before the cut-off it is %s", got)
	}
	b.ExecDB(`insert into customers select i, 'late' || i || '@shop.example', 'L', false from generate_series(9001, 9050) i`) // join
	b.endTest(it)
	// What came before the cut-off may not be applied yet, so only the verdict has its numbers.
	b.Exec(`update iterations set measure_at = now() where workspace_id = $1`, b.Workspace)
	if _, err := b.MeasureDue(ctx); err != nil {
		t.Error(err)
	}
	b.WantCount(0, `select count(*) from iteration_results r join iterations i on i.workspace_id = r.workspace_id and i.id = r.iteration_id
		where r.at >= i.cut_off_at`)
	b.evaluate()
	b.WantCount(3, `select count(*) from iteration_results r join iterations i on i.workspace_id = r.workspace_id and i.id = r.iteration_id
		where r.at = i.cut_off_at`)
	it = b.iteration(c)
	if it.Status != IterationDecided || it.Winner == nil || *it.Winner != 1 || it.DecidedBy != "evaluation" {
		t.Fatalf("%+v", it)
	}
	v := it.Verdict
	if v.Variants[1].Converted != 80 || v.Variants[0].Converted != 20 || v.HoldoutConvert != 5 || v.HoldoutCount != int64(len(out)) ||
		v.Variants[0].Recipients != int64(len(first)) || v.Variants[0].Sent != int64(len(first)) || !strings.Contains(v.Sentence, "B wins") {
		t.Errorf("%+v", v)
	}
	b.fanout(c.ID)
	if got := b.iteration(c).Status; got != IterationRollingOut {
		t.Errorf("during the rollout it is %s", got)
	}
	late := 0
	for i := 9001; i <= 9050; i++ {
		if assignmentPlan(it.ID, it.Experiment).Assign(fmt.Sprint(i)).Group != abtest.Holdout {
			late++
		}
	}
	rest := n - len(first) - len(second) - len(out) + late
	if d := cmp.Diff(map[string]int{"A": len(first), "B": len(second), "rollout": rest}, b.sentBy(c)); d != "" {
		t.Error(d)
	}
	b.endBatches()
	b.Must(b.Tick(ctx))
	got = b.get(c.ID)
	if got.Status != Completed || b.iteration(c).Status != IterationCompleted || !got.Counts.Balanced || got.Counts.Audience != n+50 {
		t.Errorf("%s, %s: %+v", got.Status, b.iteration(c).Status, got.Counts)
	}
	for address, times := range b.addresses(c.ID) {
		if times != 1 {
			t.Errorf("%s has %d notifications", address, times)
		}
	}
	results, err := b.Results(ctx, b.Workspace, it.ID)
	if err != nil || len(results) != 6 || *results[2].Converted != 80 || results[0].Ordinal != holdout || results[5].Ordinal != 1 {
		t.Errorf("%v: %+v", err, results)
	}
	if left := b.Count(`select count(*) from iteration_members where workspace_id = $1`, b.Workspace); left != 0 {
		t.Errorf("%d rows of members are left", left)
	}
	var events []string
	timeline, err := b.Timeline(ctx, b.Workspace, it.ID)
	for _, e := range timeline {
		events = append(events, e.Event)
	}
	if d := cmp.Diff([]string{"started", "sampled", "decided", "rollout_started", "completed"}, events); d != "" || err != nil {
		t.Error(d, err)
	}
}

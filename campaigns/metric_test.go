package campaigns

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
)

// bySQL is an experiment whose metric is a query on the customer's database.
func (b *bundle) bySQL(sql string) *Experiment {
	b.T.Helper()
	var source uuid.UUID
	b.Must(b.Pool.QueryRow(context.Background(), `select data_source_id from audiences where id = $1`, b.Audience).Scan(&source))
	return ab(func(e *Experiment) { e.Metric = &Metric{DataSourceID: source, SQL: sql} })
}

func TestAMetricInSQL(t *testing.T) {
	b := experiments(t, 600)
	c, it := b.sampled(b.bySQL(`select id from customers where name = 'bought' and :cut_off_at is not null`))
	b.ExecDB(`update customers set name = 'bought' where id = any($1)`, append(b.members(it, 600, 1)[:70], b.members(it, 600, 0)[:10]...))
	b.endTest(it)
	b.evaluate()
	b.decidedOnce(c, 1)
	if v := b.iteration(c).Verdict; v.Variants[0].Converted != 10 || v.Variants[1].Converted != 70 {
		t.Errorf("%+v", v)
	}
}

// What is in the database after the cut-off does not count, however late the evaluation
// runs. A query that cannot know is refused.
func TestAMetricInSQLEndsAtTheCutOff(t *testing.T) {
	b := experiments(t, 600)
	b.ExecDB(`alter table customers add column bought_at timestamp`)
	_, err := b.Create(context.Background(), b.Workspace, NewCampaign{ID: lemma.NewID(), Name: "c", AudienceID: b.Audience,
		TemplateID: b.Template, ProviderID: b.Provider, FromName: "Shop", FromEmail: "news@shop.example",
		Experiment: b.bySQL(`select id from customers where bought_at > now()`)})
	checkFault(t, err, "/experiment/metric/sql", audience.CodeQuery, ":cut_off_at")
	c, it := b.sampled(b.bySQL(`select id from customers where bought_at >= :started_at and bought_at < :cut_off_at`))
	b.endTest(it)
	it = b.iteration(c)
	first, second := b.members(it, 600, 0), b.members(it, 600, 1)
	bought := func(at time.Time, profiles []string) {
		b.ExecDB(`update customers set bought_at = $2 where id = any($1)`, profiles, at.UTC())
	}
	bought(*it.StartedAt, first[:20])
	bought(it.CutOffAt.Add(-time.Microsecond), second[:80])
	bought(*it.CutOffAt, first[20:120])
	bought(it.StartedAt.Add(-time.Microsecond), second[80:90])
	b.evaluate()
	b.decidedOnce(c, 1)
	if v := b.iteration(c).Verdict; v.Variants[0].Converted != 20 || v.Variants[1].Converted != 80 {
		t.Errorf("%+v", v)
	}
}

// CampaignIteration!NeverStuck: an evaluation that fails for now is repeated. After five
// failures in a row, or one that is permanent, a person decides.
func TestAnEvaluationThatFails(t *testing.T) {
	again := func(b *bundle, it Iteration) {
		b.Exec(`update iterations set retry_at = now() where id = $1`, it.ID)
		b.evaluate()
	}
	t.Run("for now", func(t *testing.T) {
		b := experiments(t, 600)
		c, it := b.sampled(b.bySQL(`select id from customers where name = 'bought' and :cut_off_at is not null`))
		b.ExecDB(`update customers set name = 'bought' where id = any($1)`, append(b.members(it, 600, 1)[:70], b.members(it, 600, 0)[:10]...))
		b.endTest(it)
		b.ExecDB(`alter role ` + b.Role + ` connection limit 0`)
		for range evaluationFailures - 1 {
			again(b, it)
			if got := b.iteration(c); got.Status != IterationEvaluating || got.StatusReason == "" {
				t.Fatalf("%s: %s", got.Status, got.StatusReason)
			}
		}
		b.ExecDB(`alter role ` + b.Role + ` connection limit -1`)
		again(b, it)
		b.decidedOnce(c, 1)
	})
	t.Run("five times", func(t *testing.T) {
		b := experiments(t, 40)
		c, it := b.sampled(b.bySQL(`select id from customers where now() > :started_at and :cut_off_at > :started_at`))
		b.endTest(it)
		b.ExecDB(`alter role ` + b.Role + ` connection limit 0`)
		for range evaluationFailures {
			again(b, it)
		}
		b.ExecDB(`alter role ` + b.Role + ` connection limit -1`)
		again(b, it)
		if got := b.iteration(c); got.Status != IterationInconclusive || got.Winner != nil {
			t.Errorf("%s: %s", got.Status, got.StatusReason)
		}
		b.waitsOnce(c)
	})
	t.Run("permanently", func(t *testing.T) {
		b := experiments(t, 40)
		c, it := b.sampled(b.bySQL(`select id from customers where name <> 'x' and now() < :cut_off_at`))
		b.endTest(it)
		b.ExecDB(`alter table customers rename column name to called`)
		again(b, it)
		b.ExecDB(`alter table customers rename column called to name`)
		if got := b.iteration(c); got.Status != IterationInconclusive || got.StatusReason == "" {
			t.Errorf("%s: %s", got.Status, got.StatusReason)
		}
		b.waitsOnce(c)
		if _, err := b.SelectWinner(context.Background(), b.Workspace, it.ID, "A", uuid.Nil); err != nil {
			t.Fatal(err)
		}
		b.decidedOnce(c, 0)
	})
}

// The policy without a significant difference. A mismatch of the sample's ratio blocks
// every automatic choice.
func TestOnInconclusive(t *testing.T) {
	for policy, winner := range map[string]int{RollOutBest: 1, RollOutControl: 0, Hold: -1} {
		for _, mismatch := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, mismatch %t", policy, mismatch), func(t *testing.T) {
				b := experiments(t, 400)
				c, it := b.sampled(ab(func(e *Experiment) { e.OnInconclusive, e.SamplePercent = policy, 100 }))
				// A tenth and an eighth: variant 1 is the better one, however many each variant has.
				control, other := b.members(it, 400, 0), b.members(it, 400, 1)
				b.convert(control[:len(control)/10], "bought")
				b.convert(other[:len(other)/8], "bought")
				if mismatch { // most recipients of a variant are lost
					b.Exec(`update iteration_members set profiles = substring(profiles for 80) where ordinal = 0 and origin_id = $1`, c.ID)
				}
				b.endTest(it)
				b.evaluate()
				got := b.iteration(c)
				if winner < 0 || mismatch {
					if got.Status != IterationInconclusive || got.Winner != nil || got.Verdict == nil {
						t.Errorf("%s, %s", got.Status, got.StatusReason)
					}
					b.waitsOnce(c)
				} else if got.Winner == nil || *got.Winner != winner || got.DecidedBy != "on_inconclusive" || got.StatusReason != "not_significant" {
					t.Errorf("%s, %v, %s", got.Status, got.Winner, got.StatusReason)
				}
			})
		}
	}
}

// A split has no winner: the campaign completes when its notifications have ended. Its
// results are those of now, also afterwards.
func TestASplit(t *testing.T) {
	b := experiments(t, 300)
	ctx := context.Background()
	c, it := b.sampled(ab(func(e *Experiment) { e.Metric, e.Duration, e.SamplePercent = nil, 0, 100 }))
	if _, err := b.MeasureDue(ctx); err != nil {
		t.Error(err)
	}
	if _, err := b.SelectWinner(ctx, b.Workspace, it.ID, "A", uuid.Nil); err == nil {
		t.Error("a split has a winner")
	}
	b.evaluate()
	b.Must(b.Tick(ctx))
	got := b.get(c.ID)
	if got.Status != Completed || b.iteration(c).Status != IterationCompleted || got.Counts.Sent != 300 {
		t.Errorf("%s, %s", got.Status, b.iteration(c).Status)
	}
	now, err := b.Present(ctx, b.iteration(c))
	if b.Must(err); len(now) != 2 || now[0].Sent+now[1].Sent != 300 || now[1].Sent == 0 || now[1].Ordinal != 1 {
		t.Errorf("results %+v", now)
	}
}

// A stop rolls out nothing, and the campaign completes with its sample. Opted-out
// profiles outside the sample are recorded: no other profile is sent to at their address.
func TestAStop(t *testing.T) {
	b := experiments(t, 300)
	ctx := context.Background()
	b.ExecDB(`update customers set opted_out = true where id::int <= 30`)
	b.ExecDB(`update customers set email = 'c1@shop.example' where id::int > 290`)
	c, it := b.sampled(ab())
	if n := b.get(c.ID).Counts.SkippedBy["unsubscribed"]; n != 30 {
		t.Errorf("%d opted-out profiles are recorded", n)
	}
	if n := b.addresses(c.ID)["c1@shop.example"]; n != 0 {
		t.Error("an opted-out address is sent to")
	}
	if _, err := b.StopIteration(ctx, b.Workspace, it.ID, uuid.Nil); err != nil {
		t.Fatal(err)
	}
	b.fanout(c.ID)
	b.Must(b.Tick(ctx))
	got := b.get(c.ID)
	if got.Status != Completed || b.iteration(c).Status != IterationCancelled || got.Counts.Audience == 300 || !got.Counts.Balanced {
		t.Errorf("%s, %s: %+v", got.Status, b.iteration(c).Status, got.Counts)
	}
}

// The audience changes before the rollout: the campaign fails closed with its iteration.
func TestAnAudienceThatBreaksBeforeTheRollout(t *testing.T) {
	b := experiments(t, 600)
	c, it := b.sampled(ab())
	if _, err := b.SelectWinner(context.Background(), b.Workspace, it.ID, "B", uuid.Nil); err != nil {
		t.Fatal(err)
	}
	b.ExecDB(`alter table customers rename column name to called`)
	b.fanout(c.ID)
	if got := b.get(c.ID); got.Status != Failed || b.iteration(c).Status != IterationCancelled {
		t.Errorf("%s, %s", got.Status, b.iteration(c).Status)
	}
}

// After the decision, the sizes of the sample are those of the verdict.
func TestWarningsOfADecidedSampleAreByItsVerdict(t *testing.T) {
	t.Parallel()
	now := time.Now()
	it := Iteration{Experiment: *ab(), Verdict: &Verdict{Variants: []VariantVerdict{{Recipients: 70, Sent: 69}, {Recipients: 80, Sent: 80}}}}
	it.MinSample = 100
	got := it.Warnings([]IterationEvent{{Event: eventSampled, At: now}}, []Tally{{At: now, Recipients: 7}})
	if len(got) == 0 || !strings.Contains(strings.Join(got, " "), "69 notifications") {
		t.Errorf("%q", got)
	}
}

// min_sample counts notifications, of which a recipient with several addresses gets several; the power
// is that of the recipients.
func TestWarningsOfRecipientsWithSeveralAddresses(t *testing.T) {
	t.Parallel()
	now := time.Now()
	sampled := []IterationEvent{{Event: eventSampled, At: now}}
	it := Iteration{Experiment: *ab()}
	it.MinSample, it.BaseRate, it.Effect = 200, 0.05, 0.01
	for sent, warned := range map[int64]bool{199: true, 200: false} {
		all := strings.Join(it.Warnings(sampled, []Tally{{At: now, Recipients: 119, Sent: 7, Failed: 1, Skipped: 2, Written: sent + 3}}), " ")
		if strings.Contains(all, "min_sample") != warned || !strings.Contains(all, "119 recipients per variant") {
			t.Errorf("%d sent: %q", sent, all)
		}
		it.Verdict = &Verdict{Variants: []VariantVerdict{{Recipients: 119, Sent: sent}}}
		if got := strings.Join(it.Warnings(sampled, nil), " "); got != all {
			t.Errorf("after the verdict: %q", got)
		}
		it.Verdict = nil
	}
	if all := strings.Join(it.warnings(it.smallest(1000), it.smallest(10_000)), " "); strings.Contains(all, "min_sample") {
		t.Errorf("of a preview: %q", all)
	}
}

// Results from before the sample was written do not count for its size.
func TestASampleThatWasNotMeasuredIsNotCalledSmall(t *testing.T) {
	b := experiments(t, 400)
	ctx := context.Background()
	c := b.experiment(ab())
	warnings := func() []string {
		t.Helper()
		it := b.iteration(c)
		events, err := b.Timeline(ctx, b.Workspace, it.ID)
		b.Must(err)
		results, err := b.Results(ctx, b.Workspace, it.ID)
		b.Must(err)
		return it.Warnings(events, results)
	}
	measured := func() {
		t.Helper()
		b.Exec(`update iterations set measure_at = now() where id = $1`, *c.IterationID)
		if n, err := b.MeasureDue(ctx); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	measured() // no batch is written yet
	if w := warnings(); w != nil {
		t.Errorf("while the sample is written: %q", w)
	}
	b.fanout(c.ID)
	if w := warnings(); len(w) != 1 || !strings.HasPrefix(w[0], "there are no results from after the sample was written") {
		t.Errorf("before the next results: %q", w)
	}
	measured()
	least := min(len(b.members(b.iteration(c), 400, 0)), len(b.members(b.iteration(c), 400, 1)))
	if w := warnings(); len(w) != 1 || !strings.Contains(w[0], fmt.Sprintf(": %d recipients per variant", least)) {
		t.Errorf("after the next results, of %d recipients: %q", least, w)
	}
}

// Variants that are sent at different times cannot be compared at one moment: the later ones have less
// time. A split may have them.
func TestOffsetsNeedASplit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first, second time.Duration
		split         bool
		fault         bool
	}{
		"equal": {time.Hour, time.Hour, false, false}, "different": {0, time.Hour, false, true}, "of a split": {0, time.Hour, true, false},
	} {
		e := ab()
		e.Variants[0].SendOffset, e.Variants[1].SendOffset = c.first, c.second
		if c.split {
			e.Metric, e.Duration, e.EvaluateAt, e.SamplePercent = nil, 0, nil, 100
		}
		found := slices.ContainsFunc(e.faults(lemma.Email, time.Now()), func(f lemma.Field) bool {
			return f.Pointer == "/experiment/variants/1/send_offset" && f.Code == "not_allowed"
		})
		if found != c.fault {
			t.Errorf("%s: refused: %t", name, found)
		}
	}
}

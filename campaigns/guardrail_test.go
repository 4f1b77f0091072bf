package campaigns

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// guarded is an experiment of 400 profiles whose sample is written and not sent. The
// guardrail is 1 %.
func (b *bundle) guarded(metric string, change ...func(*Experiment)) (Campaign, Iteration) {
	b.T.Helper()
	c := b.experiment(ab(append([]func(*Experiment){func(e *Experiment) {
		e.Guardrail, e.OnInconclusive = &Guardrail{metric, 0.01}, RollOutBest
	}}, change...)...))
	b.fanout(c.ID)
	return c, b.iteration(c)
}

// complain records that n recipients of a variant complained or unsubscribed.
func (b *bundle) complain(it Iteration, variant, n int, metric string) {
	b.T.Helper()
	sql := `insert into delivery_counts (workspace_id, origin_id, content_id, state, count) values ($1, $2, $3, 'complained', $4)`
	if metric == Unsubscribes {
		sql = `insert into engagement_counts (workspace_id, origin_id, content_id, opens, unique_opens, clicks, unique_clicks, machine_opens,
			machine_clicks, unsubscribes) values ($1, $2, $3, 0, 0, 0, 0, 0, 0, $4)`
	}
	b.Exec(sql, b.Workspace, it.CampaignID, it.Variants[variant].contentID, n)
}

// endOf ends one batch of a variant as sent.
func (b *bundle) endOf(it Iteration, variant int) {
	b.T.Helper()
	b.Exec(`update batches set status = 'done', sent = size, finished_at = now() where (workspace_id, origin_id, id) in (
		select workspace_id, origin_id, id from batches where workspace_id = $1 and content_id = $2 and status = 'ready' limit 1)`,
		b.Workspace, it.Variants[variant].contentID)
}

func (b *bundle) guardrailDue(it Iteration) {
	b.T.Helper()
	b.Exec(`update iterations set guardrail_at = now() where id = $1 and guardrail_at is not null`, it.ID)
}

func (b *bundle) checkGuardrails() {
	b.T.Helper()
	_, err := b.CheckGuardrails(context.Background())
	b.Must(err)
}

// A variant above the limit is not sent any more and cannot win, though it converts best.
func TestAGuardrailStopsAVariant(t *testing.T) {
	for _, metric := range []string{Complaints, Unsubscribes} {
		t.Run(metric, func(t *testing.T) {
			b := experiments(t, 400)
			ctx := context.Background()
			c, it := b.guarded(metric)
			b.endOf(it, 0)
			b.endOf(it, 1)
			b.complain(it, 0, 1, metric)
			b.complain(it, 1, 5, metric)
			b.checkGuardrails()
			if b.iteration(c).Variants[1].StoppedAt != nil {
				t.Fatal("it is stopped before the first check is due")
			}
			b.guardrailDue(it)
			b.checkGuardrails()
			it = b.iteration(c)
			if it.Variants[0].StoppedAt != nil || it.Variants[1].StoppedAt == nil || !strings.Contains(it.Variants[1].StoppedReason, "5 "+metric) {
				t.Fatalf("%+v", it.Variants)
			}
			live := `select count(*) from batches where workspace_id = $1 and content_id = $2 and status = 'ready'`
			if a, b := b.Count(live, b.Workspace, it.Variants[0].contentID), b.Count(live, b.Workspace, it.Variants[1].contentID); a == 0 || b > 0 {
				t.Errorf("%d batches of A and %d of B can be sent", a, b)
			}
			if n := b.Count(`select count(*) from iteration_log where iteration_id = $1 and event = 'variant_stopped'`, it.ID); n != 1 {
				t.Errorf("%d events", n)
			}
			_, err := b.SelectWinner(ctx, b.Workspace, it.ID, "B", uuid.Nil)
			checkFault(t, err, "/variant", "variant_stopped", "5 "+metric)
			b.endBatches()
			b.convert(b.members(it, 400, 1), "bought")
			b.endTest(it)
			b.evaluate()
			b.decidedOnce(c, 0)
			v := b.iteration(c).Verdict
			if v.Outcome != "one_left" || v.Variants[1].Stopped == "" || v.Variants[0].Stopped != "" || !strings.Contains(v.Sentence, "stopped B") {
				t.Errorf("%+v", v)
			}
			b.fanout(c.ID)
			b.endBatches()
			b.Must(b.Tick(ctx))
			if got := b.get(c.ID); got.Status != Completed || !got.Counts.Balanced || got.Counts.Cancelled == 0 {
				t.Errorf("%s %+v", got.Status, got.Counts)
			}
		})
	}
}

// The evaluation is the last check: what breaks the guardrail then does not win.
func TestTheEvaluationChecksTheGuardrail(t *testing.T) {
	for policy, winner := range map[string]int{RollOutBest: 1, RollOutControl: -1, Hold: -1} {
		t.Run(policy, func(t *testing.T) {
			b := experiments(t, 400)
			c, it := b.guarded(Complaints, func(e *Experiment) { e.OnInconclusive = policy })
			b.endBatches()
			b.complain(it, 0, 20, Complaints)
			b.convert(b.members(it, 400, 0), "bought")
			b.endTest(it)
			b.evaluate()
			if winner >= 0 {
				b.decidedOnce(c, winner)
			} else if got := b.iteration(c); got.Status != IterationInconclusive || got.Winner != nil || got.StatusReason != "one_left" {
				t.Errorf("%s %s", got.Status, got.StatusReason)
			}
			if b.iteration(c).Variants[0].StoppedAt == nil {
				t.Error("A is not stopped")
			}
		})
	}
	t.Run("all are stopped", func(t *testing.T) {
		b := experiments(t, 400)
		c, it := b.guarded(Complaints)
		b.endBatches()
		b.complain(it, 0, 20, Complaints)
		b.complain(it, 1, 20, Complaints)
		b.endTest(it)
		b.evaluate()
		if got := b.iteration(c); got.Status != IterationInconclusive || got.StatusReason != "none_left" {
			t.Errorf("%s %s", got.Status, got.StatusReason)
		}
	})
}

// A stop while the sample is written: the run writes no more, and the next one writes
// nothing for the variant. Profiles without a notification get the winner.
func TestAGuardrailStopsASampleThatIsWritten(t *testing.T) {
	b := experiments(t, 300, func(cfg *Config) { cfg.Writers = 1 })
	ctx := context.Background()
	c := b.experiment(ab(func(e *Experiment) { e.SamplePercent, e.Guardrail = 100, &Guardrail{Complaints, 0.01} }))
	chunks, here, release := 0, make(chan struct{}), make(chan struct{})
	b.Hook = func(_ context.Context, at string, _ uuid.UUID) {
		if at != "writing" {
			return
		}
		if chunks++; chunks == 3 {
			close(here)
			<-release
		}
	}
	late := make(chan error, 1)
	go func() { _, err := b.Fanout(ctx, b.Workspace, c.ID); late <- err }()
	<-here
	other := New(b.deps, b.cfg)
	it := b.iteration(c)
	before := b.sentBy(c)
	b.endBatches()
	b.complain(it, 1, 20, Complaints)
	b.guardrailDue(it)
	_, err := other.CheckGuardrails(ctx)
	b.Must(err)
	close(release)
	b.Must(<-late)
	_, err = other.Fanout(ctx, b.Workspace, c.ID)
	b.Must(err)
	got := b.sentBy(c)
	if want := len(b.members(it, 300, 0)); before["B"] == 0 || got["B"] != before["B"] || got["A"] != want {
		t.Errorf("%v, before the stop %v; A should have %d", got, before, want)
	}
	b.endBatches()
	_, err = other.SelectWinner(ctx, b.Workspace, it.ID, "A", uuid.Nil)
	b.Must(err)
	_, err = other.Fanout(ctx, b.Workspace, c.ID)
	b.Must(err)
	if got := b.sentBy(c); got["A"]+got["B"]+got["rollout"] != 300 || got["rollout"] == 0 {
		t.Errorf("%v", got)
	}
	for address, times := range b.addresses(c.ID) {
		if times != 1 {
			t.Errorf("%s has %d notifications", address, times)
		}
	}
}

// CampaignIteration!WinnerOnce: a check and an evaluation use one claim. A check that has
// lost its claim stops nothing.
func TestACheckAndAnEvaluation(t *testing.T) {
	for _, at := range []string{"guardrail claimed", "guardrail measured"} {
		t.Run(at, func(t *testing.T) {
			b := experiments(t, 600)
			ctx := context.Background()
			c, it := b.guarded(Complaints, func(e *Experiment) { e.SamplePercent = 100 })
			b.endBatches()
			b.convertBest(it, 1, 80)
			b.complain(it, 1, 100, Complaints)
			b.guardrailDue(it)
			check := New(b.deps, b.cfg)
			here, release := check.stops(at)
			late := make(chan error, 1)
			go func() { _, err := check.CheckGuardrails(ctx); late <- err }()
			<-here
			b.Exec(`delete from delivery_counts where workspace_id = $1`, b.Workspace) // the evaluator reads other numbers
			b.endTest(it)
			b.evaluate()
			if got := b.iteration(c).Status; got != IterationRunning {
				t.Errorf("while the check holds the claim it is %s", got)
			}
			if _, err := b.SelectWinner(ctx, b.Workspace, it.ID, "B", uuid.Nil); lemma.KindOf(err) != lemma.WrongStatus {
				t.Errorf("while the check holds the claim: %v", err)
			}
			if _, err := b.StopIteration(ctx, b.Workspace, it.ID, uuid.Nil); lemma.KindOf(err) != lemma.WrongStatus {
				t.Errorf("a stop while the check holds the claim: %v", err)
			}
			b.expireClaim(it)
			b.evaluate()
			release()
			b.Must(<-late)
			b.decidedOnce(c, 1)
			if b.iteration(c).Variants[1].StoppedAt != nil {
				t.Error("the winner is stopped")
			}
		})
	}
}

// An extension uses the claim of the evaluation: it is refused while a check holds the claim,
// and a check whose claim has expired stops nothing after it.
func TestAnExtensionAndACheck(t *testing.T) {
	b := experiments(t, 600)
	ctx := context.Background()
	c, it := b.guarded(Complaints, func(e *Experiment) { e.SamplePercent = 100 })
	b.endBatches()
	b.complain(it, 1, 100, Complaints)
	b.guardrailDue(it)
	check := New(b.deps, b.cfg)
	here, release := check.stops("guardrail measured")
	late := make(chan error, 1)
	go func() { _, err := check.CheckGuardrails(ctx); late <- err }()
	<-here
	later := it.CutOffAt.Add(time.Hour)
	if _, err := b.Extend(ctx, b.Workspace, it.ID, later, uuid.Nil); lemma.KindOf(err) != lemma.WrongStatus {
		t.Errorf("while a check holds the claim: %v", err)
	}
	b.expireClaim(it)
	_, err := b.Extend(ctx, b.Workspace, it.ID, later, uuid.Nil)
	b.Must(err)
	release()
	b.Must(<-late)
	if got := b.iteration(c); !got.CutOffAt.Equal(later) || got.Variants[1].StoppedAt != nil {
		t.Errorf("cut-off %s, variant B stopped at %v", got.CutOffAt, got.Variants[1].StoppedAt)
	}
}

// A check claims an iteration only while no other process has its claim, before the cut-off,
// when the check is due.
func TestAGuardrailIsCheckedUnderAClaim(t *testing.T) {
	b := experiments(t, 40)
	ctx := context.Background()
	_, it := b.guarded(Complaints)
	r := ref{b.Workspace, it.ID}
	for name, change := range map[string]string{
		"another process has the claim": `evaluating_by = 'other', evaluating_until = now() + interval '1 minute'`,
		"the cut-off has passed":        `cut_off_at = now()`,
		"the check is not due":          `guardrail_at = now() + interval '1 minute'`,
		"it is inconclusive":            `status = 'inconclusive'`,
		"it is due":                     `metric = metric`,
	} {
		b.Must(pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `update iterations set guardrail_at = now() - interval '1 second' where id = $1`, it.ID)
			b.Must(err)
			_, err = tx.Exec(ctx, `update iterations set `+change+` where id = $1`, it.ID)
			return err
		}))
		claimed := false
		b.Hook = func(_ context.Context, at string, _ uuid.UUID) { claimed = claimed || at == "guardrail claimed" }
		b.Must(b.checkGuardrail(ctx, r))
		if claimed != (name == "it is due") {
			t.Errorf("%s: claimed is %t", name, claimed)
		}
		b.Exec(`alter table iterations disable trigger iterations_forward`)
		b.Exec(`update iterations set status = 'running', evaluating_by = null, evaluating_until = null, cut_off_at = $2 where id = $1`,
			it.ID, it.CutOffAt)
	}
}

// A winner that was stopped is refused by the database, also if it was read before.
func TestAStoppedVariantIsNotRecorded(t *testing.T) {
	b := experiments(t, 600)
	c, it := b.converting(1)
	late := b.evaluatorAt(it, "evaluation measured")
	b.Exec(`update iteration_variants set stopped_at = now() where iteration_id = $1 and ordinal = 1`, it.ID)
	b.finish(late)
	if got := b.iteration(c); got.Winner != nil {
		t.Errorf("%d wins", *got.Winner)
	}
}

// A guardrail is checked nine times at most before the cut-off, by as many processes as
// there are. An extension lets it be checked nine times more. The checks that are left divide
// the time until the cut-off.
func TestChecksOfAGuardrail(t *testing.T) {
	b := experiments(t, 40)
	_, it := b.guarded(Complaints)
	until := *it.CutOffAt
	wantNext := func(left int) {
		t.Helper()
		b.WantCount(1, `select count(*) from iterations where id = $1
			and abs(extract(epoch from guardrail_at - now() - ($2 - now()) / $3)) < extract(epoch from $2 - now()) / 100`, it.ID, until, left)
	}
	for range 2 {
		wantNext(10)
		for i := range 12 {
			b.guardrailDue(it)
			b.checkGuardrails()
			b.checkGuardrails()
			if i < 8 {
				wantNext(9 - i)
			}
		}
		b.WantCount(9, `select guardrail_checks from iterations where id = $1 and guardrail_at is null`, it.ID)
		until = until.Add(10 * 24 * time.Hour)
		_, err := b.Extend(t.Context(), b.Workspace, it.ID, until, uuid.Nil)
		b.Must(err)
	}
}

package campaigns

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/pgerr"
)

// stopped is an evaluator in its own process, which stops at a point until release.
type stopped struct {
	*Campaigns
	release func()
	done    chan error
}

func (b *bundle) evaluatorAt(it Iteration, at string) stopped {
	b.T.Helper()
	c := New(b.deps, b.cfg)
	here, release := c.stops(at)
	s := stopped{c, release, make(chan error, 1)}
	go func() { s.done <- c.Evaluate(context.Background(), b.Workspace, it.ID) }()
	<-here
	return s
}

// finish lets an evaluator continue to its end.
func (b *bundle) finish(s stopped) {
	b.T.Helper()
	s.release()
	b.Must(<-s.done)
}

func (b *bundle) expireClaim(it Iteration) {
	b.T.Helper()
	b.Exec(`update iterations set evaluating_until = now() - interval '1 second' where id = $1 and evaluating_by is not null`, it.ID)
}

// converting is an iteration past its cut-off in which the variant converts best.
func (b *bundle) converting(best int) (Campaign, Iteration) {
	b.T.Helper()
	c, it := b.sampled(ab(func(e *Experiment) { e.SamplePercent = 100 }))
	b.convertBest(it, best, 80)
	b.endTest(it)
	return c, b.iteration(c)
}

func (b *bundle) convertBest(it Iteration, best, n int) {
	b.T.Helper()
	b.convert(b.members(it, 600, best)[:n], "bought")
	b.convert(b.members(it, 600, 1-best)[:20], "bought")
	b.Exec(`update trigger_events set received_at = i.started_at, occurred_at = i.started_at from iterations i where i.id = $1`, it.ID)
}

// decidedOnce checks that the winner was recorded once, and that its content is rolled out.
func (b *bundle) decidedOnce(c Campaign, winner int) {
	b.T.Helper()
	it := b.iteration(c)
	if it.Winner == nil || *it.Winner != winner {
		b.T.Fatalf("the winner is %v (%s: %s), want %d", it.Winner, it.Status, it.StatusDetail, winner)
	}
	if n := b.Count(`select count(*) from iteration_log where iteration_id = $1 and event = 'decided'`, it.ID); n != 1 {
		b.T.Errorf("%d decisions", n)
	}
	b.WantCount(1, `select count(*) from events_out where type = 'iteration.decided' and origin_id = $1`, c.ID)
	if n := b.Count(`select count(*) from contents o join iteration_variants v on v.iteration_id = $1 and v.ordinal = $2
		where o.id = $3 and o.subject is not distinct from v.subject`, it.ID, winner, *it.rolloutID); n != 1 {
		b.T.Error("the rollout's content is not that of the winner")
	}
	if n := b.Count(`select count(*) from river_job j join iterations i on i.id = $2
		where j.kind = 'campaign_fanout' and j.args->>'campaign_id' = $1::text and j.created_at >= i.decided_at`, c.ID, it.ID); n != 1 {
		b.T.Errorf("%d jobs of fan-outs since the decision", n)
	}
}

// CampaignIteration!WinnerOnce: two evaluators that read different numbers. The first
// stops between claim and read, or between read and commit, its claim expires, and the
// second takes over. The first then changes nothing.
func TestALateEvaluatorRecordsNothing(t *testing.T) {
	for _, at := range []string{"evaluation claimed", "evaluation measured"} {
		t.Run(at, func(t *testing.T) {
			b := experiments(t, 600)
			c, it := b.converting(0)
			late := b.evaluatorAt(it, at)
			b.convertBest(it, 1, 200) // events that the first has not read
			b.expireClaim(it)
			b.Must(New(b.deps, b.cfg).Evaluate(context.Background(), b.Workspace, it.ID))
			b.decidedOnce(c, 1)
			b.finish(late)
			b.decidedOnce(c, 1)
		})
	}
}

// Both stop after their read: the second has the claim, whichever commits first.
func TestOnlyTheHolderOfTheClaimDecides(t *testing.T) {
	for _, first := range []string{"the late one", "the holder"} {
		t.Run(first+" commits first", func(t *testing.T) {
			b := experiments(t, 600)
			c, it := b.converting(0)
			late := b.evaluatorAt(it, "evaluation measured")
			b.convertBest(it, 1, 200)
			b.expireClaim(it)
			holder := b.evaluatorAt(it, "evaluation measured")
			if first == "the holder" {
				b.finish(holder)
				b.finish(late)
			} else {
				b.finish(late)
				if got := b.iteration(c).Status; got != IterationEvaluating {
					t.Errorf("the late one has made it %s", got)
				}
				b.finish(holder)
			}
			b.decidedOnce(c, 1)
		})
	}
}

// Five evaluators at once: one claims, the others leave.
func TestFiveEvaluators(t *testing.T) {
	b := experiments(t, 600)
	c, it := b.converting(1)
	holder := b.evaluatorAt(it, "evaluation claimed")
	var all sync.WaitGroup
	for range 4 {
		other := New(b.deps, b.cfg)
		other.Hook = func(_ context.Context, at string, _ uuid.UUID) { t.Errorf("another evaluator is at %q", at) }
		all.Go(func() { b.Must(other.Evaluate(context.Background(), b.Workspace, it.ID)) })
	}
	all.Wait()
	b.finish(holder)
	b.decidedOnce(c, 1)
}

// CampaignIteration!NeverStuck: an evaluator crashes at any step. Its claim expires, and the
// next evaluation takes over.
func TestACrashedEvaluationIsTakenOver(t *testing.T) {
	for _, at := range []string{"evaluation claimed", "evaluation measured"} {
		t.Run(at, func(t *testing.T) {
			b := experiments(t, 600)
			c, it := b.converting(0)
			crashed := b.evaluatorAt(it, at)
			t.Cleanup(func() { crashed.release(); <-crashed.done })
			b.evaluate()
			if got := b.iteration(c).Status; got != IterationEvaluating {
				t.Fatalf("while the claim is held it becomes %s", got)
			}
			b.expireClaim(it)
			b.evaluate()
			b.decidedOnce(c, 0)
		})
	}
}

// The winner and its rollout are one transaction: what fails in it leaves neither.
func TestADecisionIsOneTransaction(t *testing.T) {
	for name, table := range map[string]string{"the content": "contents", "the job": "river_job", "the timeline": "iteration_log"} {
		t.Run(name, func(t *testing.T) {
			b := experiments(t, 600)
			c, it := b.converting(0)
			b.Exec(`alter table ` + table + ` add constraint full_disk check (false) not valid`)
			if _, err := b.EvaluateDue(context.Background()); err == nil {
				t.Fatal("no error")
			}
			if got := b.iteration(c); got.Status != IterationEvaluating || got.Winner != nil {
				t.Fatalf("%s, winner %v", got.Status, got.Winner)
			}
			b.Exec(`alter table ` + table + ` drop constraint full_disk`)
			b.Exec(`update iterations set retry_at = now() where id = $1`, it.ID)
			b.expireClaim(it)
			b.evaluate()
			b.decidedOnce(c, 0)
		})
	}
}

// A decision that cannot be stored is met again a few times, and then left to a person.
func TestADecisionThatCannotBeStored(t *testing.T) {
	b := experiments(t, 600)
	c, it := b.converting(0)
	b.Exec(`alter table contents add constraint full_disk check (false) not valid`)
	for range evaluationFailures {
		if _, err := b.EvaluateDue(context.Background()); err == nil {
			t.Fatal("no error")
		}
		b.Exec(`update iterations set retry_at = now() where id = $1`, it.ID)
	}
	if got := b.iteration(c); got.Status != IterationInconclusive || got.Winner != nil {
		t.Fatalf("%s, winner %v", got.Status, got.Winner)
	}
	b.Exec(`alter table contents drop constraint full_disk`)
	_, err := b.SelectWinner(context.Background(), b.Workspace, it.ID, it.Variants[1].Name, uuid.Nil)
	b.Must(err)
	b.decidedOnce(c, 1)
}

// A person decides while a process evaluates: refused while the claim is held, and after
// it has expired the process records nothing.
func TestAPersonAndAnEvaluator(t *testing.T) {
	b := experiments(t, 600)
	ctx := context.Background()
	c, it := b.converting(0)
	late := b.evaluatorAt(it, "evaluation measured")
	if _, err := b.SelectWinner(ctx, b.Workspace, it.ID, "B", uuid.Nil); lemma.KindOf(err) != lemma.WrongStatus {
		t.Errorf("while it is evaluated: %v", err)
	}
	b.expireClaim(it)
	if _, err := b.SelectWinner(ctx, b.Workspace, it.ID, "B", uuid.Nil); err != nil {
		t.Fatal(err)
	}
	b.finish(late)
	b.decidedOnce(c, 1)
	if _, err := b.StopIteration(ctx, b.Workspace, it.ID, uuid.Nil); lemma.KindOf(err) != lemma.WrongStatus {
		t.Errorf("after the decision: %v", err)
	}
}

// A cancel between the read and the commit of an evaluation: nothing is rolled out.
func TestACancelDuringAnEvaluation(t *testing.T) {
	b := experiments(t, 600)
	ctx := context.Background()
	c, it := b.converting(0)
	late := b.evaluatorAt(it, "evaluation measured")
	if _, _, err := b.Cancel(ctx, b.Workspace, c.ID, uuid.Nil); err != nil {
		t.Fatal(err)
	}
	b.finish(late)
	if got := b.iteration(c); got.Status != IterationCancelled || got.Winner != nil || got.StatusReason != "campaign_cancelled" {
		t.Errorf("%+v", got)
	}
}

// A pause during an evaluation: the winner is recorded, and rolled out after the resume.
// During a pause no evaluation begins.
func TestAPauseDuringAnEvaluation(t *testing.T) {
	for _, claimed := range []bool{true, false} {
		t.Run(fmt.Sprintf("claimed: %t", claimed), func(t *testing.T) {
			b := experiments(t, 600)
			ctx := context.Background()
			c, it := b.sampled(ab())
			b.convert(b.members(it, 600, 0)[:80], "bought")
			b.convert(b.members(it, 600, 1)[:20], "bought")
			b.endTest(it)
			var late stopped
			if claimed {
				late = b.evaluatorAt(it, "evaluation measured")
			}
			_, err := b.Pause(ctx, b.Workspace, c.ID, uuid.Nil)
			b.Must(err)
			if claimed {
				b.finish(late)
			}
			b.evaluate()
			if got := b.iteration(c).Winner; (got != nil) != claimed {
				t.Errorf("during the pause the winner is %v", got)
			}
			before := len(b.addresses(c.ID))
			b.fanout(c.ID)
			if n := len(b.addresses(c.ID)); n != before {
				t.Errorf("during the pause %d notifications were written", n-before)
			}
			_, err = b.Resume(ctx, b.Workspace, c.ID, uuid.Nil)
			b.Must(err)
			b.evaluate()
			b.fanout(c.ID)
			b.endBatches()
			b.Must(b.Tick(ctx))
			b.decidedOnce(c, 0)
			if got := b.get(c.ID); got.Status != Completed || got.Counts.Sent != 600 || b.iteration(c).Status != IterationCompleted {
				t.Errorf("%s: %+v", got.Status, got.Counts)
			}
		})
	}
}

// CampaignIteration!OnlyForward, WinnerCompeted: the database refuses what no code does.
func TestTheDatabaseRefuses(t *testing.T) {
	b := experiments(t, 600)
	c, it := b.converting(0)
	b.evaluate()
	b.decidedOnce(c, 0)
	draft, err := b.Create(context.Background(), b.Workspace, NewCampaign{ID: lemma.NewID(), Name: "c", AudienceID: b.Audience,
		TemplateID: b.Template, ProviderID: b.Provider, FromName: "Shop", FromEmail: "news@shop.example", Experiment: ab()})
	b.Must(err)
	b.Exec(`update iterations set status = 'inconclusive' where id = $1`, *draft.IterationID)
	for name, sql := range map[string]string{
		"back without a winner": `update iterations set status = 'running' where id = $2 and id <> $1`,
		"back":                  `update iterations set status = 'running' where id = $1`,
		"another winner":        `update iterations set winner = 1 where id = $1`,
		"no winner":             `update iterations set status = 'decided' where id = $2 and id <> $1`,
		"an unknown winner": `update iterations set status = 'decided', winner = 7, decided_by = 'person', decided_at = now(),
			rollout_id = id where id = $2 and id <> $1`,
		"half a claim": `update iterations set evaluating_by = 'x' where id = $2 and id <> $1`,
		"a claim of nothing": `update iterations set status = 'cancelled', evaluating_by = 'x', evaluating_until = now()
			where id = $2 and id <> $1`,
	} {
		args := []any{it.ID}
		if name != "back" && name != "another winner" {
			args = append(args, *draft.IterationID)
		}
		if _, err := b.Pool.Exec(context.Background(), sql, args...); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// A run of the sample that is late does not write a variant after the decision.
func TestALateSampleWritesNothing(t *testing.T) {
	b := experiments(t, 40)
	c := b.experiment(ab(func(e *Experiment) { e.SamplePercent, e.MinSample = 100, 0 }))
	writing, release := b.stops("writing")
	late := make(chan error, 1)
	go func() { _, err := b.Fanout(context.Background(), b.Workspace, c.ID); late <- err }()
	<-writing
	b.Exec(`update fanouts set lease_until = now() - interval '1 second' where campaign_id = $1`, c.ID)
	b.ExecDB(`delete from customers where id = '7'`) // which the late run has read
	other := New(b.deps, b.cfg)
	if _, err := other.Fanout(context.Background(), b.Workspace, c.ID); err != nil {
		t.Fatal(err)
	}
	b.ExecDB(`insert into customers select i, 'late' || i || '@shop.example', 'L', false from generate_series(9001, 9050) i`)
	_, err := other.SelectWinner(context.Background(), b.Workspace, *c.IterationID, "A", uuid.Nil)
	b.Must(err)
	release()
	b.Must(<-late)
	if _, err := other.Fanout(context.Background(), b.Workspace, c.ID); err != nil {
		t.Fatal(err)
	}
	got := b.sentBy(c)
	if got["rollout"] != 50 || got["A"]+got["B"] != 39 {
		t.Errorf("%v", got)
	}
	for address, times := range b.addresses(c.ID) {
		if times != 1 {
			t.Errorf("%s has %d notifications", address, times)
		}
	}
}

// An extension is refused once the cut-off has passed, and moves it before.
func TestExtend(t *testing.T) {
	b := experiments(t, 40)
	ctx := context.Background()
	c, it := b.sampled(ab(func(e *Experiment) { e.MinSample = 0 }))
	later := it.CutOffAt.Add(time.Hour)
	if got, err := b.Extend(ctx, b.Workspace, it.ID, later, uuid.Nil); err != nil || !got.CutOffAt.Equal(later) {
		t.Fatal(err, got.CutOffAt)
	}
	b.endTest(it)
	if _, err := b.Extend(ctx, b.Workspace, it.ID, later.Add(time.Hour), uuid.Nil); lemma.KindOf(err) != lemma.WrongStatus {
		t.Errorf("after the cut-off: %v", err)
	}
	b.evaluate()
	if got := b.iteration(c); got.Status != IterationInconclusive || got.StatusReason != "no_events" {
		t.Errorf("%+v", got)
	}
}

// Each extension is an entry of the timeline, so their number is limited.
func TestExtensionsAreLimited(t *testing.T) {
	b := experiments(t, 10)
	ctx := context.Background()
	c, it := b.sampled(ab(func(*Experiment) {}))
	b.Exec(`update iterations set extensions = $2 where id = $1`, it.ID, MaxExtensions-1)
	at := *it.CutOffAt
	if _, err := b.Extend(ctx, b.Workspace, it.ID, at.Add(time.Hour), uuid.Nil); err != nil {
		t.Fatal(err)
	}
	_, err := b.Extend(ctx, b.Workspace, it.ID, at.Add(2*time.Hour), uuid.Nil)
	if lemma.KindOf(err) != lemma.Conflict || reasonOf(err) != "too_many_extensions" {
		t.Error(err)
	}
	if got := b.iteration(c); !got.CutOffAt.Equal(at.Add(time.Hour)) {
		t.Errorf("the cut-off is %s", got.CutOffAt)
	}
	_, err = b.Pool.Exec(ctx, `update iterations set extensions = extensions + 1 where id = $1`, it.ID)
	if !pgerr.Violation(err) {
		t.Errorf("the database has another bound: %v", err)
	}
}

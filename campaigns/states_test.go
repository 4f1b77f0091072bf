package campaigns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// statuses are those of an iteration, in their order.
var statuses = []IterationStatus{IterationDraft, IterationSampling, IterationRunning, IterationEvaluating, IterationInconclusive,
	IterationDecided, IterationRollingOut, IterationCompleted, IterationCancelled}

// CampaignIteration!OnlyForward: the trigger refuses every change of the status to an earlier
// one, and every change of the last two. No other constraint helps it here.
func TestTheStatusOnlyGoesForward(t *testing.T) {
	b := experiments(t, 1)
	ctx := context.Background()
	c, err := b.Create(ctx, b.Workspace, b.withExperiment(ab()))
	b.Must(err)
	b.Exec(`alter table iterations drop constraint iterations_decided`)
	for from, old := range statuses {
		for to, status := range statuses {
			allowed := to >= from && (old != IterationCompleted || to == from)
			err := pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error {
				for _, s := range []IterationStatus{old, status} {
					if _, err := tx.Exec(ctx, `update iterations set status = $2 where id = $1`, *c.IterationID, s); err != nil {
						return err
					}
				}
				return errRolledBack
			})
			if got := errors.Is(err, errRolledBack); got != allowed {
				t.Errorf("%s to %s: allowed %t, want %t: %v", old, status, got, allowed, err)
			}
		}
	}
}

var errRolledBack = errors.New("rolled back")

func (b *bundle) withExperiment(e *Experiment) NewCampaign {
	return NewCampaign{ID: lemma.NewID(), Name: "c", AudienceID: b.Audience, TemplateID: b.Template, ProviderID: b.Provider,
		FromName: "Shop", FromEmail: "news@shop.example", Experiment: e}
}

// inStatus makes a campaign whose iteration has a status.
func (b *bundle) inStatus(status IterationStatus) Campaign {
	b.T.Helper()
	ctx := context.Background()
	c, err := b.Create(ctx, b.Workspace, b.withExperiment(ab(func(e *Experiment) { e.MinSample = 0 })))
	b.Must(err)
	rank := slices.Index(statuses, status)
	if rank >= slices.Index(statuses, IterationSampling) {
		_, err = b.Send(ctx, b.Workspace, c.ID, uuid.Nil)
		b.Must(err)
	}
	if rank >= slices.Index(statuses, IterationRunning) {
		b.fanout(c.ID)
		b.endBatches()
	}
	switch it := b.iteration(c); status {
	case IterationEvaluating:
		b.endTest(it)
		claimed, err := b.claimEvaluation(ctx, b.Workspace, it.ID, "a process")
		if err != nil || !claimed {
			b.T.Fatal(err, claimed)
		}
	case IterationInconclusive:
		b.endTest(it)
		b.evaluate()
	case IterationDecided, IterationRollingOut, IterationCompleted:
		_, err = b.SelectWinner(ctx, b.Workspace, it.ID, "B", uuid.Nil)
		b.Must(err)
	case IterationCancelled:
		_, err = b.StopIteration(ctx, b.Workspace, it.ID, uuid.Nil)
		b.Must(err)
	}
	if status == IterationRollingOut || status == IterationCompleted {
		b.fanout(c.ID)
	}
	if status == IterationCompleted {
		b.endBatches()
		b.Must(b.Tick(ctx))
	}
	b.wantIteration(c, status, "at first")
	return c
}

func (b *bundle) wantIteration(c Campaign, want IterationStatus, when string) {
	b.T.Helper()
	if got := b.iteration(c); got.Status != want {
		b.T.Errorf("%s: %s (%s), want %s", when, got.Status, got.StatusReason, want)
	}
}

// doDue does all that is due.
func (b *bundle) doDue(c Campaign) {
	b.T.Helper()
	b.evaluate()
	b.fanout(c.ID)
	b.Must(b.Tick(context.Background()))
}

const stateProfiles = 60

// A campaign is paused in each status of its iteration: nothing begins until it is resumed,
// and then it continues to its end, with one notification for each profile.
func TestAPauseInEachStatus(t *testing.T) {
	b := experiments(t, stateProfiles)
	ctx := context.Background()
	for _, status := range statuses {
		c := b.inStatus(status)
		_, err := b.Pause(ctx, b.Workspace, c.ID, uuid.Nil)
		if status == IterationDraft || status == IterationCompleted {
			if lemma.KindOf(err) != lemma.WrongStatus {
				t.Errorf("%s: a pause: %v", status, err)
			}
			continue
		}
		b.Must(err)
		before := len(b.addresses(c.ID))
		b.doDue(c)
		b.wantIteration(c, status, fmt.Sprintf("paused while %s", status))
		if n := len(b.addresses(c.ID)); n != before {
			t.Errorf("%s: %d notifications are written during the pause", status, n-before)
		}
		if status == IterationCancelled { // its sample was sent, so nothing is left
			if got := b.get(c.ID).Status; got != Completed {
				t.Errorf("a stopped test: %s", got)
			}
			continue
		}
		_, err = b.Resume(ctx, b.Workspace, c.ID, uuid.Nil)
		b.Must(err)
		b.wantIteration(c, status, fmt.Sprintf("resumed while %s", status))
		b.finishesAfter(c, status)
	}
}

// finishesAfter continues a campaign to its end.
func (b *bundle) finishesAfter(c Campaign, status IterationStatus) {
	b.T.Helper()
	it := b.iteration(c)
	b.fanout(c.ID)
	b.endBatches()
	b.expireClaim(it)
	if it.Winner == nil {
		_, err := b.SelectWinner(context.Background(), b.Workspace, it.ID, "A", uuid.Nil)
		b.Must(err)
	}
	b.fanout(c.ID)
	b.endBatches()
	b.doDue(c)
	b.wantIteration(c, IterationCompleted, fmt.Sprintf("at the end, after a pause while %s", status))
	got := b.get(c.ID)
	all := b.addresses(c.ID)
	if got.Status != Completed || len(all) != stateProfiles || got.Counts.Sent != stateProfiles || !got.Counts.Balanced {
		b.T.Errorf("after a pause while %s: %s, %d profiles: %+v", status, got.Status, len(all), got.Counts)
	}
}

// A campaign is cancelled in each status of its iteration, also before it starts: nothing is
// written any more, and no person decides.
func TestACancelInEachStatus(t *testing.T) {
	b := experiments(t, stateProfiles)
	ctx := context.Background()
	for _, status := range statuses {
		c := b.inStatus(status)
		_, _, err := b.Cancel(ctx, b.Workspace, c.ID, uuid.Nil)
		if status == IterationDraft || status == IterationCompleted {
			if lemma.KindOf(err) != lemma.WrongStatus {
				t.Errorf("%s: a cancel: %v", status, err)
			}
			b.wantIteration(c, status, "after a cancel that is refused")
			continue
		}
		b.Must(err)
		b.wantCancelled(c, status)
	}
	c, err := b.Create(ctx, b.Workspace, b.withExperiment(ab()))
	b.Must(err)
	_, err = b.Schedule(ctx, b.Workspace, c.ID, time.Now().Add(time.Hour), uuid.Nil)
	b.Must(err)
	_, _, err = b.Cancel(ctx, b.Workspace, c.ID, uuid.Nil)
	b.Must(err)
	b.wantCancelled(c, "scheduled")
}

func (b *bundle) wantCancelled(c Campaign, status IterationStatus) {
	b.T.Helper()
	before := len(b.addresses(c.ID))
	it := b.iteration(c)
	b.expireClaim(it)
	b.doDue(c)
	if n := len(b.addresses(c.ID)); n != before {
		b.T.Errorf("%s: %d notifications are written after the cancel", status, n-before)
	}
	b.wantIteration(c, IterationCancelled, fmt.Sprintf("cancelled while %s", status))
	reason := "campaign_cancelled"
	if status == IterationCancelled {
		reason = "stopped"
	}
	decided := status == IterationDecided || status == IterationRollingOut
	if it.StatusReason != reason || (it.Winner != nil) != decided {
		b.T.Errorf("cancelled while %s: %s, winner %v", status, it.StatusReason, it.Winner)
	}
	if _, err := b.SelectWinner(context.Background(), b.Workspace, it.ID, "A", uuid.Nil); lemma.KindOf(err) != lemma.WrongStatus {
		b.T.Errorf("a winner after a cancel while %s: %v", status, err)
	}
}

// What a person may decide in each status. While a process evaluates, they must wait.
func TestAPersonInEachStatus(t *testing.T) {
	b := experiments(t, stateProfiles)
	ctx := context.Background()
	for name, verb := range map[string]struct {
		of    func(id uuid.UUID) (Iteration, error)
		in    []IterationStatus
		after IterationStatus // empty: as before
	}{
		"select_winner": {func(id uuid.UUID) (Iteration, error) { return b.SelectWinner(ctx, b.Workspace, id, "B", uuid.Nil) },
			[]IterationStatus{IterationRunning, IterationInconclusive}, IterationDecided},
		"stop": {func(id uuid.UUID) (Iteration, error) { return b.StopIteration(ctx, b.Workspace, id, uuid.Nil) },
			[]IterationStatus{IterationRunning, IterationInconclusive}, IterationCancelled},
		"extend": {func(id uuid.UUID) (Iteration, error) {
			return b.Extend(ctx, b.Workspace, id, time.Now().Add(5*time.Hour), uuid.Nil)
		}, []IterationStatus{IterationSampling, IterationRunning}, ""},
	} {
		for _, status := range statuses {
			c := b.inStatus(status)
			_, err := verb.of(*c.IterationID)
			want := status
			if slices.Contains(verb.in, status) {
				b.Must(err)
				want = cmp.Or(verb.after, status)
			} else if lemma.KindOf(err) != lemma.WrongStatus {
				t.Errorf("%s while %s: %v", name, status, err)
			}
			b.wantIteration(c, want, name+" while "+string(status))
		}
	}
}

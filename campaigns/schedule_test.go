package campaigns

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/pgtest"
)

// A campaign that is due is postponed, or made a draft and scheduled again, while a
// tick starts due campaigns. It is not started: the start compares the time again.
func TestAPostponedCampaignIsNotStarted(t *testing.T) {
	ctx, later := context.Background(), time.Now().Add(24*time.Hour)
	postpone := func(b *bundle, id uuid.UUID) {
		_, err := b.Schedule(ctx, b.Workspace, id, later, uuid.New())
		b.Must(err)
	}
	for name, change := range map[string]func(b *bundle, id uuid.UUID){
		"postponed": postpone,
		"unscheduled and scheduled again": func(b *bundle, id uuid.UUID) {
			_, err := b.Unschedule(ctx, b.Workspace, id, uuid.New())
			b.Must(err)
			postpone(b, id)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 5)
			locks := map[uuid.UUID]pgx.Tx{}
			for range 2 {
				id := b.draft().ID
				postpone(b, id)
				b.Exec(`update campaigns set scheduled_at = now() - interval '1 second' where id = $1`, id)
				lock, err := b.Pool.Begin(ctx)
				b.Must(err)
				_, err = lock.Exec(ctx, `select from campaigns where workspace_id = $1 and id = $2 for update`, b.Workspace, id)
				b.Must(err)
				locks[id] = lock
			}
			fired := make(chan error, 1)
			go func() { _, err := b.FireDue(ctx); fired <- err }()
			b.WaitForLocks(1) // the tick has read both, and waits for one
			first := pgtest.One[uuid.UUID](t, b.Pool, `select c.id from campaigns c join pg_locks l on l.locktype = 'tuple'
				and l.database = (select oid from pg_database where datname = current_database())
				and l.relation = 'campaigns'::regclass and c.ctid = ('(' || l.page || ',' || l.tuple || ')')::tid`)
			second := b.other(locks, first)
			b.Must(locks[second].Commit(ctx))
			change(b, second)
			b.Must(locks[first].Commit(ctx))
			b.Must(<-fired)
			if a, z := b.get(first), b.get(second); a.Status != Preparing || z.Status != Scheduled {
				t.Errorf("the first is %s, and the second, which was postponed to %v, is %s", a.Status, z.ScheduledAt, z.Status)
			}
		})
	}
}

// other is the one of two that is not the first.
func (b *bundle) other(of map[uuid.UUID]pgx.Tx, first uuid.UUID) (second uuid.UUID) {
	for id := range of {
		if id != first {
			second = id
		}
	}
	return second
}

// A user's request to postpone holds the row when the tick starts the campaign. The
// start waits for it and finds the new time.
func TestAStartWaitsForAPostponement(t *testing.T) {
	b := setup(t, 5)
	ctx := context.Background()
	c, err := b.Schedule(ctx, b.Workspace, b.draft().ID, time.Now().Add(time.Hour), uuid.Nil)
	b.Must(err)
	b.Exec(`update campaigns set scheduled_at = now() - interval '1 second' where workspace_id = $1`, b.Workspace)
	tx, err := b.Pool.Begin(ctx)
	b.Must(err)
	b.Must(move(ctx, tx, b.Workspace, c.ID, schedule, `status = 'scheduled', scheduled_at = $4`, time.Now().Add(time.Hour)))
	fired := make(chan error, 1)
	go func() { _, err := b.FireDue(ctx); fired <- err }()
	b.WaitForLocks(1)
	b.Must(tx.Commit(ctx))
	b.Must(<-fired)
	if got := b.get(c.ID); got.Status != Scheduled {
		t.Errorf("a campaign that was postponed to %v is %s", got.ScheduledAt, got.Status)
	}
}

// A campaign that starts after its send_deadline would skip all recipients as expired.
func TestAStartAfterTheDeadlineIsRefused(t *testing.T) {
	b := setup(t, 5)
	ctx, c := context.Background(), b.draft()
	deadline := time.Now().Add(time.Hour)
	_, err := b.Update(ctx, b.Workspace, c.ID, nil, Patch{SendDeadline: &deadline})
	b.Must(err)
	_, err = b.Schedule(ctx, b.Workspace, c.ID, deadline, uuid.Nil)
	checkFault(t, err, "/send_deadline", "in_the_past", "must be after the start")
	_, err = b.Schedule(ctx, b.Workspace, c.ID, deadline.Add(-time.Minute), uuid.Nil)
	b.Must(err)
	_, err = b.Schedule(ctx, b.Workspace, c.ID, deadline.Add(time.Minute), uuid.Nil) // postponed
	checkFault(t, err, "/send_deadline", "in_the_past", "must be after the start")
	b.Exec(`update campaigns set send_deadline = now() where id = $1`, c.ID)
	_, err = b.Send(ctx, b.Workspace, c.ID, uuid.Nil)
	checkFault(t, err, "/send_deadline", "in_the_past", "must be after the start")
	if got := b.get(c.ID); got.Status != Scheduled {
		t.Errorf("it is %s", got.Status)
	}
}

// A campaign that starts late, as after an outage, may start after its evaluate_at. Nothing
// was measured then, and a person decides.
func TestACutOffBeforeTheStart(t *testing.T) {
	b := experiments(t, 100)
	ctx := context.Background()
	at := time.Now().Add(2 * time.Hour)
	c, err := b.Create(ctx, b.Workspace, NewCampaign{ID: uuid.New(), Name: "c", AudienceID: b.Audience, TemplateID: b.Template,
		ProviderID: b.Provider, FromName: "Shop", FromEmail: "news@shop.example",
		Experiment: ab(func(e *Experiment) { e.Duration, e.EvaluateAt, e.OnInconclusive, e.MinSample = 0, &at, RollOutBest, 0 })})
	b.Must(err)
	_, err = b.Schedule(ctx, b.Workspace, c.ID, at, uuid.Nil)
	checkFault(t, err, "/experiment/evaluate_at", "out_of_range", "after the start")
	_, err = b.Schedule(ctx, b.Workspace, c.ID, at.Add(-time.Hour), uuid.Nil)
	b.Must(err)
	_, err = b.Schedule(ctx, b.Workspace, c.ID, at.Add(time.Hour), uuid.Nil) // postponed
	checkFault(t, err, "/experiment/evaluate_at", "out_of_range", "after the start")
	b.Exec(`update campaigns set scheduled_at = now() - interval '2 hours' where id = $1`, c.ID)
	b.Exec(`update iterations set evaluate_at = now() - interval '1 hour' where campaign_id = $1`, c.ID)
	_, err = b.FireDue(ctx)
	b.Must(err)
	b.fanout(c.ID)
	b.endBatches()
	b.evaluate()
	it := b.iteration(c)
	if it.Status != IterationInconclusive || it.Winner != nil || it.StatusReason != "cut_off_passed" {
		t.Fatalf("%s, winner %v: %s", it.Status, it.Winner, it.StatusReason)
	}
	b.waitsOnce(c)
	_, err = b.SelectWinner(ctx, b.Workspace, it.ID, "B", uuid.Nil)
	b.Must(err)
	b.decidedOnce(c, 1)
}

// A time is in the past by the clock of the database, whatever that of the process.
func TestATimeInThePastOfTheDatabaseIsRefused(t *testing.T) {
	b := setup(t, 0)
	c, now := b.draft(), time.Now().AddDate(0, 4, 0)
	pgtest.SetClock(t, b.Pool, now)
	_, err := b.Schedule(context.Background(), b.Workspace, c.ID, now.Add(-time.Hour), uuid.Nil)
	if lemma.KindOf(err) != lemma.Invalid {
		t.Errorf("a time of the past: %v", err)
	}
	_, err = b.Schedule(context.Background(), b.Workspace, c.ID, now.Add(time.Hour), uuid.Nil)
	b.Must(err)
}

// An experiment is evaluated in the future, and was evaluated, by the clock of the database.
func TestEvaluationsHaveTheTimeOfTheDatabase(t *testing.T) {
	b := experiments(t, 20)
	c, _ := b.sampled(ab(func(e *Experiment) { e.MinSample = 0 }))
	now := time.Now().AddDate(0, 0, 20).Truncate(time.Second)
	at := now.Add(time.Hour)
	other := func(e *Experiment) { e.Duration, e.EvaluateAt = 0, &at }
	draft, err := b.Create(t.Context(), b.Workspace, b.tested(ab(other)))
	b.Must(err)
	pgtest.SetClock(t, b.Pool, now)
	b.evaluate()
	if it := b.iteration(c); it.Verdict == nil || it.Verdict.EvaluatedAt.Sub(now).Abs() > time.Second {
		t.Errorf("the verdict is %+v instead of one of %s", it.Verdict, now)
	}
	pgtest.SetClock(t, b.Pool, at)
	_, err = b.Create(t.Context(), b.Workspace, b.tested(ab(other)))
	checkFault(t, err, "/experiment/evaluate_at", "in_the_past", "must be in the future")
	_, err = b.Send(t.Context(), b.Workspace, draft.ID, uuid.Nil)
	checkFault(t, err, "/experiment/evaluate_at", "in_the_past", "must be in the future")
}

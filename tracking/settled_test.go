package tracking

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/pgtest"
	"lemma/queue"
)

// settle replaces the acceptances by evidence that the carrier accepted all messages, which
// settled them later.
func (b *bundle) settle(accepted, settled time.Time) {
	b.T.Helper()
	b.Exec(`delete from attempts where workspace_id = $1`, b.Workspace)
	b.Exec(`insert into provider_events (workspace_id, origin_id, id, provider_id, source, source_event_id, batch_id, ordinal, kind,
			occurred_at, recorded_at)
		select workspace_id, origin_id, gen_random_uuid(), $2, 'webhook', key, batch_id, ordinal, 'accepted', $3, $4
		from notifications where workspace_id = $1`, b.Workspace, b.provider, accepted, settled)
	b.Exec(`insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis, at)
		select workspace_id, batch_id, ordinal, 1, 'accepted', true, 'evidence', $2 from notifications where workspace_id = $1`,
		b.Workspace, settled)
	b.Exec(`update conversion_positions set until = $1 where queue = 'settlement_queue'`, settled.Add(-time.Minute))
}

// queueSettled queues all settled notifications, and returns how many attempts it read.
func (b *bundle) queueSettled() int {
	b.T.Helper()
	n, err := b.QueueSettled(b.T.Context(), time.Minute)
	b.Must(err)
	return n
}

// The carrier accepts a message, and its worker crashes. The recipient buys before evidence
// settles the notification.
func TestAnEventBeforeTheSettlementConverts(t *testing.T) {
	b := setup(t)
	b.convertible("bought", time.Hour)
	accepted, settled := time.Now().Add(-20*time.Minute), time.Now().Add(-10*time.Minute)
	b.triggerEvent(0, "bought", accepted.Add(2*time.Minute), accepted.Add(2*time.Minute))
	b.triggerEvent(1, "bought", accepted.Add(-time.Minute), accepted.Add(time.Minute))
	b.triggerEvent(2, "looked", accepted.Add(2*time.Minute), accepted.Add(2*time.Minute))
	b.triggerEvent(3, "bought", time.Now().Add(time.Hour), accepted.Add(2*time.Minute)) // dated ahead, received in time
	b.triggerEvent(4, "bought", accepted.Add(time.Minute), accepted.Add(-time.Minute))  // dated ahead, received before the message
	b.triggerEvent(5, "bought", accepted, accepted)                                     // at the acceptance
	b.Exec(`delete from attempts where workspace_id = $1`, b.Workspace)
	b.convert(time.Minute)
	b.settle(accepted, settled)
	other := pgtest.Workspace(t, b.Pool) // it has no conversions
	b.Exec(`insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis, at)
		values ($1, $1, 0, 1, 'accepted', true, 'evidence', $2)`, other, settled)
	for _, want := range []int{11, 0} {
		if n := b.queueSettled(); n != want {
			t.Errorf("%d attempts, want %d", n, want)
		}
	}
	b.WantCount(10, `select count(*) from settlement_queue`)
	b.convert(time.Minute)
	for i := range 6 {
		want := i == 0 || i == 3 || i == 5
		b.WantCount(map[bool]int{true: 1}[want], `select count(*) from engagements where key = $1 and conversions = 1`, keyOf(i))
	}
	b.WantCount(0, `select count(*) from settlement_queue`)
}

// Orphaned notifications convert once they are resolved as sent: by the evidence, or else by a person.
func TestOrphanedNotificationsConvert(t *testing.T) {
	b := setup(t)
	b.convertible("bought", time.Hour)
	called, resolved := time.Now().Add(-20*time.Minute), time.Now().Add(-10*time.Minute)
	for profile, at := range []time.Duration{-time.Minute, time.Minute, time.Minute, time.Minute} {
		b.triggerEvent(profile, "bought", called.Add(at), called.Add(at))
	}
	b.Exec(`delete from attempts where workspace_id = $1`, b.Workspace)
	b.Exec(`insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis, at)
		select workspace_id, batch_id, ordinal, 1, 'unknown', true, 'reaper', $2 from notifications where workspace_id = $1`, b.Workspace, called)
	b.convert(time.Minute)
	for profile, by := range []string{"evidence", "evidence", "no evidence", "a person", "evidence", "a person", "not sent", "later"} {
		resolution, key := "sent", (*uuid.UUID)(nil)
		switch by {
		case "no evidence":
			continue
		case "a person", "later":
			key = &b.provider
		case "not sent":
			resolution = "not_sent"
		}
		b.Exec(`insert into resolutions (workspace_id, origin_id, key, resolution, api_key_id, at)
			select workspace_id, origin_id, key, $3, $4::uuid, $5 from notifications where workspace_id = $1 and profile_key = $2`,
			b.Workspace, strconv.Itoa(profile), resolution, key, resolved)
		if by == "evidence" || by == "later" { // after a person has resolved it
			recorded := resolved
			switch {
			case by == "later":
				recorded = resolved.Add(time.Second)
			case profile == 1: // while the transaction that resolved it ran
				recorded = resolved.Add(10 * time.Second)
			}
			b.Exec(`insert into provider_events (workspace_id, origin_id, id, provider_id, source, source_event_id, batch_id, ordinal, kind,
				occurred_at, recorded_at)
				select workspace_id, origin_id, gen_random_uuid(), $3, 'webhook', key, batch_id, ordinal, 'accepted', $4, $5
				from notifications where workspace_id = $1 and profile_key = $2`, b.Workspace, strconv.Itoa(profile), b.provider, called, recorded)
		}
	}
	b.triggerEvent(7, "bought", called.Add(time.Minute), resolved.Add(time.Minute)) // before the resolution, received later
	for profile := 4; profile < 7; profile++ {
		b.triggerEvent(profile, "bought", resolved.Add(time.Minute), resolved.Add(time.Minute))
	}
	b.Exec(`update conversion_positions set until = $1 where queue = 'resolutions'`, called)
	b.Must(b.queueDue(t.Context()))
	b.WantCount(3, `select count(*) from settlement_queue`) // those by evidence
	b.convert(time.Minute)
	for profile, want := range []int{0, 1, 0, 0, 1, 1, 0, 0} {
		b.WantCount(want, `select count(*) from engagements where key = $1 and conversions = 1`, keyOf(profile))
	}
	b.WantCount(0, `select count(*) from settlement_queue`)
}

// The events of a profile are read in bounded transactions, from where the last one ended.
func TestAProfileWithManyEventsIsReadInParts(t *testing.T) {
	for name, c := range map[string]struct {
		at   string        // when event i was received
		fits time.Duration // after the acceptance: when one that fits was received
	}{
		"received one after the other": {`$2::timestamptz + i * interval '1 ms'`, 9 * time.Minute},
		"received at once":             {`$2::timestamptz + interval '2 s' + ((i + 10000) / 15000) * interval '1 ms'`, 2001 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.convertible("bought", time.Hour)
			accepted, settled := time.Now().Add(-20*time.Minute), time.Now().Add(-10*time.Minute)
			b.settle(accepted, settled)
			b.Exec(`update provider_events set occurred_at = occurred_at + interval '1 second'
				where ordinal = (select ordinal from notifications where key = $1)`, keyOf(1))
			b.Exec(`update notifications set profile_key = '0' where key = $1`, keyOf(1))
			b.Exec(`update attempts a set at = at - interval '1 second' from notifications n
				where n.profile_key = '0' and a.batch_id = n.batch_id and a.ordinal = n.ordinal`)
			b.Exec(`update provider_events set recorded_at = recorded_at - interval '1 second'`)
			b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
				select $1, gen_random_uuid(), '0', 'bought', $2::timestamptz - interval '1 hour', `+c.at+` from generate_series(1, $3::int) i`,
				b.Workspace, accepted, 5*settledEvents/2)
			b.triggerEvent(0, "bought", settled, accepted.Add(c.fits))
			b.triggerEvent(2, "bought", settled, settled)
			if n := b.queueSettled(); n != 10 {
				t.Fatalf("%d attempts", n)
			}
			n, err := b.Convert(t.Context())
			b.Must(err)
			if n != 2 {
				t.Errorf("the first transaction advanced %d settlements, want those of the profile", n)
			}
			b.WantCount(2, `select count(*) from settlement_queue q where (select count(*) from trigger_events v
				where v.profile_key = '0' and v.received_at <= q.read_until) between 4000 and 10000`)
			for range 4 {
				_, err := b.Convert(t.Context())
				b.Must(err)
			}
			b.WantCount(0, `select count(*) from settlement_queue`)
			b.WantCount(3, `select count(*) from tracking_queue where key = any($1)`, []any{keyOf(0), keyOf(1), keyOf(2)})
		})
	}
}

// A pass reads the events of all notifications from the earliest on. One that comes later
// does not join a pass that has read events which may convert it.
func TestNotificationsShareAPassOfTheirEvents(t *testing.T) {
	at := func(minute int) time.Time { return time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC) }
	event := named{"p", "bought"}
	fresh := func(from int) *settlement { return &settlement{event: event, from: at(from), at: at(50)} }
	read := func(until int) *settlement {
		s, place := fresh(1), at(until)
		s.readUntil = &place
		return s
	}
	for name, c := range map[string]struct {
		open  []*settlement
		after time.Time
		of    int
	}{
		"the earliest is not the oldest":                  {[]*settlement{fresh(5), fresh(3), fresh(9)}, at(3).Add(-time.Microsecond), 3},
		"one that was accepted after the place may join":  {[]*settlement{read(10), fresh(11), read(10)}, at(10), 3},
		"one that was accepted before the place must not": {[]*settlement{read(10), fresh(9)}, at(10), 1},
		"a new pass takes those that others have read":    {[]*settlement{fresh(5), read(10), fresh(4)}, at(4).Add(-time.Microsecond), 3},
	} {
		t.Run(name, func(t *testing.T) {
			passes := passesOf(append(c.open, &settlement{event: named{"other", "bought"}}))
			if p := passes[0]; len(passes) != 2 || !p.after.Equal(c.after) || len(p.of) != c.of || !p.until.Equal(at(50)) {
				t.Errorf("%d passes; the first is of %d, after %v until %v", len(passes), len(p.of), p.after, p.until)
			}
		})
	}
}

// Notifications are queued without their events: a profile with many of them, or a lock,
// stops no other. Both queues are written at the same time.
func TestSettledNotificationsAreQueuedWithoutTheirEvents(t *testing.T) {
	b := setup(t)
	b.convertible("bought", time.Hour)
	b.settle(time.Now().Add(-20*time.Minute), time.Now().Add(-10*time.Minute))
	b.triggerEvent(0, "bought", b.sent, time.Now().Add(-10*time.Minute))
	b.Must(pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		_, _, n, err := advance(t.Context(), tx, nextEvents, time.Minute)
		b.Must(err)
		if n != 1 {
			t.Fatalf("%d events", n)
		}
		_, err = tx.Exec(t.Context(), `lock table trigger_events`)
		b.Must(err)
		b.Exec(`alter database ` + b.Pool.Config().ConnConfig.Database + ` set lock_timeout = '10s'`)
		b.Deps.Pool = b.Connect()
		if n := b.queueSettled(); n != 10 {
			t.Errorf("%d attempts beside QueueEvents", n)
		}
		return nil
	}))
}

func TestAQueueThatFailsStopsNotTheOther(t *testing.T) {
	b := setup(t)
	b.convertible("bought", time.Hour)
	b.settle(time.Now().Add(-20*time.Minute), time.Now().Add(-10*time.Minute))
	b.triggerEvent(0, "bought", b.sent, time.Now().Add(-10*time.Minute))
	b.Exec(`alter table conversion_queue add constraint is_full check (false)`)
	if err := b.queueDue(t.Context()); err == nil {
		t.Error("the events are queued")
	}
	b.WantCount(10, `select count(*) from settlement_queue`)
}

func TestAWorkspaceThatFailsStopsNoSettlements(t *testing.T) {
	b := setup(t)
	b.convertible("bought", time.Hour)
	accepted := time.Now().Add(-20 * time.Minute)
	b.settle(accepted, time.Now().Add(-10*time.Minute))
	b.triggerEvent(0, "bought", accepted, accepted.Add(time.Minute))
	b.queueSettled()
	other := pgtest.Workspace(t, b.Pool)
	b.Exec(`insert into settlement_queue (workspace_id, settled_at, batch_id, ordinal)
		values ($1, '-infinity', $1, 0)`, other) // is no time of Go
	b.Exec(`insert into conversion_queue (workspace_id, received_at, key) values ($1, now(), $2)`, other, lemma.NewID())
	b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at)
		select $1, key, 'p', 'n', '-infinity' from conversion_queue`, other)
	if _, err := b.Convert(t.Context()); err == nil {
		t.Error("the other workspace does not fail")
	}
	b.WantCount(1, `select count(*) from tracking_queue where workspace_id = $1`, b.Workspace)
	b.WantCount(1, `select count(*) from settlement_queue`)
}

// ends returns the error of a call, and fails if it does not end.
func ends(t *testing.T, call func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
		return nil
	}
}

// A transaction that waits for a lock is given up, so that its process can apply those of
// other workspaces.
func TestATransactionThatTakesLongIsGivenUp(t *testing.T) {
	b := setup(t)
	b.convertible("bought", time.Hour)
	b.settle(time.Now().Add(-20*time.Minute), time.Now().Add(-10*time.Minute))
	b.queueSettled()
	b.put(b.event(0, opened, 0, 0))
	b.opensAndClicks.Limit, b.settlements.Limit = 100*time.Millisecond, 100*time.Millisecond
	held, err := b.Pool.Begin(t.Context())
	b.Must(err)
	defer held.Rollback(context.Background())
	_, err = held.Exec(t.Context(), `lock table trigger_events, engagements`)
	b.Must(err)
	for name, call := range map[string]func() error{
		"settlements":      func() error { _, err := b.Convert(t.Context()); return err },
		"opens and clicks": func() error { _, err := b.Apply(t.Context(), 0); return err },
	} {
		if err := ends(t, call); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Events are read again with a higher bound only if none of the first could be used, and not
// after an error.
func TestEventsThatCannotBeReadEndTheTransaction(t *testing.T) {
	b := setup(t)
	b.convertible("bought", time.Hour)
	accepted := time.Now().Add(-20 * time.Minute)
	b.settle(accepted, time.Now().Add(-10*time.Minute))
	for i := range 10 {
		b.triggerEvent(i, "bought", accepted, accepted.Add(time.Minute))
	}
	b.Exec(`update trigger_events set occurred_at = '-infinity'`) // is no time of Go
	b.queueSettled()
	if err := ends(t, func() error { _, err := b.Convert(t.Context()); return err }); err == nil ||
		errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// Evidence that is dated ahead proves an acceptance at the time of its receipt.
func TestAnEventAfterEvidenceThatIsDatedAheadConverts(t *testing.T) {
	b := setup(t)
	b.convertible("bought", time.Hour)
	received, settled := time.Now().Add(-20*time.Minute), time.Now().Add(-10*time.Minute)
	b.triggerEvent(0, "bought", received.Add(time.Minute), received.Add(time.Minute))
	b.triggerEvent(1, "bought", received.Add(-time.Minute), received.Add(-time.Minute))
	b.settle(time.Now().AddDate(0, 10, 0), settled)
	b.Exec(`update provider_events set recorded_at = $1`, received)
	b.queueSettled()
	b.convert(time.Minute)
	b.WantCount(1, `select count(*) from engagements where key = $1 and conversions = 1`, keyOf(0))
	b.WantCount(0, `select count(*) from engagements where key = $1`, keyOf(1))
}

// A process that stops with settlements that it has taken does not keep another waiting, which
// leaves them to it.
func TestOneProcessMatchesSettlements(t *testing.T) {
	b := setup(t)
	b.convertible("bought", time.Hour)
	b.settle(time.Now().Add(-20*time.Minute), time.Now().Add(-10*time.Minute))
	b.queueSettled()
	tx, err := b.Pool.Begin(t.Context())
	b.Must(err)
	taken, err := takeSettled(t.Context(), tx, b.Workspace, queue.Part{Most: 4})
	b.Must(err)
	if n, err := b.Convert(t.Context()); n != 6 || err != nil || len(taken) != 4 {
		t.Errorf("a second process matched %d settlements beside %d: %v", n, len(taken), err)
	}
	b.Must(tx.Rollback(t.Context())) // it crashes
	if n, err := b.Convert(t.Context()); n != 4 || err != nil {
		t.Errorf("%d settlements are left: %v", n, err)
	}
}

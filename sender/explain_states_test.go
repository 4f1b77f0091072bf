package sender

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"lemma/events"
	"lemma/notifications"
)

func (b *bundle) explain() notifications.Explanation {
	b.T.Helper()
	e, err := b.ledger.Explain(context.Background(), b.Workspace, b.origin, keyOf(0))
	b.Must(err)
	return e
}

// standstill stops a worker at a point until release is called.
func (b *bundle) standstill(s *Sender, at string, nth int) (release func()) {
	b.T.Helper()
	reached, free := pauseAt(s, at, nth)
	done := make(chan error)
	ref := b.batches("status = 'ready'")[0]
	go func() { _, err := s.Work(context.Background(), ref); done <- err }()
	<-reached
	return func() {
		close(free)
		if err := <-done; err != nil {
			b.T.Error(err)
		}
		s.Hook = nil
	}
}

// explained is a state in which explain is called, and its expected result.
type explained struct {
	name        string
	maxAttempts int
	calls       []Outcome
	reach       func(b *bundle, s *Sender) (release func())
	waiting     string
	possible    int
}

func still(reach func(b *bundle, s *Sender)) func(*bundle, *Sender) func() {
	return func(b *bundle, s *Sender) func() { reach(b, s); return func() {} }
}

func stopped(at string, nth int, then ...func(b *bundle)) func(*bundle, *Sender) func() {
	return func(b *bundle, s *Sender) func() {
		release := b.standstill(s, at, nth)
		for _, also := range then {
			also(b)
		}
		return release
	}
}

// second stops the worker of the second attempt.
func second(at string, nth int, then ...func(b *bundle)) func(*bundle, *Sender) func() {
	return func(b *bundle, s *Sender) func() {
		b.work(s)
		b.reap(s)
		return stopped(at, nth, then...)(b, s)
	}
}

var (
	hold = func(b *bundle) {
		err := pgx.BeginFunc(context.Background(), b.Pool,
			func(tx pgx.Tx) error { return b.ledger.Hold(context.Background(), tx, b.Workspace, b.origin) })
		b.Must(err)
	}
	cancel   = func(b *bundle) { b.cancel() }
	late     = func(b *bundle) { b.pastDeadline() }
	accepted = func(b *bundle) { b.prove(events.Accepted) }
	rejected = func(b *bundle) { b.prove(events.Rejected) }
	unknown1 = []Outcome{Unknown}
)

var moments = []explained{
	{"never called", 2, nil, still(func(*bundle, *Sender) {}), "worker", 2},
	{"never called, at_most_once", 1, nil, still(func(*bundle, *Sender) {}), "worker", 1},
	{"due later", 2, nil, still(func(b *bundle, _ *Sender) { b.Exec(`update batches set due_at = now() + interval '1 hour'`) }), "due", 2},
	{"paused", 2, nil, still(func(b *bundle, _ *Sender) { hold(b) }), "resume", 2},
	{"past its send deadline, and not ended yet", 2, nil, still(func(b *bundle, _ *Sender) { late(b) }), "expiry", 0},
	{"refused for now", 2, []Outcome{NotAccepted}, still(func(b *bundle, s *Sender) { b.work(s) }), "due", 2},
	{"refused for now, at_most_once", 1, []Outcome{NotAccepted}, still(func(b *bundle, s *Sender) { b.work(s) }), "due", 1},
	{"its provider fails", 2, nil, still(func(b *bundle, s *Sender) {
		b.carrier.fail(noConnection)
		b.work(s)
		b.carrier.fail(nil)
		b.makeDue()
	}), "provider", 2},

	{"claimed, no window open", 2, nil, stopped("claimed", 1), "window", 2},
	{"about to be called", 2, nil, stopped("committing", 1), "window", 2},
	{"about to be called, and cancelled", 2, nil, stopped("committing", 1, cancel), "cancel", 0},
	{"about to be called, and its deadline passes", 2, nil, stopped("committing", 1, late), "window", 1},
	{"window open, not called yet", 2, nil, stopped("opened", 1), "answer", 2},
	{"the server hangs after the final dot", 2, nil, stopped("called", 1), "answer", 2},
	{"the server hangs after the final dot, at_most_once", 1, nil, stopped("called", 1), "answer", 1},
	{"the server hangs, and it is paused", 2, nil, stopped("called", 1, hold), "answer", 2},
	{"the server hangs, and it is cancelled", 2, nil, stopped("called", 1, cancel), "answer", 1},
	{"the server hangs, and its deadline passes", 2, nil, stopped("called", 1, late), "answer", 1},
	{"unknown, the lease runs", 2, unknown1, still(func(b *bundle, s *Sender) { b.work(s) }), "answer", 2},
	{"unknown, the lease has run out", 2, unknown1, still(func(b *bundle, s *Sender) { b.work(s); b.expireLeases() }), "answer", 2},
	{"unknown, with evidence of acceptance", 2, unknown1, still(func(b *bundle, s *Sender) { b.work(s); accepted(b) }), "answer", 1},
	{"unknown, with evidence of rejection", 2, unknown1, still(func(b *bundle, s *Sender) { b.work(s); rejected(b) }), "answer", 0},

	{"ready for attempt 2", 2, unknown1, still(func(b *bundle, s *Sender) { b.work(s); b.reap(s) }), "worker", 2},
	{"ready for attempt 2, and it was accepted", 2, unknown1, still(func(b *bundle, s *Sender) { b.work(s); b.reap(s); accepted(b) }),
		"worker", 1},
	{"ready for attempt 2, and it was rejected", 2, unknown1, still(func(b *bundle, s *Sender) { b.work(s); b.reap(s); rejected(b) }),
		"worker", 0},
	{"ready for attempt 2, and its deadline passes", 2, unknown1, still(func(b *bundle, s *Sender) { b.work(s); b.reap(s); late(b) }),
		"expiry", 1},
	{"attempt 2 refused for now", 2, []Outcome{Unknown, NotAccepted},
		still(func(b *bundle, s *Sender) { b.work(s); b.reap(s); b.work(s) }), "due", 2},
	{"attempt 2 about to be called", 2, unknown1, second("committing", 1), "window", 2},
	{"attempt 2 about to be called, evidence comes too late", 2, unknown1, second("committing", 1, accepted), "window", 2},
	{"attempt 2 about to be called, and cancelled", 2, unknown1, second("committing", 1, cancel), "cancel", 1},
	{"attempt 2 in its window", 2, unknown1, second("opened", 1), "answer", 2},

	{"sent", 2, []Outcome{Accepted}, still(func(b *bundle, s *Sender) { b.work(s) }), "", 1},
	{"rejected", 2, []Outcome{Rejected}, still(func(b *bundle, s *Sender) { b.work(s) }), "", 0},
	{"sent on attempt 2", 2, []Outcome{Unknown, Accepted}, still(func(b *bundle, s *Sender) { b.work(s); b.reap(s); b.work(s) }), "", 2},
	{"unknown for ever", 1, unknown1, still(func(b *bundle, s *Sender) { b.work(s); b.reap(s) }), "", 1},
	{"cancelled", 2, nil, still(func(b *bundle, _ *Sender) { cancel(b) }), "", 0},
	{"cancelled before attempt 2", 2, unknown1, still(func(b *bundle, s *Sender) { b.work(s); b.reap(s); cancel(b) }), "", 1},
	{"attempt 2 refused for now, then cancelled", 2, []Outcome{Unknown, NotAccepted},
		still(func(b *bundle, s *Sender) { b.work(s); b.reap(s); b.work(s); cancel(b) }), "", 1},
	{"accepted after all", 2, unknown1, still(func(b *bundle, s *Sender) { b.work(s); b.reap(s); accepted(b); b.work(s) }), "", 1},
}

// Explain predicts what can happen: from each state the worst case follows, and the
// deliveries are counted.
func TestExplainPredicts(t *testing.T) {
	for _, c := range moments {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t)
			b.carrier.then[addressOf(0)] = c.calls
			b.carrier.rest = Unknown
			b.insert(1, 1, c.maxAttempts)
			s := b.sender()
			release := c.reach(b, s)
			e := b.explain()
			release()
			b.worst()
			made := 0
			for n := range b.carrier.called(addressOf(0)) {
				if n >= len(c.calls) || c.calls[n] == Accepted || c.calls[n] == Unknown {
					made++
				}
			}
			if made -= b.rejectedCalls(); made != c.possible || e.DeliveriesPossible != c.possible {
				t.Errorf("it predicted %d deliveries and %d were made; want %d: %s", e.DeliveriesPossible, made, c.possible, e.Summary)
			}
			if impossible := strings.Contains(e.Summary, "no second delivery"); impossible != (c.possible < 2) {
				t.Errorf("with %d deliveries possible the summary is: %s", c.possible, e.Summary)
			}
			waiting := ""
			if e.Waiting != nil {
				waiting = e.Waiting.For
			}
			if waiting != c.waiting {
				t.Errorf("it waits for %q, want %q", waiting, c.waiting)
			}
			if final := slices.Contains([]string{"pending", "processing"}, e.Notification.Status); final != (e.Waiting != nil) {
				t.Errorf("%s waits for %+v", e.Notification.Status, e.Waiting)
			}
			if after := b.explain(); after.Waiting != nil || after.DeliveriesPossible > e.DeliveriesPossible ||
				after.DeliveriesAtMost != after.DeliveriesPossible {
				t.Errorf("in the end it is %s, %d to %d of %d deliveries, waits for %+v", after.Notification.Status,
					after.DeliveriesAtLeast, after.DeliveriesAtMost, after.DeliveriesPossible, after.Waiting)
			}
		})
	}
}

// rejectedCalls counts calls that evidence proves to be rejected.
func (b *bundle) rejectedCalls() (n int) {
	b.T.Helper()
	err := b.Pool.QueryRow(context.Background(), `select count(*) from provider_events where workspace_id = $1 and kind = 'rejected'`,
		b.Workspace).Scan(&n)
	b.Must(err)
	return n
}

// worst resumes, lets all time pass and leaves every call unknown, until nothing
// happens any more.
func (b *bundle) worst() {
	b.T.Helper()
	s := b.sender()
	for range 4 {
		err := pgx.BeginFunc(context.Background(), b.Pool,
			func(tx pgx.Tx) error { return b.ledger.Unhold(context.Background(), tx, b.Workspace, b.origin) })
		b.Must(err)
		b.makeDue()
		b.makeProbable()
		b.work(s)
		b.reap(s)
	}
}

// Explain reads one snapshot: it contains nothing that happens while it reads.
func TestExplainIsOneSnapshot(t *testing.T) {
	b := setup(t)
	refs := b.insert(1, 1, 2)
	b.claim(b.sender())
	ctx := t.Context()
	tx, err := b.Pool.Begin(ctx)
	b.Must(err)
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `lock table batch_log in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	got := make(chan notifications.Explanation)
	go func() { got <- b.explain() }()
	b.WaitForLocks(1)
	for _, change := range []string{
		`insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis)
			values ($1, $2, 0, 1, 'accepted', true, 'response')`,
		`update batches set status = 'done', leased_by = null, lease_until = null, sent = 1, finished_at = now()
			where workspace_id = $1 and id = $2`,
	} {
		if _, err := tx.Exec(ctx, change, b.Workspace, refs[0].BatchID); err != nil {
			t.Fatal(err)
		}
	}
	b.Must(tx.Commit(ctx))
	e := <-got
	steps := fmt.Sprint(e.Steps)
	if e.Notification.Status != "pending" || strings.Contains(steps, "accepted") || e.Waiting == nil || e.Waiting.For != "window" ||
		e.DeliveriesAtLeast != 0 {
		t.Errorf("it is %s, waits for %+v, %d deliveries at least, and the steps are %s", e.Notification.Status, e.Waiting,
			e.DeliveriesAtLeast, steps)
	}
}

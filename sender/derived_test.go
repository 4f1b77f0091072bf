package sender

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma/events"
)

// derived are the fields that the view derives for one notification.
type derived struct {
	Status, Reason string
	Attempts       int
	Ended          bool
}

func (b *bundle) derived(i int) derived {
	b.T.Helper()
	n, err := b.ledger.Get(context.Background(), b.Workspace, b.origin, keyOf(i))
	b.Must(err)
	d := derived{Status: n.Status, Attempts: n.Attempts, Ended: n.EndedAt != nil}
	if n.Reason != nil {
		d.Reason = *n.Reason
	}
	return d
}

func (b *bundle) pastDeadline() {
	b.Exec(`update batches set expires_at = now() - interval '1 second' where workspace_id = $1`, b.Workspace)
}

// derivedCase brings the notification of recipient 0 into a state. Its first batch has
// other rows, whose calls are always accepted.
type derivedCase struct {
	name        string
	maxAttempts int
	calls       []Outcome
	reach       func(b *bundle, s *Sender)
	want        derived
}

var derivedCases = []derivedCase{
	{"sent, and cancelled afterwards", 2, []Outcome{Accepted}, func(b *bundle, s *Sender) { b.workHalf(s, 1); b.cancel(); b.reap(s) },
		derived{"sent", "", 1, true}},
	{"sent, and its batch expired afterwards", 2, []Outcome{Accepted},
		func(b *bundle, s *Sender) { b.workHalf(s, 1); b.pastDeadline(); b.reap(s); b.work(s) }, derived{"sent", "", 1, true}},
	{"rejected, and cancelled afterwards", 2, []Outcome{Rejected},
		func(b *bundle, s *Sender) { b.workHalf(s, 1); b.cancel(); b.reap(s) }, derived{"failed", "scripted", 1, true}},
	{"never called", 2, nil, func(b *bundle, _ *Sender) {}, derived{"pending", "", 0, false}},
	{"cancelled before it was called", 2, nil, func(b *bundle, _ *Sender) { b.cancel() }, derived{"cancelled", "cancelled", 0, true}},
	{"cancelled while a worker held it", 2, nil, func(b *bundle, s *Sender) { b.claim(s); b.cancel(); b.reap(s) },
		derived{"cancelled", "cancelled", 0, true}},
	{"expired before it was called", 2, nil, func(b *bundle, s *Sender) { b.pastDeadline(); b.work(s) },
		derived{"skipped", "expired", 0, true}},
	{"not rendered, so not called", 2, nil, func(b *bundle, s *Sender) {
		b.Exec(`update notifications set payload = 'broken' where workspace_id = $1 and key = $2`, b.Workspace, keyOf(0))
		b.work(s)
	}, derived{"skipped", "template_error", 0, true}},
	{"refused for now", 2, []Outcome{NotAccepted}, func(b *bundle, s *Sender) { b.work(s) }, derived{"pending", "", 0, false}},
	{"unknown, and its lease runs", 2, []Outcome{Unknown}, func(b *bundle, s *Sender) { b.work(s) }, derived{"processing", "", 0, false}},
	{"waits for its second attempt", 2, []Outcome{Unknown}, func(b *bundle, s *Sender) { b.work(s); b.reap(s) },
		derived{"pending", "", 1, false}},
	{"cancelled before its second attempt", 2, []Outcome{Unknown}, func(b *bundle, s *Sender) { b.work(s); b.reap(s); b.cancel() },
		derived{"orphaned", "unknown_then_cancelled", 1, true}},
	{"expired before its second attempt", 2, []Outcome{Unknown},
		func(b *bundle, s *Sender) { b.work(s); b.reap(s); b.pastDeadline(); b.work(s) },
		derived{"orphaned", "unknown_then_expired", 1, true}},
	{"sent on its second attempt", 2, []Outcome{Unknown, Accepted}, func(b *bundle, s *Sender) { b.work(s); b.reap(s); b.work(s) },
		derived{"sent", "", 2, true}},
	{"unknown under at_most_once", 1, []Outcome{Unknown}, func(b *bundle, s *Sender) { b.work(s); b.reap(s) },
		derived{"orphaned", "no_answer", 1, true}},
	{"accepted after all, so no second call", 2, []Outcome{Unknown},
		func(b *bundle, s *Sender) { b.work(s); b.reap(s); b.prove(events.Accepted); b.work(s) }, derived{"sent", "", 1, true}},
	{"rejected after all, so no second call", 2, []Outcome{Unknown},
		func(b *bundle, s *Sender) { b.work(s); b.reap(s); b.prove(events.Rejected); b.work(s) },
		derived{"failed", "first_attempt_rejected", 1, true}},
}

// A reason, a number of attempts and an end are those of the notification and
// not of the batch that carried it.
func TestDerivedFields(t *testing.T) {
	for _, c := range derivedCases {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t)
			b.carrier.then[addressOf(0)] = c.calls
			b.insert(3, 3, c.maxAttempts)
			c.reach(b, b.sender(func(c *Config) { c.MaxWindow = 1 }))
			if d := cmp.Diff(c.want, b.derived(0)); d != "" {
				t.Errorf("it differs (-want +got): %s", d)
			}
			if other := b.derived(1); other.Ended == (other.Status == "pending" || other.Status == "processing") {
				t.Errorf("the other recipient is %+v", other)
			}
		})
	}
}

// workHalf stops the worker of the first batch after its first windows, as a crash
// would.
func (b *bundle) workHalf(s *Sender, windows int) {
	b.T.Helper()
	reached := stop(s, "opened", windows+1)
	ref := b.batches("status = 'ready'")[0]
	go func() { _, _ = s.Work(b.T.Context(), ref) }()
	<-reached
	s.Hook = nil
}

func (b *bundle) claim(s *Sender) *claim {
	b.T.Helper()
	c, err := s.Claim(context.Background(), b.batches("status = 'ready'")[0])
	if err != nil || c == nil {
		b.T.Fatal(fmt.Sprint("nothing was claimed: ", err))
	}
	return c
}

// prove records a late event about the first attempt of recipient 0.
func (b *bundle) prove(kind events.Kind) { b.record(b.batches("attempt = 1")[0], 0, kind) }

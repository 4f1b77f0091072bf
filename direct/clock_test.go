package direct

import (
	"errors"
	"testing"
	"time"

	"lemma"
	"lemma/notifications"
	"lemma/pgtest"
)

// How far send_at may be ahead is by the clock of the database, whatever that of the process.
func TestSendAtIsComparedWithTheTimeOfTheDatabase(t *testing.T) {
	b := setup(t)
	now := time.Now().AddDate(0, 0, 2)
	pgtest.SetClock(t, b.Pool, now)
	at := now.Add(MaxAhead - time.Hour)
	r := b.request("", func(r *Request) { r.SendAt = &at })
	b.send(b.process(), r, accepted)
	at = now.Add(MaxAhead + time.Hour)
	if _, err := b.process().Send(t.Context(), b.Workspace, r); lemma.KindOf(err) != lemma.Invalid {
		t.Errorf("a time too far ahead: %v", err)
	}
}

// A notification is not due before it was created, also if send_at is in the past.
func TestATimeInThePastIsNow(t *testing.T) {
	b := setup(t)
	d := b.process()
	past := time.Now().Add(-time.Hour)
	n := b.send(d, b.request("", func(r *Request) { r.SendAt = &past }), accepted)
	stored, err := b.Ledger.Get(t.Context(), b.Workspace, n.OriginID, n.Key)
	b.Must(err)
	for _, n := range []notifications.Notification{n, stored} {
		if n.DueAt == nil || n.DueAt.Before(n.CreatedAt) {
			t.Errorf("due at %v, created at %v", n.DueAt, n.CreatedAt)
		}
	}
}

// How long a client waits for a notification that is to be sent later is by the clock of the
// database, whatever that of the process.
func TestALockedKeyIsRepeatedByTheTimeOfTheDatabase(t *testing.T) {
	b := setup(t)
	d := b.process()
	now := time.Now().AddDate(0, 0, 2)
	pgtest.SetClock(t, b.Pool, now)
	due := now.Add(10 * time.Minute)
	r := b.request("k", twice, func(r *Request) { r.SendAt = &due })
	b.send(d, r, accepted)
	_, err := d.Send(t.Context(), b.Workspace, r)
	var l *Locked
	if !errors.As(err, &l) || (l.RetryAfter-10*time.Minute).Abs() > time.Minute {
		t.Errorf("%v, %+v", err, l)
	}
}

// A notification that is to be sent later is called when it is due by the clock of the database, whatever that of the
// process.
func TestSendAtIsByTheTimeOfTheDatabase(t *testing.T) {
	b := setup(t)
	now := time.Now().AddDate(0, 0, 2)
	pgtest.SetClock(t, b.Pool, now)
	due := now.Add(10 * time.Minute)
	b.send(b.process(), b.request("", func(r *Request) { r.SendAt = &due }), accepted)
	b.WantCount(1, `select count(*) from river_job j, batches b where j.scheduled_at = b.due_at`)
}

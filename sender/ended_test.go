package sender

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma/events"
	"lemma/notifications"
)

// ends are the ways in which second attempts end without a call. prove stores evidence
// after the batch has its retry.
var ends = []struct {
	name   string
	end    func(b *bundle, prove func())
	reason string // of a row without evidence
}{
	{"cancelled while ready", func(b *bundle, prove func()) { prove(); b.cancel() }, "unknown_then_cancelled"},
	{"cancelled by provider", func(b *bundle, prove func()) {
		prove()
		b.inTx(func(tx pgx.Tx) error {
			n, err := b.ledger.CancelOf(bg, tx, b.Workspace, b.origin, b.provider)
			if n != 0 {
				b.T.Errorf("%d rows are cancelled that were never called", n)
			}
			return err
		})
	}, "unknown_then_cancelled"},
	{"expired before a claim", func(b *bundle, prove func()) { prove(); b.pastDeadline(); b.work(b.sender()) }, "unknown_then_expired"},
	{"expired behind a held gate", func(b *bundle, prove func()) {
		b.inTx(func(tx pgx.Tx) error { return b.ledger.Hold(bg, tx, b.Workspace, b.origin) })
		prove()
		b.pastDeadline()
		_, err := b.sender().Sweep(bg)
		b.Must(err)
	}, "unknown_then_expired"},
	{"cancelled while a worker holds it", func(b *bundle, prove func()) {
		finish := b.pausedWork(b.sender(), b.batches("status = 'ready'")[0], "committing", 1)
		prove()
		b.cancel()
		finish()
	}, "unknown_then_cancelled"},
	{"cancelled, and its worker has crashed", func(b *bundle, prove func()) {
		b.claim(b.sender())
		prove()
		b.cancel()
		b.reap(b.sender())
	}, "unknown_then_cancelled"},
	{"its claims crashed", func(b *bundle, prove func()) {
		for i := range maxCrashes {
			b.makeDue()
			b.claim(b.sender())
			if i == maxCrashes-1 {
				prove()
			}
			b.reap(b.sender())
		}
	}, "unknown_then_skipped"},
}

// Whatever ends a second attempt reads the evidence about the first: an acceptance makes
// the row sent, a rejection failed. The row without evidence is orphaned and queued.
func TestASecondAttemptEndsByEvidence(t *testing.T) {
	for _, c := range ends {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t)
			root := b.secondAttempts(3)
			c.end(b, func() {
				b.record(root, 0, events.Accepted)
				b.record(root, 1, events.Rejected)
			})
			b.wantCounts(notifications.Counts{Sent: 1, Failed: 1, Orphaned: 1})
			b.wantCalledOnce(3)
			for i, want := range []derived{
				{"sent", "", 1, true}, {"failed", notifications.ReasonFirstRejected, 1, true}, {"orphaned", c.reason, 1, true},
			} {
				if got := b.derived(i); got != want {
					t.Errorf("row %d is %+v, want %+v", i, got, want)
				}
			}
			b.WantCount(1, `select count(*) from event_queue where type = 'orphaned'`)
			b.WantCount(1, `
				select count(*) from event_queue q
				join notifications n on n.workspace_id = q.workspace_id and n.batch_id = q.batch_id and n.ordinal = q.ordinal
				where n.key = $1`, keyOf(2))
		})
	}
}

// Evidence that is stored while a second attempt ends resolves the orphan: its event was
// perhaps applied before the row was orphaned, so the row is queued.
func TestEvidenceBesideTheEndOfASecondAttempt(t *testing.T) {
	for _, c := range ends {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t)
			root := b.secondAttempts(1)
			tx, err := b.Pool.Begin(bg)
			b.Must(err)
			defer func() { _ = tx.Rollback(bg) }()
			c.end(b, func() {
				_, err = events.Record(bg, tx, b.Workspace, []events.Event{{ProviderID: b.provider, Source: "test",
					OriginID: b.origin, BatchID: root.BatchID, Attempt: 1, Kind: events.Accepted, OccurredAt: time.Now()}})
				b.Must(err)
			})
			b.wantCounts(notifications.Counts{Orphaned: 1})
			b.Must(tx.Commit(bg))
			b.inTx(func(tx pgx.Tx) error {
				queued, err := events.Take(bg, tx, b.Workspace, 0, 10)
				b.Must(err)
				var rows []notifications.Row
				for _, q := range queued {
					if q.Type == events.TypeOrphaned { // without the event itself
						rows = append(rows, notifications.Row{OriginID: q.OriginID.UUID, BatchID: q.BatchID.UUID, Ordinal: *q.Ordinal})
					}
				}
				n, err := notifications.ResolveByEvidence(bg, tx, b.Workspace, rows)
				if n != 1 {
					t.Errorf("%d are resolved", n)
				}
				return err
			})
			b.WantCount(1, `select count(*) from resolutions where resolution = 'sent'`)
		})
	}
}

// What a worker orphans is queued too: here the second attempt was called and rejected.
func TestARejectedSecondAttemptIsQueued(t *testing.T) {
	b := setup(t)
	b.secondAttempts(1)
	b.carrier.rest = Rejected
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Orphaned: 1})
	b.WantCount(1, `select count(*) from event_queue where type = 'orphaned'`)
}

// secondAttempts makes n rows wait for their second attempt, and returns their root.
func (b *bundle) secondAttempts(n int) notifications.Ref {
	b.T.Helper()
	root := b.insert(n, n, 2)[0]
	b.carrier.rest = Unknown
	s := b.sender()
	b.work(s)
	if r := b.reap(s); r.Retried != n {
		b.T.Fatalf("reaped %+v", r)
	}
	b.carrier.rest = ""
	return root
}

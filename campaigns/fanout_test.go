package campaigns

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/notifications"
	"lemma/pgtest"
)

// Campaign!AtMostOneNotificationPerRecipient: runs that are repeated, and runs at once.
func TestAFanoutCanBeRepeated(t *testing.T) {
	b := setup(t, 500)
	b.ExecDB(`insert into customers values ('d1', 'C1@shop.example', 'x', false), ('m', null, 'x', false)`)
	c := b.sent()
	b.fanout(c.ID)
	first := b.get(c.ID).Counts
	for range 2 {
		b.Exec(`update fanouts set finished_at = null where workspace_id = $1`, b.Workspace)
		b.fanout(c.ID)
	}
	if d := cmp.Diff(first, b.get(c.ID).Counts); d != "" {
		t.Errorf("a repetition changed the counts: %s", d)
	}
	if b.jobs("batch_send") != b.batchCount() {
		t.Errorf("%d jobs for %d batches", b.jobs("batch_send"), b.batchCount())
	}
}

func TestTwoFanoutsAtOnce(t *testing.T) {
	b := setup(t, 2000)
	b.ExecDB(`insert into customers select 'd' || i, 'C' || i || '@shop.example', 'x', false from generate_series(1, 300) i`)
	c := b.sent()
	p := b.plans(c.ID, 1)
	var runs sync.WaitGroup
	for range 3 {
		runs.Go(func() {
			if _, err := b.readAll(p); err != nil {
				t.Error(err)
			}
		})
	}
	runs.Wait()
	got := b.get(c.ID).Counts
	if got.Audience != 2300 || got.Pending != 2000 || got.SkippedBy["duplicate_address"] != 300 || !got.Balanced {
		t.Errorf("%+v", got)
	}
	for address, n := range b.addresses(c.ID) {
		if n != 1 {
			t.Errorf("%s has %d notifications", address, n)
		}
	}
}

// readAll streams and writes like a fan-out, but has no lease.
func (b *bundle) readAll(p *plan) (int64, error) {
	now := b.get(p.OriginID)
	chunks := make(chan []notifications.Recipient)
	failed := make(chan error)
	go func() {
		var all error
		for chunk := range chunks {
			all = errors.Join(all, b.WriteChunk(context.Background(), p, chunk))
		}
		failed <- all
	}()
	read, err := b.readAudience(context.Background(), now, p, chunks)
	close(chunks)
	return read, errors.Join(err, <-failed)
}

// A fan-out that crashed after some chunks is continued by another.
func TestAFanoutThatCrashedIsContinued(t *testing.T) {
	b := setup(t, 400)
	c := b.sent()
	ctx := context.Background()
	run, _, err := b.claimFanout(ctx, lease{b.Workspace, c.ID, "crashed"})
	if err != nil || run != 1 {
		t.Fatal(run, err)
	}
	p := b.plans(c.ID, 1)
	b.Must(b.WriteChunk(ctx, p, appendRecipients(nil, c.ID, lemma.Email,
		audience.Row{Key: "1", Email: "c1@shop.example", Payload: `{"name":"N1"}`})))
	b.fanout(c.ID)
	if b.get(c.ID).FannedOutAt != nil {
		t.Fatal("another run started while the lease was held")
	}
	b.Exec(`update fanouts set lease_until = now() - interval '1 second' where workspace_id = $1`, b.Workspace)
	for _, lost := range []string{`truncate river_job`, // the second: by a process whose clock is ahead
		`update river_job set state = 'scheduled', scheduled_at = now() + interval '4 months'`, // the third: one whose clock is behind
		`update river_job set state = 'scheduled', scheduled_at = now() - interval '4 months'`,
		`update river_job set state = 'available', scheduled_at = now() + interval '4 months'`} {
		b.Exec(lost)
		if n, err := b.Sweep(ctx); err != nil || n != 1 {
			t.Errorf("%s: the sweep enqueued %d fan-outs, %v", lost, n, err)
		}
		if n, err := b.Sweep(ctx); err != nil || n != 0 {
			t.Errorf("%s: the next sweep enqueued %d fan-outs, %v", lost, n, err)
		}
	}
	b.fanout(c.ID)
	if got := b.get(c.ID); got.FannedOutAt == nil || got.Counts.Audience != 400 || got.Counts.Pending != 400 {
		t.Errorf("%+v", got.Counts)
	}
}

// After cancel has returned, no chunk is written.
func TestCancelInMidFanout(t *testing.T) {
	b := setup(t, 100)
	c := b.sent()
	ctx := context.Background()
	p := b.plans(c.ID, 1)
	b.Must(b.WriteChunk(ctx, p, someRecipients(c.ID, 0, 30)))
	got, found, err := b.Cancel(ctx, b.Workspace, c.ID, uuid.Nil)
	if err != nil || got.Status != Cancelled || found.InFlight != 0 || found.Cancelled != 30 || got.Counts.Cancelled != 30 {
		t.Errorf("%s, %+v, %+v, %v", got.Status, found, got.Counts, err)
	}
	if err := b.WriteChunk(ctx, p, someRecipients(c.ID, 30, 60)); !errors.Is(err, errStopped) {
		t.Errorf("a chunk was written after the cancel: %v", err)
	}
	if got := b.get(c.ID).Counts; got.Audience != 30 || got.Cancelled != 30 || !got.Balanced {
		t.Errorf("%+v", got)
	}
}

// A cancel waits for the chunk that is being written, and cancels it.
func TestCancelWaitsForTheChunk(t *testing.T) {
	b := setup(t, 100)
	c := b.sent()
	ctx := context.Background()
	p := b.plans(c.ID, 1)
	chunk, err := b.Pool.Begin(ctx)
	b.Must(err)
	defer chunk.Rollback(ctx)
	var status string
	b.Must(chunk.QueryRow(ctx, `select status from campaigns where workspace_id = $1 and id = $2 for share`, b.Workspace, c.ID).Scan(&status))
	part := p.Chunk
	part.Recipients = someRecipients(c.ID, 0, 30)
	_, err = b.deps.Ledger.Insert(ctx, chunk, part)
	b.Must(err)
	answered := make(chan error)
	go func() { _, _, err := b.Cancel(ctx, b.Workspace, c.ID, uuid.Nil); answered <- err }()
	b.WaitForLocks(1)
	b.Must(chunk.Commit(ctx))
	b.Must(<-answered)
	if got := b.get(c.ID).Counts; got.Cancelled != 30 || got.Pending != 0 {
		t.Errorf("%+v", got)
	}
}

func someRecipients(campaign uuid.UUID, from, to int) []notifications.Recipient {
	var all []notifications.Recipient
	for i := from; i < to; i++ {
		address := "r" + string(rune('a'+i/26)) + string(rune('a'+i%26)) + "@shop.example"
		all = appendRecipients(all, campaign, lemma.Email, audience.Row{Key: address, Email: address, Payload: `{"name":"x"}`})
	}
	return all
}

// A second fan-out, which had lost its lease, writes a new recipient while the
// campaign is being settled: it is not completed while a notification is pending.
func TestSettleWaitsForTheChunk(t *testing.T) {
	b := setup(t, 10)
	ctx := context.Background()
	c := b.sent()
	b.fanout(c.ID)
	b.endBatches()
	chunk, err := b.Pool.Begin(ctx)
	b.Must(err)
	defer chunk.Rollback(ctx)
	b.Must(lockForChunk(ctx, chunk, c.ID))
	p := b.plans(c.ID, 2)
	part := p.Chunk
	part.Recipients = someRecipients(c.ID, 0, 1)
	_, err = b.deps.Ledger.Insert(ctx, chunk, part)
	b.Must(err)
	settled := make(chan error)
	go func() { _, err := b.Settle(ctx); settled <- err }()
	b.WaitForLocks(1)
	b.Must(chunk.Commit(ctx))
	b.Must(<-settled)
	if got := b.get(c.ID); got.Status != Sending || got.Counts.Pending != 1 {
		t.Errorf("%s with %d pending", got.Status, got.Counts.Pending)
	}
}

// An internal error that persists pauses the campaign, also after a resume. Without it a resume continues. So does
// a statement that takes too long each time.
func TestAPersistentErrorPausesTheCampaign(t *testing.T) {
	for name, c := range map[string]struct{ breaks, mends string }{
		"a constraint": {`alter table notifications add constraint refuses check (profile_key <> '3')`,
			`alter table notifications drop constraint refuses`},
		"a timeout": {`create function refuses() returns trigger language plpgsql as $$
				begin raise exception 'canceling statement due to statement timeout' using errcode = '57014'; end $$;
			create trigger refuses before insert on notifications execute function refuses()`, `drop trigger refuses on notifications`},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 10)
			id := b.sent().ID
			b.Exec(c.breaks)
			for range 2 {
				for i := range internalRetries + 1 {
					if got := b.get(id); got.Status == Paused {
						t.Fatalf("paused after %d failures", i)
					}
					b.fanout(id)
					b.Exec(`update fanouts set retry_at = now()`)
				}
				if got := b.get(id); got.Status != Paused || got.StatusReason != "internal" || got.StatusDetail == "" {
					t.Fatalf("%s (%s: %s)", got.Status, got.StatusReason, got.StatusDetail)
				}
				_, err := b.Resume(t.Context(), b.Workspace, id, uuid.Nil)
				b.Must(err)
			}
			b.Exec(c.mends)
			b.fanout(id)
			if got := b.get(id); got.FannedOutAt == nil || got.Counts.Pending != 10 {
				t.Errorf("%s with %d pending", got.Status, got.Counts.Pending)
			}
		})
	}
}

// While the disk of Lemma's database is full a fan-out is repeated, however long that lasts.
func TestAFanoutWaitsForTheDatabase(t *testing.T) {
	b := setup(t, 10)
	c := b.sent()
	b.Exec(`create function full_disk() returns trigger language plpgsql as $$
		begin raise exception 'could not extend file' using errcode = '53100'; end $$`)
	b.Exec(`create trigger full_disk before insert on notifications execute function full_disk()`)
	for range internalRetries + 5 {
		b.fanout(c.ID)
		b.WantCount(1, `select count(*) from fanouts where retry_at < now() + interval '61 seconds' and leased_by is null`)
		b.Exec(`update fanouts set retry_at = now() where workspace_id = $1`, b.Workspace)
	}
	if got := b.get(c.ID); got.StatusReason != "internal" || got.StatusDetail == "" {
		t.Errorf("meanwhile %s (%s)", got.Status, got.StatusReason)
	}
	b.Exec(`drop trigger full_disk on notifications`)
	b.fanout(c.ID)
	if got := b.get(c.ID); got.Status != Sending || got.StatusReason != "" || got.FannedOutAt == nil || got.Counts.Pending != 10 {
		t.Errorf("%s (%s) with %d pending", got.Status, got.StatusReason, got.Counts.Pending)
	}
}

func TestDrainStopsAFanout(t *testing.T) {
	b := setup(t, 1000)
	c := b.sent()
	b.Drain()
	b.fanout(c.ID)
	leased := pgtest.One[bool](b.T, b.Pool, `select leased_by is not null from fanouts where workspace_id = $1`, b.Workspace)
	if got := b.get(c.ID); leased || got.FannedOutAt != nil {
		t.Errorf("leased %v, %+v", leased, got.Counts)
	}
}

package campaigns

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
)

// A source crashes each process that reads it: the campaign is paused with the
// reason, and a resume reads it again.
func TestAFanoutThatCrashesItsProcessIsPaused(t *testing.T) {
	b := setup(t, 20)
	c := b.sent()
	crash := func() {
		b.Exec(`update fanouts set leased_by = 'crashed', lease_until = now() - interval '1 second' where campaign_id = $1`, c.ID)
	}
	for range maxCrashes - 1 {
		crash()
		if paused, err := b.endExpired(context.Background(), b.Workspace, c.ID); paused || err != nil {
			t.Fatalf("paused: %t, %v", paused, err)
		}
	}
	crash()
	b.fanout(c.ID)
	if got := b.get(c.ID); got.Status != Paused || got.StatusReason != "fanout_crashed" || len(b.addresses(c.ID)) != 0 {
		t.Fatalf("%+v, %d notifications", got, len(b.addresses(c.ID)))
	}
	if _, err := b.Resume(context.Background(), b.Workspace, c.ID, uuid.Nil); err != nil {
		t.Fatal(err)
	}
	crash()
	b.fanout(c.ID)
	if got := b.get(c.ID); got.Status != Sending || len(b.addresses(c.ID)) != 20 {
		t.Errorf("after the resume: %+v, %d notifications", got, len(b.addresses(c.ID)))
	}
}

// A lease that its holder has renewed, or that another run holds, is not ended: the run has not
// crashed.
func TestALeaseThatIsHeldIsNotEnded(t *testing.T) {
	for name, change := range map[string]string{
		"renewed":       `update fanouts set lease_until = now() + interval '1 minute' where campaign_id = $1`,
		"of another":    `update fanouts set leased_by = 'other' where campaign_id = $1`,
		"of no process": `update fanouts set leased_by = null, lease_until = null where campaign_id = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 20)
			ctx := context.Background()
			c := b.sent()
			b.Exec(`update fanouts set leased_by = 'slow', lease_until = now() - interval '1 second' where campaign_id = $1`, c.ID)
			held, err := b.Pool.Begin(ctx)
			b.Must(err)
			defer held.Rollback(ctx)
			b.Must(lockForVerb(ctx, held, c.ID))
			ended := make(chan error, 1)
			go func() { _, err := b.endExpired(ctx, b.Workspace, c.ID); ended <- err }()
			b.WaitForLocks(1)
			b.Exec(change, c.ID)
			b.Must(held.Commit(ctx))
			b.Must(<-ended)
			b.WantCount(0, `select count(*) from fanouts where campaign_id = $1 and crashes > 0`, c.ID)
		})
	}
}

// A fan-out whose process is killed repeatedly is paused only if it does not
// progress.
func TestAFanoutThatProgressesIsNotPaused(t *testing.T) {
	b := setup(t, 20)
	c := b.sent()
	crash := func(written int) (paused bool) {
		b.Exec(`update fanouts set leased_by = 'crashed', lease_until = now() - interval '1 second', runs = runs + 1
			where campaign_id = $1`, c.ID)
		b.Exec(`insert into fanout_chunks (workspace_id, origin_id, id, run, created)
			select workspace_id, campaign_id, gen_random_uuid(), runs, $2 from fanouts where campaign_id = $1 and $2 > 0`, c.ID, written)
		paused, err := b.endExpired(context.Background(), b.Workspace, c.ID)
		b.Must(err)
		return paused
	}
	for i := range 3 * maxCrashes {
		if crash(1) {
			t.Fatalf("paused after %d kills, each of a run that got on", i+1)
		}
	}
	for i := range maxCrashes - 1 {
		if last := i == maxCrashes-2; crash(0) != last {
			t.Fatalf("after %d runs that did not get on it is paused: %t", i+1, !last)
		}
	}
}

// Errors of Lemma's own and failures of the data source are counted apart, and both
// in a row: a run that wrote a chunk begins both counts anew.
func TestFailuresAreCountedByKindAndInARow(t *testing.T) {
	b := setup(t, 40, func(cfg *Config) { cfg.Retries, cfg.RetryFor = 2, time.Millisecond })
	ctx := context.Background()
	id := b.sent().ID
	counts := func() (source, internal int) {
		b.Must(b.Pool.QueryRow(ctx, `select source_failures, internal_failures from fanouts where campaign_id = $1`, id).Scan(&source, &internal))
		return source, internal
	}
	run := func(breaks, mends func(), source, internal int) {
		t.Helper()
		breaks()
		again, err := b.Fanout(ctx, b.Workspace, id)
		mends()
		b.Exec(`update fanouts set retry_at = now() where campaign_id = $1`, id)
		if s, i := counts(); err != nil || again == 0 || s != source || i != internal {
			t.Fatalf("again in %v, %v; %d failures of the source and %d internal, want %d and %d", again, err, s, i, source, internal)
		}
	}
	lock := func() { b.Exec(`alter table fanout_chunks add constraint full_disk check (false) not valid`) }
	unlock := func() { b.Exec(`alter table fanout_chunks drop constraint full_disk`) }
	shut := func() { b.ExecDB(`alter role ` + b.Role + ` connection limit 0`) }
	open := func() { b.ExecDB(`alter role ` + b.Role + ` connection limit -1`) }
	run(lock, unlock, 0, 1)
	run(lock, unlock, 0, 2)
	run(lock, unlock, 0, 3)
	run(shut, open, 1, 3)
	run(shut, open, 2, 3)
	b.writesOneChunkAndCrashes(id)
	if s, i := counts(); s != 0 || i != 0 {
		t.Errorf("after a chunk there are %d failures of the source and %d internal", s, i)
	}
	run(shut, open, 1, 0)
	run(shut, open, 2, 0)
	shut()
	b.fanout(id)
	if got := b.get(id); got.Status != Failed {
		t.Errorf("after 3 failures of the source in a row it is %s", got.Status)
	}
}

// writesOneChunkAndCrashes simulates a run that writes a chunk and is killed, and whose
// lease another run ends.
func (b *bundle) writesOneChunkAndCrashes(id uuid.UUID) {
	b.T.Helper()
	ctx := context.Background()
	l := lease{b.Workspace, id, "crashed"}
	number, _, err := b.claimFanout(ctx, l)
	b.Must(err)
	b.Must(b.WriteChunk(ctx, b.plans(id, number), someRecipients(id, 0, 1)))
	b.Exec(`update fanouts set lease_until = now() - interval '1 second' where campaign_id = $1`, id)
	_, err = b.endExpired(ctx, b.Workspace, id)
	b.Must(err)
}

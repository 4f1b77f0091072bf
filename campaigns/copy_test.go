package campaigns

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"lemma/notifications"
)

// writes counts how chunks were written: by copied, inserted, conflict, deadlock.
func (b *bundle) writes(result string) int {
	b.T.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(b.metrics.writes)
	all, err := r.Gather()
	b.Must(err)
	for _, family := range all {
		for _, m := range family.GetMetric() {
			if m.GetLabel()[0].GetValue() == result {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	return 0
}

// plans acquires the lease of a campaign's fan-out and plans a run.
func (b *bundle) plans(id uuid.UUID, run int) *plan {
	b.T.Helper()
	l := lease{b.Workspace, id, ""}
	b.Must(b.Pool.QueryRow(context.Background(), `
		update fanouts set leased_by = coalesce(leased_by, 'test'), lease_until = now() + interval '1 hour'
		where campaign_id = $1 returning leased_by`, id).Scan(&l.token))
	p, err := b.plan(context.Background(), b.get(id), l, run)
	b.Must(err)
	return p
}

func (b *bundle) endLease(id uuid.UUID) {
	b.T.Helper()
	b.Exec(`update fanouts set leased_by = null, lease_until = null where campaign_id = $1`, id)
}

// wantAll checks that each profile has one row, that each address has one
// notification, and that counts, batches and jobs agree.
func (b *bundle) wantAll(id uuid.UUID, profiles, addresses int) {
	b.T.Helper()
	got := b.get(id).Counts
	if got.Audience != int64(profiles) || got.Pending != int64(addresses) ||
		got.SkippedBy["duplicate_address"] != int64(profiles-addresses) || !got.Balanced {
		b.T.Errorf("want %d profiles with %d addresses: %+v", profiles, addresses, got)
	}
	sent := b.addresses(id)
	if len(sent) != addresses {
		b.T.Errorf("%d addresses have a notification, want %d", len(sent), addresses)
	}
	for address, n := range sent {
		if n != 1 {
			b.T.Errorf("%s has %d notifications", address, n)
		}
	}
	var rows, people, wrong int
	b.Must(b.Pool.QueryRow(context.Background(), `
		select (select count(*) from notifications where workspace_id = $1),
			(select count(distinct profile_key) from notifications where workspace_id = $1),
			(select count(*) from batches b where b.workspace_id = $1
				and b.size <> (select count(*) from notifications n
				where n.workspace_id = $1 and n.origin_id = b.origin_id and n.batch_id = b.id))`,
		b.Workspace).Scan(&rows, &people, &wrong))
	if rows != profiles || people != profiles || wrong != 0 || b.jobs("batch_send") != b.batchCount() {
		b.T.Errorf("%d rows of %d profiles, want %d; %d batches with a wrong size; %d jobs for %d batches",
			rows, people, profiles, wrong, b.jobs("batch_send"), b.batchCount())
	}
}

// everyNth adds for every nth customer a second profile with the same address in
// capitals, next to it or at the end of the audience.
func (b *bundle) everyNth(customers, n int) (profiles, addresses int) {
	b.T.Helper()
	b.ExecDB(`
		insert into customers select 'd' || i, 'C' || i || '@SHOP.example', 'x', false
		from generate_series(1, $1::int, $2::int) i`, customers, n)
	return customers + (customers+n-1)/n, customers
}

func TestTheFirstRunCopies(t *testing.T) {
	b := setup(t, 1000)
	c := b.sent()
	b.fanout(c.ID)
	if b.writes("copied") == 0 || b.writes("inserted") != 0 || b.writes("conflict") != 0 {
		t.Errorf("%d copied, %d inserted, %d conflicts", b.writes("copied"), b.writes("inserted"), b.writes("conflict"))
	}
	b.wantAll(c.ID, 1000, 1000)
	copied := b.writes("copied")
	b.Exec(`update fanouts set finished_at = null where workspace_id = $1`, b.Workspace)
	b.fanout(c.ID)
	if b.writes("copied") != copied || b.writes("inserted") == 0 || b.writes("conflict") != 0 {
		t.Errorf("the second run: %d copied, %d inserted, %d conflicts", b.writes("copied")-copied, b.writes("inserted"),
			b.writes("conflict"))
	}
	b.wantAll(c.ID, 1000, 1000)
}

// A repeated address is skipped with its reason, in one chunk as across chunks.
func TestRepeatedAddressesAreSkippedWhateverTheChunk(t *testing.T) {
	for name, chunk := range map[string]int{"in one chunk": 5000, "across chunks": 50} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 300, func(cfg *Config) { cfg.Chunk = chunk })
			profiles, addresses := b.everyNth(300, 7)
			c := b.sent()
			b.fanout(c.ID)
			b.wantAll(c.ID, profiles, addresses)
			if across := chunk < 300; (b.writes("conflict") > 0) != across {
				t.Errorf("%d conflicts of chunks of %d", b.writes("conflict"), chunk)
			}
		})
	}
}

// Random chunks, written by COPY and by insert, skip the same number of profiles.
func TestACopyCountsLikeAnInsert(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			b := setup(t, 1)
			ctx := context.Background()
			counts := map[bool]Counts{}
			for _, inserted := range []bool{false, true} {
				random := rand.New(rand.NewPCG(seed, 1))
				c := b.sent()
				p := b.plans(c.ID, 1)
				if inserted {
					p.copies.left = 1000
				}
				for range 20 {
					var chunk []notifications.Recipient
					for range random.IntN(40) {
						r := someRecipients(c.ID, 0, 300)[random.IntN(300)]
						r.ProfileKey = fmt.Sprintf("%s/%d", r.ProfileKey, random.IntN(2))
						chunk = append(chunk, r)
					}
					b.Must(b.WriteChunk(ctx, p, chunk))
				}
				counts[inserted] = b.get(c.ID).Counts
			}
			if counts[true].Audience == 0 || counts[true].Audience != counts[false].Audience ||
				counts[true].Pending != counts[false].Pending ||
				counts[true].Skipped != counts[false].Skipped || !counts[false].Balanced {
				t.Errorf("copied %+v, inserted %+v", counts[false], counts[true])
			}
		})
	}
}

// Three first runs of one campaign at once: each COPY waits for the keys of
// another, and then finds them stored.
func TestThreeCopiesOfOneAudienceAtOnce(t *testing.T) {
	b := setup(t, 3000)
	profiles, addresses := b.everyNth(3000, 50)
	c := b.sent()
	var runs sync.WaitGroup
	for range 3 {
		p := b.plans(c.ID, 1)
		runs.Go(func() {
			if _, err := b.readAll(p); err != nil {
				t.Error(err)
			}
		})
	}
	runs.Wait()
	b.wantAll(c.ID, profiles, addresses)
	if b.writes("conflict") == 0 || b.writes("deadlock") != 0 {
		t.Errorf("%d conflicts, %d deadlocks", b.writes("conflict"), b.writes("deadlock"))
	}
}

// Two chunks have the same keys in opposite orders, and both have begun
// when a key in their middle becomes free: no deadlock occurs.
func TestCopiesInOppositeOrdersDoNotDeadlock(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	c := b.sent()
	stored := someRecipients(c.ID, 0, 30)
	middle, err := b.Pool.Begin(ctx)
	b.Must(err)
	defer middle.Rollback(ctx)
	_, err = middle.Exec(ctx, `insert into notifications (workspace_id, origin_id, key, profile_key, skip_reason)
		values ($1, $2, $3, 'other', 'invalid_key')`, b.Workspace, c.ID, stored[15].Key)
	b.Must(err)
	back := slices.Clone(stored)
	slices.Reverse(back)
	written := make(chan error)
	for i, chunk := range [][]notifications.Recipient{stored, back} {
		p := b.plans(c.ID, 1)
		go func() { written <- b.WriteChunk(ctx, p, chunk) }()
		b.WaitForLocks(i + 1)
	}
	b.Must(middle.Rollback(ctx))
	b.Must(<-written)
	b.Must(<-written)
	b.wantAll(c.ID, 30, 30)
	if b.writes("conflict") != 1 || b.writes("deadlock") != 0 {
		t.Errorf("%d conflicts, %d deadlocks", b.writes("conflict"), b.writes("deadlock"))
	}
}

// The connection is closed after the COPY and before the commit: nothing of the
// chunk is stored, and a later run writes all of it.
func TestAChunkKilledBetweenCopyAndCommit(t *testing.T) {
	b := setup(t, 100)
	ctx := context.Background()
	c := b.sent()
	p := b.plans(c.ID, 1)
	b.Must(b.WriteChunk(ctx, p, someRecipients(c.ID, 0, 20)))
	gate, err := b.Pool.Begin(ctx)
	b.Must(err)
	defer gate.Rollback(ctx)
	_, err = gate.Exec(ctx, `lock table fanout_chunks in share mode`) // the last table that a chunk writes
	b.Must(err)
	failed := make(chan error)
	go func() { failed <- b.WriteChunk(ctx, p, someRecipients(c.ID, 20, 40)) }() // no key of it is stored: it is copied
	b.WaitForLocks(1)
	b.Exec(`select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
	if err := <-failed; err == nil {
		t.Error("a chunk whose connection was closed is reported as written")
	}
	b.Must(gate.Rollback(ctx))
	b.wantAll(c.ID, 20, 20)
	for _, run := range []int{1, 2} {
		b.Must(b.WriteChunk(ctx, b.plans(c.ID, run), someRecipients(c.ID, 0, 40)))
		b.wantAll(c.ID, 40, 40)
	}
}

// A chunk that was aborted by a deadlock is written again.
func TestADeadlockIsRetried(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	c := b.sent()
	chunk := someRecipients(c.ID, 0, 30)
	waiting := b.connect(nil, map[string]string{"deadlock_timeout": "1h"}) // never finds the deadlock itself
	other, err := waiting.Begin(ctx)
	b.Must(err)
	defer other.Rollback(ctx)
	_, err = other.Exec(ctx, `insert into notifications (workspace_id, origin_id, key, profile_key, skip_reason)
		values ($1, $2, $3, 'other', 'invalid_key')`, b.Workspace, c.ID, chunk[0].Key)
	b.Must(err)
	ended := make(chan error)
	var once sync.Once
	traced := b.connect(&tracer{copying: func() {
		once.Do(func() {
			go func() {
				// It waits for the chunk, which will wait for the key.
				_, err := other.Exec(ctx, `select pg_advisory_xact_lock($1)`, lockKey(c.ID))
				ended <- errors.Join(err, other.Rollback(ctx))
			}()
			b.WaitForLocks(1)
		})
	}}, nil)
	deps := b.deps
	deps.Pool = traced
	second := New(deps, b.cfg)
	b.Must(second.WriteChunk(ctx, b.plans(c.ID, 1), chunk))
	b.Must(<-ended)
	b.Campaigns = second
	if b.writes("deadlock") != 1 {
		t.Errorf("%d deadlocks", b.writes("deadlock"))
	}
	b.wantAll(c.ID, 30, 30)
}

// Fan-outs of one campaign run at once, their leases expire and their
// connections are closed, repeatedly: in the end each recipient has one row.
func TestFanoutsThatAreKilledRepeatedly(t *testing.T) {
	b := setup(t, 4000)
	profiles, addresses := b.everyNth(4000, 100)
	c := b.sent()
	ctx, stop := context.WithTimeout(context.Background(), 3*time.Minute)
	defer stop()
	held, err := b.Pool.Begin(ctx) // no run is faster than the first kill
	b.Must(err)
	_, err = held.Exec(ctx, `lock table notifications in share mode`)
	b.Must(err)
	var runs sync.WaitGroup
	for range 3 {
		runs.Go(func() {
			for now := c; now.FannedOutAt == nil && now.Status != Failed && ctx.Err() == nil; now = b.get(c.ID) {
				if _, err := b.Fanout(ctx, b.Workspace, c.ID); err != nil && ctx.Err() != nil {
					t.Error(err)
				}
				b.Eventually("a run may begin", func() bool {
					return ctx.Err() != nil || b.Count(`select count(*) from fanouts where workspace_id = $1 and lease_until > now()`, b.Workspace) == 0
				})
			}
		})
	}
	b.WaitForLocks(1)
	kills, lapsed := 0, 0
	for now := c; kills < internalRetries-5 && ctx.Err() == nil && now.FannedOutAt == nil && now.Status != Failed; now = b.get(c.ID) {
		tag, err := b.Pool.Exec(ctx, `
			select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
			and xact_start is not null
			and (query ilike 'copy %' or query ilike '%insert into notifications%' or query ilike '%insert into fanout_chunks%') limit 1`)
		b.Must(err)
		if kills += int(tag.RowsAffected()); kills > 0 {
			_ = held.Rollback(ctx)
		}
		if kills >= lapsed+3 { // once, so that the next run progresses
			lapsed = kills
			b.Exec(`update fanouts set lease_until = now() - interval '1 second', crashes = 0
				where workspace_id = $1 and lease_until is not null`, b.Workspace)
		}
	}
	runs.Wait()
	if got := b.get(c.ID); got.Status != Sending || got.FannedOutAt == nil {
		t.Fatalf("%s (%s: %s) after %d kills", got.Status, got.StatusReason, got.StatusDetail, kills)
	}
	b.wantAll(c.ID, profiles, addresses)
	if kills == 0 {
		t.Error("no connection was killed")
	}
}

// A conflict wastes one COPY, and repeated conflicts few more.
func TestConflictsMakeCopiesRare(t *testing.T) {
	b := setup(t, 1)
	var c copyPolicy
	tries := map[bool]int{}
	run := func(chunks int, conflicts bool) {
		for range chunks {
			chunk := notifications.Chunk{Run: 1}
			err := c.write(&chunk, b.metrics, func() error {
				tries[chunk.Copy]++
				if chunk.Copy && conflicts {
					return fmt.Errorf("insert: %w", notifications.ErrRepeated)
				}
				return nil
			})
			b.Must(err)
		}
	}
	run(1000, true)
	if tries[true] > 25 || tries[false] != 1000 {
		t.Errorf("with conflicts in all of 1,000 chunks: %d copies, %d inserts", tries[true], tries[false])
	}
	clear(tries)
	run(1000, false)
	if tries[false] > maxInserts {
		t.Errorf("after the last conflict: %d copies, %d inserts", tries[true], tries[false])
	}
	other := errors.New("other")
	if err := c.write(&notifications.Chunk{Run: 1}, b.metrics, func() error { return other }); err != other {
		t.Errorf("got %v", err)
	}
}

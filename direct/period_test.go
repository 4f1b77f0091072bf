package direct

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/pgtest"
	"lemma/retention"
)

// nextDay begins the next period, as BeginPeriod does a day later.
func (b *bundle) nextDay() {
	b.T.Helper()
	b.Exec(`insert into direct_key_periods (id)
		select (lpad(to_hex(('x' || substr(replace(id::text, '-', ''), 1, 12))::bit(48)::bigint + 86400000), 12, '0') || repeat('0', 20))::uuid
		from direct_key_periods order by id desc limit 1`)
}

// A key that was acquired in an earlier period is locked and sealed in this one, and has one
// row.
func TestKeysOfEarlierPeriods(t *testing.T) {
	b := setup(t)
	d, s := b.process(), b.sender()
	b.Must(d.BeginPeriod(context.Background()))
	b.send(d, b.request("k"), accepted)
	b.work(s)
	b.nextDay()
	b.send(d, b.request("k"), filtered)
	b.Exec(`update attempts set at = at - interval '7 hours'`)
	b.send(d, b.request("k"), accepted)
	b.WantCount(1, `select count(*) from direct_keys`)
	b.WantCount(0, `select count(*) from direct_keys_default`)
}

// A period begins when no transaction acquires keys, so that two of them are never in
// different periods.
func TestAPeriodWaitsForKeys(t *testing.T) {
	b := setup(t)
	d := b.process()
	tx, err := b.Pool.Begin(context.Background())
	b.Must(err)
	held := newRequest(b.Workspace, b.request("k"), times{time.Minute, time.Hour, AtMostOnce}, false)
	_, err = Lock(context.Background(), tx, b.Workspace, []*request{held}, true)
	b.Must(err)
	begun := make(chan error, 1)
	go func() { begun <- d.BeginPeriod(context.Background()) }()
	pgtest.WaitForLocks(t, b.Pool, 1)
	b.WantCount(1, `select count(*) from direct_key_periods`)
	b.Must(tx.Commit(context.Background()))
	b.Must(<-begun)
	b.WantCount(2, `select count(*) from direct_key_periods`)
	b.send(d, b.request("k"), locked)
}

// An old period leaves with its partition. Keys of notifications that still wait are moved
// to the current one.
func TestOldPeriodsAreDropped(t *testing.T) {
	b := setup(t)
	d, s := b.process(), b.sender()
	b.Must(d.BeginPeriod(context.Background()))
	later := time.Now().Add(24 * time.Hour)
	wait := func(r *Request) { r.SendAt = &later }
	b.send(d, b.request("sent"), accepted)
	b.work(s)
	b.send(d, b.request("waits", wait), accepted)
	b.nextDay()
	b.Exec(`update direct_key_periods set began_at = began_at - interval '74 hours'`)
	b.Exec(`update attempts set at = at - interval '74 hours'`)
	partitions := `select count(*) from pg_inherits where inhparent = 'direct_keys'::regclass`
	before := b.Count(partitions)
	b.Must(d.BeginPeriod(context.Background()))
	b.WantCount(before-1, partitions)
	b.WantCount(1, `select count(*) from direct_key_periods`)
	b.WantCount(1, `select count(*) from direct_keys`)
	b.send(d, b.request("waits", wait), filtered)
	b.send(d, b.request("sent"), accepted)
}

// Keys of notifications that wait are moved by pages before the lock that stops all requests
// with keys: however many they are, others acquire keys meanwhile, and a page that is moved
// stays moved.
func TestKeysAreCarriedBeforeTheLock(t *testing.T) {
	b := setup(t)
	d, other := b.process(), b.process()
	ctx, stop := context.WithCancel(context.Background())
	b.Must(d.BeginPeriod(ctx))
	later := time.Now().Add(24 * time.Hour)
	wait := func(r *Request) { r.SendAt = &later }
	b.send(d, b.request("waits", wait), accepted)
	b.Exec(`insert into direct_keys (workspace_id, period, key, token, origin_id, request_hash, max_attempts, stored, locked_until, seal_for)
		select k.workspace_id, k.period, gen_random_uuid(), k.token, k.origin_id, k.request_hash, 1, true, k.locked_until, k.seal_for
		from direct_keys k, generate_series(1, $1::int)`, carryPage)
	b.nextDay()
	b.Exec(`update direct_key_periods set began_at = began_at - interval '74 hours'`)
	const ofOldest = `select count(*) from direct_keys where period = (select id from direct_key_periods order by id limit 1)`
	d.Hook = func(ctx context.Context, at string) {
		if at != "carried" || ctx.Err() != nil {
			return
		}
		b.WantCount(1, ofOldest)
		b.Must(pgx.BeginFunc(context.Background(), b.Pool, func(tx pgx.Tx) error { // a request that acquires a key
			_, err := tx.Exec(context.Background(), `select pg_advisory_xact_lock_shared($1)`, int64(periodLock))
			b.Must(err)
			b.send(other, b.request("waits", wait), filtered)
			b.send(other, b.request("other"), accepted)
			return err
		}))
		stop() // the process ends
	}
	if err := d.BeginPeriod(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	b.WantCount(1, ofOldest)
	b.Must(other.BeginPeriod(context.Background()))
	b.WantCount(1, `select count(*) from direct_key_periods`)
	b.WantCount(carryPage+2, `select count(*) from direct_keys`)
	b.send(other, b.request("waits", wait), filtered)
}

// A request stores its notification while its key is moved, or another process moves the key: it
// is moved once, as stored.
func TestAKeyIsStoredWhileItIsMoved(t *testing.T) {
	b := setup(t)
	ctx := context.Background()
	b.Must(b.process().BeginPeriod(ctx))
	r := newRequest(b.Workspace, b.request("k"), times{MostLock, time.Hour, AtMostOnce}, false)
	requests := []*request{r}
	b.Must(pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error {
		_, err := Lock(ctx, tx, b.Workspace, requests, false)
		return err
	}))
	old := pgtest.One[uuid.UUID](t, b.Pool, `select period from direct_keys`)
	b.nextDay()
	tx, err := b.Pool.Begin(ctx)
	b.Must(err)
	if kept, err := Store(ctx, tx, b.Workspace, requests); err != nil || len(kept) != 1 {
		t.Fatal(kept, err)
	}
	const processes = 2
	moved := make(chan error, processes)
	for range processes {
		go func() { moved <- b.process().carry(ctx, old) }()
	}
	b.WaitForLocks(processes)
	b.Must(tx.Commit(ctx))
	for range processes {
		b.Must(<-moved)
	}
	b.WantCount(1, `select count(*) from direct_keys`)
	b.WantCount(1, `select count(*) from direct_keys where stored and period > $1`, old)
}

// A key whose notification was dropped by retention is unlocked: its seal was over long
// before. A notification that is not found but is too young for that keeps its key.
func TestAKeyWhoseNotificationWasDropped(t *testing.T) {
	for name, c := range map[string]struct {
		age   time.Duration
		again string
		left  int
	}{
		"by retention": {retention.Least + time.Hour, accepted, 0},
		"too young":    {retention.Least - time.Hour, locked, 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			d := b.process()
			b.Must(d.BeginPeriod(context.Background()))
			for _, key := range []string{"again", "old"} {
				r := b.request(key)
				r.ID = pgtest.IDAt(time.Now().Add(-c.age))
				b.send(d, r, accepted)
			}
			b.Exec(`delete from notifications`)
			b.nextDay()
			b.send(d, b.request("again"), c.again)
			b.Exec(`update direct_key_periods set began_at = began_at - interval '74 hours'`)
			b.Must(d.BeginPeriod(context.Background()))
			b.WantCount(1, `select count(*) from direct_key_periods`)
			b.WantCount(c.left, `select count(*) from direct_keys where token < $1`, pgtest.IDAt(time.Now().Add(-24*time.Hour)))
		})
	}
}

// A request that holds its key over the begin of a period stores its notification, or
// unlocks the key.
func TestAKeyIsHeldOverMidnight(t *testing.T) {
	b := setup(t)
	d, other := b.process(), b.process()
	d.Hook = func(_ context.Context, at string) {
		if at == "locked" {
			b.nextDay()
		}
	}
	b.send(d, b.ofProfile("stored"), accepted)
	b.send(other, b.ofProfile("stored"), filtered)
	b.ExecDB(`alter table customers rename to gone`)
	if s, err := d.Send(context.Background(), b.Workspace, b.ofProfile("unlocked")); err == nil {
		t.Fatal(s)
	}
	b.ExecDB(`alter table gone rename to customers`)
	b.send(other, b.ofProfile("unlocked"), accepted)
}

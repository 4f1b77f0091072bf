package direct

import (
	"context"
	"testing"
	"time"

	"lemma/pgtest"
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

package suppression

import (
	"context"
	"fmt"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// filter is the content of the lists of a workspace, as a process has read it.
type filter struct {
	database string // from which the lists are read: another may repeat the numbers of transactions

	mu    sync.Mutex
	since string // snapshot: what is visible in it is in the bits
	bits  *bloom
}

// nothing is a snapshot in which no row is visible.
const nothing = "1:1:"

// state is the snapshot from which an update reads on, and the number of pairs in the filter.
func (f *filter) state() (since string, pairs int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.since, f.bits.pairs
}

// pass adds what was read since the state, and returns the indexes of the keys that the
// lists may have. It reports false if the database is another, or so much was added that it
// is not read or the filter has no capacity left.
func (f *filter) pass(now moment, m Message, keys []uuid.UUID) (open []int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.database != f.database || now.isMore || f.bits.isFull() {
		return nil, false
	}
	for _, p := range now.added {
		f.bits.add(p)
	}
	f.since = now.snapshot // it may be older than that of an update beside this one, which does no harm
	for i, key := range keys {
		if f.bits.has(pair{key: key}) || !m.Transactional && m.TopicID != uuid.Nil && f.bits.has(pair{m.TopicID, key}) {
			open = append(open, i)
		}
	}
	return open, true
}

// moment is a snapshot of a database, and what was added until then.
type moment struct {
	snapshot string
	database string
	added    []pair
	isMore   bool // than the limit: the rest is not read
}

// readSince reads what was written by transactions that a snapshot does not see, up to a limit.
func readSince(ctx context.Context, db DB, ws uuid.UUID, since string, limit int) (now moment, err error) {
	rows, _ := db.Query(ctx, newPairs, ws, since, limit+1)
	var topic, key *uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&now.snapshot, &now.database, &topic, &key}, func() error {
		if key != nil {
			now.added = append(now.added, pair{*topic, *key})
		}
		return nil
	})
	if err != nil {
		return now, fmt.Errorf("read new suppressions: %w", err)
	}
	now.isMore = len(now.added) > limit
	return now, nil
}

// database is the database that a process reads. It is known by the start of its server, its
// last recovery, and the files of the lists. Recovery from a crash discards the statistics,
// which sets the time of their reset. The start stays then, and numbers of transactions that
// were not flushed are given again.
const database = `concat_ws(' ', pg_postmaster_start_time(), pg_stat_get_bgwriter_stat_reset_time(),
	pg_relation_filepath('suppressions'), pg_relation_filepath('topic_unsubscribes'))`

// writtenBetween are the pairs n of the transactions that ran at the snapshot s.since and
// have ended at s.now, and of those that began between. One that still runs costs nothing,
// whatever is written beside it.
const writtenBetween = `(
		select x as first, x as last from pg_snapshot_xip(s.since) x where pg_visible_in_snapshot(x, s.now)
		union all
		select pg_snapshot_xmax(s.since), pg_snapshot_xmax(s.now)
	) r cross join lateral (
		select '` + noTopic + `'::uuid as topic_id, a.key from suppressions a
		where a.workspace_id = $1 and a.written_by between r.first and r.last
		union all
		select t.topic_id, t.key from topic_unsubscribes t
		where t.workspace_id = $1 and t.written_by between r.first and r.last
	) n`

const noTopic = "00000000-0000-0000-0000-000000000000"

const newPairs = `
	with s as materialized (
		select pg_current_snapshot() as now, $2::text::pg_snapshot as since, ` + database + ` as database
	)
	select s.now::text, s.database, n.topic_id, n.key
	from s left join lateral (select n.topic_id, n.key from ` + writtenBetween + ` limit $3) n on true`

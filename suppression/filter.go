package suppression

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// filter is what a process knows of the lists of a workspace.
type filter struct {
	used time.Time // guarded by Checker.mu, as size is
	size int

	mu       sync.Mutex
	database string   // from which the lists are read: another may repeat the numbers of transactions
	since    string   // snapshot: what it sees of the parts that are read is in their segments
	lists    [2]pairs // of suppressions, and of recipients that have unsubscribed from a topic
	checked  int      // addresses for which no page was read
	reads    bool     // a page
	isFull   bool     // the memory does not suffice for more
}

// state is the snapshot from which an update reads on, and the number of the segments for
// which it is enough.
func (f *filter) state() (since string, segments int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.since, f.segments()
}

func (f *filter) segments() int { return len(f.lists[0].segments) + len(f.lists[1].segments) }

// Answers of pass.
const (
	passed   = iota
	outdated // a page was read meanwhile: what was read belongs to it, or not
	useless  // the database is another, or so much was added that the filter has no capacity left
)

// pass adds what was read for a number of segments, and returns the indexes of the keys
// that the lists may have.
func (f *filter) pass(now moment, segments int, m Message, keys []uuid.UUID) (open []int, answer int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.segments() != segments:
		return nil, outdated
	case now.database != f.database || now.isMore || !f.lists[0].add(now.added[0]) || !f.lists[1].add(now.added[1]):
		return nil, useless
	}
	f.since = now.snapshot // it may be older than that of an update beside this one, which does no harm
	for i, key := range keys {
		if f.lists[0].may(pair{key: key}) || !m.Transactional && m.TopicID != uuid.Nil && f.lists[1].may(pair{m.TopicID, key}) {
			open = append(open, i)
		}
	}
	return open, passed
}

// pagesAtOnce are read by one statement at most, with about 5 MB each.
const pagesAtOnce = 4

// next decides how many pages the caller reads, and of which list: those for which enough
// addresses were checked. One reads at a time.
func (f *filter) next(checked, perPage int) (list, pages int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.checked += checked
	if f.checked < perPage || f.reads || f.isFull || f.lists[1].whole {
		return 0, 0
	}
	if f.lists[0].whole {
		list = 1
	}
	pages = min(f.checked/perPage, pagesAtOnce)
	f.checked, f.reads = f.checked-pages*perPage, true // what is checked meanwhile counts for the next pages
	return list, pages
}

// begin reads the snapshot before the first page.
func (f *filter) begin(ctx context.Context, db DB, ws uuid.UUID) error {
	if since, _ := f.state(); since != "" {
		return nil
	}
	now, err := readSince(ctx, db, ws, "", 0)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.since, f.database = now.snapshot, now.database
	return nil
}

// read reads a page into a segment. A snapshot before it is returned with it: what that
// sees, the page has.
func (f *filter) read(ctx context.Context, db DB, ws uuid.UUID, list, limit int) (since string, s *segment, isLast bool, err error) {
	f.mu.Lock()
	since, end := f.since, f.lists[list].end()
	f.mu.Unlock()
	page, err := readPage(ctx, db, ws, list, end, limit)
	if err != nil {
		return "", nil, false, err
	}
	return since, newSegment(page, end), len(page) < limit, nil
}

// append adds the segment of a page. The snapshot is again the one before the page, as
// the page may not see what checks have read since.
func (f *filter) append(list int, since string, s *segment, isLast bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := &f.lists[list]
	l.segments, l.whole = append(l.segments, s), isLast
	f.since, f.reads = since, false
}

// stop ends the reading of a page that is not added.
func (f *filter) stop(isFull bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads, f.isFull = false, isFull
}

// moment is a snapshot of a database, and what was added until then.
type moment struct {
	snapshot string
	database string
	added    [2][]pair
	isMore   bool // than the limit: the rest is not read
}

// readSince reads what was written by transactions that a snapshot does not see, up to a
// limit. Without a snapshot it reads nothing but the present one.
func readSince(ctx context.Context, db DB, ws uuid.UUID, since string, limit int) (now moment, err error) {
	rows, err := db.Query(ctx, newPairs, ws, since, limit+1)
	if err != nil {
		return now, fmt.Errorf("read new suppressions: %w", err)
	}
	var list *int
	var p struct{ topic, key *uuid.UUID }
	_, err = pgx.ForEachRow(rows, []any{&now.snapshot, &now.database, &list, &p.topic, &p.key}, func() error {
		if list != nil {
			now.added[*list] = append(now.added[*list], pair{*p.topic, *p.key})
		}
		return nil
	})
	if err != nil {
		return now, fmt.Errorf("read new suppressions: %w", err)
	}
	now.isMore = len(now.added[0])+len(now.added[1]) > limit
	return now, nil
}

// newPairs reads the ranges of the transactions that ran at the snapshot and have ended, and
// of those after it. One that still runs costs nothing, whatever is written beside it.
//
// A database is known by the start of its server, its last recovery, and the files of the
// lists. Recovery from a crash discards the statistics, which sets the time of their reset.
// The start stays then, and numbers of transactions that were not flushed are given again.
const newPairs = `
	with s as materialized (
		select pg_current_snapshot() as now, nullif($2, '')::pg_snapshot as since,
			concat_ws(' ', pg_postmaster_start_time(), pg_stat_get_bgwriter_stat_reset_time(),
				pg_relation_filepath('suppressions'), pg_relation_filepath('topic_unsubscribes')) as database
	)
	select s.now::text, s.database, n.list, n.topic_id, n.key
	from s left join lateral (
		select n.list, n.topic_id, n.key from (
			select x as first, x as last from pg_snapshot_xip(s.since) x where pg_visible_in_snapshot(x, s.now)
			union all
			select pg_snapshot_xmax(s.since), pg_snapshot_xmax(s.now)
		) r cross join lateral (
			select 0 as list, '` + noTopic + `'::uuid as topic_id, a.key from suppressions a
			where a.workspace_id = $1 and a.written_by between r.first and r.last
			union all
			select 1, t.topic_id, t.key from topic_unsubscribes t
			where t.workspace_id = $1 and t.written_by between r.first and r.last
		) n
		limit $3
	) n on true`

const noTopic = "00000000-0000-0000-0000-000000000000"

// readPage reads pairs of a list in their order. They are one value, since a row of the
// answer would cost more than its pair.
func readPage(ctx context.Context, db DB, ws uuid.UUID, list int, after pair, limit int) (page []pair, err error) {
	sql, args := pageOfSuppressions, []any{ws, limit, after.key}
	if list == 1 {
		sql, args = pageOfTopics, append(args, after.topic)
	}
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read suppressions: %w", err)
	}
	var value pgtype.DriverBytes
	if _, err = pgx.ForEachRow(rows, []any{&value}, func() error {
		page = pairsOf(value, list)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read suppressions: %w", err)
	}
	return page, nil
}

// pairsOf splits the value of a page. Suppressions have no topics.
func pairsOf(value []byte, list int) []pair {
	size := (1 + list) * len(uuid.UUID{})
	page := make([]pair, len(value)/size)
	for i := range page {
		one := value[i*size : (i+1)*size]
		page[i].key = uuid.UUID(one[size-len(uuid.UUID{}):])
		if list == 1 {
			page[i].topic = uuid.UUID(one[:len(uuid.UUID{})])
		}
	}
	return page
}

const (
	pageOfSuppressions = `
	select coalesce(string_agg(uuid_send(key), null), '')
	from (select key from suppressions where workspace_id = $1 and key > $3 order by key limit $2) p`
	pageOfTopics = `
	select coalesce(string_agg(uuid_send(topic_id) || uuid_send(key), null), '')
	from (
		select topic_id, key from topic_unsubscribes where workspace_id = $1 and (topic_id, key) > ($4, $3)
		order by topic_id, key limit $2
	) p`
)

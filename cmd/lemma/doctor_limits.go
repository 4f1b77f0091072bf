package main

import (
	"context"
	"fmt"
	"math/bits"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/server"
)

// planning is the part of all connections that may plan a statement on every partition at the
// same time, before the table of locks is full: one in so many.
const planning = 4

// lockFinding compares the table of locks of Postgres with the partitions and their indexes,
// all of which a statement locks when it is planned. The table holds a lock on
// max_locks_per_transaction objects for each connection, by two connections on average.
func lockFinding(ctx context.Context, pool *pgxpool.Pool) (finding, error) {
	var objects, have, connections, prepared int
	err := pool.QueryRow(ctx, `
		select count(distinct i.inhrelid) + count(x.indexrelid), current_setting('max_locks_per_transaction')::int,
			current_setting('max_connections')::int, current_setting('max_prepared_transactions')::int
		from unnest(array['notifications', 'batches', 'attempts', 'deliveries']) as t (name)
		join pg_inherits i on i.inhparent = to_regclass(t.name)
		left join pg_index x on x.indrelid = i.inhrelid`).Scan(&objects, &have, &connections, &prepared)
	needed := neededLocks(objects, connections, prepared)
	text := fmt.Sprintf("max_locks_per_transaction is %d, and the partitions of today need %d", have, needed)
	if err != nil || have >= needed {
		return finding{"ok", "locks", text}, lemma.Wrap(err, "compare locks with partitions")
	}
	return finding{"warn", "locks", fmt.Sprintf("%s: set it to %d and restart Postgres, or keep fewer months", text,
		1<<bits.Len(uint(2*needed-1)))}, nil
}

// collationFinding compares the order of texts in indexes with that of the library.
func collationFinding(ctx context.Context, pool *pgxpool.Pool) (finding, error) {
	c, err := server.ReadCollation(ctx, pool)
	return describedCollation(c), err
}

func describedCollation(c server.Collation) finding {
	if !c.Changed() {
		return finding{"ok", "collation", "the order of texts is that of the indexes"}
	}
	return finding{"warn", "collation", fmt.Sprintf("the order of texts has changed (%s to %s), and indexes may miss rows: "+
		"stop all processes, run reindex database, and then alter database ... refresh collation version", c.Stored, c.Now)}
}

// neededLocks is the least max_locks_per_transaction for statements that lock so many objects.
func neededLocks(objects, connections, prepared int) int {
	atOnce, perObject := objects*connections, 2*planning*(connections+prepared)
	return (atOnce + perObject - 1) / perObject
}

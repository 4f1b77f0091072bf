package suppression_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/pgtest"
	"lemma/suppression"
)

// choice is a transaction that subscribes a recipient to topics, or unsubscribes.
type choice func(ctx context.Context, tx pgx.Tx, ws uuid.UUID, r suppression.Recipient, topics []uuid.UUID) error

func leave(ctx context.Context, tx pgx.Tx, ws uuid.UUID, r suppression.Recipient, topics []uuid.UUID) error {
	_, err := suppression.UnsubscribeFrom(ctx, tx, ws, r, topics)
	return err
}

func join(ctx context.Context, tx pgx.Tx, ws uuid.UUID, r suppression.Recipient, topics []uuid.UUID) error {
	_, err := suppression.ResubscribeTo(ctx, tx, ws, r, topics)
	return err
}

// stops makes each write of a topic's row that a session names wait for a lock. The only index
// has the order of the topics.
const stops = `
	drop index topic_unsubscribes_written_by;
	create function stop() returns trigger language plpgsql as $$ begin
		if coalesce(new.topic_id, old.topic_id)::text = current_setting('test.stop', true) then perform pg_advisory_xact_lock_shared(1); end if;
		return coalesce(new, old);
	end $$;
	create trigger stop before insert or delete on topic_unsubscribes for each row execute function stop()`

// Two choices of one recipient take their locks in the same order, whatever the plans of
// their statements are: one finds the rows in their order in the table, the other in that of
// the index. Each stops while it has written or locked one of the two rows.
func TestChoicesOfOneRecipientAtTheSameTime(t *testing.T) {
	for name, c := range map[string]struct {
		do    choice
		isOff bool // the recipient is unsubscribed at the beginning
		row   int  // whose trigger stops: that of a delete has locked its row, that of an insert has not
	}{
		"that unsubscribe": {leave, false, 1},
		"that subscribe":   {join, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.DB(t)
			f := fixture{Suppressions: suppression.New(pool), ws: pgtest.Workspace(t, pool)}
			topics := []uuid.UUID{f.topic(t, "B"), f.topic(t, "A")} // in the table in this order
			ada := suppression.Recipient{Channel: lemma.Email, Key: suppression.KeyOf(lemma.Email, "ada@x.example")}
			if c.isOff {
				for _, topic := range topics {
					pgtest.Exec(t, pool, `insert into topic_unsubscribes (workspace_id, topic_id, key) values ($1, $2, $3)`, f.ws, topic, ada.Key)
				}
			}
			pgtest.Exec(t, pool, stops)
			holder, err := pool.Begin(t.Context())
			if err == nil {
				_, err = holder.Exec(t.Context(), `select pg_advisory_xact_lock(1)`)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer holder.Rollback(context.WithoutCancel(t.Context()))
			plans := [2]string{"enable_indexscan", "enable_seqscan"}
			ended := make(chan error, 2)
			for i := range 2 {
				go func() { ended <- f.choose(pool, c.do, ada, topics, plans[i], topics[i^c.row]) }()
			}
			pgtest.WaitForLocks(t, pool, 2)
			err = errors.Join(holder.Commit(t.Context()), <-ended, <-ended)
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// choose carries out a choice without a kind of plan, in a transaction that stops at a topic.
func (f fixture) choose(pool *pgxpool.Pool, do choice, r suppression.Recipient, topics []uuid.UUID, without string, stop uuid.UUID) error {
	ctx := context.Background()
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			select set_config('enable_bitmapscan', 'off', true), set_config($1, 'off', true), set_config('test.stop', $2, true)`,
			without, stop.String())
		if err != nil {
			return err
		}
		return do(ctx, tx, f.ws, r, slices.Clone(topics))
	})
}

// topic creates a topic whose id is before those of the topics that exist.
func (f fixture) topic(t *testing.T, name string) uuid.UUID {
	t.Helper()
	id := lemma.NewID()
	id[0] = name[0]
	made, err := f.CreateTopic(t.Context(), f.ws, suppression.NewTopic{ID: id, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return made.ID
}

package direct

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lemma"
	"lemma/migrations"
)

// keepPeriod is how long a period is kept after the next one began: longer than any seal
// of a notification that is sent at once.
const keepPeriod = MostSeal + time.Hour

// lowestID is the lowest UUIDv7 of the current day.
const lowestID = `(lpad(to_hex((extract(epoch from date_trunc('day', now(), 'UTC')) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid`

// BeginPeriod begins the period of the current day, unless it has begun, and drops old
// ones. It may run in many processes at once; workers call it periodically.
func (d *Direct) BeginPeriod(ctx context.Context) error {
	if err := d.begin(ctx); err != nil {
		return err
	}
	rows, _ := d.Pool.Query(ctx, `
		select p.id from direct_key_periods p
		cross join lateral (select n.began_at from direct_key_periods n where n.id > p.id order by n.id limit 1) n
		where n.began_at < now() - $1::interval order by p.id`, keepPeriod)
	old, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("find old periods of keys: %w", err)
	}
	for _, period := range old {
		if failed := d.drop(ctx, period); failed != nil {
			err = errors.Join(err, fmt.Errorf("drop period of keys %s: %w", period, failed))
		}
	}
	return err
}

// begin begins the period of today when no transaction acquires keys.
func (d *Direct) begin(ctx context.Context) error {
	var begun bool
	err := d.Pool.QueryRow(ctx, `select exists (select from direct_key_periods where id >= `+lowestID+`)`).Scan(&begun)
	if err == nil && !begun {
		err = d.alone(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `
				insert into direct_key_periods (id) select l.id from (select `+lowestID+` as id) l
				where not exists (select from direct_key_periods p where p.id >= l.id)`)
			return err
		})
	}
	return lemma.Wrap(err, "begin period of keys")
}

// alone runs a transaction while no other acquires keys.
func (d *Direct) alone(ctx context.Context, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, d.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `set local lock_timeout = '5s'`); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, int64(periodLock)); err != nil {
			return err
		}
		return do(tx)
	})
}

// drop ends a period: keys that are still locked or sealed, since their notifications wait
// or ended late, are moved to the current one, and the partition is dropped. No key of the
// rest becomes one of them meanwhile: an unlocked key of an old period stays unlocked, or is
// deleted when it is acquired. So the lock, for which all requests with keys wait, is held
// for a moment, however many were moved.
func (d *Direct) drop(ctx context.Context, period uuid.UUID) error {
	if err := d.carry(ctx, period); err != nil {
		return err
	}
	return d.alone(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `delete from direct_key_periods where id = $1`, period); err != nil {
			return err
		}
		dropped, err := migrations.DropDay(ctx, tx, "direct_keys", period)
		if err != nil || dropped {
			return err
		}
		_, err = tx.Exec(ctx, `delete from direct_keys where period = $1`, period) // in the default partition: a range
		return err
	})
}

// carryPage is how many keys are read and moved at a time.
const carryPage = 1_000

// carry moves the keys of a period that are not unlocked to the current period, by pages.
func (d *Direct) carry(ctx context.Context, period uuid.UUID) error {
	var workspace, key uuid.UUID
	for {
		page, err := d.page(ctx, period, workspace, key)
		if err != nil || len(page) == 0 {
			return err
		}
		living, err := d.living(ctx, page)
		if err != nil {
			return err
		}
		if err := d.move(ctx, period, living); err != nil {
			return err
		}
		workspace, key = page[len(page)-1].Workspace, page[len(page)-1].Key
		d.at(ctx, "carried")
	}
}

// living returns the keys of a page that are not unlocked.
func (d *Direct) living(ctx context.Context, page []oldKey) (living []oldKey, err error) {
	for from := 0; from < len(page); { // the keys of one workspace together
		to := from
		var states []keyState
		for ; to < len(page) && page[to].Workspace == page[from].Workspace; to++ {
			states = append(states, page[to].keyState)
		}
		found, err := d.notificationsOf(ctx, page[from].Workspace, states)
		if err != nil {
			return nil, err
		}
		for _, k := range page[from:to] {
			if k.Stored && !k.over(found[k.Token]) || !k.Stored && k.Left > 0 {
				living = append(living, k)
			}
		}
		from = to
	}
	return living, nil
}

// move moves keys to the current period, as acquire does: each has one row at any time. The
// lock is shared, so that no other period begins meanwhile.
func (d *Direct) move(ctx context.Context, period uuid.UUID, all []oldKey) error {
	if len(all) == 0 {
		return nil
	}
	batch := &pgx.Batch{}
	batch.Queue(`select pg_advisory_xact_lock_shared($1)`, int64(periodLock))
	carried := int64(0)
	for len(all) > 0 { // the keys of one workspace together
		ws, keys := all[0].Workspace, []uuid.UUID{}
		for len(all) > 0 && all[0].Workspace == ws {
			keys, all = append(keys, all[0].Key), all[1:]
		}
		batch.Queue(moveKeys, ws, keys, period).Exec(func(tag pgconn.CommandTag) error {
			carried += tag.RowsAffected()
			return nil
		})
	}
	err := pgx.BeginFunc(ctx, d.Pool, func(tx pgx.Tx) error { return tx.SendBatch(ctx, batch).Close() })
	if err == nil {
		d.Metrics.carried.Add(float64(carried))
	}
	return err
}

// moveKeys moves keys of a workspace, as they are once their locks are released: a key that was
// moved or acquired meanwhile is not found, and one that was stored stays so. With period = $3
// in the delete, the plan for an empty partition reads all keys of the period.
const moveKeys = `
	with old as materialized (
		select k.period, k.key, k.token, k.origin_id, k.request_hash, k.max_attempts, k.stored, k.locked_until, k.seal_for
		from unnest($2::uuid[]) as r (key)
		cross join lateral (
			select k.period, k.key, k.token, k.origin_id, k.request_hash, k.max_attempts, k.stored, k.locked_until, k.seal_for
			from direct_keys k where k.workspace_id = $1 and k.key = r.key and k.period = $3 limit 1 for update) k
	), gone as (
		delete from direct_keys d using old o where d.workspace_id = $1 and d.key = any($2) and d.key = o.key and d.period = o.period
	)
	insert into direct_keys (workspace_id, period, key, token, origin_id, request_hash, max_attempts, stored, locked_until, seal_for)
	select $1, p.id, o.key, o.token, o.origin_id, o.request_hash, o.max_attempts, o.stored, o.locked_until, o.seal_for
	from old o cross join (select id from direct_key_periods order by id desc limit 1) p`

// oldKey is a key of an old period.
type oldKey struct {
	Workspace, Key uuid.UUID
	keyState
}

func (d *Direct) page(ctx context.Context, period, workspace, key uuid.UUID) ([]oldKey, error) {
	rows, _ := d.Pool.Query(ctx, `
		select k.workspace_id, k.key, k.stored, k.token, k.origin_id, k.max_attempts, k.seal_for,
			`+left+`, now()
		from direct_keys k
		where k.period = $1 and (k.workspace_id, k.key) > ($2, $3) order by k.workspace_id, k.key limit $4`, period, workspace, key, carryPage)
	keys, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k oldKey, err error) {
		err = row.Scan(&k.Workspace, &k.Key, &k.Stored, &k.Token, &k.OriginID, &k.MaxAttempts, &k.SealFor, &k.Left, &k.Now)
		return k, err
	})
	return keys, lemma.Wrap(err, "read keys of period %s", period)
}

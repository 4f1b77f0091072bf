package flows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/flows/enrollment"
)

// claimMove is one statement: of a workspace in random order the move that is open, not
// leased, and was worked on longest ago.
func (f *Flows) claimMove(ctx context.Context) (*moveLease, error) {
	o := moveLease{token: lemma.NewID().String()}
	var nodes []byte
	err := f.pool.QueryRow(ctx, `
		update flow_moves set leased_by = $1, lease_until = now() + $2
		where (workspace_id, flow_id, id) = (
			select workspace_id, flow_id, id from flow_moves
			where finished_at is null and retry_at <= now() and (lease_until is null or lease_until < now())
			order by uuid_hash_extended(workspace_id, $3), retry_at limit 1 for update skip locked)
		returning workspace_id, flow_id, id, to_version, node_map, coalesce(exit_reason, '')`, o.token, f.cfg.Lease, rand.Int64()).
		Scan(&o.ws, &o.flow, &o.id, &o.to, &nodes, &o.exit)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("claim a move: %w", err)
	}
	return &o, json.Unmarshal(nodes, &o.nodes)
}

// releaseMove releases the lease behind other moves, also during a shutdown.
func (f *Flows) releaseMove(o moveLease, rest time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := f.pool.Exec(ctx, `
		update flow_moves set leased_by = null, lease_until = null, retry_at = now() + $5
		where workspace_id = $1 and flow_id = $2 and id = $3 and leased_by = $4`, o.ws, o.flow, o.id, o.token, rest)
	return lemma.Wrap(err, "release move")
}

func (f *Flows) finishMove(ctx context.Context, o moveLease) error {
	err := pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
		done, err := tx.Exec(ctx, `
			update flow_moves set finished_at = now(), leased_by = null, lease_until = null
			where workspace_id = $1 and flow_id = $2 and id = $3 and leased_by = $4 and finished_at is null`, o.ws, o.flow, o.id, o.token)
		if err != nil || done.RowsAffected() == 0 || o.exit != enrollment.ExitArchived {
			return err
		}
		return unlisten(ctx, tx, o.ws, o.flow)
	})
	return lemma.Wrap(err, "finish move of flow %s", o.flow)
}

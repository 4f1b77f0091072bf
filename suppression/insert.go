package suppression

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/eventsout"
)

// insert adds entries whose addresses are canonical. They are sorted by key, so that
// concurrent imports cannot deadlock. named counts addresses that were stored by their keys only,
// since their profiles were erased, and are given again. They are no new entries: only those have an event.
func insert(ctx context.Context, tx pgx.Tx, ws uuid.UUID, entries []Entry) (added, named int, err error) {
	if len(entries) == 0 {
		return 0, 0, nil
	}
	type keyed struct {
		Entry
		key uuid.UUID
	}
	all := make([]keyed, len(entries))
	for i, e := range entries {
		all[i] = keyed{e, keyOf(e.Channel, e.Address)}
	}
	slices.SortFunc(all, func(a, b keyed) int { return bytes.Compare(a.key[:], b.key[:]) })
	ids, keys := make([]uuid.UUID, len(all)), make([]uuid.UUID, len(all))
	channels, addresses, causes, details := make([]string, len(all)), make([]string, len(all)), make([]string, len(all)), make([]string,
		len(all))
	for i, e := range all {
		ids[i], keys[i], channels[i], addresses[i], causes[i], details[i] = e.ID, e.key, string(e.Channel), e.Address, e.Cause, e.Detail
		if e.KeyOnly {
			addresses[i] = ""
		}
	}
	rows, _ := tx.Query(ctx, `
		insert into suppressions (workspace_id, id, key, channel, address, cause, detail)
		select $1, e.id, e.key, e.channel, e.address, e.cause, e.detail
		from unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[]) as e (id, key, channel, address, cause, detail)
		on conflict (workspace_id, key, cause) do nothing
		returning id, cause`, ws, ids, keys, channels, addresses, causes, details)
	new, err := pgx.CollectRows(rows, pgx.RowToStructByPos[written])
	if err == nil {
		err = record(ctx, tx, ws, new...)
	}
	if err != nil || len(new) == len(entries) {
		return len(new), 0, lemma.Wrap(err, "add %d suppressions", len(entries))
	}
	rows, _ = tx.Query(ctx, `
		select e.i::int - 1 from unnest($2::uuid[], $3::text[], $4::text[]) with ordinality as e (key, address, cause, i)
		cross join lateral (select from suppressions s
			where s.workspace_id = $1 and s.key = e.key and s.cause = e.cause and s.address = '' limit 1) s
		where e.address <> '' order by e.i`, ws, keys, addresses, causes)
	erased, err := pgx.CollectRows(rows, pgx.RowTo[int])
	for _, i := range erased {
		rows, _ = tx.Query(ctx, `update suppressions set address = $4 where workspace_id = $1 and key = $2 and cause = $3 and address = ''
			returning 1`, ws, keys[i], causes[i], addresses[i])
		changed, err := pgx.CollectRows(rows, pgx.RowTo[int])
		if err != nil {
			return 0, 0, fmt.Errorf("store the address of a suppression: %w", err)
		}
		named += len(changed)
	}
	return len(new), named, lemma.Wrap(err, "find %d suppressions", len(entries))
}

// written is an entry that is new.
type written struct {
	ID    uuid.UUID
	Cause string
}

// record records that entries were added, in the transaction that adds them.
func record(ctx context.Context, tx pgx.Tx, ws uuid.UUID, all ...written) error {
	if len(all) == 0 {
		return nil
	}
	e := eventsout.Event{WorkspaceID: ws, Type: eventsout.SuppressionAdded, OriginID: ws}
	for _, w := range all {
		e.Keys, e.Details = append(e.Keys, w.ID), append(e.Details, w.Cause)
	}
	return eventsout.Record(ctx, tx, e)
}

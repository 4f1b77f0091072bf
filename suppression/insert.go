package suppression

import (
	"bytes"
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// insert adds entries whose addresses are canonical. They are sorted by key, so that
// concurrent imports cannot deadlock. named counts addresses that were stored by their keys only,
// since their profiles were erased, and are given again.
func insert(ctx context.Context, db DB, ws uuid.UUID, entries []Entry) (added, named int, err error) {
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
	rows, _ := db.Query(ctx, `
		insert into suppressions (workspace_id, id, key, channel, address, cause, detail)
		select $1, e.id, e.key, e.channel, e.address, e.cause, e.detail
		from unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[]) as e (id, key, channel, address, cause, detail)
		on conflict (workspace_id, key, cause) do nothing
		returning 1`, ws, ids, keys, channels, addresses, causes, details)
	new, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil || len(new) == len(entries) {
		return len(new), 0, lemma.Wrap(err, "add %d suppressions", len(entries))
	}
	rows, _ = db.Query(ctx, `
		update suppressions s set address = e.address from (
			select s.key, s.cause, e.address from unnest($2::uuid[], $3::text[], $4::text[]) as e (key, address, cause)
			join suppressions s on s.workspace_id = $1 and s.key = e.key and s.cause = e.cause
			where s.address = '' and e.address <> '' order by s.key for update of s) e
		where s.workspace_id = $1 and s.key = e.key and s.cause = e.cause
		returning 1`, ws, keys, addresses, causes)
	old, err := pgx.CollectRows(rows, pgx.RowTo[int])
	return len(new), len(old), lemma.Wrap(err, "name %d suppressions", len(entries))
}

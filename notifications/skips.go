package notifications

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/eventsout"
)

// skipUnsubscribed skips recipients whose profile is opted out in another row of
// the audience, at any address.
func skipUnsubscribed(ctx context.Context, tx pgx.Tx, c Chunk) error {
	profiles, ids := make([]string, len(c.Recipients)), make([]pgtype.UUID, len(c.Recipients))
	for i, r := range c.Recipients {
		profiles[i], ids[i] = r.ProfileKey, wire(OptOutOf(r.ProfileKey))
	}
	rows, _ := tx.Query(ctx, `
		select r.i::int from unnest($3::text[], $4::uuid[]) with ordinality as r (profile_key, id, i)
		cross join lateral (
			(select from notifications n
			where n.workspace_id = $1 and n.origin_id = $2 and n.profile_key = r.profile_key and n.skip_reason = 'unsubscribed' limit 1)
			union all
			(select from opt_outs o where o.workspace_id = $1 and o.origin_id = $2 and o.id = r.id limit 1)
			limit 1
		) n`, c.WorkspaceID, c.OriginID, profiles, ids)
	var i int
	_, err := pgx.ForEachRow(rows, []any{&i}, func() error {
		if r := &c.Recipients[i-1]; r.Skip == "" {
			r.Skip = Unsubscribed
		}
		return nil
	})
	return err
}

// insertKeyedSkips writes skipped recipients under their own keys. Those whose key
// another profile holds are added to skip, with their reason. Of skip are left out
// those whose key their own profile holds. late are the keys of intents whose
// address or profile is opted out since they were written.
func insertKeyedSkips(ctx context.Context, tx pgx.Tx, c Chunk, keyed, skip []Recipient,
	counts map[string]int) (left []Recipient, late []uuid.UUID, err error) {
	inserted, err := writeSkips(ctx, tx, c, keyed, counts)
	if err != nil || c.OfFlow {
		return skip, nil, err
	}
	if inserted == len(keyed) {
		keyed = nil
	}
	all := slices.Concat(keyed, skip)
	held, err := holders(ctx, tx, c, all)
	if err != nil {
		return nil, nil, err
	}
	for i, r := range all {
		h := held[i]
		own := h != nil && h.profile == r.ProfileKey
		if h != nil && h.intent && (own || r.Holds) {
			late = append(late, r.Key)
		}
		if !own && (h != nil || !r.Holds) {
			left = append(left, r)
		}
	}
	return left, late, nil
}

// OptOutOf is the id of a profile's row in opt_outs.
func OptOutOf(profile string) uuid.UUID { return lemma.Key("opt-out/1", profile) }

// insertOptOuts marks what opted out after intents were written: the intents with
// these keys, and the profiles, which may have intents at any address.
// skipUnsubscribed and the sender read these rows.
func insertOptOuts(ctx context.Context, tx pgx.Tx, c Chunk, late []uuid.UUID) error {
	if c.OfFlow {
		return nil
	}
	for _, r := range c.Recipients {
		if r.Skip == Unsubscribed && (c.Run > 1 || r.Late) { // a first run writes all others before its first intent
			late = append(late, OptOutOf(r.ProfileKey))
		}
	}
	if len(late) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, `
		insert into opt_outs (workspace_id, origin_id, id)
		select distinct $1::uuid, $2::uuid, id from unnest($3::uuid[]) as r (id) order by id
		on conflict (workspace_id, origin_id, id) do nothing`, c.WorkspaceID, c.OriginID, late)
	return err
}

// heldByOthers returns the recipients whose key another profile holds. It is a
// statement of its own: only a new snapshot contains what a concurrent fan-out has
// just committed.
func heldByOthers(ctx context.Context, tx pgx.Tx, c Chunk, send []Recipient) ([]Recipient, error) {
	_, taken, err := absent(ctx, tx, c, send)
	return taken, err
}

// absent returns the recipients whose key is free, and those whose key another
// profile holds. Recipients that are stored already are in neither.
func absent(ctx context.Context, tx pgx.Tx, c Chunk, send []Recipient) (free, taken []Recipient, err error) {
	held, err := holders(ctx, tx, c, send)
	if err != nil {
		return nil, nil, err
	}
	for i, r := range send {
		switch h := held[i]; {
		case h == nil:
			free = append(free, r)
		case h.profile != r.ProfileKey:
			r.Skip = cmp.Or(r.Skip, DuplicateAddress)
			taken = append(taken, r)
		}
	}
	return free, taken, nil
}

// holder is the row that has a key.
type holder struct {
	profile string
	intent  bool // and not skipped
}

// holders answers which row holds the key of each recipient; nil: none.
func holders(ctx context.Context, tx pgx.Tx, c Chunk, all []Recipient) ([]*holder, error) {
	held := make([]*holder, len(all))
	keys := make([]pgtype.UUID, len(all))
	keyed := false
	for i, r := range all {
		keys[i] = pgtype.UUID{Bytes: r.Key, Valid: r.Key != uuid.Nil}
		keyed = keyed || r.Key != uuid.Nil
	}
	if !keyed {
		return held, nil
	}
	rows, _ := tx.Query(ctx, `
		select r.i::int, n.profile_key, n.skip_reason is null
		from unnest($3::uuid[]) with ordinality as r (key, i)
		cross join lateral (
			select n.profile_key, n.skip_reason from notifications n
			where n.workspace_id = $1 and n.origin_id = $2 and n.key = r.key limit 1
		) n`, c.WorkspaceID, c.OriginID, keys)
	var i int
	var h holder
	_, err := pgx.ForEachRow(rows, []any{&i, &h.profile, &h.intent}, func() error {
		held[i-1] = &holder{h.profile, h.intent}
		return nil
	})
	return held, err
}

// insertSkips inserts all other skipped recipients. In a campaign their key is
// derived from the profile and the key of the address, or the address if it has none,
// under a prefix of its own, so that it never equals the key of an address.
func insertSkips(ctx context.Context, tx pgx.Tx, c Chunk, skip []Recipient, counts map[string]int) error {
	for i, r := range skip {
		if !c.OfFlow {
			address := r.Address
			if r.Key != uuid.Nil {
				address = string(r.Key[:])
			}
			skip[i].Key = lemma.Key("skip/1", r.ProfileKey, address)
		}
	}
	_, err := writeSkips(ctx, tx, c, skip, counts)
	return err
}

// writeSkips inserts rows with a reason, and adds the new ones to counts.
func writeSkips(ctx context.Context, tx pgx.Tx, c Chunk, skip []Recipient, counts map[string]int) (inserted int, err error) {
	if len(skip) == 0 {
		return 0, nil
	}
	slices.SortFunc(skip, func(a, b Recipient) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	keys, profiles := make([]uuid.UUID, len(skip)), make([]string, len(skip))
	addresses, reasons := make([]string, len(skip)), make([]string, len(skip))
	for i, r := range skip {
		keys[i], profiles[i], addresses[i], reasons[i] = r.Key, r.ProfileKey, r.Address, r.Skip
	}
	rows, _ := tx.Query(ctx, `
		with written as (
			insert into notifications (workspace_id, origin_id, key, profile_key, address, skip_reason, enrollment_id, content_id)
			select $1, $2, r.key, r.profile_key, nullif(r.address, ''), r.reason, r.enrollment_id, case when $8 then $9::uuid end
			from unnest($3::uuid[], $4::text[], $5::text[], $6::text[], $7::uuid[]) as r (key, profile_key, address, reason, enrollment_id)
			on conflict (workspace_id, origin_id, key) do nothing
			returning key, skip_reason
		)
		select skip_reason, count(*)::int, case when exists (
			select from webhook_subscriptions where workspace_id = $1 and type = '`+eventsout.NotificationSkipped+`') then array_agg(key) end
		from written group by skip_reason`,
		c.WorkspaceID, c.OriginID, keys, profiles, addresses, reasons, enrollmentsOf(c, skip), c.OfFlow, c.ContentID)
	var reason string
	var n int
	var written []uuid.UUID
	e := eventsout.Event{WorkspaceID: c.WorkspaceID, Type: eventsout.NotificationSkipped, OriginID: c.OriginID}
	_, err = pgx.ForEachRow(rows, []any{&reason, &n, &written}, func() error {
		counts[reason] += n
		inserted += n
		e.Keys, e.Details = append(e.Keys, written...), append(e.Details, slices.Repeat([]string{reason}, len(written))...)
		written = nil
		return nil
	})
	if err != nil || len(e.Keys) == 0 {
		return inserted, err
	}
	return inserted, eventsout.Record(ctx, tx, e)
}

package suppression

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/fence"
)

// Recipient is an address by its key. Links in messages have the key only, so that they
// work when the address is known no more.
type Recipient struct {
	Channel lemma.Channel
	Key     uuid.UUID
	Address string // canonical; empty if it is unknown
}

// NewRecipient returns the recipient with a key, and with an address if that has the key.
func NewRecipient(channel lemma.Channel, key uuid.UUID, address string) Recipient {
	r := Recipient{Channel: channel, Key: key}
	if known, ok := canonical(channel, address); ok && keyOf(channel, known) == key {
		r.Address = known
	}
	return r
}

// PreferencesOf reads what a recipient gets. A topic first is among those that are read.
func (s *Suppressions) PreferencesOf(ctx context.Context, ws uuid.UUID, r Recipient, first uuid.UUID) (Preferences, error) {
	p := Preferences{Channel: r.Channel, Address: r.Address}
	rows, _ := s.pool.Query(ctx, selectSuppressions+` and key = $2 order by cause`, ws, r.Key)
	var err error
	if p.Suppressions, err = pgx.CollectRows(rows, pgx.RowToStructByName[Suppression]); err != nil {
		return p, fmt.Errorf("read suppressions of an address: %w", err)
	}
	rows, _ = s.pool.Query(ctx, `
		select t.id, t.name, t.description, not exists (
			select from topic_unsubscribes u where u.workspace_id = t.workspace_id and u.topic_id = t.id and u.key = $2)
		from (
			select workspace_id, id, name, description from topics where workspace_id = $1 order by id <> $3, name, id limit 200
		) t order by t.name, t.id`, ws, r.Key, first)
	if p.Topics, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Preference]); err != nil {
		return p, fmt.Errorf("read topics of an address: %w", err)
	}
	return p, nil
}

// Has reports whether one of the suppressions has a cause.
func (p Preferences) Has(cause string) bool {
	return slices.ContainsFunc(p.Suppressions, func(s Suppression) bool { return s.Cause == cause })
}

// Unsubscribe unsubscribes a recipient from a topic, and from all marketing if there is
// no such topic, in the caller's transaction. Repeated, it changes nothing, and reports so.
func Unsubscribe(ctx context.Context, tx pgx.Tx, ws uuid.UUID, r Recipient, topic uuid.UUID, detail string) (changed bool, err error) {
	err = tx.QueryRow(ctx, `
		with topic as (
			select id from topics where workspace_id = $1 and id = $2 for key share
		), from_topic as (
			insert into topic_unsubscribes (workspace_id, topic_id, key) select $1, id, $3 from topic
			on conflict (workspace_id, topic_id, key) do nothing returning 1
		), from_all as (
			insert into suppressions (workspace_id, id, key, channel, address, cause, detail)
			select $1, $4, $3, $5, $6, '`+Unsubscribed+`', $7 where not exists (select from topic)
			on conflict (workspace_id, key, cause) do nothing returning 1
		)
		select exists (select from from_topic) or exists (select from from_all)`,
		ws, topic, r.Key, lemma.NewID(), r.Channel, r.Address, detail).Scan(&changed)
	if err != nil {
		return false, fmt.Errorf("unsubscribe: %w", err)
	}
	return changed, nil
}

// Resubscribe reverses Unsubscribe from all marketing. Other suppressions and
// the topics stay.
func (s *Suppressions) Resubscribe(ctx context.Context, ws uuid.UUID, r Recipient) error {
	_, err := fence.Exec(ctx, s.pool, `delete from suppressions where workspace_id = $1 and key = $2 and cause = '`+Unsubscribed+`'`,
		ws, r.Key)
	if err != nil {
		return fmt.Errorf("subscribe again: %w", err)
	}
	return nil
}

// SetTopics subscribes a recipient to topics, and unsubscribes them from others, in the
// caller's transaction. Unknown topics are ignored. It reports whether that changed
// something, and the topics from which the recipient unsubscribed.
func SetTopics(ctx context.Context, tx pgx.Tx, ws uuid.UUID, r Recipient, on, off []uuid.UUID) (changed bool, from []uuid.UUID, err error) {
	rows, err := tx.Query(ctx, `
		with resubscribed as (
			delete from topic_unsubscribes where workspace_id = $1 and topic_id = any($3) and key = $2 returning topic_id
		), off as (
			select id from topics where workspace_id = $1 and id = any($4) and id <> all($3) for key share
		), unsubscribed as (
			insert into topic_unsubscribes (workspace_id, topic_id, key) select $1, id, $2 from off
			on conflict (workspace_id, topic_id, key) do nothing returning topic_id
		)
		select topic_id, true from unsubscribed union all select topic_id, false from resubscribed`, ws, r.Key, on, off)
	if err != nil {
		return false, nil, fmt.Errorf("set topics of an address: %w", err)
	}
	var topic uuid.UUID
	var left bool
	_, err = pgx.ForEachRow(rows, []any{&topic, &left}, func() error {
		if changed = true; left {
			from = append(from, topic)
		}
		return nil
	})
	if err != nil {
		return false, nil, fmt.Errorf("set topics of an address: %w", err)
	}
	return changed, from, nil
}

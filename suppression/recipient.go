package suppression

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
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

// TopicsPerPage is how many topics PreferencesOf reads.
const TopicsPerPage = 200

// PreferencesOf reads what a recipient gets, with a page of the topics, from 0 on. The topic
// first is before all others, which are in the order of their names.
func (s *Suppressions) PreferencesOf(ctx context.Context, ws uuid.UUID, r Recipient, first uuid.UUID, page int) (Preferences, error) {
	p := Preferences{Channel: r.Channel, Address: r.Address}
	rows, _ := s.pool.Query(ctx, selectSuppressions+` and key = $2 order by cause`, ws, r.Key)
	var err error
	if p.Suppressions, err = pgx.CollectRows(rows, pgx.RowToStructByName[Suppression]); err != nil {
		return p, fmt.Errorf("read suppressions of an address: %w", err)
	}
	var t Preference
	rows, _ = s.pool.Query(ctx, `
		select t.id, t.name, t.description, t.count, not exists (
			select from topic_unsubscribes u where u.workspace_id = $1 and u.topic_id = t.id and u.key = $2)
		from (
			select id, name, description, (select count(*) from topics where workspace_id = $1) as count, id <> $3 as is_other
			from topics where workspace_id = $1
			order by is_other, name, id limit $4 offset $4::int * $5::int
		) t order by t.is_other, t.name, t.id`, ws, r.Key, first, TopicsPerPage, page)
	_, err = pgx.ForEachRow(rows, []any{&t.TopicID, &t.Name, &t.Description, &p.TopicCount, &t.Subscribed}, func() error {
		p.Topics = append(p.Topics, t)
		return nil
	})
	return p, lemma.Wrap(err, "read topics of an address")
}

// Has reports whether one of the suppressions has a cause.
func (p Preferences) Has(cause string) bool {
	return slices.ContainsFunc(p.Suppressions, func(s Suppression) bool { return s.Cause == cause })
}

// Unsubscribe unsubscribes a recipient from a topic, and from all marketing if there is
// no such topic, in the caller's transaction. Repeated, it changes nothing, and reports so.
func Unsubscribe(ctx context.Context, tx pgx.Tx, ws uuid.UUID, r Recipient, topic uuid.UUID, detail string) (changed bool, err error) {
	var fromAll bool
	id := lemma.NewID()
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
		select exists (select from from_topic), exists (select from from_all)`,
		ws, topic, r.Key, id, r.Channel, r.Address, detail).Scan(&changed, &fromAll)
	if err == nil && fromAll {
		err = record(ctx, tx, ws, written{id, Unsubscribed})
	}
	return changed || fromAll, lemma.Wrap(err, "unsubscribe")
}

// Resubscribe reverses Unsubscribe from all marketing, in the caller's transaction. Other
// suppressions and the topics stay. It reports whether that changed something.
func Resubscribe(ctx context.Context, tx pgx.Tx, ws uuid.UUID, r Recipient) (changed bool, err error) {
	tag, err := tx.Exec(ctx, `delete from suppressions where workspace_id = $1 and key = $2 and cause = '`+Unsubscribed+`'`, ws, r.Key)
	return tag.RowsAffected() > 0, lemma.Wrap(err, "subscribe again")
}

// ResubscribeTo subscribes a recipient to topics again, in the caller's transaction. It
// reports whether that changed something. It locks in the order of the topics, as
// UnsubscribeFrom does, so that requests of one recipient at the same time cannot deadlock.
func ResubscribeTo(ctx context.Context, tx pgx.Tx, ws uuid.UUID, r Recipient, topics []uuid.UUID) (changed bool, err error) {
	tag, err := tx.Exec(ctx, `
		delete from topic_unsubscribes u using (
			select topic_id from topic_unsubscribes where workspace_id = $1 and topic_id = any($3) and key = $2 order by topic_id for update
		) old
		where u.workspace_id = $1 and u.topic_id = old.topic_id and u.key = $2`, ws, r.Key, topics)
	return tag.RowsAffected() > 0, lemma.Wrap(err, "subscribe to topics again")
}

// UnsubscribeFrom unsubscribes a recipient from topics, in the caller's transaction. Unknown
// topics are ignored. It returns those from which the recipient was not unsubscribed before.
func UnsubscribeFrom(ctx context.Context, tx pgx.Tx, ws uuid.UUID, r Recipient, topics []uuid.UUID) (from []uuid.UUID, err error) {
	rows, _ := tx.Query(ctx, `
		with known as (
			select id from topics where workspace_id = $1 and id = any($3) order by id for key share
		)
		insert into topic_unsubscribes (workspace_id, topic_id, key) select $1, id, $2 from known order by id
		on conflict (workspace_id, topic_id, key) do nothing returning topic_id`, ws, r.Key, topics)
	from, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	return from, lemma.Wrap(err, "unsubscribe from topics")
}

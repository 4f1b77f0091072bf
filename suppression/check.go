package suppression

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	addresses "lemma/address"
)

// Message is what a suppression is checked for.
type Message struct {
	Channel       lemma.Channel
	Transactional bool      // only bounces, complaints and unregistered tokens stop it
	TopicID       uuid.UUID // uuid.Nil: none
}

// Found is a suppressed address.
type Found struct {
	Index int    // of the address
	Cause string // one of its causes, or UnsubscribedTopic
}

// KeyOf is the key by which an address of a notification is suppressed.
func KeyOf(channel lemma.Channel, address string) uuid.UUID {
	return keyOf(channel, addresses.CanonicalOf(channel, address))
}

// Check returns which of the addresses must not be sent to. It reads an index per
// address, and one row only in a workspace without suppressions.
func Check(ctx context.Context, db DB, ws uuid.UUID, m Message, addresses []string) ([]Found, error) {
	return check(ctx, db, ws, m, keysOf(m.Channel, addresses))
}

func keysOf(channel lemma.Channel, addresses []string) []uuid.UUID {
	keys := make([]uuid.UUID, len(addresses))
	for i, address := range addresses {
		keys[i] = KeyOf(channel, address)
	}
	return keys
}

func check(ctx context.Context, db DB, ws uuid.UUID, m Message, keys []uuid.UUID) ([]Found, error) {
	rows, _ := db.Query(ctx, `
		select r.i::int - 1, s.cause from unnest($2::uuid[]) with ordinality as r (key, i)
		cross join lateral (
			(select s.cause from suppressions s
			where s.workspace_id = $1 and s.key = r.key
			  and (not $3 or s.cause in ('hard_bounce', 'soft_bounces', 'complaint', 'token_unregistered')) limit 1)
			union all
			(select '`+UnsubscribedTopic+`' from topic_unsubscribes t
			where not $3 and t.workspace_id = $1 and t.topic_id = $4 and t.key = r.key)
			limit 1
		) s
		where exists (select from suppressions where workspace_id = $1) or exists (select from topic_unsubscribes where workspace_id = $1)`,
		ws, keys, m.Transactional, m.TopicID)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Found])
	return found, lemma.Wrap(err, "check %d addresses for suppressions", len(keys))
}

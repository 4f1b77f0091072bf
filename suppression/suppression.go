// Package suppression stores to which addresses nothing is sent, and which topics
// their recipients have unsubscribed from. It guarantees:
//
//   - A worker that claims a batch after an address was suppressed does not call it,
//     also if its notification was written before.
//   - A message that is marked transactional is stopped by bounces, complaints and
//     unregistered tokens only, every other message by each cause.
//   - Adding an address again changes nothing, so that an import can be repeated.
//
// Addresses are compared in their canonical form. A suppression belongs to a
// workspace and a channel, and never to a profile: a profile with a new address is
// sent to.
package suppression

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/address"
	"lemma/fence"
	"lemma/page"
	"lemma/pgerr"
)

// Causes of a suppression.
const (
	HardBounce   = "hard_bounce"  // the address does not exist
	SoftBounces  = "soft_bounces" // it could not be delivered to, repeatedly
	Complaint    = "complaint"    // its recipient marked a message as spam
	Unsubscribed = "unsubscribed" // its recipient unsubscribed from marketing
	Manual       = "manual"       // a user or an import entered it

	TokenUnregistered = "token_unregistered" // no app or browser has the push token any more
)

// Causes are all causes. UnsubscribedTopic is not one of a suppression.
var Causes = []string{HardBounce, SoftBounces, Complaint, TokenUnregistered, Unsubscribed, Manual}

// UnsubscribedTopic is why a message of a topic is not sent.
const UnsubscribedTopic = "unsubscribed_topic"

// Suppression is an address that is not sent to, and one cause.
type Suppression struct {
	ID          uuid.UUID
	WorkspaceID uuid.UUID
	Channel     lemma.Channel
	Address     string // canonical
	Cause       string
	Detail      string // what a user or a carrier noted
	CreatedAt   time.Time
}

// Entry is a suppression to be added.
type Entry struct {
	ID      uuid.UUID // of the suppression, if it is new
	Channel lemma.Channel
	Address string
	Cause   string
	Detail  string
	KeyOnly bool // the address is not stored: it holds by its key, as that of a link does
}

// Suppressions stores suppressions and topics.
type Suppressions struct{ pool *pgxpool.Pool }

// New returns Suppressions.
func New(pool *pgxpool.Pool) *Suppressions { return &Suppressions{pool} }

// DB is a pool or a transaction.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// maxDetail is the longest detail in bytes.
const maxDetail = 500

// canonical returns the form in which addresses of a channel are compared.
func canonical(channel lemma.Channel, text string) (string, bool) {
	a := address.Parse(channel, text)
	return a.Canonical, a.Canonical != ""
}

// keyOf is the key of an address in canonical form.
func keyOf(channel lemma.Channel, canonical string) uuid.UUID {
	return lemma.Key("suppression/1", string(channel), canonical)
}

// Add adds an address and returns its suppression, which is the one that exists if
// the address has the cause already.
func (s *Suppressions) Add(ctx context.Context, ws uuid.UUID, e Entry) (found Suppression, added bool, err error) {
	known, ok := canonical(e.Channel, e.Address)
	if !ok {
		return found, false, lemma.Fault("/address", "invalid_address", "must be an address of the channel %s", e.Channel)
	}
	if len(e.Detail) > maxDetail {
		return found, false, lemma.Fault("/detail", "too_long", "must have at most %d bytes", maxDetail)
	}
	e.Address = known
	err = fence.Transact(ctx, s.pool, func(tx pgx.Tx) error {
		n, named, err := insert(ctx, tx, ws, []Entry{e})
		if added = n > 0; err == nil && n+named == 0 {
			err = fence.ErrUnchanged
		}
		return err
	})
	if err != nil {
		return found, false, err
	}
	rows, _ := s.pool.Query(ctx, selectSuppressions+` and key = $2 and cause = $3`, ws, keyOf(e.Channel, known), e.Cause)
	found, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Suppression])
	return found, added, pgerr.Row(err, "suppression", "add suppression")
}

// Get reads one suppression.
func (s *Suppressions) Get(ctx context.Context, ws, id uuid.UUID) (Suppression, error) {
	rows, _ := s.pool.Query(ctx, selectSuppressions+` and id = $2`, ws, id)
	found, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Suppression])
	return found, pgerr.Row(err, "suppression", "get suppression")
}

// Delete removes a suppression. The address is sent to again when no other cause is left. Soft
// bounces before then do not count any more, as before a delivery.
func (s *Suppressions) Delete(ctx context.Context, ws, id uuid.UUID) error {
	tag, err := fence.Exec(ctx, s.pool, `
		with deleted as (
			delete from suppressions where workspace_id = $1 and id = $2 returning workspace_id, key, cause
		), forgotten as (
			update soft_bounces b set delivered_at = greatest(b.delivered_at, now()) from deleted d
			where b.workspace_id = $1 and b.key = d.key and d.cause = $3
		)
		select from deleted`, ws, id, SoftBounces)
	if err == nil && tag.RowsAffected() == 0 {
		err = pgx.ErrNoRows
	}
	return pgerr.Row(err, "suppression", "delete suppression")
}

const selectSuppressions = `
	select id, workspace_id, channel, address, cause, detail, created_at from suppressions where workspace_id = $1`

// Filter narrows a list.
type Filter struct {
	Channel lemma.Channel
	Address string // in any spelling
	Cause   string
}

var list = page.List[Suppression]{Name: "suppressions", Created: "created_at", Orders: map[string]page.Order[Suppression]{
	"created_at": page.ByID("id", func(s Suppression) uuid.UUID { return s.ID }),
}}

// List reads a page of suppressions.
func (s *Suppressions) List(ctx context.Context, ws uuid.UUID, f Filter, q page.Query) ([]Suppression, string, error) {
	statement, err := list.Start(q, ws)
	if err != nil {
		return nil, "", err
	}
	statement.Between("id")
	statement.Unindexed()
	and := func(condition string, value any) { statement.And(fmt.Sprintf(condition, statement.Arg(value))) }
	if f.Address != "" {
		and("key = any(%s)", f.keys())
	}
	if f.Channel != "" {
		and("channel = %s", f.Channel)
	}
	if f.Cause != "" {
		and("cause = %s", f.Cause)
	}
	read := func(end page.Clauses) ([]Suppression, error) {
		rows, _ := s.pool.Query(ctx, selectSuppressions+" and "+end.Where+" "+end.Order, end.Args...)
		return pgx.CollectRows(rows, pgx.RowToStructByName[Suppression])
	}
	if f.Address != "" { // the primary key finds the few rows
		return statement.Read(read)
	}
	return statement.ReadParts(ctx, s.pool, "suppressions where workspace_id = $1", read)
}

// keys are those of an address in each channel that it could be one of.
func (f Filter) keys() []uuid.UUID {
	keys := []uuid.UUID{}
	for _, channel := range []lemma.Channel{lemma.Email, lemma.SMS, lemma.Push} {
		if known, ok := canonical(channel, f.Address); ok {
			keys = append(keys, keyOf(channel, known))
		}
	}
	return keys
}

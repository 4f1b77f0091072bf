// Package audit records each change with its actor. It guarantees:
//
//   - The record of a change is written by the transaction of the change: there is no
//     change without its record, and no record of a change that was rolled back.
//   - Records do not change. They leave by whole months only.
//   - A record has ids, and no data of profiles.
//
// A caller puts the record of its request into a context (With). What the request
// changes by fence.Transact and fence.Exec is then recorded once.
package audit

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/fence"
	"lemma/page"
)

// The types of actors.
const (
	APIKey = "api_key"
	CLI    = "cli"  // a person with access to the database
	Link   = "link" // a recipient, by a link in a message
)

// Record is one change.
type Record struct {
	WorkspaceID  uuid.UUID
	ID           uuid.UUID
	ActorType    string
	ActorID      *uuid.UUID // of an API key
	ActorName    string     // of a user of the command line
	Action       string     // the operation of openapi.yaml, such as "pauseCampaign"
	ResourceType string     // as in the path of the API, such as "campaigns"
	ResourceID   string     // as the API writes it; empty for many or none
	RequestID    string
	At           time.Time
}

// With returns a context whose transactions write the record: the first one that commits.
// written is true once one has.
func With(ctx context.Context, r Record) (_ context.Context, written *atomic.Bool) {
	r.ID, written = lemma.NewID(), &atomic.Bool{}
	return fence.With(ctx, func(ctx context.Context, tx pgx.Tx) error {
		written.Store(true)
		return r.write(ctx, tx)
	}), written
}

func (r Record) write(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `
		insert into audit_log (workspace_id, id, actor_type, actor_id, actor_name, action, resource_type, resource_id, request_id)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict (workspace_id, id) do nothing`,
		r.WorkspaceID, r.ID, r.ActorType, r.ActorID, r.ActorName, r.Action, r.ResourceType, r.ResourceID, r.RequestID)
	return lemma.Wrap(err, "write the audit log")
}

// Recent counts the changes of a resource by actors of a type within a time. It counts the
// last ones, at most so many.
func Recent(ctx context.Context, tx pgx.Tx, ws uuid.UUID, actorType, resourceID string, within time.Duration, most int) (n int, err error) {
	err = tx.QueryRow(ctx, `
		select count(*) filter (where at > now() - $4::interval) from (
			select at from audit_log where workspace_id = $1 and resource_id <> '' and resource_id = $2 and actor_type = $3
			order by id desc limit $5
		) last`, ws, resourceID, actorType, within, most).Scan(&n)
	return n, lemma.Wrap(err, "count changes")
}

// Log reads the records.
type Log struct{ pool *pgxpool.Pool }

// New returns a Log.
func New(pool *pgxpool.Pool) *Log { return &Log{pool} }

// Filter selects records. Empty fields select all.
type Filter struct {
	ActorType    string
	ActorID      *uuid.UUID
	Action       string
	ResourceType string
	ResourceID   string
	RequestID    string
}

var list = page.List[Record]{Name: "audit_log", Created: "at", Orders: map[string]page.Order[Record]{
	"created_at": page.ByID("id", func(r Record) uuid.UUID { return r.ID }),
}}

// List reads one page of records.
func (l *Log) List(ctx context.Context, ws uuid.UUID, f Filter, q page.Query) ([]Record, string, error) {
	s, err := list.Start(q, ws)
	if err != nil {
		return nil, "", err
	}
	s.Between("id")
	if f.ResourceID != "" {
		s.And("resource_id <> '' and resource_id = " + s.Arg(f.ResourceID))
	}
	s.Unindexed()
	for _, c := range [][2]string{{"actor_type", f.ActorType}, {"action", f.Action}, {"resource_type", f.ResourceType},
		{"request_id", f.RequestID}} {
		if c[1] != "" {
			s.And(c[0] + " = " + s.Arg(c[1]))
		}
	}
	if f.ActorID != nil {
		s.And("actor_id = " + s.Arg(*f.ActorID))
	}
	return s.ReadParts(ctx, l.pool, "audit_log where workspace_id = $1", func(end page.Clauses) ([]Record, error) {
		rows, _ := l.pool.Query(ctx, `
			select workspace_id, id, actor_type, actor_id, actor_name, action, resource_type, resource_id, request_id, at
			from audit_log where workspace_id = $1 and `+end.Where+" "+end.Order, end.Args...)
		return pgx.CollectRows(rows, pgx.RowToStructByName[Record])
	})
}

package notifications

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// selectStatus reads Notification from the one view that derives a status.
const selectStatus = `
	select workspace_id, origin_id, key, profile_key, address, status, reason, attempts::int as attempts,
		code::int as code, carrier_id, detail, created_at, ended_at, flow_id, enrollment_id, node, resolution, resolved_at
	from notification_status n`

// mayHold tells which batches can hold a row of a status, by their counters
// alone: a list of the few orphans of a million touches only their batches.
var mayHold = map[string]string{
	"failed":     "b.failed > 0",
	"orphaned":   "b.orphaned > 0",
	"cancelled":  "b.cancelled > 0",
	"pending":    "b.state in ('ready', 'leased')",
	"processing": "b.state = 'leased'",
	"skipped":    "b.skipped > 0",
	"any reason": "b.failed + b.orphaned + b.skipped + b.cancelled > 0",
}

// Get reads one notification.
func (l *Ledger) Get(ctx context.Context, workspaceID, origin, key uuid.UUID) (Notification, error) {
	return get(ctx, l.pool, workspaceID, origin, key)
}

func get(ctx context.Context, db DB, workspaceID, origin, key uuid.UUID) (Notification, error) {
	rows, err := db.Query(ctx, selectStatus+` where workspace_id = $1 and origin_id = $2 and key = $3`, workspaceID, origin, key)
	if err != nil {
		return Notification{}, fmt.Errorf("get notification: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[Notification])
	if err != nil {
		return Notification{}, fmt.Errorf("get notification: %w", err)
	}
	if len(found) == 0 {
		return Notification{}, lemma.Missing("notification")
	}
	return found[0], nil
}

// State is where a notification stands.
type State struct {
	Status string
	Reason *string
}

// States tells where notifications of one origin stand, by their keys. What was
// never written is not among them.
func (l *Ledger) States(ctx context.Context, workspaceID, origin uuid.UUID, keys []uuid.UUID) (map[uuid.UUID]State, error) {
	rows, err := l.pool.Query(ctx, `
		select key, status, reason from notification_status where workspace_id = $1 and origin_id = $2 and key = any($3)`, workspaceID, origin, keys)
	if err != nil {
		return nil, fmt.Errorf("read states of notifications: %w", err)
	}
	all := make(map[uuid.UUID]State, len(keys))
	var key uuid.UUID
	var s State
	if _, err := pgx.ForEachRow(rows, []any{&key, &s.Status, &s.Reason}, func() error { all[key] = s; return nil }); err != nil {
		return nil, fmt.Errorf("read states of notifications: %w", err)
	}
	return all, nil
}

// List answers one page, those of the newest origin first, and within it in
// the order of their keys, which never changes. A search by profile or address
// needs an origin: there is no index over everybody, on purpose.
func (l *Ledger) List(ctx context.Context, workspaceID uuid.UUID, f Filter, page lemma.Page) ([]Notification, string, error) {
	if f.OriginID == nil && f.FlowID == nil && (f.ProfileKey != "" || f.Address != "") {
		return nil, "", lemma.Fault("?campaign_id", "required", "name the campaign or the flow in which to look for a person")
	}
	q := query{args: []any{workspaceID}}
	q.where("n.workspace_id = $1")
	if err := q.after(page.Cursor, f.OriginID != nil); err != nil {
		return nil, "", err
	}
	q.filter(f)
	sql := selectStatus + " where " + strings.Join(q.conditions, " and ") +
		" order by n.origin_id desc, n.key limit " + q.arg(page.Limit+1)
	rows, err := l.pool.Query(ctx, sql, q.args...)
	if err != nil {
		return nil, "", fmt.Errorf("list notifications: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[Notification])
	if err != nil {
		return nil, "", fmt.Errorf("list notifications: %w", err)
	}
	if len(found) <= page.Limit {
		return found, "", nil
	}
	last := found[page.Limit-1]
	return found[:page.Limit], lemma.FormatNotificationID(last.OriginID, last.Key), nil
}

// query collects conditions and their arguments.
type query struct {
	conditions []string
	args       []any
}

func (q *query) arg(v any) string {
	q.args = append(q.args, v)
	return fmt.Sprintf("$%d", len(q.args))
}

func (q *query) where(condition string) { q.conditions = append(q.conditions, condition) }

// after continues behind the row that a cursor names.
func (q *query) after(cursor string, oneOrigin bool) error {
	if cursor == "" {
		return nil
	}
	origin, key, ok := lemma.ParseNotificationID(cursor)
	if !ok {
		return lemma.Fault("?cursor", "invalid_cursor", "the cursor is not one that this list gave out")
	}
	if oneOrigin { // a plain condition on the key, which the index can seek
		q.where("n.key > " + q.arg(key))
		return nil
	}
	o := q.arg(origin)
	q.where(fmt.Sprintf("(n.origin_id < %s or (n.origin_id = %s and n.key > %s))", o, o, q.arg(key)))
	return nil
}

func (q *query) filter(f Filter) {
	origin := ""
	if f.OriginID != nil {
		origin = q.arg(*f.OriginID)
		q.where("n.origin_id = " + origin)
	}
	if f.FlowID != nil {
		q.where("n.origin_id in (select o.origin_id from flow_origins o where o.workspace_id = $1 and o.flow_id = " + q.arg(*f.FlowID) + ")")
	}
	if f.Status != "" {
		q.where("n.status = " + q.arg(f.Status))
		q.narrow(f.Status, origin)
	}
	if f.Reason != "" {
		q.where("n.reason = " + q.arg(f.Reason))
		if f.Status == "" {
			q.narrow("any reason", origin)
		}
	}
	if f.ProfileKey != "" {
		q.where("n.profile_key = " + q.arg(f.ProfileKey))
	}
	if f.Address != "" {
		_, canonical, _ := lemma.CanonicalEmail(f.Address)
		q.where(fmt.Sprintf("lower(n.address) in (lower(%s), %s)", q.arg(f.Address), q.arg(canonical)))
	}
}

// narrow limits the rows to batches that can hold the status.
func (q *query) narrow(status, origin string) {
	condition, ok := mayHold[status]
	if !ok {
		return
	}
	same := ""
	if origin != "" {
		same = " and b.origin_id = " + origin
	}
	in := fmt.Sprintf("(n.origin_id, n.batch_id) in (select b.origin_id, b.root_id from batches b where b.workspace_id = $1%s and %s)", same, condition)
	if status == "skipped" || status == "any reason" {
		in = "(n.batch_id is null or " + in + ")"
	}
	q.where(in)
}

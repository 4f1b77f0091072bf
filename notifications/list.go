package notifications

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/address"
	"lemma/page"
)

// selectStatus reads Notification from the one view that derives a status.
const selectStatus = `
	select workspace_id, origin_id, key, coalesce(channel, '') as channel, profile_key, address, status, reason, outcome,
		attempts::int as attempts,
		code::int as code, carrier_id, detail, created_at, ended_at, flow_id, enrollment_id, node, resolution, resolved_at,
		case when due_at is not null then greatest(due_at, created_at) end as due_at, expires_at, -- a batch may be made due early
		coalesce(metadata, '{}')::json as metadata,
		coalesce(d.delivery, '` + unknownDelivery + `') as delivery, d.delivery_at
	from notification_status n
	left join lateral (
		select d.state as delivery, d.at as delivery_at from deliveries d
		where d.workspace_id = n.workspace_id and d.origin_id = n.origin_id and d.key = n.key
	) d on true`

// toNotification reads a row of selectStatus, whose columns are in this order: finding them
// by name costs as much as reading them.
func toNotification(row pgx.CollectableRow) (n Notification, err error) {
	err = row.Scan(&n.WorkspaceID, &n.OriginID, &n.Key, &n.Channel, &n.ProfileKey, &n.Address, &n.Status, &n.Reason, &n.Outcome,
		&n.Attempts,
		&n.Code, &n.CarrierID, &n.Detail, &n.CreatedAt, &n.EndedAt, &n.FlowID, &n.EnrollmentID, &n.Node, &n.Resolution, &n.ResolvedAt,
		&n.DueAt, &n.ExpiresAt, &n.Metadata, &n.Delivery, &n.DeliveryAt)
	return n, err
}

// unknownDelivery is the state of a notification about which the carrier has reported
// nothing.
const unknownDelivery = "unknown"

// mayHold are the conditions on the counters of batches that can have a row of a
// status: a list of the few orphans of a million rows reads only their batches.
var mayHold = map[string]string{
	"failed":     "b.failed > 0",
	"orphaned":   "b.orphaned > 0",
	"cancelled":  "b.cancelled > 0",
	"pending":    "b.status in ('ready', 'leased')",
	"processing": "b.status = 'leased'",
	"skipped":    "b.skipped > 0",
	"any reason": "b.failed + b.orphaned + b.skipped + b.cancelled > 0",
}

// Get reads one notification.
func (l *Ledger) Get(ctx context.Context, workspaceID, origin, key uuid.UUID) (Notification, error) {
	return get(ctx, l.pool, workspaceID, origin, key)
}

func get(ctx context.Context, db DB, workspaceID, origin, key uuid.UUID) (Notification, error) {
	rows, _ := db.Query(ctx, selectStatus+` where workspace_id = $1 and origin_id = $2 and key = $3`, workspaceID, origin, key)
	found, err := pgx.CollectRows(rows, toNotification)
	if err != nil {
		return Notification{}, fmt.Errorf("get notification: %w", err)
	}
	if len(found) == 0 {
		return Notification{}, lemma.Missing("notification")
	}
	return found[0], nil
}

// Some reads notifications by their origins and keys, in one statement. Those that are not
// stored are left out.
func (l *Ledger) Some(ctx context.Context, workspaceID uuid.UUID, origins, keys []uuid.UUID) ([]Notification, error) {
	rows, _ := l.pool.Query(ctx, some, workspaceID, origins, keys)
	found, err := pgx.CollectRows(rows, toNotification)
	return found, lemma.Wrap(err, "read notifications")
}

//nolint:unqueryvet // the columns are those of selectStatus
const some = `
	select n.* from unnest($2::uuid[], $3::uuid[]) as r (origin_id, key)
	cross join lateral (` + selectStatus + `
		where workspace_id = $1 and origin_id = r.origin_id and n.key = r.key offset 0
	) n`

// State is the status of a notification.
type State struct {
	Status string
	Reason *string
}

// States reads notifications of one origin by their keys. Keys that are not stored
// are left out.
func (l *Ledger) States(ctx context.Context, workspaceID, origin uuid.UUID, keys []uuid.UUID) (map[uuid.UUID]State, error) {
	rows, _ := l.pool.Query(ctx, `
		select key, status, reason from notification_status
		where workspace_id = $1 and origin_id = $2 and key = any($3)`, workspaceID, origin, keys)
	all := make(map[uuid.UUID]State, len(keys))
	var key uuid.UUID
	var s State
	_, err := pgx.ForEachRow(rows, []any{&key, &s.Status, &s.Reason}, func() error { all[key] = s; return nil })
	return all, lemma.Wrap(err, "read states of notifications")
}

// List reads one page: the newest origin first, and within it in the order of keys,
// which never changes. A search by profile or address needs a campaign or a flow,
// since no index covers all profiles of a workspace: see page.ReadParts.
func (l *Ledger) List(ctx context.Context, workspaceID uuid.UUID, f Filter, q page.Query) ([]Notification, string, error) {
	switch {
	case f.OriginID != nil && (f.FlowID != nil || f.Direct), f.FlowID != nil && f.Direct: // none is of both
		return nil, "", nil
	case f.OriginID != nil:
		return l.listBy(ctx, oneOrigin, workspaceID, f, q)
	case f.FlowID != nil || f.Direct:
		return l.listOrigins(ctx, workspaceID, f, q)
	case f.ProfileKey != "" || f.Address != "":
		return nil, "", lemma.Fault("?campaign_id", "required", "a search by profile or address needs campaign_id, flow_id or origin=direct")
	}
	return l.listBy(ctx, everyOrigin, workspaceID, f, q)
}

// listBy lists the notifications of one origin, or of all.
func (l *Ledger) listBy(
	ctx context.Context, list page.List[Notification], workspaceID uuid.UUID, f Filter, q page.Query,
) ([]Notification, string, error) {
	statement, err := list.Start(q, workspaceID)
	if err != nil {
		return nil, "", err
	}
	narrowed := (&query{Statement: statement}).filter(f)
	read := func(end page.Clauses) ([]Notification, error) {
		rows, _ := l.pool.Query(ctx, selectStatus+" where n.workspace_id = $1 and "+end.Where+" "+end.Order, end.Args...)
		return pgx.CollectRows(rows, toNotification)
	}
	if narrowed {
		return statement.Read(read)
	}
	return statement.ReadParts(ctx, l.pool, "notifications n where n.workspace_id = $1", read)
}

// listOrigins lists the notifications of a flow, or the direct ones, origin by origin. The
// cursor has the origin, and the cursor within it; an empty one is its beginning.
func (l *Ledger) listOrigins(
	ctx context.Context, workspaceID uuid.UUID, f Filter, q page.Query,
) (all []Notification, next string, err error) {
	origins, err := l.originsOf(ctx, workspaceID, f)
	if err != nil {
		return nil, "", fmt.Errorf("find origins of notifications: %w", err)
	}
	first, cursor, _ := strings.Cut(q.Cursor, originEnd)
	at := 0
	if q.Cursor != "" {
		if at = slices.IndexFunc(origins, func(o uuid.UUID) bool { return o.String() == first }); at < 0 {
			return nil, "", page.InvalidCursor()
		}
	}
	list, begun := oneOrigin, time.Now()
	for _, origin := range origins[min(at, len(origins)):] {
		if len(all) == q.Limit {
			return all, origin.String() + originEnd, nil
		}
		f.OriginID, f.FlowID, f.Direct = &origin, nil, false
		list.PartTime = max(page.PartTime-time.Since(begun), 1)
		rows, next, err := l.listBy(ctx, list, workspaceID, f, page.Query{Limit: q.Limit - len(all), Cursor: cursor, Sort: q.Sort})
		if err != nil {
			return nil, "", err
		}
		if all = append(all, rows...); next != "" {
			return all, origin.String() + originEnd + next, nil
		}
		cursor = ""
	}
	return all, "", nil
}

// originEnd is between the origin and the rest of a cursor, which is base64url.
const originEnd = "."

// originsOf are the origins of a flow, or those of direct notifications since the workspace
// exists: the newest first.
func (l *Ledger) originsOf(ctx context.Context, workspaceID uuid.UUID, f Filter) (origins []uuid.UUID, err error) {
	if f.FlowID != nil {
		rows, _ := l.pool.Query(ctx, `select origin_id from flow_origins where workspace_id = $1 and flow_id = $2 order by 1 desc`,
			workspaceID, f.FlowID)
		return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	}
	rows, _ := l.pool.Query(ctx, `
		select generate_series(date_trunc('month', now() at time zone 'UTC') + interval '1 month',
			date_trunc('month', created_at at time zone 'UTC'), interval '-1 month')
		from workspaces where id = $1`, workspaceID)
	months, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
	for _, month := range months {
		origins = append(origins, DirectOrigin(workspaceID, month))
	}
	return origins, err
}

// The orders of notifications. Within one origin the condition of a page is on the
// key alone, by which the index is searched.
var (
	byKey       = page.Key[Notification]{Column: "n.key", Type: page.UUID, Of: func(n Notification) any { return n.Key }}
	byKeyDown   = page.Key[Notification]{Column: "n.key", Type: page.UUID, Of: func(n Notification) any { return n.Key }, Reverse: true}
	byOrigin    = page.Key[Notification]{Column: "n.origin_id", Type: page.UUID, Of: originOf, Reverse: true}
	oneOrigin   = listBy(byKey)
	everyOrigin = listBy(byOrigin, byKeyDown)
)

func originOf(n Notification) any { return n.OriginID }

func listBy(keys ...page.Key[Notification]) page.List[Notification] {
	orders := map[string]page.Order[Notification]{"key": keys}
	return page.List[Notification]{Name: "notifications", Default: "key", Orders: orders}
}

// query adds the conditions of a filter.
type query struct {
	*page.Statement[Notification]
	search bool // by profile or address
}

// filter reports whether an index finds the few rows of the filter, or there is none. A search
// by profile or address reads the rows in the order of the list, part by part: it compares
// them before a status is derived, and so costs the same with any other filter.
func (q *query) filter(f Filter) (narrowed bool) {
	origin := ""
	if f.OriginID != nil {
		origin = q.Arg(*f.OriginID)
		q.And("n.origin_id = " + origin)
	}
	q.Unindexed()
	q.search = f.ProfileKey != "" || f.Address != ""
	if f.Status != "" {
		q.And("n.status = " + q.Arg(f.Status))
		narrowed = q.narrow(f.Status, origin)
	}
	if f.Resolution != "" {
		narrowed = q.ofResolution(f, origin) || narrowed
	}
	if f.Delivery != "" {
		narrowed = q.ofDelivery(f.Delivery, origin) || narrowed
	}
	if f.Reason != "" {
		q.And("n.reason = " + q.Arg(f.Reason))
		if f.Status == "" {
			q.narrow("any reason", origin)
		}
	}
	if f.ProfileKey != "" {
		q.And("n.profile_key = " + q.Arg(f.ProfileKey))
	}
	if f.Channel != "" {
		q.ofChannel(f.Channel)
	}
	if f.Address != "" {
		q.ofAddress(f.Address)
	}
	return narrowed
}

// ofResolution limits the rows to orphaned notifications with a resolution, or without one.
func (q *query) ofResolution(f Filter, origin string) (narrowed bool) {
	if f.Resolution == "none" {
		q.And("n.resolution is null")
	} else {
		q.And("n.resolution = " + q.Arg(f.Resolution))
	}
	if f.Status == "orphaned" {
		return !q.search
	}
	q.And("n.status = 'orphaned'")
	return q.narrow("orphaned", origin)
}

// ofDelivery limits the rows to a delivery state. The few that were not delivered are
// found by their own index.
func (q *query) ofDelivery(state, origin string) (narrowed bool) {
	wanted := q.Arg(state)
	q.And("coalesce(d.delivery, '" + unknownDelivery + "') = " + wanted)
	if q.search || state == unknownDelivery || state == "delivered" {
		return false
	}
	same := ""
	if origin != "" {
		same = " and f.origin_id = " + origin
	}
	q.And("(n.origin_id, n.key) in (select f.origin_id, f.key from deliveries f where f.workspace_id = $1" + same +
		" and f.state = " + wanted + " and f.rank <> 4)")
	return true
}

// ofChannel limits the rows to a channel, and to origins that may have it: a campaign's
// content has the id of its origin, a flow may have contents of several channels.
func (q *query) ofChannel(channel lemma.Channel) {
	wanted := q.Arg(channel)
	q.And("n.channel = " + wanted)
	q.And(fmt.Sprintf(`(`+isDirect+` or n.origin_id in (
		select c.id from contents c where c.workspace_id = $1 and c.channel = %s and c.flow_id is null
		union all
		select o.origin_id from contents c join flow_origins o on o.workspace_id = c.workspace_id and o.flow_id = c.flow_id
		where c.workspace_id = $1 and c.channel = %[1]s))`, wanted))
}

// isDirect is true of direct notifications, by the version of their origin's id: see
// IsDirect.
const isDirect = `get_byte(uuid_send(n.origin_id), 6) >> 4 = 8`

// ofAddress compares addresses in the canonical form of each channel. Invalid ones are
// found by their text, and subscriptions by their endpoint, as JSON may write it. The first condition is on the
// address alone, so that the channel and the status of other rows are not read.
func (q *query) ofAddress(text string) {
	email, phone, token := address.Parse(lemma.Email, text), address.Parse(lemma.SMS, text), address.Parse(lemma.Push, text)
	given, mail, push := q.Arg(text), q.Arg(email.Canonical), q.Arg(token.Text)
	numbers := q.Arg(address.PhoneForms(phone.Canonical))
	subscribed := "n.address like '{%%' and n.address like any(" + q.Arg(endpointsLike(token.Canonical)) + ")"
	q.And(fmt.Sprintf("(lower(n.address) in (lower(%s), %s, lower(%s)) or n.address = any(%s) or "+subscribed+")", given, mail, push, numbers))
	q.And(fmt.Sprintf(`(n.address = %[1]s
		or n.channel = 'email' and lower(n.address) in (lower(%[1]s), %[2]s) or n.channel = 'sms' and n.address = any(%[3]s)
		or n.channel = 'push' and (n.address = %[4]s or `+subscribed+`))`, given, mail, numbers, push))
}

// endpointsLike are patterns of subscriptions with an endpoint: JSON may escape a slash, and an ampersand.
func endpointsLike(endpoint string) []string {
	if !strings.HasPrefix(endpoint, "https://") {
		return []string{}
	}
	literal := strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)
	var all []string
	for _, escapes := range [][]string{{}, {"/", `\/`}, {"&", `\u0026`}, {"/", `\/`, "&", `\u0026`}} {
		all = append(all, `%"`+literal.Replace(strings.NewReplacer(escapes...).Replace(endpoint))+`"%`)
	}
	return all
}

// narrow limits the rows to batches that can hold the status.
func (q *query) narrow(status, origin string) (narrowed bool) {
	condition, ok := mayHold[status]
	if !ok || q.search {
		return false
	}
	same := ""
	if origin != "" {
		same = " and b.origin_id = " + origin
	}
	in := fmt.Sprintf("(n.origin_id, n.batch_id) in (select b.origin_id, b.root_id from batches b where b.workspace_id = $1%s and %s)",
		same, condition)
	if status == "skipped" || status == "any reason" {
		q.And("(n.batch_id is null or " + in + ")")
		return false
	}
	q.And(in)
	return true
}

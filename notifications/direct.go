package notifications

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/eventsout"
)

// DirectOrigin is the origin of the direct notifications of a workspace in the month of t: a
// UUID of version 8 (RFC 9562, section 5.8), which no campaign and no flow has. It begins
// with the time of the month, as partitions need it.
func DirectOrigin(workspace uuid.UUID, t time.Time) uuid.UUID {
	return DirectID(t, "direct-origin/1", workspace.String())
}

// DirectID is a UUID of version 8: the time of t's month, and then bits of a lemma.Key.
func DirectID(t time.Time, domain string, parts ...string) uuid.UUID {
	t = t.UTC()
	month := time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC)
	id := lemma.Key(domain, append([]string{month.Format("2006-01")}, parts...)...)
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(month.UnixMilli()))
	copy(id[:6], ms[2:])
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	return id
}

// IsDirect reports whether the notifications of an origin are direct.
func IsDirect(origin uuid.UUID) bool { return origin.Version() == 8 }

// Direct is a notification that a client has requested by itself.
type Direct struct {
	OriginID    uuid.UUID
	Key         uuid.UUID
	ProviderID  uuid.UUID
	ContentID   uuid.UUID
	ProfileKey  string
	Address     string // empty: Skip is set
	Payload     string
	Skip        string // the reason, when nothing is to be sent
	Metadata    string // a JSON object; empty: none
	MaxAttempts int
	DueAt       time.Time // zero: now
	ExpiresAt   time.Time // zero: never
	Last        bool      // it comes after those of others, and makes room for them
}

// mostDirect is how many direct notifications a batch has, so that several workers share a
// bulk.
const mostDirect = 100

// InsertDirect writes direct notifications, their batches and jobs in the caller's
// transaction, with the event of those that are skipped, and returns its time. Those that
// are sent alike share batches. It fails with ErrNoProvider if a provider does not exist: a
// key share lock on it makes its deletion wait and find the batches.
func (l *Ledger) InsertDirect(ctx context.Context, tx pgx.Tx, workspace uuid.UUID, all []Direct) (at time.Time, err error) {
	rows, batches := arrangeDirect(all)
	queue := &pgx.Batch{}
	queue.Queue(`
		insert into notifications (workspace_id, origin_id, key, batch_id, ordinal, profile_key, address, payload, skip_reason, content_id,
			metadata)
		select $1, r.origin_id, r.key, r.batch_id, r.ordinal, r.profile_key, nullif(r.address, ''), r.payload, nullif(r.skip, ''),
			case when r.skip <> '' then r.content_id end, nullif(r.metadata, '')
		from unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::smallint[], $6::text[], $7::text[], $8::text[], $9::text[], $10::uuid[],
			$11::text[]) as r (origin_id, key, batch_id, ordinal, profile_key, address, payload, skip, content_id, metadata)`,
		workspace, rows.origins, rows.keys, rows.batches, rows.ordinals, rows.profiles, rows.addresses, rows.payloads, rows.skips,
		rows.contents, rows.metadata)
	found := 0
	queue.Queue(`
		insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, max_attempts, due_at, expires_at, bulk)
		select $1, b.origin_id, b.id as id, b.id as root_id, b.provider_id, b.content_id, b.size, b.max_attempts,
			greatest(b.due_at, now()), b.expires_at, b.bulk
		from unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::smallint[], $7::smallint[], $8::timestamptz[], $9::timestamptz[],
			$10::boolean[]) as b (origin_id, id, provider_id, content_id, size, max_attempts, due_at, expires_at, bulk)
		cross join lateral (
			select from providers p where p.workspace_id = $1 and p.id = b.provider_id limit 1 for key share) p`,
		workspace, batches.origins, batches.ids, batches.providers, batches.contents, batches.sizes, batches.attempts, batches.due,
		batches.expires, batches.last).Exec(func(tag pgconn.CommandTag) error { found = int(tag.RowsAffected()); return nil })
	queue.Queue(`select now()`).QueryRow(func(row pgx.Row) error { return row.Scan(&at) })
	if err := tx.SendBatch(ctx, queue).Close(); err != nil {
		return at, fmt.Errorf("insert %d direct notifications: %w", len(all), err)
	}
	if found < len(batches.ids) {
		return at, ErrNoProvider
	}
	if err := recordSkipped(ctx, tx, workspace, all); err != nil {
		return at, err
	}
	return at, l.Enqueue(ctx, tx, batches.jobs(workspace, at))
}

// recordSkipped records the events of direct notifications that are skipped when they are
// stored.
func recordSkipped(ctx context.Context, tx pgx.Tx, workspace uuid.UUID, all []Direct) error {
	var events []eventsout.Event // one for each origin: a bulk may be of two months
	for _, d := range all {
		if d.Skip == "" {
			continue
		}
		i := slices.IndexFunc(events, func(e eventsout.Event) bool { return e.OriginID == d.OriginID })
		if i < 0 {
			i = len(events)
			events = append(events, eventsout.Event{WorkspaceID: workspace, Type: eventsout.NotificationSkipped, OriginID: d.OriginID})
		}
		events[i].Keys, events[i].Details = append(events[i].Keys, d.Key), append(events[i].Details, d.Skip)
	}
	return eventsout.Record(ctx, tx, events...)
}

// ErrNoProvider is the error for a provider that has been deleted.
var ErrNoProvider = errors.New("the provider does not exist")

// alike is what the notifications of a batch have in common.
type alike struct {
	origin, provider, content uuid.UUID
	attempts                  int
	due, expires              int64
	last                      bool
}

func (d Direct) alike() alike {
	return alike{d.OriginID, d.ProviderID, d.ContentID, d.MaxAttempts, unix(d.DueAt), unix(d.ExpiresAt), d.Last}
}

func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// directRows are the columns of notifications, as unnest takes them.
type directRows struct {
	origins, keys, contents, batches               []pgtype.UUID
	ordinals                                       []pgtype.Int2
	profiles, addresses, payloads, skips, metadata []string
}

// directBatches are the columns of their batches.
type directBatches struct {
	origins, ids, providers, contents []uuid.UUID
	sizes, attempts                   []int16
	due, expires                      []pgtype.Timestamptz
	last                              []bool
}

// arrangeDirect deals the notifications to batches.
func arrangeDirect(all []Direct) (r directRows, b directBatches) {
	open := map[alike]int{} // the batch of a kind that has space
	for _, d := range all {
		r.origins, r.keys, r.contents = append(r.origins, wire(d.OriginID)), append(r.keys, wire(d.Key)), append(r.contents, wire(d.ContentID))
		r.profiles, r.addresses, r.payloads = append(r.profiles, d.ProfileKey), append(r.addresses, d.Address), append(r.payloads, d.Payload)
		r.skips, r.metadata = append(r.skips, d.Skip), append(r.metadata, d.Metadata)
		if d.Skip != "" {
			r.batches, r.ordinals = append(r.batches, pgtype.UUID{}), append(r.ordinals, pgtype.Int2{})
			continue
		}
		at, ok := open[d.alike()]
		if !ok || b.sizes[at] == mostDirect {
			at = b.add(d)
			open[d.alike()] = at
		}
		r.batches = append(r.batches, wire(b.ids[at]))
		r.ordinals = append(r.ordinals, pgtype.Int2{Int16: b.sizes[at], Valid: true})
		b.sizes[at]++
	}
	return r, b
}

func (b *directBatches) add(d Direct) int {
	time := func(t time.Time) pgtype.Timestamptz { return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()} }
	b.origins, b.ids = append(b.origins, d.OriginID), append(b.ids, lemma.NewIDSince(d.OriginID))
	b.providers, b.contents = append(b.providers, d.ProviderID), append(b.contents, d.ContentID)
	b.sizes, b.attempts = append(b.sizes, 0), append(b.attempts, int16(d.MaxAttempts))
	b.due, b.expires, b.last = append(b.due, time(d.DueAt)), append(b.expires, time(d.ExpiresAt)), append(b.last, d.Last)
	return len(b.ids) - 1
}

// jobs are those of the batches. at is the time of the database: a process with another clock would send late.
func (b *directBatches) jobs(workspace uuid.UUID, at time.Time) []Job {
	jobs := make([]Job, len(b.ids))
	for i, id := range b.ids {
		jobs[i] = Job{Ref: Ref{workspace, b.origins[i], id}, Last: b.last[i]}
		if b.due[i].Valid {
			jobs[i].After = b.due[i].Time.Sub(at)
		}
	}
	return jobs
}

// CancelOne cancels a direct notification while no worker holds its batch, before its
// first attempt, and returns it. A notification that is cancelled already is returned
// again. It is a WrongStatus otherwise.
func (l *Ledger) CancelOne(ctx context.Context, workspaceID, origin, key uuid.UUID) (Notification, error) {
	n, err := l.Get(ctx, workspaceID, origin, key)
	if err != nil {
		return n, err
	}
	if !IsDirect(origin) {
		return n, &lemma.Error{Kind: lemma.Conflict, Code: "not_direct",
			Message: "only a direct notification is cancelled by itself; cancel its campaign, or end its enrollment"}
	}
	var cancelled int
	err = l.pool.QueryRow(ctx, cancelOne, workspaceID, origin, key).Scan(&cancelled)
	if err != nil {
		return n, fmt.Errorf("cancel notification: %w", err)
	}
	if n, err = l.Get(ctx, workspaceID, origin, key); err != nil || n.Status == "cancelled" {
		return n, err
	}
	wrong := &lemma.Error{Kind: lemma.WrongStatus, Status: n.Status, Message: "the notification is " + n.Status + " and cannot be cancelled"}
	if n.Status == "pending" {
		wrong.Message = "a worker holds the batch of the notification, or it waits for its second attempt; it cannot be cancelled now"
	}
	return n, wrong
}

// cancelOne removes a row from the open rows of its batch, which must be ready, and inserts
// its outcome. A batch without further rows ends. All conditions and new values are of the
// batch's row itself, so that they hold for what a concurrent statement has written.
const cancelOne = `
	with n as (
		select batch_id, ordinal from (
			select batch_id, ordinal from notifications where workspace_id = $1 and origin_id = $2 and key = $3 offset 0
		) n where batch_id is not null
	), place as materialized (
		select b.id, n.ordinal from n cross join lateral (
			select b.id from batches b
			where b.workspace_id = $1 and b.origin_id = $2 and b.id = n.batch_id and n.ordinal = any(coalesce(b.open, array[n.ordinal]))
			union all
			select b.id from batches b
			where b.workspace_id = $1 and b.origin_id = $2 and b.root_id = n.batch_id and b.id <> b.root_id and b.attempt = 1
			  and n.ordinal = any(b.open)
			limit 1) b
	), ended as (
		update batches b set cancelled = cancelled + 1,
			open = array(select o::smallint from unnest(coalesce(b.open, ` + allOrdinals + `)) o where o <> (select ordinal from place)),
			status = case when coalesce(cardinality(b.open), b.size) = 1 then 'cancelled' else b.status end,
			finished_at = case when coalesce(cardinality(b.open), b.size) = 1 then now() end
		where b.workspace_id = $1 and b.origin_id = $2 and b.id = (select id from place) and b.status || '' = 'ready' and b.attempt = 1
		  and (b.open is null or (select ordinal from place) = any(b.open))
		returning b.workspace_id, b.root_id, (select ordinal from place) as ordinal
	), outcome as (
		insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis, reason)
		select workspace_id, root_id, ordinal, 1, 'skipped', true, 'gate', 'cancelled' from ended
	)
	select count(*) from ended`

const allOrdinals = `array(select i::smallint from generate_series(0, b.size - 1) i)`

package retention

import (
	"context"
	"time"

	"lemma"

	"github.com/jackc/pgx/v5"

	"lemma/migrations"
)

// querier is a pool, a connection or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// uses are the statements that name what needs the rows of a month, by table. @from and
// @to are the bounds of the month's ids. What ended within @kept is in use, by the clock of
// the database. A campaign
// that was created in the month may be sent much later, and an enrollment may last for
// years.
var uses = map[string]string{
	"notifications":    ofOrigins,
	"provider_events":  ofOrigins,
	"tracking_events":  ofOrigins,
	"deliveries":       ofNotifications,
	"engagements":      ofNotifications,
	"attempts":         ofRootBatches,
	"batch_log":        ofBatches,
	"enrollment_steps": ofEnrollments,
}

const (
	ofOrigins = `
		select case
			when exists (select from workspaces w cross join lateral (select from campaigns c
				where c.workspace_id = w.id and c.id >= @from and c.id < @to
				and (c.status in ('scheduled', 'preparing', 'sending', 'paused') or c.finished_at > now() - @kept::interval) limit 1) c)
				then 'campaigns of the month have not ended for long enough'
			when exists (select from workspaces w cross join lateral (select from batches b
				where b.workspace_id = w.id and b.origin_id >= @from and b.origin_id < @to
				and (b.status in ('ready', 'leased') or b.finished_at > now() - @kept::interval) limit 1) b)
				then 'batches of the month have not ended for long enough'
			when exists (select from workspaces w cross join lateral (select from enrollments e
				where e.workspace_id = w.id and e.id >= @from and e.id < @to
				and (e.status = 'active' or e.ended_at > now() - @kept::interval) limit 1) e)
				then 'enrollments of the month have not ended for long enough'
			when exists (select from event_queue q where q.origin_id >= @from and q.origin_id < @to)
				or exists (select from tracking_queue q where q.origin_id >= @from and q.origin_id < @to)
				then 'events about the month are not applied yet'
			else '' end`

	ofEnrollments = `
		select case
			when exists (select from workspaces w cross join lateral (select from enrollments e
				where e.workspace_id = w.id and e.id >= @from and e.id < @to
				and (e.status = 'active' or e.ended_at > now() - @kept::interval) limit 1) e)
				then 'enrollments of the month have not ended for long enough'
			else '' end`

	// A late event would count a notification again whose state is gone.
	ofNotifications = `
		select case
			when to_regclass(format('notifications_%s', to_char(@month::timestamptz at time zone 'UTC', 'YYYY_MM'))) is not null
				or exists (select from notifications_default n where n.origin_id >= @from and n.origin_id < @to)
				then 'notifications of the month are kept'
			else '' end`

	// The status of a notification is that of its last attempt. The month of a root batch is
	// not before that of its origin, whatever the clocks of the processes are that made the
	// two (lemma.NewIDSince).
	ofRootBatches = `
		select case
			when exists (select from pg_inherits i join pg_class c on c.oid = i.inhrelid
				where i.inhparent = to_regclass('notifications') and c.relname ~ '_\d{4}_\d\d$'
				and right(c.relname, 7) <= to_char(@month::timestamptz at time zone 'UTC', 'YYYY_MM'))
				or exists (select from notifications_default n where n.origin_id < @to)
				then 'notifications of the month, or of an earlier one, are kept'
			else '' end`

	ofBatches = `
		select case
			when exists (select from workspaces w cross join lateral (select from batches b
				where b.workspace_id = w.id and b.status in ('ready', 'leased')
				and (b.id >= @from and b.id < @to or b.root_id >= @from and b.root_id < @to) limit 1) b)
				then 'batches of the month have not ended'
			else '' end`
)

// useOf names what needs the rows of a partition; empty for nothing. What ended less than
// kept ago needs them still.
func useOf(ctx context.Context, q querier, p migrations.Partition, kept time.Duration) (use string, err error) {
	statement, known := uses[p.Table]
	if !known {
		return "its table is never dropped", nil
	}
	from, to := p.IDs()
	args := pgx.NamedArgs{"from": from, "to": to, "kept": kept, "month": p.Month}
	err = q.QueryRow(ctx, statement, args).Scan(&use)
	return use, lemma.Wrap(err, "read what needs %s", p.Name())
}

// begins reports whether a campaign that was a draft in useOf has begun since then, and
// may have ended, whose notifications would be in the partition. It is called under the
// lock of the table, and is quick. Nothing else of an old month begins.
func begins(ctx context.Context, q querier, p migrations.Partition, kept time.Duration) (begun bool, err error) {
	switch uses[p.Table] {
	case ofRootBatches, ofBatches, ofEnrollments:
		return false, nil
	}
	from, to := p.IDs()
	err = q.QueryRow(ctx, `
		select exists (select from campaigns c
			where c.id >= $1 and c.id < $2
			  and (c.status in ('scheduled', 'preparing', 'sending', 'paused') or c.finished_at > now() - $3::interval))`,
		from, to, kept).Scan(&begun)
	return begun, lemma.Wrap(err, "read what began to need %s", p.Name())
}

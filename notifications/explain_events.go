package notifications

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// mostEvents bounds an explanation: a carrier may report any number of events.
const mostEvents = 200

// eventLine is a row of provider_events.
type eventLine struct {
	RecordedAt time.Time
	OccurredAt time.Time
	Source     string
	Kind       string
	Type       *string
	Attempt    int
	Reason     *string
	Code       *int16
	CarrierID  *string
	Detail     *string
	Total      int // events of the notification
}

// readEvents adds what carriers reported, the first mostEvents of it. All evidence counts.
func readEvents(ctx context.Context, db DB, e *Explanation, d *deliveries) error {
	if err := readEvidence(ctx, db, e.Notification, d); err != nil {
		return err
	}
	n := e.Notification
	rows, err := db.Query(ctx, `
		select p.recorded_at, p.occurred_at, p.source, p.kind, p.type, coalesce(p.attempt, 0)::int as attempt, p.reason, p.code,
			p.carrier_id, p.detail, count(*) over ()::int as total
		from notifications n
		join provider_events p on p.workspace_id = n.workspace_id and p.origin_id = n.origin_id and p.batch_id = n.batch_id
			and p.ordinal = n.ordinal
		where n.workspace_id = $1 and n.origin_id = $2 and n.key = $3 order by p.recorded_at limit $4`,
		n.WorkspaceID, n.OriginID, n.Key, mostEvents)
	if err != nil {
		return err
	}
	lines, err := pgx.CollectRows(rows, pgx.RowToStructByName[eventLine])
	if err != nil {
		return err
	}
	for i, p := range lines {
		s := Step{At: p.RecordedAt, Event: "evidence", Attempt: p.Attempt, Detail: "the carrier reported: " + p.Kind,
			Data: map[string]string{"source": p.Source, "kind": p.Kind}}
		if p.Type != nil {
			s.Detail = "the carrier reported: " + *p.Type
			s.Data["type"], s.Data["occurred_at"] = *p.Type, p.OccurredAt.UTC().Format(time.RFC3339Nano)
		}
		if more := p.Total - len(lines); more > 0 && i == len(lines)-1 {
			s.Detail += fmt.Sprintf("; %d later events are not shown", more)
		}
		s.put(p.Reason, p.Code, p.CarrierID, p.Detail)
		e.Steps = append(e.Steps, s)
	}
	return nil
}

// readEvidence reads what all events prove.
func readEvidence(ctx context.Context, db DB, n Notification, d *deliveries) error {
	rows, err := db.Query(ctx, `
		select distinct p.kind, coalesce(p.attempt, 0)::int
		from notifications n
		join provider_events p on p.workspace_id = n.workspace_id and p.origin_id = n.origin_id and p.batch_id = n.batch_id
			and p.ordinal = n.ordinal
		where n.workspace_id = $1 and n.origin_id = $2 and n.key = $3`, n.WorkspaceID, n.OriginID, n.Key)
	if err != nil {
		return err
	}
	var kind string
	var attempt int
	_, err = pgx.ForEachRow(rows, []any{&kind, &attempt}, func() error { d.addEvidence(kind, attempt); return nil })
	return err
}

package notifications

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// mostEvents bounds an explanation: a carrier may report any number of events. Of each kind
// and attempt so many are read, of all together so many are shown.
const mostEvents = 200

// mostCounted bounds the number of events that are counted.
const mostCounted = 10_000

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
}

// firstEvents reads the first events of each kind and attempt, by the index. So each kind
// of evidence is among them, however many events there are.
var firstEvents = `
	select p.recorded_at, p.occurred_at, p.source, p.kind, p.type, coalesce(p.attempt, 0)::int as attempt, p.reason, p.code, p.carrier_id,
		p.detail
	from notifications n
	cross join (values ('accepted'), ('rejected'), ('deferred')) as k (kind)
	cross join lateral (
		` + eventsOf(`p.attempt = 1`) + ` union all ` + eventsOf(`p.attempt = 2`) + ` union all ` + eventsOf(`p.attempt is null`) + `
	) p
	where n.workspace_id = $1 and n.origin_id = $2 and n.key = $3 order by p.recorded_at, p.id`

func eventsOf(attempt string) string {
	return `(select p.id, p.recorded_at, p.occurred_at, p.source, p.kind, p.type, p.attempt, p.reason, p.code, p.carrier_id, p.detail
		from provider_events p where ` + ofNotification + ` and p.kind = k.kind and ` + attempt + `
		order by p.attempt, p.occurred_at limit $4)`
}

const ofNotification = `p.workspace_id = $1 and p.origin_id = $2 and p.batch_id = n.batch_id and p.ordinal = n.ordinal`

const countEvents = `
	select count(*)::int from notifications n
	cross join lateral (select from provider_events p where ` + ofNotification + ` limit $4) p
	where n.workspace_id = $1 and n.origin_id = $2 and n.key = $3`

// readEvents adds what carriers reported, the first mostEvents of it. All evidence counts.
func readEvents(ctx context.Context, db DB, e *Explanation, d *deliveries) error {
	n := e.Notification
	rows, _ := db.Query(ctx, firstEvents, n.WorkspaceID, n.OriginID, n.Key, mostEvents)
	lines, err := pgx.CollectRows(rows, pgx.RowToStructByName[eventLine])
	if err != nil {
		return err
	}
	for _, p := range lines {
		d.addEvidence(p.Kind, p.Attempt)
	}
	shown := lines[:min(len(lines), mostEvents)]
	for _, p := range shown {
		s := Step{At: p.RecordedAt, Event: "evidence", Attempt: p.Attempt, Detail: "the carrier reported: " + p.Kind,
			Data: map[string]string{"source": p.Source, "kind": p.Kind}}
		if p.Type != nil {
			s.Detail = "the carrier reported: " + *p.Type
			s.Data["type"], s.Data["occurred_at"] = *p.Type, p.OccurredAt.UTC().Format(time.RFC3339Nano)
		}
		s.put(p.Reason, p.Code, p.CarrierID, p.Detail)
		e.Steps = append(e.Steps, s)
	}
	if len(shown) < mostEvents {
		return nil
	}
	rows, _ = db.Query(ctx, countEvents, n.WorkspaceID, n.OriginID, n.Key, mostCounted+1)
	total, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
	if err != nil {
		return err
	}
	last := &e.Steps[len(e.Steps)-1]
	switch {
	case total > mostCounted:
		last.Detail += fmt.Sprintf("; more than %d other events are not shown", mostCounted-mostEvents)
	case total > mostEvents:
		last.Detail += fmt.Sprintf("; %d other events are not shown", total-mostEvents)
	}
	return nil
}

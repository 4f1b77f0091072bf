package notifications

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Waiting is what a notification that has not ended waits for.
type Waiting struct {
	For    string     // answer, window, cancel, expiry, resume, due, provider, sender_slot or worker
	Until  *time.Time // when that is over, if it is known
	Detail string     // a sentence
}

// place is where a notification stands: its current batch and its provider.
type place struct {
	Status, Gate         string
	Attempt, MaxAttempts int
	DueAt                time.Time
	LeaseUntil           *time.Time
	Late                 bool // its send deadline has passed
	Now                  time.Time
	FirstError           string // why the provider's circuit is open
	FailingSince         *time.Time
	OpenUntil            *time.Time // nil: it is closed
	ThrottledBy          *string    // the limit for which its provider's batches waited in the last minute
}

// readPlace answers nil for who was never to be written to.
func readPlace(ctx context.Context, db DB, n Notification) (*place, error) {
	rows, err := db.Query(ctx, `
		select b.status, b.gate, b.attempt::int as attempt, b.max_attempts::int as max_attempts, b.due_at, b.lease_until,
			coalesce(b.expires_at <= now(), false) as late, now() as now, coalesce(m.first_error, '') as first_error, m.failing_since, m.open_until,
			case when m.throttled_at > now() - interval '1 minute' then m.throttled_by end as throttled_by
		from notification_status s
		join batches b on b.workspace_id = s.workspace_id and b.origin_id = s.origin_id and b.id = s.current_batch_id
		left join provider_meters m on m.workspace_id = b.workspace_id and m.provider_id = b.provider_id
		where s.workspace_id = $1 and s.origin_id = $2 and s.key = $3`, n.WorkspaceID, n.OriginID, n.Key)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[place])
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

func (p *place) waiting(status string) *Waiting {
	switch {
	case status == "processing":
		return &Waiting{"answer", p.LeaseUntil, "the reaper decides about it if its answer is not known when the lease runs out"}
	case status != "pending":
		return nil
	case p.Status == "leased" && p.Gate == "cancelled":
		return &Waiting{"cancel", p.LeaseUntil, "a worker holds its batch and gives it back as cancelled"}
	case p.Status == "leased":
		return &Waiting{"window", p.LeaseUntil, "a worker holds its batch, and is not calling it"}
	case p.Late:
		return &Waiting{"expiry", nil, "its send deadline has passed, and it is about to be ended"}
	case p.Gate == "held":
		return &Waiting{"resume", nil, "what it belongs to is paused"}
	case p.DueAt.After(p.Now):
		return &Waiting{"due", &p.DueAt, "its batch is not due yet"}
	case p.OpenUntil != nil:
		return &Waiting{"provider", p.OpenUntil, fmt.Sprintf("its provider has failed since %s (%s) and is probed", p.FailingSince.UTC().Format(time.RFC3339), p.FirstError)}
	}
	if p.ThrottledBy != nil {
		return &Waiting{"sender_slot", nil, "it is due, and batches of its provider wait for a sender place (limit: " + *p.ThrottledBy + ")"}
	}
	return &Waiting{"worker", nil, "it is due"}
}

package notifications

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Waiting is what a notification that has not ended waits for.
type Waiting struct {
	For    string     // answer, events, window, cancel, expiry, resume, due, provider, sender_slot or worker
	Until  *time.Time // its end, if it is known
	Detail string     // a sentence
}

// batchState is the current batch of a notification, with its provider.
type batchState struct {
	Status, Gate         string
	Attempt, MaxAttempts int
	DueAt                time.Time
	Refused              bool // the carrier refused it for now, and DueAt is its own
	LeaseUntil           *time.Time
	Late                 bool // its send deadline has passed
	Awaits               bool // the reaper waits for events of the carrier
	Now                  time.Time
	FirstError           string // why the provider's circuit is open
	FailingSince         *time.Time
	OpenUntil            *time.Time // nil: it is closed
	ThrottledBy          *string    // the limit that made the provider's batches wait in the last minute
	Provider             string     // its kind
	PausedFor            *string    // why the campaign or flow is paused, if Lemma paused it
	Released             bool       // its campaign or flow was resumed, and its gate is not opened yet
	ReleasedFor          string     // why a worker gave the batch back last, if it was for a reason
	ByRate               bool       // its fan-out set DueAt by the rate of the provider
	ByOffset             bool       // its variant is sent later than others, and that time has not passed
}

// AwaitsEvents is the detail in the log of a batch whose rows the reaper leaves until
// events of the carrier have come. A batch that it leaves as it is gets a longer lease
// than the log has.
const AwaitsEvents = "waits for events of the carrier"

// readBatchState returns nil for a row that was inserted as skipped.
func readBatchState(ctx context.Context, db DB, n Notification) (*batchState, error) {
	rows, _ := db.Query(ctx, `
		select b.status, b.gate, b.attempt::int as attempt, b.max_attempts::int as max_attempts, s.due_at, b.lease_until,
			coalesce(b.retry_at[s.ordinal + 1] > now(), false) as refused,
			coalesce(b.expires_at <= now(), false) as late, now() as now,
			b.attempt < b.max_attempts and coalesce(p.receives and (l.until < now() and b.lease_until > now() or l.detail = $4), false) as awaits,
			coalesce(m.first_error, '') as first_error, m.failing_since, m.open_until,
			case when m.throttled_at > now() - interval '1 minute' then m.throttled_by end as throttled_by, coalesce(p.kind, '') as provider,
			case when c.status = 'paused' then c.status_reason || coalesce(': ' || c.status_detail, '')
				when f.status = 'paused' then f.status_reason || coalesce(': ' || f.status_detail, '') end as paused_for,
			exists (select from releases e where e.workspace_id = b.workspace_id and e.origin_id = b.origin_id) as released,
			case when r.event = 'released' then coalesce(r.detail, '') else '' end as released_for,
			b.attempt = 1 and b.open is null and c.id is not null and p.rate_per_second is not null as by_rate,
			exists (select from iterations i join iteration_variants v on v.workspace_id = i.workspace_id and v.iteration_id = i.id
				where i.workspace_id = b.workspace_id and i.campaign_id = b.origin_id and v.content_id = b.content_id
				and b.enqueued_at + v.send_offset > now()) as by_offset
		from notification_status s
		cross join lateral ( -- by its key: the batches of a direct notification's origin are those of a month
			select b.workspace_id, b.origin_id, b.id, b.status, b.gate, b.attempt, b.max_attempts, b.lease_until, b.leased_by, b.retry_at,
				b.expires_at, b.open, b.provider_id, b.content_id, b.enqueued_at from batches b
			where b.workspace_id = s.workspace_id and b.origin_id = s.origin_id and b.id = s.current_batch_id offset 0
		) b
		left join providers p on p.workspace_id = b.workspace_id and p.id = b.provider_id
		left join provider_meters m on m.workspace_id = b.workspace_id and m.provider_id = b.provider_id
		left join campaigns c on c.workspace_id = b.workspace_id and c.id = b.origin_id
		left join flow_origins o on o.workspace_id = b.workspace_id and o.origin_id = b.origin_id
		left join flows f on f.workspace_id = o.workspace_id and f.id = o.flow_id
		left join lateral (
			select l.until, l.detail from batch_log l
			where l.workspace_id = b.workspace_id and l.batch_id = b.id and l.token = b.leased_by and l.until is not null
			order by l.at desc limit 1) l on true
		left join lateral (
			select r.event, r.detail from batch_log r where r.workspace_id = b.workspace_id and r.batch_id = b.id
			order by r.at desc limit 1) r on true
		where s.workspace_id = $1 and s.origin_id = $2 and s.key = $3`, n.WorkspaceID, n.OriginID, n.Key, AwaitsEvents)
	found, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[batchState])
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

func (b *batchState) waiting(status string) *Waiting {
	switch {
	case status == "processing" && b.Awaits:
		return &Waiting{"events", b.LeaseUntil, "its outcome is unknown, and the reaper waits for events of the carrier: it checks again then"}
	case status == "processing":
		return &Waiting{"answer", b.LeaseUntil, "if its outcome is unknown when the lease expires, the reaper decides"}
	case status != "pending":
		return nil
	case b.Refused && b.Gate == "open" && !b.Late:
		return &Waiting{"due", &b.DueAt, "the carrier refused it for now, or its server is slow, and it is called then"}
	case b.Status == "leased" && b.Gate == "cancelled":
		return &Waiting{"cancel", b.LeaseUntil, "a worker holds its batch and gives it back as cancelled"}
	case b.Status == "leased":
		return &Waiting{"window", b.LeaseUntil, "a worker holds its batch, and no window contains it"}
	case b.Late:
		return &Waiting{"expiry", nil, "its send deadline has passed, and the sweep skips it"}
	case b.Gate == "held" && b.Released:
		return &Waiting{"resume", nil, "its campaign or flow was resumed, and the batches that waited are released one after the other"}
	case b.Gate == "held" && b.PausedFor != nil:
		return &Waiting{"resume", nil, "its campaign or flow is paused (" + *b.PausedFor + ")"}
	case b.Gate == "held":
		return &Waiting{"resume", nil, "its campaign or flow is paused"}
	case b.DueAt.After(b.Now) && b.ReleasedFor != "":
		return &Waiting{"due", &b.DueAt, "its batch is tried again then: " + b.ReleasedFor}
	case b.DueAt.After(b.Now) && b.ByOffset:
		return &Waiting{"due", &b.DueAt, "its batch is due then by the send_offset of its variant"}
	case b.DueAt.After(b.Now) && b.ByRate:
		return &Waiting{"due", &b.DueAt, "its batch is due then by the rate of its provider, or sooner if the rate is unused"}
	case b.DueAt.After(b.Now):
		return &Waiting{"due", &b.DueAt, "its batch is not due yet"}
	case b.OpenUntil != nil:
		since := b.FailingSince.UTC().Format(time.RFC3339)
		return &Waiting{"provider", b.OpenUntil, fmt.Sprintf("its provider has failed since %s (%s) and is probed", since, b.FirstError)}
	case b.ThrottledBy != nil:
		return &Waiting{"sender_slot", nil, "it is due, and batches of its provider wait for a sender slot (limit: " + *b.ThrottledBy + ")"}
	}
	return &Waiting{"worker", nil, "it is due"}
}

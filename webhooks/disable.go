package webhooks

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Statuses of an endpoint.
const (
	Enabled  = "enabled"
	Disabled = "disabled" // its messages fail without a call
)

// Reasons why an endpoint is disabled.
const (
	DisabledByRequest = "requested"
	DisabledByFailure = "failing" // no message was delivered for DisableAfter
)

// stillFailing is how recent the last failure must be.
const stillFailing = 24 * time.Hour

// DisableFailing disables endpoints that have failed for DisableAfter: since it was
// enabled, an event message that was written that long ago was not delivered, no message
// was delivered since, and a call has failed within the last day. It returns how many.
func (w *Webhooks) DisableFailing(ctx context.Context) (int, error) {
	rows, err := w.pool.Query(ctx, `
		update webhook_endpoints e set status = 'disabled', status_reason = '`+DisabledByFailure+`', disabled_at = now(),
			version = e.version + 1, updated_at = now()
		where e.status = 'enabled' and e.sequence > 0 and e.enabled_at <= now() - $1::interval
		  and exists (select from outbox o where o.workspace_id = e.workspace_id and o.endpoint_id = e.id
			and o.sequence is not null and o.status <> 'delivered' and o.last_error is not null
			and o.created_at >= e.enabled_at and o.created_at <= now() - $1::interval)
		  and exists (select from outbox o where o.workspace_id = e.workspace_id and o.endpoint_id = e.id
			and o.sequence is not null and o.status <> 'delivered' and o.last_error is not null and o.called_at > now() - $2::interval)
		  and not exists (select from outbox o where o.endpoint_id = e.id and o.workspace_id = e.workspace_id
			and o.status = 'delivered' and o.status <> 'pending' and o.finished_at > now() - $1::interval)
		returning e.workspace_id, e.id`, w.options.DisableAfter, stillFailing)
	if err != nil {
		return 0, fmt.Errorf("disable failing webhook endpoints: %w", err)
	}
	n := 0
	var ws, id uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&ws, &id}, func() error {
		n++
		w.metrics.disabled.Inc()
		w.log.WarnContext(ctx, "webhook endpoint disabled: no message was delivered", "workspace", ws, "endpoint", id,
			"for", w.options.DisableAfter)
		return nil
	})
	if err != nil {
		return n, fmt.Errorf("disable failing webhook endpoints: %w", err)
	}
	return n, nil
}

package flows

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/fence"
)

// refusals are the reasons that waiting does not end, and outage is the one that it may.
var refusals = []string{"provider_refused", "provider_unusable"}

const outage = "provider_errors"

// giveUpAfter is how long the messages of an archived flow wait for a provider that is
// down: at least as long as mail servers retry (RFC 5321, section 4.5.4.1).
const giveUpAfter = 5 * 24 * time.Hour

// cancelUnsent cancels what an archived flow has still to send by a provider, when this
// provider would pause another flow: an archived flow cannot be resumed, so that its
// messages would stay pending. An outage cancels them only when the flow was archived
// giveUpAfter ago. The flow's row keeps the first reason. An archived flow writes no further
// messages. Flows of other statuses are left unchanged.
func (f *Flows) cancelUnsent(ctx context.Context, ws, flow, provider uuid.UUID, reason, detail string) error {
	var cancelled int64
	err := fence.Transact(ctx, f.pool, func(tx pgx.Tx) error {
		cancelled = 0
		tag, err := tx.Exec(ctx, `
			update flows set status_reason = coalesce(status_reason, $3),
				updated_at = case when status_reason is null then now() else updated_at end,
				status_detail = case when status_reason is null then nullif($4, '') else status_detail end,
				version = version + case when status_reason is null then 1 else 0 end
			where workspace_id = $1 and id = $2 and status = 'archived'
			  and ($3 = any($5) or $3 = $6 and exists (select from flow_log l
				where l.workspace_id = $1 and l.flow_id = $2 and l.action = 'archived' and l.at < now() - $7::interval))`,
			ws, flow, reason, detail, refusals, outage, giveUpAfter)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		return eachOrigin(ctx, tx, ws, flow, func(ctx context.Context, tx pgx.Tx, ws, origin uuid.UUID) error {
			n, err := f.ledger.CancelOf(ctx, tx, ws, origin, provider)
			cancelled += n
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("cancel messages of archived flow %s: %w", flow, err)
	}
	if cancelled > 0 {
		f.metrics.Cancelled.WithLabelValues(reason).Add(float64(cancelled))
		f.log.Warn("messages of an archived flow are cancelled", "flow_id", flow, "messages", cancelled, "reason", reason, "detail", detail)
	}
	return nil
}

package webhooks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/loop"
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

// recordFailing records in the caller's transaction which endpoints begin to fail with an
// event message, and which have received a message again. It writes nothing for an endpoint
// whose state stays. Rows are locked in one order.
func recordFailing(ctx context.Context, tx pgx.Tx, all []*settlement) error {
	changed := map[[2]uuid.UUID]bool{} // whether it fails, by workspace and endpoint
	for _, one := range all {
		of := [2]uuid.UUID{one.WorkspaceID, one.EndpointID}
		if _, known := changed[of]; one.held && one.changesFailing() && (one.result.delivered() || !known) {
			changed[of] = !one.result.delivered()
		}
	}
	if len(changed) == 0 {
		return nil
	}
	var ws, ids []uuid.UUID
	var failing []bool
	for of, fails := range changed {
		ws, ids, failing = append(ws, of[0]), append(ids, of[1]), append(failing, fails)
	}
	_, err := tx.Exec(ctx, `
		with locked as materialized (
			select r.workspace_id, r.id, r.failing from (
				select workspace_id, id, failing from unnest($1::uuid[], $2::uuid[], $3::boolean[]) as r (workspace_id, id, failing)
				order by workspace_id, id
			) r
			cross join lateral (
				select from webhook_endpoints e where e.workspace_id = r.workspace_id and e.id = r.id for no key update
			) e
		)
		update webhook_endpoints e set failing_since = case when l.failing then coalesce(e.failing_since, now()) end
		from locked l where e.workspace_id = l.workspace_id and e.id = l.id`, ws, ids, failing)
	return lemma.Wrap(err, "record failing webhook endpoints")
}

// changesFailing reports whether an endpoint that fails has received a message, or one that
// does not fail has not received an event.
func (e *settlement) changesFailing() bool {
	if e.result.delivered() {
		return e.FailingSince != nil
	}
	return e.FailingSince == nil && e.EventID != nil
}

// stillFailing is how recent the last failure must be.
const stillFailing = 24 * time.Hour

// betweenFailures is how long after the first failure, and before now, another message must have failed:
// so an endpoint with one failed call is not disabled when the clock of the database jumps.
const betweenFailures = 12 * time.Hour

// failingPage is how many endpoints are read together that have failed for long.
const failingPage = 100

// failing is an endpoint that has failed for DisableAfter.
type failing struct {
	Workspace, ID uuid.UUID
	Since         time.Time
}

// DisableFailing disables endpoints that have failed for DisableAfter: a call of an event
// message failed that long ago, since it was enabled, a message was given up between, no message
// was delivered since, and a call has failed within the last day. It returns how many. Endpoints that work are not
// visited, and one that cannot be checked delays no other.
func (w *Webhooks) DisableFailing(ctx context.Context) (n int, err error) {
	var failed loop.Errors
	var last failing
	for {
		page, err := w.failingLong(ctx, last)
		if err != nil || len(page) == 0 {
			return n, errors.Join(failed.Err(), err)
		}
		for _, e := range page {
			disabled, err := w.disable(ctx, e)
			if failed.Add(err); disabled {
				n++
			}
		}
		last = page[len(page)-1]
	}
}

// failingLong returns the endpoints after one that have failed longest.
func (w *Webhooks) failingLong(ctx context.Context, after failing) ([]failing, error) {
	rows, _ := w.pool.Query(ctx, `
		select workspace_id, id, failing_since from webhook_endpoints
		where status = 'enabled' and failing_since <= now() - $1::interval and (failing_since, workspace_id, id) > ($2, $3, $4)
		order by failing_since, workspace_id, id limit $5`, w.options.DisableAfter, after.Since, after.Workspace, after.ID, failingPage)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[failing])
	return found, lemma.Wrap(err, "find failing webhook endpoints")
}

// disable disables an endpoint unless it has recovered, was enabled again, or had no call
// of late. The messages are read again, since the settlements of two processes may have
// overtaken each other.
func (w *Webhooks) disable(ctx context.Context, f failing) (bool, error) {
	tag, err := w.pool.Exec(ctx, `
		update webhook_endpoints e set status = 'disabled', status_reason = '`+DisabledByFailure+`', disabled_at = now(),
			version = e.version + 1, updated_at = now()
		where e.workspace_id = $3 and e.id = $4 and e.status = 'enabled' and e.failing_since <= now() - $1::interval
		  and e.enabled_at <= e.failing_since
		  and (exists (select from outbox o where o.workspace_id = $3 and o.endpoint_id = $4
				and o.status = 'pending' and o.waits and o.sequence is not null and o.last_error is not null and o.called_at > now() - $2::interval)
			or exists (select from outbox o where o.workspace_id = $3 and o.endpoint_id = $4
				and o.status = 'failed' and o.status <> 'pending' and o.sequence is not null and o.finished_at > now() - $2::interval))
		  and exists (select from outbox o where o.workspace_id = $3 and o.endpoint_id = $4
			and o.status = 'failed' and o.status <> 'pending' and o.sequence is not null
			and o.finished_at between e.failing_since + $5::interval and now() - $5::interval)
		  and not exists (select from outbox o where o.workspace_id = $3 and o.endpoint_id = $4
			and o.status = 'delivered' and o.status <> 'pending' and o.finished_at > now() - $1::interval)`,
		w.options.DisableAfter, stillFailing, f.Workspace, f.ID, min(betweenFailures, w.options.DisableAfter/4))
	if err != nil {
		return false, fmt.Errorf("disable failing webhook endpoint %s: %w", f.ID, err)
	}
	if tag.RowsAffected() == 0 {
		return false, nil
	}
	w.metrics.disabled.Inc()
	w.log.WarnContext(ctx, "webhook endpoint disabled: no message was delivered", "workspace", f.Workspace, "endpoint", f.ID,
		"for", w.options.DisableAfter)
	return true, nil
}

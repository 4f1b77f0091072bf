package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/pgerr"
)

// Range selects event messages of an endpoint by when they were written.
type Range struct {
	After    *time.Time // nil: from the first that is kept
	Before   *time.Time // nil: until now
	Statuses []string   // delivered, failed; nil: failed
}

// resendChunk is how many messages one statement of ResendAll makes due.
const resendChunk = 5000

// ResendAll sends the event messages of a range again, with the same ids and bodies, and
// returns how many. Pending messages stay as they are.
func (w *Webhooks) ResendAll(ctx context.Context, ws, endpoint uuid.UUID, r Range) (resent int64, err error) {
	if err := w.checkEnabled(ctx, ws, endpoint); err != nil {
		return 0, err
	}
	if r.Statuses == nil {
		r.Statuses = []string{Failed}
	}
	if slices.ContainsFunc(r.Statuses, func(s string) bool { return s != Delivered && s != Failed }) {
		return 0, lemma.Fault("/statuses", "invalid", "must be some of delivered and failed")
	}
	var to int64 // the last number when the request came: what is published later is not sent again
	err = w.pool.QueryRow(ctx, `select sequence from webhook_endpoints where workspace_id = $1 and id = $2`, ws, endpoint).Scan(&to)
	for after := int64(0); err == nil && after < to; {
		var n int64
		err = w.pool.QueryRow(ctx, `
			with part as materialized (
				select id, status, created_at, sequence from outbox
				where workspace_id = $1 and endpoint_id = $2 and sequence > $3 and sequence <= $4 order by sequence limit $5
			), again as (
				update outbox o set `+dueAgain+`
				from part s where o.workspace_id = $1 and o.id = s.id and o.finished_at is not null
				  and o.status = any($6) and ($7::timestamptz is null or s.created_at >= $7) and ($8::timestamptz is null or s.created_at < $8)
				returning 1
			)
			select (select count(*) from again), coalesce((select max(sequence) from part), $4)`,
			ws, endpoint, after, to, resendChunk, r.Statuses, r.After, r.Before).Scan(&n, &after)
		resent += n
	}
	if err != nil {
		return resent, fmt.Errorf("resend messages of webhook endpoint %s: %w", endpoint, err)
	}
	w.Wake()
	return resent, nil
}

// dueAgain makes a message that has ended due now. It keeps its id, body and attempts.
const dueAgain = `status = 'pending', finished_at = null, answered = false, resent_at = now(), due_at = now(), waits = false,
	status_code = null, last_error = null`

// Resend sends one event message, or a test, again.
func (w *Webhooks) Resend(ctx context.Context, ws, endpoint, id uuid.UUID) (Delivery, error) {
	if err := w.checkEnabled(ctx, ws, endpoint); err != nil {
		return Delivery{}, err
	}
	_, err := w.pool.Exec(ctx, `
		update outbox set `+dueAgain+`
		where workspace_id = $1 and id = $3 and endpoint_id = $2 and finished_at is not null and type is not null`, ws, endpoint, id)
	if err != nil {
		return Delivery{}, fmt.Errorf("resend message %s: %w", id, err)
	}
	w.Wake()
	found, err := w.Message(ctx, ws, endpoint, id)
	if err == nil && found.Type == nil {
		return Delivery{}, &lemma.Error{Kind: lemma.Conflict, Code: "not_resendable",
			Message: "the enrollment has continued with the answer to this message: only messages of events can be sent again"}
	}
	return found, err
}

// Message reads one message of an endpoint.
func (w *Webhooks) Message(ctx context.Context, ws, endpoint, id uuid.UUID) (Delivery, error) {
	found, err := w.readDeliveries(ctx, selectDelivery+` where o.workspace_id = $1 and o.id = $2 and o.endpoint_id = $3`, ws, id, endpoint)
	if err == nil && len(found) == 0 {
		return Delivery{}, lemma.Missing("message of this webhook endpoint")
	}
	if err != nil {
		return Delivery{}, fmt.Errorf("read message %s: %w", id, err)
	}
	return found[0].Delivery, nil
}

// Test writes a message of the type test to an endpoint. Written again with the same
// id, it is the same message.
func (w *Webhooks) Test(ctx context.Context, ws, endpoint, id uuid.UUID) (Delivery, error) {
	if err := w.checkEnabled(ctx, ws, endpoint); err != nil {
		return Delivery{}, err
	}
	var now time.Time
	if err := w.pool.QueryRow(ctx, `select now()`).Scan(&now); err != nil {
		return Delivery{}, fmt.Errorf("read the time: %w", err)
	}
	body, err := json.Marshal(map[string]any{"id": MessageID(id), "type": "test", "timestamp": now.UTC(),
		"data": map[string]any{"webhook_endpoint_id": lemma.FormatID(lemma.PrefixEndpoint, endpoint)}})
	if err == nil {
		_, err = w.pool.Exec(ctx, `
			insert into outbox (workspace_id, id, endpoint_id, body, type) values ($1, $2, $3, $4, 'test')
			on conflict (workspace_id, id) do nothing`, ws, id, endpoint, string(body))
	}
	if err != nil {
		return Delivery{}, fmt.Errorf("write test message: %w", err)
	}
	w.Wake()
	return w.Message(ctx, ws, endpoint, id)
}

// checkEnabled refuses to send to an endpoint that is disabled. A message that is
// written anyway fails without a call.
func (w *Webhooks) checkEnabled(ctx context.Context, ws, endpoint uuid.UUID) error {
	var status string
	err := w.pool.QueryRow(ctx, `select status from webhook_endpoints where workspace_id = $1 and id = $2`, ws, endpoint).Scan(&status)
	if errors.Is(err, pgx.ErrNoRows) || err != nil {
		return pgerr.Row(err, "webhook endpoint", "read webhook endpoint")
	}
	if status == Disabled {
		return &lemma.Error{Kind: lemma.WrongStatus, Status: status, Allowed: []string{"update"},
			Message: "the webhook endpoint is disabled: set its status to enabled first"}
	}
	return nil
}

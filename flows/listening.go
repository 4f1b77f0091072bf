package flows

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/flows/execution"
)

// mostListening is how many flows of a workspace may listen to one event: an event is
// offered to all of them in one transaction.
const mostListening = 100

// mostLive is how many flows of a workspace may be live, paused or draining: workers look
// for due enrollments in all of them.
const mostLive = 1_000

// limit refuses a draft if the workspace has too many live flows with it, or too many that
// listen to one of its events. Concurrent publications of a workspace wait for each other
// here, and each counts those before it.
func (p publication) limit(ctx context.Context, tx pgx.Tx) error {
	if p.text == nil { // published before
		return nil
	}
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock(hashtextextended('flow_listeners ' || $1::uuid, 0))`, p.ws); err != nil {
		return fmt.Errorf("wait for other publications: %w", err)
	}
	if err := p.limitLive(ctx, tx); err != nil {
		return err
	}
	return p.limitListeners(ctx, tx)
}

func (p publication) limitLive(ctx context.Context, tx pgx.Tx) error {
	var live int
	err := tx.QueryRow(ctx, `select count(*) from flows where workspace_id = $1 and status in ('live', 'paused', 'draining')`,
		p.ws).Scan(&live)
	switch {
	case err != nil:
		return fmt.Errorf("count live flows: %w", err)
	case live > mostLive:
		return &lemma.Error{Kind: lemma.Conflict, Code: "too_many_flows",
			Message: fmt.Sprintf("%d flows of the workspace are live, paused or draining: archive others", mostLive)}
	}
	return nil
}

// limitListeners refuses a draft that listens to an event to which too many flows listen.
// Every published version of a flow that is not archived counts, so that a rollback is never
// refused.
func (p publication) limitListeners(ctx context.Context, tx pgx.Tx) error {
	if len(p.listens) == 0 {
		return nil
	}
	var event string
	var flows, bytes int
	err := tx.QueryRow(ctx, `
		select event, count(*), sum(bytes) from (
			select l.event, l.flow_id, max(octet_length(v.definition)) as bytes
			from flow_listeners l join flow_versions v
				on v.workspace_id = l.workspace_id and v.flow_id = l.flow_id and v.version = l.version
			where l.workspace_id = $1 and l.event = any($2)
			group by 1, 2) f
		group by 1 having count(*) > $3 or sum(bytes) > $4
		order by 1 limit 1`, p.ws, slices.Collect(maps.Keys(p.listens)), mostListening, execution.MaxListening).Scan(&event, &flows, &bytes)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("count the flows that listen: %w", err)
	case flows > mostListening:
		return tooManyListeners("%d flows already listen to the event %q", mostListening, event)
	}
	return tooManyListeners("with this one, the definitions of the flows that listen to the event %q have %d bytes; %d are allowed",
		event, bytes, execution.MaxListening)
}

func tooManyListeners(format string, args ...any) error {
	return &lemma.Error{Kind: lemma.Conflict, Code: "too_many_listeners", Message: fmt.Sprintf(format, args...) + ": archive others"}
}

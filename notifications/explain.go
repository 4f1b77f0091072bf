package notifications

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Explain reads the history of one notification: its claims, calls, answers and
// evidence, the decisions of the reaper, what it waits for, and how many deliveries
// are possible. It reads one snapshot, so that no part contradicts another.
func (l *Ledger) Explain(ctx context.Context, workspaceID, origin, key uuid.UUID) (e Explanation, err error) {
	err = pgx.BeginTxFunc(ctx, l.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		e, err = explain(ctx, tx, workspaceID, origin, key)
		return err
	})
	return e, err
}

func explain(ctx context.Context, db DB, workspaceID, origin, key uuid.UUID) (Explanation, error) {
	n, err := get(ctx, db, workspaceID, origin, key)
	if err != nil {
		return Explanation{}, err
	}
	e, d := Explanation{Notification: n}, newDeliveries()
	if err := readAll(ctx, db, &e, d); err != nil {
		return Explanation{}, fmt.Errorf("explain notification: %w", err)
	}
	batch, err := readBatchState(ctx, db, n)
	if err != nil {
		return Explanation{}, fmt.Errorf("explain notification: %w", err)
	}
	e.Steps = append([]Step{inserted(n, batch)}, e.Steps...)
	slices.SortStableFunc(e.Steps, func(a, b Step) int { return a.At.Compare(b.At) })
	if batch != nil {
		e.Bound, e.ProviderKind = batch.MaxAttempts, batch.Provider
		e.Waiting = batch.waiting(n.Status)
		switch {
		case n.Status == "processing":
			d.called[batch.Attempt] = true // also when the clock went back, and its window seems to be later
		case !d.ended[batch.Attempt]:
			d.without[batch.Attempt] = true // it was given back uncalled or refused
		}
	}
	e.DeliveriesAtLeast, e.DeliveriesAtMost = d.bounds()
	e.DeliveriesPossible = e.DeliveriesAtMost + batch.furtherCalls(n.Status, d)
	e.Summary = summary(e, d)
	return e, nil
}

func readAll(ctx context.Context, db DB, e *Explanation, d *deliveries) error {
	for _, read := range []func(context.Context, DB, *Explanation, *deliveries) error{readBatches, readAttempts, readEvents,
		readEngagement, readCancellation, readResolution} {
		if err := read(ctx, db, e, d); err != nil {
			return err
		}
	}
	return nil
}

// inserted is the first step. Only a row that was inserted as skipped has no batch.
func inserted(n Notification, batch *batchState) Step {
	if batch == nil && n.Reason != nil {
		return Step{At: n.CreatedAt, Event: "skipped", Detail: "the profile was read from the audience and skipped",
			Data: map[string]string{"reason": *n.Reason}}
	}
	if IsDirect(n.OriginID) {
		return Step{At: n.CreatedAt, Event: "written", Detail: "the request was accepted and the notification inserted"}
	}
	return Step{At: n.CreatedAt, Event: "written", Detail: "the profile was read from the audience and the notification inserted"}
}

type logLine struct {
	At      time.Time
	Event   string
	Attempt int
	Token   *string
	First   *int16
	Last    *int16
	Until   *time.Time
	Detail  *string
}

// readBatches reads the log of the batches that were made with the row, while the row
// was open in them. It leaves out claims that began after the row had an outcome,
// windows without the row, and what followed after the row was moved to a batch of
// rows whose outcome is unknown. Each part is read by its key (offset 0): without statistics of
// partitioned tables, which autovacuum does not make, a planner reads all attempts of the workspace.
func readBatches(ctx context.Context, db DB, e *Explanation, d *deliveries) error {
	n := e.Notification
	rows, _ := db.Query(ctx, `
		select g.at, g.event, b.attempt::int as attempt, g.token, g.first, g.last, g.until, g.detail
		from notifications n
		cross join lateral (
			select b.workspace_id, b.id, b.attempt, b.created_at from batches b
			where b.workspace_id = n.workspace_id and b.origin_id = n.origin_id and b.id = n.batch_id
			union all
			select b.workspace_id, b.id, b.attempt, b.created_at from batches b
			where b.workspace_id = n.workspace_id and b.origin_id = n.origin_id and b.root_id = n.batch_id
				and b.id <> b.root_id and n.ordinal = any(b.members)
			offset 0
		) b
		cross join lateral (
			select g.workspace_id, g.batch_id, g.at, g.event, g.token, g.first, g.last, g.until, g.detail from batch_log g
			where g.workspace_id = b.workspace_id and g.batch_id = b.id offset 0
		) g
		where n.workspace_id = $1 and n.origin_id = $2 and n.key = $3
		  and (g.event not in ('window', 'rendering') or n.ordinal between g.first and g.last)
		  and not exists (
			select from attempts a
			where a.workspace_id = n.workspace_id and a.batch_id = n.batch_id and a.ordinal = n.ordinal and a.attempt = b.attempt
			  and (g.event = 'window' and a.at <= g.at or a.at < coalesce((
				select min(c.at) from batch_log c
				where c.workspace_id = g.workspace_id and c.batch_id = g.batch_id and c.token = g.token and c.event = 'claimed'), g.at))
			offset 0)
		  and not exists (
			select from batches d
			where d.workspace_id = n.workspace_id and d.origin_id = n.origin_id and d.root_id = n.batch_id and d.id <> d.root_id
			  and d.attempt = b.attempt and n.ordinal = any(d.members) and d.created_at > b.created_at and d.created_at < g.at offset 0)
		order by g.at`, n.WorkspaceID, n.OriginID, n.Key)
	lines, err := pgx.CollectRows(rows, pgx.RowToStructByName[logLine])
	if err != nil {
		return err
	}
	for _, line := range lines {
		if line.Event == "window" {
			d.again = d.again || line.Attempt == 2 && d.called[2]
			d.called[line.Attempt] = true
		}
		e.Steps = append(e.Steps, line.step())
	}
	return nil
}

var logDetails = map[string]string{
	"claimed":    "a worker leased the batch",
	"rendering":  "a worker renders the row alone, since the claims before it crashed",
	"window":     "a window opened that contains the row: from here on it may be called",
	"finished":   "the batch ended: every row has an outcome",
	"released":   "the worker gave the rest of the batch back uncalled",
	"deferred":   "rows that the carrier refused for now are called again later, each at its own time",
	"unresolved": "the outcome of some rows of the batch was unknown when the worker ended: the reaper decides about them after the lease",
	"reaped":     "the lease had expired, and the reaper decided about the batch",
	"crashed":    "the lease had expired once more, and the reaper ended what the claims crashed at",
	"expired":    "the send deadline had passed: no call was made",
	"cancelled":  "the rest of the batch was cancelled before it was called",
	"lost":       "the worker had lost its lease: it changed nothing, and its known outcomes were kept as evidence",
}

func (g logLine) step() Step {
	s := Step{At: g.At, Event: g.Event, Detail: logDetails[g.Event], Attempt: g.Attempt, Data: map[string]string{}}
	if g.Token != nil {
		s.Data["lease"] = *g.Token
	}
	if g.First != nil && g.Last != nil {
		s.Data["window"] = fmt.Sprintf("%d-%d", *g.First, *g.Last)
	}
	if g.Until != nil {
		s.Data["until"] = g.Until.UTC().Format(time.RFC3339Nano)
	}
	if g.Detail != nil {
		s.Data["detail"] = *g.Detail
	}
	return s
}

type attemptLine struct {
	Attempt   int
	Outcome   string
	Final     bool
	Basis     string
	Reason    *string
	Code      *int16
	CarrierID *string
	Detail    *string
	At        time.Time
}

func readAttempts(ctx context.Context, db DB, e *Explanation, d *deliveries) error {
	n := e.Notification
	rows, _ := db.Query(ctx, `
		select a.attempt::int as attempt, a.outcome, a.final, a.basis, a.reason, a.code, a.carrier_id, a.detail, a.at
		from notifications n
		join attempts a on a.workspace_id = n.workspace_id and a.batch_id = n.batch_id and a.ordinal = n.ordinal
		where n.workspace_id = $1 and n.origin_id = $2 and n.key = $3 order by a.attempt`, n.WorkspaceID, n.OriginID, n.Key)
	lines, err := pgx.CollectRows(rows, pgx.RowToStructByName[attemptLine])
	if err != nil {
		return err
	}
	for _, a := range lines {
		d.addAttempt(a)
		e.Steps = append(e.Steps, a.step())
	}
	return nil
}

var tiers = map[string]string{
	"response": "the carrier answered the call",
	"evidence": "the reaper's first tier: an event of the carrier settled it",
	"reaper":   "no evidence: the outcome stays unknown",
	"gate":     "a gate ended it before a call was made",
}

func (a attemptLine) step() Step {
	s := Step{At: a.At, Event: a.Outcome, Detail: tiers[a.Basis], Attempt: a.Attempt,
		Data: map[string]string{"basis": a.Basis, "final": strconv.FormatBool(a.Final)}}
	if a.Basis == "reaper" && !a.Final {
		s.Detail = "the reaper's second tier: no evidence, so a second and last attempt is due"
	} else if a.Basis == "reaper" {
		s.Detail = "the reaper's third tier: no evidence and no further attempt, so it is orphaned"
	}
	s.put(a.Reason, a.Code, a.CarrierID, a.Detail)
	return s
}

func (s Step) put(reason *string, code *int16, carrierID, detail *string) {
	if reason != nil {
		s.Data["reason"] = *reason
	}
	if code != nil {
		s.Data["code"] = strconv.Itoa(int(*code))
	}
	if carrierID != nil {
		s.Data["carrier_id"] = *carrierID
	}
	if detail != nil {
		s.Data["detail"] = *detail
	}
}

func readResolution(ctx context.Context, db DB, e *Explanation, d *deliveries) error {
	n := e.Notification
	rows, _ := db.Query(ctx, `
		select resolution, note, at, api_key_id is null from resolutions where workspace_id = $1 and origin_id = $2 and key = $3`,
		n.WorkspaceID, n.OriginID, n.Key)
	var resolution, note string
	var at time.Time
	var late bool
	_, err := pgx.ForEachRow(rows, []any{&resolution, &note, &at, &late}, func() error {
		detail := "a user recorded whether it was sent"
		if late {
			detail = "an event of the carrier that came later proves whether it was sent"
			d.addResolution(resolution)
		}
		e.Steps = append(e.Steps, Step{At: at, Event: "resolved", Detail: detail,
			Data: map[string]string{"resolution": resolution, "note": note}})
		return nil
	})
	return err
}

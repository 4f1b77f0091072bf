package flows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/graph"
	"lemma/lifecycle"
)

// byRequest is the actor of a manual move or exit in the steps.
const byRequest = "manual"

// maxNote bounds the note of an exit, in characters.
const maxNote = 2000

// Exit ends one enrollment. Messages that were already written are still sent. A repeated
// request is done once.
func (f *Flows) Exit(ctx context.Context, ws, id uuid.UUID, note string, by *Actor) error {
	if utf8.RuneCountInString(note) > maxNote || !utf8.ValidString(note) || strings.ContainsRune(note, 0) {
		return lemma.Fault("/note", "invalid", "must be text of at most %d characters", maxNote)
	}
	return f.relocate(ctx, ws, id, note, by, func(context.Context, pgx.Tx, uuid.UUID, activeRow) (graph.Action, *int, error) {
		return graph.Action{Kind: graph.Exits}, nil, nil
	})
}

// Move moves one enrollment to a node of a published version; nil is its own version. If
// it is on that node it keeps its wait; any other wait begins anew. It works while the
// flow is paused. A repeated request is done once.
func (f *Flows) Move(ctx context.Context, ws, id uuid.UUID, version *int, node string, by *Actor) error {
	if node == "" {
		return lemma.Fault("/node", "required", "name the node to move to")
	}
	return f.relocate(ctx, ws, id, "", by, func(ctx context.Context, tx pgx.Tx, flow uuid.UUID, w activeRow) (graph.Action, *int, error) {
		to := w.version
		lemma.Set(&to, version)
		if err := mayMoveTo(ctx, tx, ws, flow, to); err != nil {
			return graph.Action{}, nil, err
		}
		there, err := readDefinition(ctx, tx, ws, flow, to)
		if err != nil {
			return graph.Action{}, nil, err
		}
		here, err := readDefinition(ctx, tx, ws, flow, w.version)
		if err != nil {
			return graph.Action{}, nil, err
		}
		if _, ok := there.Nodes[node]; !ok {
			return graph.Action{}, nil, lemma.Fault("/node", "unknown_node", "version %d has no such node", to)
		}
		if w.node == "" { // the enrollment skips the entry
			return graph.Action{Kind: graph.Moves, Node: node, Timer: graph.TimerRestarted}, &to, nil
		}
		return graph.ActionFor(here, w.node, there, map[string]*string{w.node: &node}), &to, nil
	})
}

// mayMoveTo refuses a version that does not exist, and one that an open move of the flow
// would move the enrollment away from.
func mayMoveTo(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, to int) error {
	var published, taken bool
	err := tx.QueryRow(ctx, `
		select exists (select from flow_versions where workspace_id = $1 and flow_id = $2 and version = $3 and status = 'published'),
			exists (select from flow_moves where workspace_id = $1 and flow_id = $2 and finished_at is null and to_version is distinct from $3)`,
		ws, flow, enrollment.VersionNumber(to)).Scan(&published, &taken)
	switch {
	case err != nil:
		return fmt.Errorf("read version %d of flow %s: %w", to, flow, err)
	case !published:
		return lemma.Fault("/version", "unknown_version", "the flow has no published version %d", to)
	case taken:
		return &lemma.Error{Kind: lemma.Conflict, Code: "move_open",
			Message: "the enrollments of this flow are being moved to another version: try again later"}
	}
	return nil
}

// relocate ends or moves one active enrollment. It locks the flow in share mode first, so
// that what decide reads of it does not change.
func (f *Flows) relocate(ctx context.Context, ws, id uuid.UUID, note string, by *Actor,
	decide func(context.Context, pgx.Tx, uuid.UUID, activeRow) (graph.Action, *int, error)) error {
	err := enrollment.Transact(ctx, f.pool, func(tx pgx.Tx) error {
		var flow uuid.UUID
		err := tx.QueryRow(ctx, `
			select f.id from flows f where f.workspace_id = $1 and f.id =
				(select e.flow_id from enrollments e where e.workspace_id = $1 and e.id = $2) for share`, ws, id).Scan(&flow)
		if errors.Is(err, pgx.ErrNoRows) {
			return lemma.Missing("enrollment")
		}
		if err != nil {
			return err
		}
		found, err := lockActive(ctx, tx, ws, []pgtype.UUID{enrollment.PgUUID(id)}, nil)
		if err != nil {
			return err
		}
		if err := unasked(ctx, tx, ws, id, by); err != nil {
			return err
		}
		if len(found) == 0 {
			return hasEnded(ctx, tx, ws, id)
		}
		f.hook.At("manual: locked")
		r := relocated{by: byRequest, note: note, request: by.name()}
		action, to, err := decide(ctx, tx, flow, found[0])
		if err != nil {
			return err
		}
		r.add(found[0], action, to, enrollment.ExitManual)
		return r.write(ctx, tx, ws, flow)
	})
	if err != nil && !errors.Is(err, lifecycle.ErrRepeated) {
		return answered(err, fmt.Sprintf("move enrollment %s by hand", id))
	}
	f.waker.WakeAll()
	return nil
}

// unasked searches the steps of an enrollment that is locked or has ended for the request:
// it may have been carried out and its answer lost.
func unasked(ctx context.Context, tx pgx.Tx, ws, id uuid.UUID, by *Actor) error {
	if !by.repeatable() {
		return nil
	}
	rows, _ := tx.Query(ctx, `
		select data from enrollment_steps
		where workspace_id = $1 and enrollment_id = $2 and event in ('moved', 'exited') and data is not null`, ws, id)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, text := range all {
		var data struct{ Request string }
		if err := json.Unmarshal([]byte(text), &data); err != nil {
			return err
		}
		if data.Request == by.name() {
			return lifecycle.ErrRepeated
		}
	}
	return nil
}

// hasEnded is the error for an enrollment that is not active.
func hasEnded(ctx context.Context, tx pgx.Tx, ws, id uuid.UUID) error {
	var status string
	if err := tx.QueryRow(ctx, `select status from enrollments where workspace_id = $1 and id = $2`, ws, id).Scan(&status); err != nil {
		return err
	}
	return &lemma.Error{Kind: lemma.WrongStatus, Message: "the enrollment has ended: it is " + status, Status: status, Allowed: []string{}}
}

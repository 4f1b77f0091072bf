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
)

// byHand is who moved or ended an enrollment, as its steps name it.
const byHand = "hand"

// askedBy is where such a step says which request it was. It is not shown.
const askedBy = "request"

// maxNote bounds what somebody writes to an exit, in bytes.
const maxNote = 2000

// Exit ends one journey. What was already written to the person is still sent.
// Repeated under one request, it answers the enrollment as it is now.
func (f *Flows) Exit(ctx context.Context, ws, enrollment uuid.UUID, words string, by *Asker) (Enrollment, error) {
	if len(words) > maxNote || !utf8.ValidString(words) || strings.ContainsRune(words, 0) {
		return Enrollment{}, lemma.Fault("/note", "invalid", "a note is text of at most %d bytes", maxNote)
	}
	return f.relocate(ctx, ws, enrollment, words, by, func(context.Context, pgx.Tx, uuid.UUID, onTheWay) (fate, *int, error) {
		return fate{kind: fateExits}, nil, nil
	})
}

// Move puts one person on a node of a published version; with nil, of the one
// that she is in. It is a move of one: the node where she stands keeps its wait,
// any other begins anew. It works while the flow is paused, too. Repeated under
// one request, it moves nobody and answers the enrollment as it is now.
func (f *Flows) Move(ctx context.Context, ws, enrollment uuid.UUID, version *int, node string, by *Asker) (Enrollment, error) {
	if node == "" {
		return Enrollment{}, lemma.Fault("/node", "required", "name the node to move to")
	}
	return f.relocate(ctx, ws, enrollment, "", by, func(ctx context.Context, tx pgx.Tx, flow uuid.UUID, w onTheWay) (fate, *int, error) {
		to := w.version
		if version != nil {
			to = *version
		}
		if err := mayMoveTo(ctx, tx, ws, flow, to); err != nil {
			return fate{}, nil, err
		}
		there, err := readDefinition(ctx, tx, ws, flow, to)
		if err != nil {
			return fate{}, nil, err
		}
		here, err := readDefinition(ctx, tx, ws, flow, w.version)
		if err != nil {
			return fate{}, nil, err
		}
		if _, ok := there.Nodes[node]; !ok {
			return fate{}, nil, lemma.Fault("/node", "unknown_node", "version %d has no such node", to)
		}
		if w.node == "" { // she is put past the entry
			return fate{kind: fateMoves, node: node, timer: timerRestarted}, &to, nil
		}
		return fateOf(here, w.node, there, map[string]*string{w.node: &node}), &to, nil
	})
}

// mayMoveTo refuses a version that is none, and one that an open move of the
// flow would take the person away from again.
func mayMoveTo(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, to int) error {
	var published, taken bool
	err := tx.QueryRow(ctx, `
		select exists (select from flow_versions where workspace_id = $1 and flow_id = $2 and version = $3 and status = 'published'),
			exists (select from flow_moves where workspace_id = $1 and flow_id = $2 and finished_at is null and to_version is distinct from $3)`,
		ws, flow, int32Of(to)).Scan(&published, &taken)
	switch {
	case err != nil:
		return fmt.Errorf("look at version %d of flow %s: %w", to, flow, err)
	case !published:
		return lemma.Fault("/version", "unknown_version", "the flow has no published version %d", to)
	case taken:
		return &lemma.Error{Kind: lemma.Conflict, Code: "move_open", Message: "the people of this flow are being moved to another version: try again when that is done"}
	}
	return nil
}

// relocate ends or moves one enrollment that is on its way. The flow is shared
// first, so that what decide sees of it stays so.
func (f *Flows) relocate(ctx context.Context, ws, enrollment uuid.UUID, words string, by *Asker,
	decide func(context.Context, pgx.Tx, uuid.UUID, onTheWay) (fate, *int, error)) (Enrollment, error) {
	err := f.transact(ctx, func(tx pgx.Tx) error {
		var flow uuid.UUID
		err := tx.QueryRow(ctx, `
			select f.id from flows f where f.workspace_id = $1 and f.id =
				(select e.flow_id from enrollments e where e.workspace_id = $1 and e.id = $2) for share`, ws, enrollment).Scan(&flow)
		if errors.Is(err, pgx.ErrNoRows) {
			return lemma.Missing("enrollment")
		}
		if err != nil {
			return err
		}
		who, err := lockOnTheWay(ctx, tx, ws, []pgtype.UUID{wire(enrollment)}, nil)
		if err != nil {
			return err
		}
		if err := unasked(ctx, tx, ws, enrollment, by); err != nil {
			return err
		}
		if len(who) == 0 {
			return hasEnded(ctx, tx, ws, enrollment)
		}
		f.at("by hand: locked")
		r := relocated{by: byHand, note: words, request: by.name()}
		fate, to, err := decide(ctx, tx, flow, who[0])
		if err != nil {
			return err
		}
		r.add(who[0], fate, to, ExitManual)
		return r.write(ctx, tx, ws, flow)
	})
	if err != nil && !errors.Is(err, errDone) {
		return Enrollment{}, answered(err, fmt.Sprintf("move enrollment %s by hand", enrollment))
	}
	f.bell.ring()
	return f.GetEnrollment(ctx, ws, enrollment)
}

// unasked looks at the steps of an enrollment that is locked, or has ended, for
// the request that asks: it may have been done, and its answer lost.
func unasked(ctx context.Context, tx pgx.Tx, ws, enrollment uuid.UUID, by *Asker) error {
	if !by.repeatable() {
		return nil
	}
	rows, err := tx.Query(ctx, `
		select data from enrollment_steps
		where workspace_id = $1 and enrollment_id = $2 and event in ('moved', 'exited') and data is not null`, ws, enrollment)
	if err != nil {
		return err
	}
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
			return errDone
		}
	}
	return nil
}

// hasEnded says that somebody is not on the way any more.
func hasEnded(ctx context.Context, tx pgx.Tx, ws, enrollment uuid.UUID) error {
	var status string
	if err := tx.QueryRow(ctx, `select status from enrollments where workspace_id = $1 and id = $2`, ws, enrollment).Scan(&status); err != nil {
		return err
	}
	return &lemma.Error{Kind: lemma.WrongState, Message: "this journey has ended: it is " + status, Status: status, Allowed: []string{}}
}

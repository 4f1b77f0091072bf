package campaigns

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// A verb is something that can be asked of a campaign, or that happens to it.
type verb string

const (
	edit       verb = "update"
	remove     verb = "delete"
	send       verb = "send"
	schedule   verb = "schedule"
	unschedule verb = "unschedule"
	pause      verb = "pause"
	resume     verb = "resume"
	cancel     verb = "cancel"

	fire     verb = "fire"     // the schedule fell due
	begin    verb = "begin"    // the audience is open and its rows are being written
	complete verb = "complete" // nothing is on its way
	fail     verb = "fail"     // it cannot be gone on with
)

// from is the only table of what may follow what: for each verb, the statuses
// that allow it.
var from = map[verb][]Status{
	edit:       {Draft},
	remove:     {Draft},
	send:       {Draft, Scheduled},
	schedule:   {Draft, Scheduled},
	unschedule: {Scheduled},
	pause:      {Preparing, Sending},
	resume:     {Paused},
	cancel:     {Scheduled, Preparing, Sending, Paused},

	fire:     {Scheduled},
	begin:    {Preparing},
	complete: {Sending, Paused},
	fail:     {Preparing, Sending, Paused},
}

// asked are the verbs of the API, in the order in which they are shown.
var asked = []verb{edit, remove, send, schedule, unschedule, pause, resume, cancel}

// allowed lists what may be asked of a campaign in a status.
func allowed(s Status) []string {
	verbs := []string{}
	for _, v := range asked {
		if slices.Contains(from[v], s) {
			verbs = append(verbs, string(v))
		}
	}
	return verbs
}

// move performs a verb by compare-and-set: set is the rest of the update's SET
// clause, and its arguments begin at $4. No row means that the status does not
// allow the verb, or that there is no such campaign; one look tells which.
func move(ctx context.Context, tx pgx.Tx, workspaceID, id uuid.UUID, v verb, set string, args ...any) error {
	tag, err := tx.Exec(ctx, `
		update campaigns set version = version + 1, updated_at = now(), `+set+`
		where workspace_id = $1 and id = $2 and status = any($3)`, append([]any{workspaceID, id, from[v]}, args...)...)
	if err != nil {
		return fmt.Errorf("%s campaign %s: %w", v, id, err)
	}
	if tag.RowsAffected() == 0 {
		return refuse(ctx, tx, workspaceID, id, v)
	}
	return nil
}

// refuse says why a verb found no row.
func refuse(ctx context.Context, tx pgx.Tx, workspaceID, id uuid.UUID, v verb) error {
	var now Status
	err := tx.QueryRow(ctx, `select status from campaigns where workspace_id = $1 and id = $2`, workspaceID, id).Scan(&now)
	if errors.Is(err, pgx.ErrNoRows) {
		return lemma.Missing("campaign")
	}
	if err != nil {
		return fmt.Errorf("%s campaign %s: %w", v, id, err)
	}
	return &lemma.Error{Kind: lemma.WrongState, Message: fmt.Sprintf("a campaign that is %s does not allow %s", now, v), Status: string(now), Allowed: allowed(now)}
}

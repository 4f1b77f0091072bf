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

// The verbs of the API are told which request asks, uuid.Nil for none. Repeated
// for the same one, a verb is done once and answers the campaign as it is now.

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

// errDone undoes a verb that an earlier try of the same request has done.
var errDone = errors.New("this request has been done before")

// note writes down which request asked for a verb, in the transaction that does
// it: a request whose answer was lost is not done a second time (errDone). Nil is
// no request.
func note(ctx context.Context, tx pgx.Tx, workspaceID, id uuid.UUID, v verb, request uuid.UUID) error {
	if request == uuid.Nil {
		return nil
	}
	tag, err := tx.Exec(ctx, `
		insert into campaign_requests (workspace_id, campaign_id, id, verb) values ($1, $2, $3, $4)
		on conflict (workspace_id, campaign_id, id) do nothing`, workspaceID, id, request, v)
	if err != nil {
		return fmt.Errorf("note request of campaign %s: %w", id, err)
	}
	if tag.RowsAffected() == 0 {
		return errDone
	}
	return nil
}

// done ends a verb. One that did not come through because an earlier try of the
// same request did is answered like that: with the campaign as it is now.
func (c *Campaigns) done(ctx context.Context, workspaceID, id, request uuid.UUID, err error) (Campaign, error) {
	if err == nil {
		return c.Get(ctx, workspaceID, id)
	}
	var before bool
	look := c.pool.QueryRow(ctx, `
		select exists (select from campaign_requests where workspace_id = $1 and campaign_id = $2 and id = $3)`, workspaceID, id, request).Scan(&before)
	switch {
	case look != nil:
		return Campaign{}, fmt.Errorf("look whether a request was done to campaign %s: %w", id, look)
	case !before:
		return Campaign{}, err
	}
	return c.Get(ctx, workspaceID, id)
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

package campaigns

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/lifecycle"
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

// table is the only place that says which status allows which verb.
var table = lifecycle.Table[Status, verb]{
	Noun: "campaign",
	From: map[verb][]Status{
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
	},
	Public: []verb{edit, remove, send, schedule, unschedule, pause, resume, cancel},
}

// The verbs of the API are told which request asks, uuid.Nil for none. Repeated
// for the same one, a verb is done once and answers the campaign as it is now.

// move performs a verb by compare-and-set: set is the rest of the update's SET
// clause, and its arguments begin at $4. No row means that the status does not
// allow the verb, or that there is no such campaign; one look tells which.
func move(ctx context.Context, tx pgx.Tx, workspaceID, id uuid.UUID, v verb, set string, args ...any) error {
	tag, err := tx.Exec(ctx, `
		update campaigns set version = version + 1, updated_at = now(), `+set+`
		where workspace_id = $1 and id = $2 and status = any($3)`, append([]any{workspaceID, id, table.From[v]}, args...)...)
	if err != nil {
		return fmt.Errorf("%s campaign %s: %w", v, id, err)
	}
	if tag.RowsAffected() == 0 {
		return refuse(ctx, tx, workspaceID, id, v)
	}
	return nil
}

// note writes down which request asked for a verb, in the transaction that does
// it: a request whose answer was lost is not done a second time (lifecycle.ErrRepeated). Nil is
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
		return lifecycle.ErrRepeated
	}
	return nil
}

// done ends a verb. One that failed because an earlier try of the same request did
// it is answered like that: with the campaign as it is now.
func (c *Campaigns) done(ctx context.Context, workspaceID, id, request uuid.UUID, err error) (Campaign, error) {
	repeated := func(ctx context.Context) (before bool, err error) {
		err = c.pool.QueryRow(ctx, `
			select exists (select from campaign_requests where workspace_id = $1 and campaign_id = $2 and id = $3)`, workspaceID, id, request).Scan(&before)
		if err != nil {
			err = fmt.Errorf("read whether a request was done to campaign %s: %w", id, err)
		}
		return before, err
	}
	return lifecycle.Once(ctx, err, repeated, func(ctx context.Context) (Campaign, error) { return c.Get(ctx, workspaceID, id) })
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
	return table.Refuse(now, v)
}

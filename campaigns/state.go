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

// verb is a change of a campaign, by a request or by Lemma.
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

	fire     verb = "fire"     // the scheduled time has come
	begin    verb = "begin"    // the rows of the audience are being written
	complete verb = "complete" // all notifications have ended
	fail     verb = "fail"     // it cannot continue
)

// table has the statuses that allow each verb.
var table = lifecycle.Table[Status, verb]{
	Noun: "a campaign",
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

// Check returns the refusal of an action that the status of the campaign does not allow.
func (c Campaign) Check(action string) error { return table.Check(c.Status, verb(action)) }

// conditions are what a verb requires besides the status, in the statement that
// applies it: a campaign that is due may be postponed before it is started, and a resume ends
// an earlier cause of a pause.
var conditions = map[verb]string{
	fire:  ` and scheduled_at <= now()`,
	pause: ` and ($6::timestamptz is null or resumed_at is null or resumed_at <= $6)`,
}

// move applies a verb if the status allows it: set is the rest of the SET clause,
// and its arguments begin at $4. Otherwise the error reports whether the campaign
// exists and which verbs its status allows.
func move(ctx context.Context, tx pgx.Tx, workspaceID, id uuid.UUID, v verb, set string, args ...any) error {
	tag, err := tx.Exec(ctx, `
		update campaigns set version = version + 1, updated_at = now(), `+set+`
		where workspace_id = $1 and id = $2 and status = any($3)`+conditions[v], append([]any{workspaceID, id, table.From[v]}, args...)...)
	if err != nil {
		return fmt.Errorf("%s campaign %s: %w", v, id, err)
	}
	if tag.RowsAffected() == 0 {
		return refuse(ctx, tx, workspaceID, id, v)
	}
	return nil
}

// recordRequest records the request of a verb, in the transaction that applies it.
// For a request that is recorded already it returns lifecycle.ErrRepeated, so that
// the verb is applied once. uuid.Nil is no request.
func recordRequest(ctx context.Context, tx pgx.Tx, workspaceID, id uuid.UUID, v verb, request uuid.UUID) error {
	if request == uuid.Nil {
		return nil
	}
	tag, err := tx.Exec(ctx, `
		insert into campaign_requests (workspace_id, campaign_id, id, verb) values ($1, $2, $3, $4)
		on conflict (workspace_id, campaign_id, id) do nothing`, workspaceID, id, request, v)
	if err != nil {
		return fmt.Errorf("record request of campaign %s: %w", id, err)
	}
	if tag.RowsAffected() == 0 {
		return lifecycle.ErrRepeated
	}
	return nil
}

// done ends a verb. It returns the campaign, also if the verb failed because an
// earlier attempt of the same request applied it.
func (c *Campaigns) done(ctx context.Context, workspaceID, id, request uuid.UUID, err error) (Campaign, error) {
	repeated := func(ctx context.Context) (before bool, err error) {
		err = c.pool.QueryRow(ctx, `
			select exists (select from campaign_requests where workspace_id = $1 and campaign_id = $2 and id = $3)`,
			workspaceID, id, request).Scan(&before)
		if err != nil {
			err = fmt.Errorf("read requests of campaign %s: %w", id, err)
		}
		return before, err
	}
	return lifecycle.Once(ctx, err, repeated, func(ctx context.Context) (Campaign, error) { return c.Get(ctx, workspaceID, id) })
}

// refuse returns the error of a verb whose update changed no row.
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

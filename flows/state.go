package flows

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// A verb is something that can be asked of a flow, or that happens to it.
type verb string

const (
	edit     verb = "update"
	remove   verb = "delete"
	publish  verb = "publish"
	rollback verb = "rollback"
	pause    verb = "pause"
	resume   verb = "resume"
	drain    verb = "drain"
	archive  verb = "archive"

	empty verb = "empty" // nobody is on the way through a draining flow
)

// from is the only table of what may follow what: for each verb, the statuses
// that allow it. Publishing makes a draft live and leaves every other status
// as it is: a paused flow is mended in its pause, a draining one while it
// drains. Resuming undoes a pause, and a drain too. Archived is the end.
var from = map[verb][]Status{
	edit:     {Draft, Live, Paused, Draining, Archived},
	remove:   {Draft},
	publish:  {Draft, Live, Paused, Draining},
	rollback: {Live, Paused, Draining},
	pause:    {Live, Draining},
	resume:   {Paused, Draining},
	drain:    {Live, Paused},
	archive:  {Draft, Live, Paused, Draining},

	empty: {Draining},
}

// asked are the verbs of the API, in the order in which they are shown.
var asked = []verb{edit, remove, publish, rollback, pause, resume, drain, archive}

// allowed lists what may be asked of a flow in a status.
func allowed(s Status) []string {
	verbs := []string{}
	for _, v := range asked {
		if slices.Contains(from[v], s) {
			verbs = append(verbs, string(v))
		}
	}
	return verbs
}

func wrongState(now Status, v verb) error {
	return &lemma.Error{Kind: lemma.WrongState, Message: fmt.Sprintf("a flow that is %s does not allow %s", now, v), Status: string(now), Allowed: allowed(now)}
}

// held is a flow's row as a verb finds it, locked until the verb ends.
type held struct {
	Status      Status
	LiveVersion *int
	Version     int
}

// hold locks a flow for a verb, and refuses a verb that its status does not
// allow or that was meant for another version of the row. Until the verb's
// transaction ends nobody enrolls and nobody is advanced, so that what the verb
// does is a clean cut.
func hold(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, v verb, ifMatch *int) (held, error) {
	if err := lockForVerb(ctx, tx, flow); err != nil {
		return held{}, err
	}
	var h held
	err := tx.QueryRow(ctx, `select status, live_version, version from flows where workspace_id = $1 and id = $2 for update`, ws, flow).
		Scan(&h.Status, &h.LiveVersion, &h.Version)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return held{}, lemma.Missing("flow")
	case err != nil:
		return held{}, fmt.Errorf("lock flow %s to %s it: %w", flow, v, err)
	case ifMatch != nil && *ifMatch != h.Version:
		return held{}, stale()
	case !slices.Contains(from[v], h.Status):
		return held{}, wrongState(h.Status, v)
	}
	return h, nil
}

func stale() error {
	return &lemma.Error{Kind: lemma.Stale, Message: "the flow has been changed since it was read: read it again"}
}

// change is the update of a verb, by compare-and-set once more: set is the rest
// of the SET clause, and its arguments begin at $4.
func change(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, v verb, set string, args ...any) error {
	tag, err := tx.Exec(ctx, `
		update flows set version = version + 1, updated_at = now(), `+set+`
		where workspace_id = $1 and id = $2 and status = any($3)`, append([]any{ws, flow, from[v]}, args...)...)
	if err != nil {
		return fmt.Errorf("%s flow %s: %w", v, flow, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("%s flow %s: its row changed under the lock", v, flow)
	}
	return nil
}

// lockForVerb makes a verb wait its turn. Whoever records events or advances
// people shares a flow's row, one after the other and without a gap; a row lock
// alone could make a verb wait for ever, and the lock in front of it is fair.
func lockForVerb(ctx context.Context, tx pgx.Tx, flow uuid.UUID) error {
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, flowLock(flow)); err != nil {
		return fmt.Errorf("wait for those who work on flow %s: %w", flow, err)
	}
	return nil
}

// lockForPeople is taken by whoever enrolls or moves people of a flow, before
// its row: any number of them share it, and a verb that waits is not overtaken.
func lockForPeople(ctx context.Context, tx pgx.Tx, flow uuid.UUID) error {
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock_shared($1)`, flowLock(flow)); err != nil {
		return fmt.Errorf("share flow %s: %w", flow, err)
	}
	return nil
}

// flowLock is the random half of an id. Two flows that share one wait for each
// other, and nothing worse.
func flowLock(id uuid.UUID) int64 { return int64(binary.BigEndian.Uint64(id[8:])) }

// flowLockOf is flowLock in SQL, of a uuid. That both say the same has a test:
// if they did not, verbs and triggers would pass each other by without a word.
func flowLockOf(column string) string {
	return `('x' || right(replace(` + column + `::text, '-', ''), 16))::bit(64)::bigint`
}

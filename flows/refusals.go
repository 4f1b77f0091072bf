package flows

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
)

// Refusal is a trigger that enrolled nobody.
type Refusal struct {
	ProfileKey   string
	Reason       string
	Detail       string
	Source       string     // event, audience, direct
	EventKey     *uuid.UUID // the event that asked
	EnrollmentID *uuid.UUID // the one that stands in the way, or that was refused when it entered
	At           time.Time

	key uuid.UUID
}

// reasons are all for which a trigger can be refused, but InvalidKey: a person
// without a key is counted with the look at the audience, and no refusal is hers.
var reasons = []string{AlreadyEnrolled, AlreadyActive, Filtered, ConditionError, IsPaused, NotLive, NoProfile, MissingField}

// Refusals answers one page of a flow's refused triggers, newest first: of one
// profile, for one reason, or all.
func (f *Flows) Refusals(ctx context.Context, ws, flow uuid.UUID, profileKey, reason string, page lemma.Page) ([]Refusal, string, error) {
	from, err := parseMark(page.Cursor)
	if err != nil {
		return nil, "", err
	}
	if _, err := f.Get(ctx, ws, flow); err != nil {
		return nil, "", err
	}
	found, err := f.readRefusals(ctx, ws, flow, profileKey, reason, from, page.Limit+1)
	if err != nil {
		return nil, "", fmt.Errorf("list refusals of flow %s: %w", flow, err)
	}
	found, next := cut(found, page, func(r Refusal) mark {
		return mark{at: pgtype.Timestamptz{Time: r.At, Valid: true}, id: r.key}
	})
	return found, next, nil
}

// readRefusals reads those of one profile by the profile's index, and others
// reason by reason, each from the newest on, so that a page of millions costs
// a few pages.
func (f *Flows) readRefusals(ctx context.Context, ws, flow uuid.UUID, profileKey, reason string, from mark, limit int) ([]Refusal, error) {
	if profileKey != "" && !isText(profileKey, 1, MaxProfileKey) {
		return []Refusal{}, nil // nobody's
	}
	const columns = `r.profile_key, r.reason, coalesce(r.detail, ''), r.source, r.event_key, r.enrollment_id, r.at, r.key`
	which := reasons
	if reason != "" {
		which = []string{reason}
	}
	sql, args := `
		select `+columns+` from unnest($3::text[]) as one (reason)
		cross join lateral (
			select * from refusals r where r.workspace_id = $1 and r.flow_id = $2 and r.reason = one.reason and (r.at, r.key) < ($4, $5)
			order by r.at desc, r.key desc limit $6
		) r order by r.at desc, r.key desc limit $6`, []any{ws, flow, which, from.at, from.id, limit}
	if profileKey != "" {
		sql, args = `
		select `+columns+` from refusals r
		where r.workspace_id = $1 and r.flow_id = $2 and r.profile_key = $7 and r.reason = any($3) and (r.at, r.key) < ($4, $5)
		order by r.at desc, r.key desc limit $6`, append(args, profileKey)
	}
	rows, err := f.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Refusal, err error) {
		err = row.Scan(&r.ProfileKey, &r.Reason, &r.Detail, &r.Source, &r.EventKey, &r.EnrollmentID, &r.At, &r.key)
		return r, err
	})
}

// refusalOf is the key of what a trigger is refused under, made of the trigger's
// own: refused again, it is the same refusal.
func refusalOf(trigger uuid.UUID) uuid.UUID { return lemma.Key("refusal/1", string(trigger[:])) }

// countRefusals counts a flow's refused triggers by reason, within their retention.
func (f *Flows) countRefusals(ctx context.Context, ws, flow uuid.UUID) (map[string]int64, error) {
	rows, err := f.pool.Query(ctx, `select reason, count(*) from refusals where workspace_id = $1 and flow_id = $2 group by reason`, ws, flow)
	if err != nil {
		return nil, fmt.Errorf("count refusals of flow %s: %w", flow, err)
	}
	counts := map[string]int64{}
	var reason string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&reason, &n}, func() error {
		counts[reason] = n
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("count refusals of flow %s: %w", flow, err)
	}
	return counts, nil
}

package query

import (
	"context"
	"fmt"
	"strings"
	"time"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/flows/enrollment"
	"lemma/page"
)

// Refusal is a trigger that did not enroll.
type Refusal struct {
	ProfileKey   string
	Reason       string
	Detail       string
	Source       string     // event, audience, direct
	EventKey     *uuid.UUID // the event of the trigger
	EnrollmentID *uuid.UUID // the conflicting one, or the one that was refused at the entry
	At           time.Time

	key uuid.UUID
}

// reasons are the reasons for which a trigger can be refused, without InvalidKey: a row
// without a key is counted with the poll of the audience and has no refusal.
var reasons = []string{enrollment.AlreadyEnrolled, enrollment.AlreadyActive, enrollment.Filtered, enrollment.ConditionError,
	enrollment.IsPaused, enrollment.NotLive, enrollment.NoProfile, enrollment.MissingField,
	enrollment.TooManyActive}

var refusalList = page.List[Refusal]{Name: "refusals", Created: "r.at", Orders: map[string]page.Order[Refusal]{
	"created_at": page.ByTime("r.at", func(r Refusal) time.Time { return r.At }, "r.key", func(r Refusal) uuid.UUID { return r.key }),
}}

// Refusals returns one page of a flow's refused triggers: of one profile, for one reason,
// or all.
func (r *Reader) Refusals(ctx context.Context, ws, flow uuid.UUID, profileKey, reason string, q page.Query) ([]Refusal, string, error) {
	if _, err := r.flows.Get(ctx, ws, flow); err != nil {
		return nil, "", err
	}
	return r.readRefusals(ctx, ws, flow, profileKey, reason, q)
}

// readRefusals reads those of one profile by the profile's index, and others reason by
// reason, each from the start of the order, so that one page of millions costs a few
// pages. Only refusals_reason has the order by reason; for one reason refusals_age, with the refusals
// of all workspaces, may look as cheap.
func (r *Reader) readRefusals(ctx context.Context, ws, flow uuid.UUID, profileKey, reason string, q page.Query) ([]Refusal, string, error) {
	if profileKey != "" && !enrollment.IsText(profileKey, 1, enrollment.MaxProfileKey) {
		return []Refusal{}, "", nil // no such profile
	}
	statement, err := refusalList.Start(q, ws)
	if err != nil {
		return nil, "", err
	}
	which := reasons
	if reason != "" {
		which = []string{reason}
	}
	statement.And("r.flow_id = " + statement.Arg(flow))
	anyOf := statement.Arg(which)
	if profileKey != "" {
		statement.And("r.profile_key = " + statement.Arg(profileKey) + " and r.reason = any(" + anyOf + ")")
	}
	end, err := statement.End()
	if err != nil {
		return nil, "", err
	}
	const columns = `r.profile_key, r.reason, coalesce(r.detail, ''), r.source, r.event_key, r.enrollment_id, r.at, r.key`
	sql := `select ` + columns + ` from refusals r where r.workspace_id = $1 and ` + end.Where + " " + end.Order
	if profileKey == "" {
		sql = `select ` + columns + ` from unnest(` + anyOf + `::text[]) as one (reason)
		cross join lateral (
			select r.profile_key, r.reason, r.detail, r.source, r.event_key, r.enrollment_id, r.at, r.key from refusals r
			where r.workspace_id = $1 and r.reason >= one.reason and r.reason <= one.reason and ` + end.Where + `
			` + strings.Replace(end.Order, "order by ", "order by r.reason desc, ", 1) + `
		) r ` + end.Order
	}
	rows, _ := r.pool.Query(ctx, sql, end.Args...)
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Refusal, err error) {
		err = row.Scan(&r.ProfileKey, &r.Reason, &r.Detail, &r.Source, &r.EventKey, &r.EnrollmentID, &r.At, &r.key)
		return r, err
	})
	if err != nil {
		return nil, "", fmt.Errorf("list refusals of flow %s: %w", flow, err)
	}
	refusals, next := statement.Page(found)
	return refusals, next, nil
}

// countRefusals counts a flow's refused triggers by reason, within their retention.
func (r *Reader) countRefusals(ctx context.Context, ws, flow uuid.UUID) (map[string]int64, error) {
	rows, _ := r.pool.Query(ctx, `select reason, count(*) from refusals where workspace_id = $1 and flow_id = $2 group by reason`, ws,
		flow)
	counts := map[string]int64{}
	var reason string
	var n int64
	_, err := pgx.ForEachRow(rows, []any{&reason, &n}, func() error {
		counts[reason] = n
		return nil
	})
	return counts, lemma.Wrap(err, "count refusals of flow %s", flow)
}

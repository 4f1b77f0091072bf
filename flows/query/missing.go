package query

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/flows/enrollment"
)

// user is a version of a flow that reads an audience.
type user struct {
	Flow    uuid.UUID
	Name    string
	Version int
	Sends   bool // over one of some channels
}

// users are the live versions of an audience, which come first, and those with active enrollments. It reads
// these once for each flow with other versions than the live one: no index has them, and there may be
// hundreds.
func (r *Reader) users(ctx context.Context, ws, audience uuid.UUID, channels []lemma.Channel) ([]user, error) {
	rows, _ := r.pool.Query(ctx, `
		with used as materialized (
			select distinct u.flow_id from flow_uses u join flows f on f.workspace_id = u.workspace_id and f.id = u.flow_id
			where u.workspace_id = $1 and u.audience_id = $2 and u.version is distinct from f.live_version
		), active as materialized (
			select used.flow_id, v.version from used cross join lateral (
				select distinct e.version from enrollments e
				where e.workspace_id = $1 and e.`+enrollment.AnyShard+` and e.flow_id = used.flow_id and e.resume_at is not null
			) v
		)
		select u.flow_id, f.name, u.version, exists (
			select from flow_uses s join templates t on t.workspace_id = s.workspace_id and t.id = s.template_id
			where s.workspace_id = $1 and s.flow_id = u.flow_id and s.version = u.version and t.channel = any($3))
		from flow_uses u join flows f on f.workspace_id = u.workspace_id and f.id = u.flow_id
		left join active a on a.flow_id = u.flow_id and a.version = u.version
		where u.workspace_id = $1 and u.audience_id = $2 and (u.version = f.live_version or a.version is not null)
		order by (u.version = f.live_version) desc, f.name, u.version`, ws, audience, channels)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[user])
}

// NeedAudience are the names of flows that find profiles by the keys of an audience, or send to its
// addresses of channels, now: by a live version, or one with active enrollments.
func (r *Reader) NeedAudience(ctx context.Context, ws, audience uuid.UUID, profiles bool, channels []lemma.Channel) (
	names []string, err error) {
	users, err := r.users(ctx, ws, audience, channels)
	if err != nil {
		return nil, fmt.Errorf("find flows of audience %s: %w", audience, err)
	}
	for _, u := range users {
		if (profiles || u.Sends) && !slices.Contains(names, u.Name) {
			names = append(names, u.Name)
		}
	}
	return names, nil
}

// What MissingColumns checks: each version is compiled, which takes up to a fifth of a second.
const (
	mostChecked = 20
	checkFor    = 5 * time.Second
)

// MissingColumns reports which flows read columns of an audience that it no longer has.
// Their enrollments stop at the node that reads one until the column exists again, or
// another version has taken them over. It checks live versions and those with active
// enrollments, and reports how many it has not checked.
func (r *Reader) MissingColumns(ctx context.Context, ws, audience uuid.UUID) ([]string, error) {
	users, err := r.users(ctx, ws, audience, nil)
	if err != nil || len(users) == 0 {
		return nil, err
	}
	a, err := r.audiences.Get(ctx, ws, audience)
	if err != nil {
		return nil, err
	}
	has := map[string]bool{}
	for _, c := range a.Columns {
		has[c.Name] = true
	}
	var missing []string
	until := time.Now().Add(checkFor)
	for i, u := range users {
		if i == mostChecked || time.Now().After(until) {
			slices.Sort(missing)
			return append(missing, fmt.Sprintf("%d versions of flows were not checked; explain shows whether an enrollment waits for a column",
				len(users)-i)), nil
		}
		r, err := r.exec.Route(ctx, ws, u.Flow, u.Version)
		if lemma.KindOf(err) == lemma.Internal && err != nil {
			return nil, err
		}
		if err != nil {
			missing = append(missing, fmt.Sprintf("the flow %s, version %d, cannot be read: %s", u.Name, u.Version, lemma.Public(err)))
			continue
		}
		gone := slices.DeleteFunc(slices.Clone(r.ProfileColumns), func(name string) bool { return has[name] })
		if len(gone) > 0 {
			missing = append(missing, fmt.Sprintf("the flow %s, version %d, reads what is not there any more: %s", u.Name, u.Version,
				strings.Join(gone, ", ")))
		}
	}
	slices.Sort(missing)
	return missing, nil
}

package intake

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma/flows/graph"
)

// exitsPage is how many events of one name after a trigger are read at a time, and those
// of the same time as the last.
const exitsPage = 100

// exitQuestion is a query for the events of a name that may have ended the enrollment of a
// trigger.
type exitQuestion struct {
	*Trigger
	name  string
	after pgtype.Timestamptz
	read  int  // events of the last page
	left  bool // conditions on events of the last page were not evaluated
}

// findExits finds for each trigger an event that was received after it, and would have
// ended its enrollment. The profiles are locked, so that a later event finds the enrollment.
func (t *transaction) findExits(ctx context.Context, flow uuid.UUID, all []*Trigger) error {
	if len(all) == 0 {
		return nil
	}
	g, err := t.versions.Get(ctx, t.tx, flow, t.flows[flow].version)
	if err != nil {
		return err
	}
	exits := g.ExitOn()
	var asked []*exitQuestion
	for _, o := range all {
		for i, exit := range exits {
			if !slices.ContainsFunc(exits[:i], func(other graph.CompiledExit) bool { return other.Event == exit.Event }) {
				asked = append(asked, &exitQuestion{Trigger: o, name: exit.Event, after: pgtype.Timestamptz{Time: o.received, Valid: true}})
			}
		}
	}
	for len(asked) > 0 {
		if t.outOfTime() {
			return t.leaveUnchecked(asked)
		}
		if err := t.readExits(ctx, exits, asked); err != nil {
			return err
		}
		asked = slices.DeleteFunc(asked, func(a *exitQuestion) bool { return a.exitedBy != "" || a.read < exitsPage && !a.left })
	}
	return nil
}

// outOfTime reports whether the conditions on triggers that are offered again took too long.
// What others compile does not count.
func (t *transaction) outOfTime() bool { return t.evaluated >= t.conditionTime }

// leaveUnchecked ends the search for events of exit_on before its end. Fewer enrollments may
// have fewer events, so the transaction fails and its chunk is bisected. The triggers behind
// a single enrollment are refused: a message after such an event would be worse.
func (t *transaction) leaveUnchecked(asked []*exitQuestion) error {
	if !t.alone {
		return errConditionTime
	}
	for _, a := range asked {
		a.unchecked = true
	}
	return nil
}

// readExits reads a page of events for each trigger and name. The form is "name and time as a
// row" of enrollment/plans.go.
func (t *transaction) readExits(ctx context.Context, exits []graph.CompiledExit, asked []*exitQuestion) error {
	profiles, names, after := make([]string, len(asked)), make([]string, len(asked)), make([]pgtype.Timestamptz, len(asked))
	for i, a := range asked {
		profiles[i], names[i], after[i], a.read, a.left = a.profile, a.name, a.after, 0, false
	}
	rows, _ := t.tx.Query(ctx, `
		select r.i::int, v.key, r.name, coalesce(v.source_id, ''), v.properties, v.occurred_at, v.received_at
		from unnest($2::text[], $3::text[], $4::timestamptz[]) with ordinality as r (profile_key, name, after, i)
		cross join lateral (
			select key, source_id, properties, occurred_at, received_at from trigger_events
			where workspace_id = $1 and profile_key = r.profile_key and (name, received_at) > (r.name, r.after) and name <= r.name
			order by name, received_at fetch first ($5::int) rows with ties
		) v`, t.ws, profiles, names, after, exitsPage)
	var i int
	var e Trigger
	_, err := pgx.ForEachRow(rows, []any{&i, &e.Key, &e.Name, &e.sourceID, &e.properties, &e.At, &e.received}, func() error {
		a, event := asked[i-1], e
		a.read++
		a.after = pgtype.Timestamptz{Time: event.received, Valid: true}
		switch {
		case a.exitedBy != "":
		case t.outOfTime():
			a.left = true
		case t.exits(exits, a.Trigger, &event):
			a.exitedBy = event.Name
		}
		return nil
	})
	return err
}

// exits reports whether an event would end the enrollment of a trigger.
func (t *transaction) exits(exits []graph.CompiledExit, o, event *Trigger) bool {
	return slices.ContainsFunc(exits, func(exit graph.CompiledExit) bool {
		if exit.Event != event.Name || exit.Condition == nil {
			return exit.Event == event.Name
		}
		is, err := t.evaluate(exit.Condition, graph.Vars{Event: event.Data(), Trigger: o.Data(), Now: event.received})
		return is && err == nil
	})
}

package intake

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/flows/graph"
)

// triggerBytes and triggersPage bound a page of triggers.
const (
	triggerBytes = 8 << 20
	triggersPage = 1000
)

// triggers are those of the active enrollments of one round whose conditions read them. They
// are read by the page, in the order of their use, and decoded one by one: a trigger has up
// to 32 KiB, decoded 20 times as much, and a profile may have many enrollments.
type triggers struct {
	ids  []pgtype.UUID
	at   map[uuid.UUID]int
	page map[uuid.UUID]*string
}

// readyActive returns how many events of a round, in their order, can be applied to the
// active enrollments with the versions that are compiled or may be.
func (t *transaction) readyActive(round []int, all []*Trigger, of map[string][]activeEnrollment) (int, error) {
	first, checked := len(round), map[execution.VersionID]bool{}
	var missing []execution.VersionID
	for at, i := range round {
		for _, u := range of[all[i].profile] {
			v := execution.VersionID{Flow: u.flow, Version: u.version}
			if checked[v] {
				continue
			}
			checked[v] = true
			if t.versions.Missing(v) {
				first, missing = min(first, at), append(missing, v)
			}
		}
	}
	return t.versions.Prefix(first, missing)
}

// triggersOf finds whose triggers the events of a round need.
func (t *transaction) triggersOf(ctx context.Context, round []int, all []*Trigger, of map[string][]activeEnrollment) (*triggers, error) {
	r := &triggers{at: map[uuid.UUID]int{}}
	for _, i := range round {
		for _, u := range of[all[i].profile] {
			g, err := t.versions.Get(ctx, t.tx, u.flow, u.version)
			if err != nil && lemma.KindOf(err) == lemma.Internal {
				return nil, err
			}
			if err == nil && asksForTrigger(g, u, all[i].Name) {
				r.at[u.id] = len(r.ids)
				r.ids = append(r.ids, enrollment.PgUUID(u.id))
			}
		}
	}
	return r, nil
}

// read returns the trigger of an enrollment; nil if no condition reads it.
func (r *triggers) read(ctx context.Context, t *transaction, id uuid.UUID) (map[string]any, error) {
	i, asked := r.at[id]
	if !asked {
		return nil, nil
	}
	begun := time.Now()
	if r.page[id] == nil {
		ids := r.ids[i:min(i+triggersPage, len(r.ids))]
		var err error
		if r.page, err = enrollment.ReadTriggers(ctx, t.tx, t.ws, ids, t.triggerBytes); err != nil {
			return nil, err
		}
		begun = time.Now()
	}
	defer func() { t.evaluated += time.Since(begun) }()
	if data := r.page[id]; data != nil {
		return enrollment.TriggerOf(*data), nil
	}
	return nil, nil
}

// asksForTrigger reports whether the conditions that an event of a name meets read the
// trigger.
func asksForTrigger(g *graph.Graph, u activeEnrollment, event string) bool {
	for _, exit := range g.ExitOn() {
		if exit.Event == event && exit.Condition != nil && exit.Condition.Uses().Trigger {
			return true
		}
	}
	n, ok := g.Node(u.node)
	return ok && u.awaits == event && n.Condition != nil && n.Condition.Uses().Trigger
}

package execution

import (
	"context"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/flows/admission"
	"lemma/flows/enrollment"
)

// skips are the sources that the branches of one execution no longer query, and why: a
// source that hangs costs about one timeout, and not one for each branch.
type skips struct {
	begun time.Time
	of    map[uuid.UUID]error
}

// queryTime bounds how long the branches of one execution query a source that answers.
const queryTime = 10 * time.Second

// record records the result of a branch's query.
func (s skips) record(source uuid.UUID, err error) {
	switch {
	case err != nil && lemma.KindOf(err) == lemma.Unavailable:
		s.of[source] = err
	case time.Since(s.begun) > queryTime:
		s.of[source] = admission.Busy()
	}
}

// sqlCase is one case of one branch by SQL.
type sqlCase struct {
	*Route
	node string
	at   int
}

// querySource runs the SQL queries of branches: one for each case, with the profiles of the
// chunk. Queries that failed or were slow before come last, so that they block no
// others.
func (e *Evaluator) querySource(ctx context.Context, execs []*Execution, skipped skips) {
	asked := map[sqlCase][]*Execution{}
	for _, t := range execs {
		if at, left := t.unmatched(); left {
			q := sqlCase{t.Route, t.NodeID, at}
			asked[q] = append(asked[q], t)
		}
	}
	var calm, blocked []sqlCase
	for q := range asked {
		if e.Sources.Failing(q.breaker()) {
			blocked = append(blocked, q)
		} else {
			calm = append(calm, q)
		}
	}
	for _, q := range append(calm, blocked...) {
		// The query distinguishes profiles only by their keys.
		for _, part := range enrollment.OnceEach(asked[q], func(t *Execution) string { return t.ProfileKey }) {
			if err := skipped.of[q.sourceOf(q.node)]; err != nil {
				e.Sources.Remember(q.breaker(), q.blocked())
				e.blockAll(part, err)
				continue
			}
			e.match(ctx, q, part, skipped)
		}
	}
}

// unmatched is the first case of a branch that is not decided yet.
func (t *Execution) unmatched() (at int, left bool) {
	node, ok := t.Node(t.NodeID)
	if !ok {
		return 0, false
	}
	for i, c := range node.Cases {
		if _, known := t.matched[caseKey(node.ID, i)]; c.Cond == nil && !known {
			return i, true
		}
	}
	return 0, false
}

// sourceOf is the data source that a branch by SQL queries.
func (r *Route) sourceOf(node string) uuid.UUID {
	if n, ok := r.Node(node); ok {
		if id, named := lemma.ParseID(lemma.PrefixDataSource, n.DataSourceID); named {
			return id
		}
	}
	return r.source
}

// breaker is the breaker of a query. A slow query counts against its node and not against its
// source: other queries to the source are not delayed.
func (c sqlCase) breaker() uuid.UUID {
	source := c.sourceOf(c.node)
	return lemma.Key("branch/1", string(source[:]), string(c.FlowID[:]), caseKey(c.node, c.at))
}

// blocked names the enrollments that the breaker delays.
func (c sqlCase) blocked() admission.Blocked {
	return admission.Blocked{Workspace: c.WorkspaceID, Flow: c.FlowID, Node: c.node}
}

func (e *Evaluator) match(ctx context.Context, q sqlCase, execs []*Execution, skipped skips) {
	e.queryFor(ctx, q.breaker(), q.blocked(), execs,
		func(some []*Execution) error {
			err := e.matchRows(ctx, q.Route, q.node, q.at, some)
			skipped.record(q.sourceOf(q.node), err)
			if err == nil {
				e.Sources.Answered(q.sourceOf(q.node))
			}
			return err
		})
}

// matchRows queries one case of a branch for the executions on it.
func (e *Evaluator) matchRows(ctx context.Context, r *Route, node string, at int, execs []*Execution) error {
	people := make([]audience.Person, len(execs))
	for i, t := range execs {
		people[i] = audience.Person{Key: t.ProfileKey, EnrolledAt: t.EnrolledAt}
	}
	n, _ := r.Node(node)
	yes, err := e.audiences.Matching(ctx, r.WorkspaceID, r.sourceOf(node), n.Cases[at].SQL, people)
	if err != nil {
		return err
	}
	for _, t := range execs {
		if t.matched == nil {
			t.matched = map[string]bool{}
		}
		t.matched[caseKey(node, at)] = yes[t.ProfileKey]
	}
	return nil
}

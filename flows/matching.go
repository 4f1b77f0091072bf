package flows

import (
	"context"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
)

// silence are the sources that no branch asks any more in one walk, and why: one
// that hangs or is slow costs a lot about one wait, and not one for each branch.
type silence struct {
	begun time.Time
	of    map[uuid.UUID]error
}

// askedFor is how long the branches of one walk ask a source that answers.
const askedFor = 10 * time.Second

// heard takes down how a source has answered a branch.
func (s silence) heard(source uuid.UUID, err error) {
	switch {
	case err != nil && lemma.KindOf(err) == lemma.Unavailable:
		s.of[source] = err
	case time.Since(s.begun) > askedFor:
		s.of[source] = busy()
	}
}

// sqlCase is one case of one branch by SQL.
type sqlCase struct {
	*route
	node string
	at   int
}

// askSource runs the queries of branches by SQL: one for each case at which
// travellers stand, with the people of the lot. Those that were slow or failed
// of late come last, so that no others are put off because of them.
func (f *Flows) askSource(ctx context.Context, who []*traveller, silent silence) {
	asked := map[sqlCase][]*traveller{}
	for _, t := range who {
		if at, left := t.unmatched(); left {
			q := sqlCase{t.route, t.node, at}
			asked[q] = append(asked[q], t)
		}
	}
	var calm, troubled []sqlCase
	for q := range asked {
		if is, _ := f.sources.look(f.sources.of(q.asks())); is {
			troubled = append(troubled, q)
		} else {
			calm = append(calm, q)
		}
	}
	for _, q := range append(calm, troubled...) {
		// The query tells people apart by their profile alone.
		for _, part := range onceEach(asked[q], func(t *traveller) string { return t.key }) {
			if err := silent.of[q.sourceOf(q.node)]; err != nil {
				f.postponeAll(part, err)
				continue
			}
			f.match(ctx, q, part, silent)
		}
	}
}

// unmatched is the first case of a branch about which the source has said
// nothing yet.
func (t *traveller) unmatched() (at int, left bool) {
	node, ok := t.Node(t.node)
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

// sourceOf is the data source that a branch by SQL asks.
func (r *route) sourceOf(node string) uuid.UUID {
	if n, ok := r.Node(node); ok {
		if id, named := lemma.ParseID(lemma.PrefixDataSource, n.DataSourceID); named {
			return id
		}
	}
	return r.source
}

// asks is what a failure counts against. A query that is slow is that node's
// fault, and not its source's: others who ask the source do not wait for it.
func (c sqlCase) asks() uuid.UUID {
	source := c.sourceOf(c.node)
	return lemma.Key("branch/1", string(source[:]), string(c.flow[:]), caseKey(c.node, c.at))
}

func (f *Flows) match(ctx context.Context, q sqlCase, who []*traveller, silent silence) {
	f.askAbout(ctx, q.asks(), waitingFor{ws: q.workspace, flow: q.flow, node: q.node}, who, func(some []*traveller) error {
		err := f.matchRows(ctx, q.route, q.node, q.at, some)
		silent.heard(q.sourceOf(q.node), err)
		return err
	})
}

// matchRows asks one case of a branch about those who stand at it.
func (f *Flows) matchRows(ctx context.Context, r *route, node string, at int, who []*traveller) error {
	people := make([]audience.Person, len(who))
	for i, t := range who {
		people[i] = audience.Person{Key: t.key, EnrolledAt: t.enrolledAt}
	}
	n, _ := r.Node(node)
	yes, err := f.audiences.Matching(ctx, r.workspace, r.sourceOf(node), n.Cases[at].SQL, people)
	if err != nil {
		return err
	}
	for _, t := range who {
		if t.matched == nil {
			t.matched = map[string]bool{}
		}
		t.matched[caseKey(node, at)] = yes[t.key]
	}
	return nil
}

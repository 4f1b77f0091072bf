package audience

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"lemma"
)

// limits are how many reads of one kind may run at a time in this process.
type limits struct{ process, workspace, source int }

// Reads for which somebody waits are bounded, so that one workspace does not
// take the connections, the memory and the time of the others. A count has its
// own bounds: it reads a whole audience and remembers addresses.
var (
	limitsOfReads  = limits{process: 32, workspace: 8, source: 4}
	limitsOfCounts = limits{process: 6, workspace: 2, source: 2}
)

// placeWait is how long a read waits for its turn before it is refused.
const placeWait = 2 * time.Second

// places are what limits leave free.
type places struct {
	limits  limits
	metrics *Metrics

	mutex      sync.Mutex
	taken      int
	workspaces map[uuid.UUID]int
	sources    map[sourceID]int
	freed      chan struct{} // closed, and made anew, when a place is given back
}

func newPlaces(l limits, m *Metrics) *places {
	return &places{limits: l, metrics: m, workspaces: map[uuid.UUID]int{}, sources: map[sourceID]int{}, freed: make(chan struct{})}
}

// enter takes a place for a read, or refuses it after a moment. leave gives
// the place back.
func (p *places) enter(ctx context.Context, id sourceID) (leave func(), err error) {
	patience := time.NewTimer(placeWait)
	defer patience.Stop()
	for {
		limit, freed := p.take(id)
		if limit == "" {
			return func() { p.leave(id) }, nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-patience.C:
			p.metrics.refused(limit)
			return nil, &lemma.Error{Kind: lemma.Unavailable, Code: CodeOverloaded, Message: overloadedBy[limit] + "; try again in a moment"}
		}
	}
}

func isOverloaded(err error) bool {
	var e *lemma.Error
	return errors.As(err, &e) && e.Code == CodeOverloaded
}

var overloadedBy = map[string]string{
	"source":    "too many requests read this data source now",
	"workspace": "too many requests of this workspace read data sources now",
	"process":   "too many requests read data sources now",
}

// take answers the limit that leaves no place, and when to try again.
func (p *places) take(id sourceID) (limit string, freed <-chan struct{}) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	switch {
	case p.sources[id] >= p.limits.source:
		return "source", p.freed
	case p.workspaces[id.workspace] >= p.limits.workspace:
		return "workspace", p.freed
	case p.taken >= p.limits.process:
		return "process", p.freed
	}
	p.sources[id]++
	p.workspaces[id.workspace]++
	p.taken++
	return "", nil
}

func (p *places) leave(id sourceID) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.taken--
	if p.workspaces[id.workspace]--; p.workspaces[id.workspace] == 0 {
		delete(p.workspaces, id.workspace)
	}
	if p.sources[id]--; p.sources[id] == 0 {
		delete(p.sources, id)
	}
	close(p.freed)
	p.freed = make(chan struct{})
}

// turn takes a place for what is done for a caller (see ForCaller). Fan-outs,
// and the lookups of flows, have bounds of their own.
func (a *Audiences) turn(ctx context.Context, id sourceID) (leave func(), err error) {
	if textsFor(ctx) == textsOfQueries {
		return func() {}, nil
	}
	return a.reads.enter(ctx, id)
}

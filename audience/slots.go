package audience

import (
	"context"
	"errors"

	"lemma"
	"lemma/slots"
)

// Limits of reads for callers, and of their lookups by themselves: a preview that waits
// for its source delays no message. Counts have their own limits: they read whole audiences
// and store hashes of addresses.
var (
	limitsOfReads  = slots.Limits{Process: 32, Workspace: 8, Resource: 4}
	limitsOfCounts = slots.Limits{Process: 6, Workspace: 2, Resource: 2}
)

func newSlots(l slots.Limits, m *Metrics) *slots.Slots {
	return slots.New(l, func(limit string) error {
		if limit == "resource" {
			limit = "source"
		}
		m.refused(limit)
		return &lemma.Error{Kind: lemma.Unavailable, Code: CodeOverloaded, Message: overloadedBy[limit] + "; try again in a moment"}
	})
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

// slot is the resource of a read of the source.
func (id sourceID) slot() slots.Resource { return slots.Resource{Workspace: id.workspace, ID: id.id} }

// enter takes a slot for a read or a lookup for a caller (see ForCaller). Workers bound
// fan-outs and the lookups of flows and senders.
func (a *Audiences) enter(ctx context.Context, of *slots.Slots, id sourceID) (leave func(), err error) {
	if textsFor(ctx) == textsOfQueries {
		return func() {}, nil
	}
	return of.Enter(ctx, id.slot())
}

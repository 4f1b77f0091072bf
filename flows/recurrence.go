package flows

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"lemma/flows/enrollment"
	"lemma/flows/graph"
)

// recursOtherwise reports whether a definition has another recurrence than the live
// version; false without one.
func (f *Flows) recursOtherwise(ctx context.Context, q enrollment.Querier, ws, flow uuid.UUID, live *int,
	def *graph.Definition) (bool, error) {
	if live == nil {
		return false, nil
	}
	was, err := readDefinition(ctx, q, ws, flow, *live)
	if err != nil {
		return false, err
	}
	return !was.Recurrence.Same(def.Recurrence), nil
}

// warnOfRecurrence explains the effect of another recurrence on profiles that the live one
// has enrolled.
func (c *checked) warnOfRecurrence(ctx context.Context, live *int) error {
	if c.def == nil {
		return nil
	}
	otherwise, err := c.recursOtherwise(ctx, c.pool, c.ws, c.flow, live, c.def)
	if !otherwise || err != nil {
		return err
	}
	warning := fmt.Sprintf("the recurrence differs from that of version %d, which is live: a profile that was enrolled "+
		"before enrolls again wherever the new one allows it", *live)
	if c.def.Recurrence.Policy == graph.Fields {
		warning += "; it cannot compare enrollments whose steps were dropped by their retention, or whose profile was erased: these enroll " +
			"once more for the same values"
	}
	c.warnings = append(c.warnings, warning)
	return nil
}

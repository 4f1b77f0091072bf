package execution

import (
	"errors"
	"math/rand/v2"
	"time"

	"lemma"
	"lemma/flows/admission"
)

// blockAll blocks executions after a failed source, with jitter and a delay that
// doubles. If others have the places for queries, the source has not failed.
func (e *Evaluator) blockAll(execs []*Execution, cause error) {
	blocked, later := BlockedReason(cause), admission.Later(cause)
	for _, t := range execs {
		if later > 0 {
			t.postpone(blocked, later)
		} else {
			t.Block(blocked, e.BackOff(t.FailuresBy(blocked)))
		}
	}
	e.log.Warn("enrollments blocked", "flow_id", execs[0].FlowID, "enrollments", len(execs), "blocked_reason", blocked, "error", cause)
}

// How often the delay of what took too long doubles: up to MaxBackOff for an enrollment whose own
// conditions did, and less often for one that came behind others.
const (
	mostDoublings = 16
	fewDoublings  = 3
)

// blockCostly blocks executions where they are: the rest of a chunk whose conditions took too
// long, each time for longer, or one that writes too much at once, for a moment. So the flows of one
// workspace neither occupy all workers nor use the memory of the others.
func (e *Evaluator) blockCostly(execs []*Execution, reason string, doublings int) {
	if len(execs) == 0 {
		return
	}
	for _, t := range execs {
		t.Block(reason, e.BackOff(min(t.FailuresBy(reason), doublings)))
	}
	e.log.Warn("enrollments blocked", "flow_id", execs[0].FlowID, "enrollments", len(execs), "blocked_reason", reason)
}

// codeConditionTime is the blocked_reason of enrollments whose conditions, or those of others
// of their chunk, are costly.
const codeConditionTime = "condition_time"

// codeChunkBytes is the blocked_reason of an enrollment whose messages have more bytes than a
// chunk may have.
const codeChunkBytes = "chunk_bytes"

// BackOff is the delay after so many failures in a row.
func (e *Evaluator) BackOff(failures int) time.Duration {
	after := min(e.cfg.BackOff<<min(failures, 16), e.cfg.MaxBackOff)
	return after + time.Duration(rand.Int64N(int64(after)/5+1))
}

// BlockedReason is the code of what keeps an enrollment from advancing.
func BlockedReason(err error) string {
	var e *lemma.Error
	switch {
	case errors.As(err, &e) && e.Code != "":
		return e.Code
	case errors.As(err, &e):
		return string(e.Kind)
	}
	return string(lemma.Internal)
}

package sender

import (
	"lemma/events"
	"lemma/notifications"
)

// decision is what the reaper decides about a row that may have been called.
type decision int

const (
	settle decision = iota // tier 1: evidence proves the outcome
	again                  // tier 2: no evidence, and one attempt is left
	wait                   // tier 2, and events of the carrier may still come
	orphan                 // tier 3: no evidence, and none is left
)

// decide is the rule of the reaper, and the only place that allows a second attempt. A
// cancelled or expired batch allows none.
func decide(b stale, proven bool) decision {
	switch {
	case proven:
		return settle
	case b.Attempt == b.MaxAttempts || b.Gate == "cancelled" || b.Late:
		return orphan
	}
	switch b.Events {
	case eventsAwaited:
		return wait
	case eventsOverdue:
		return orphan
	}
	return again
}

func decideAll(b stale, called []int16, evidence map[int16]events.Evidence, sum *Reaped) (done []outcome, retry, waiting []int16) {
	for _, ordinal := range called {
		e := evidence[ordinal]
		o := outcome{ordinal: ordinal, kind: unknown, basis: "reaper", reason: "no_answer"}
		proof := e.Of(b.Attempt)
		switch decide(b, proof != nil) {
		case settle:
			o = settled(ordinal, *proof)
			if b.Attempt == 2 && proof.Kind == events.Rejected && e.Of(1) != nil {
				o.reason = notifications.ReasonFirstRejected // both were rejected: nothing was delivered
			}
			sum.Settled++
		case again:
			o.open = true
			retry = append(retry, ordinal)
			sum.Retried++
		case wait:
			waiting = append(waiting, ordinal)
			sum.Waiting++
			continue
		case orphan:
			sum.Orphaned++
		}
		done = append(done, o)
	}
	return done, retry, waiting
}

// settleUntouched ends rows of a second attempt that was not called and whose first
// attempt is known meanwhile. It returns the other rows.
func settleUntouched(b stale, done []outcome, untouched []int16, evidence map[int16]events.Evidence, sum *Reaped) ([]outcome, []int16) {
	if b.Attempt == 1 {
		return done, untouched
	}
	left := []int16{}
	for _, ordinal := range untouched {
		if o, ok := settledSecond(ordinal, evidence[ordinal]); ok {
			done = append(done, o)
			sum.Settled++
		} else {
			left = append(left, ordinal)
		}
	}
	return done, left
}

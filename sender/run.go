package sender

import (
	"fmt"
	"time"
)

// run is a window's receipts as the circuit counts them: the calls after the last
// acceptance, in order. Rows that were not called do not count, nor do rejections that concern one
// token: many may be old, and strangers may register tokens that are none. A wait that the provider
// asks for outlasts acceptances: their calls may have begun before it was asked for.
type run struct {
	accepted   bool   // a message was accepted before the counted ones
	failures   int    // calls
	refusals   int    // of these, messages refused for now or with an unknown outcome
	rejections int    // of these, messages rejected
	hangs      int    // of the refusals, recipients in a row for which the server did not reply, each at its first refusal
	answered   bool   // the server replied before them
	tokens     bool   // the server replied about single tokens, which count as no failures
	first      string // the first failure, and the last
	last       string
	down       string // the first failure of the provider itself, also one of an earlier call that prevented these
	definite   string // the first definite refusal of the account or the sender
	detail     string // the carrier's text of the first failure of the provider: for the log

	retryAfter time.Duration // the longest wait that the provider asks for
}

func runOf(receipts []Receipt) run {
	var r run
	for _, one := range receipts {
		switch {
		case one.Outcome == Accepted:
			r = r.afterAcceptance()
		case one.Outcome == NotCalled && !one.Provider:
		case one.Outcome == NotCalled:
			r.addProviderFailure(one)
		case one.Outcome == Rejected && (one.Own || one.Reason == ReasonUnregistered):
			r.tokens = r.tokens || one.Code != 0
		default:
			r.fail(one)
		}
	}
	return r
}

func (r run) afterAcceptance() run {
	if r.retryAfter == 0 {
		return run{accepted: true}
	}
	return run{accepted: true, failures: 1, first: r.down, last: r.down, down: r.down, detail: r.detail, retryAfter: r.retryAfter}
}

// countHangs counts recipients for which the server does not reply. A recipient that was
// refused before does not count again: one for which a server always hangs proves
// nothing about others.
func (r *run) countHangs(receipts []Receipt, isFirst func(i int) bool) {
	for i, one := range receipts {
		switch {
		case one.Outcome == Accepted || one.Code != 0:
			r.hangs, r.answered = 0, true
		case one.Outcome == NotAccepted && !one.Provider && one.Reason == "timeout" && isFirst(i):
			r.hangs++
		}
	}
}

func (r *run) fail(one Receipt) {
	r.failures++
	r.last = cause(one)
	if r.first == "" {
		r.first = r.last
	}
	switch {
	case one.Provider && one.Outcome == NotAccepted:
		r.addProviderFailure(one)
	case one.Outcome == Rejected:
		r.rejections++
	default:
		r.refusals++
	}
}

func (r *run) addProviderFailure(one Receipt) {
	if r.down == "" {
		r.down, r.detail = cause(one), one.Detail
	}
	r.retryAfter = max(r.retryAfter, one.wait())
	if one.Definite && r.definite == "" {
		r.definite = cause(one)
	}
}

// cause is a failure as the API shows it: a code of the closed list, with the server's
// reply code. A server's text is only logged, since a user may enter any server.
func cause(r Receipt) string {
	switch {
	case r.Code != 0:
		return fmt.Sprintf("%s (%d)%s", r.Reason, r.Code, retryNote(r))
	case r.Detail != "":
		return clip(r.Reason + ": " + r.Detail)
	}
	return r.Reason
}

// retryNote states the wait that a carrier asks for, and whether it is capped.
func retryNote(r Receipt) string {
	switch {
	case r.RetryAfter <= 0:
		return ""
	case r.RetryAfter > MostRetryAfter:
		return fmt.Sprintf(", retry after %v, capped at %v", r.RetryAfter, MostRetryAfter)
	}
	return fmt.Sprintf(", retry after %v", r.RetryAfter)
}

// failure is the first failure of the provider itself, so that a next window is
// pointless; "" if there is none.
func (w *window) failure() string {
	for _, r := range w.receipts {
		if r.Provider && (r.Outcome == NotCalled || r.Outcome == NotAccepted) {
			return cause(r)
		}
	}
	return ""
}

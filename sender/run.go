package sender

import "fmt"

// run is what a window's receipts say of its provider: the calls that no
// acceptance followed, in order. A call that was not made counts for nothing.
type run struct {
	accepted   bool   // a message was, before those that are counted
	failures   int    // calls
	refusals   int    // of these, messages refused for now or of unknown outcome
	rejections int    // of these, messages rejected
	first      string // the first failure, and the last
	last       string
	down       string // the first failure of the provider itself; also one that an earlier call met, for whose sake none was made now
	definite   string // the first definite refusal of the account or the sender
	detail     string // the carrier's words in the first failure of the provider: for the log
}

func runOf(receipts []Receipt) run {
	var r run
	for _, one := range receipts {
		switch {
		case one.Outcome == Accepted:
			r = run{accepted: true}
		case one.Outcome == NotCalled && !one.Provider:
		case one.Outcome == NotCalled:
			r.blame(one)
		default:
			r.fail(one)
		}
	}
	return r
}

func (r *run) fail(one Receipt) {
	r.failures++
	r.last = cause(one)
	if r.first == "" {
		r.first = r.last
	}
	switch {
	case one.Provider && one.Outcome == NotAccepted:
		r.blame(one)
	case one.Outcome == Rejected:
		r.rejections++
	default:
		r.refusals++
	}
}

func (r *run) blame(one Receipt) {
	if r.down == "" {
		r.down, r.detail = cause(one), one.Detail
	}
	if one.Definite && r.definite == "" {
		r.definite = cause(one)
	}
}

// cause is a failure as it is shown to people: a code of the closed list, with
// the server's reply code where it gave one. What a server says goes to the log
// alone, since anybody may name a server.
func cause(r Receipt) string {
	switch {
	case r.Code != 0:
		return fmt.Sprintf("%s (%d)", r.Reason, r.Code)
	case r.Detail != "":
		return clip(r.Reason + ": " + r.Detail)
	}
	return r.Reason
}

package notifications

import "strconv"

// copies tracks, for each attempt, whether the carrier may have and whether it
// surely has taken a message.
type copies struct {
	called, surely, surelyNot map[int]bool
	ended                     map[int]bool // has an outcome
	accepted                  bool         // evidence says so, of whichever attempt
	rejected                  map[int]bool // evidence says so
}

func newCopies() *copies {
	return &copies{called: map[int]bool{}, surely: map[int]bool{}, surelyNot: map[int]bool{}, ended: map[int]bool{}, rejected: map[int]bool{}}
}

// note counts an outcome. One that was concluded from evidence about the first
// attempt says nothing of a second call, since none was made.
func (c *copies) note(a attemptLine) {
	c.ended[a.Attempt] = true
	if a.Basis == "response" || a.Basis == "reaper" {
		c.called[a.Attempt] = true
	}
	switch {
	case a.Reason != nil && (*a.Reason == "first_attempt_accepted" || *a.Reason == "first_attempt_rejected"):
		c.surelyNot[a.Attempt] = true
	case a.Outcome == "accepted" && (a.Basis == "response" || c.called[a.Attempt]):
		c.surely[a.Attempt] = true
	case a.Outcome == "rejected", a.Outcome == "refused", a.Outcome == "skipped":
		c.surelyNot[a.Attempt] = true
	}
}

// prove counts evidence.
func (c *copies) prove(kind string, attempt int) {
	switch kind {
	case "accepted":
		c.surely[attempt], c.accepted = true, true
	case "rejected":
		c.surelyNot[attempt], c.rejected[attempt] = true, true
	}
}

// bounds are how many messages have reached the recipient until now.
func (c *copies) bounds() (least, most int) {
	for attempt := 1; attempt <= 2; attempt++ {
		switch {
		case c.surely[attempt]:
			least, most = least+1, most+1
		case c.called[attempt] && !c.surelyNot[attempt]:
			most++
		}
	}
	return least, most
}

// further is how many messages the code may yet send from here. Each 0 names
// what makes a further call impossible; all else counts as possible.
func (p *place) further(status string, c *copies) int {
	if p == nil || status != "pending" && status != "processing" {
		return 0 // the outcome is final, and a batch that has ended is not claimed
	}
	held := p.Status == "leased"
	switch {
	case p.Gate == "cancelled":
		return 0 // no window opens behind it, and the reaper gives no second attempt
	case status == "processing" && (p.Attempt == p.MaxAttempts || p.Late):
		return 0 // what is called now was the last, or the reaper gives no other after the send deadline
	case status == "processing" && (c.accepted || c.rejected[p.Attempt]):
		return 0 // the reaper settles by the evidence
	case status == "processing":
		return 1
	case p.Late && !held:
		return 0 // it is not claimed any more
	case p.Late:
		return 1 // the worker may have looked at the clock before; the reaper gives no other
	case p.Attempt == 2 && !held && (c.accepted || c.rejected[1]):
		return 0 // the next claim settles by the evidence; one that holds it may have looked before
	}
	return p.MaxAttempts - p.Attempt + 1
}

// summary says in one sentence why it was sent, or not, or what it waits for,
// and whether a second copy was or is possible.
func summary(e Explanation) string {
	n, why := e.Notification, ""
	if n.Reason != nil {
		why = " (" + *n.Reason + ")"
	}
	text := map[string]string{
		"sent":       "sent: the carrier took it on attempt " + strconv.Itoa(n.Attempts),
		"failed":     "not sent" + why + ": the carrier surely did not take it",
		"orphaned":   "in doubt" + why + ": it may have been sent, and is never sent again",
		"skipped":    "not sent" + why,
		"cancelled":  "not sent: cancelled before it was called",
		"processing": "being called now, or its answer is still owed",
		"pending":    "waiting to be called",
	}[n.Status]
	if e.Waiting != nil && e.Waiting.Detail != "" {
		text += ": " + e.Waiting.Detail
	}
	over := e.Waiting == nil
	switch {
	case e.CopiesAtLeast > 1:
		return text + "; two copies were sent"
	case e.CopiesAtMost > 1:
		return text + "; two copies may have been sent"
	case e.CopiesPossible > 1 && n.Status == "processing":
		return text + "; a second copy is possible, since it is called once more if no answer comes"
	case e.CopiesPossible > 1 && e.CopiesAtMost > 0:
		return text + "; a second copy is possible, since the outcome of the first call is unknown"
	case e.CopiesPossible > 1:
		return text + "; a second copy is possible, but only if the outcome of a call stays unknown"
	case over:
		return text + "; no second copy was possible from here"
	default:
		return text + "; no second copy is possible"
	}
}

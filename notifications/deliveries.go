package notifications

import "strconv"

// deliveries holds, by attempt, what is known of its call.
type deliveries struct {
	called             map[int]bool // may have been called
	again              bool         // the second may have been called more than once: a call before the last was refused
	delivered, without map[int]bool // the carrier accepted the message; it did not
	ended              map[int]bool // has an outcome
	accepted           bool         // by evidence, of any attempt
	someAccepted       bool         // by evidence of an attempt that it does not name
	someRejected       bool         // likewise; of the first while the second was not called
	rejected           map[int]bool // by evidence
}

func newDeliveries() *deliveries {
	none := func() map[int]bool { return map[int]bool{} }
	return &deliveries{called: none(), delivered: none(), without: none(), ended: none(), rejected: none()}
}

// addAttempt adds an outcome. An acceptance that follows from evidence may be of the other
// attempt: if the event is still kept, addEvidence counts it there.
func (d *deliveries) addAttempt(a attemptLine) {
	d.ended[a.Attempt] = true
	uncalled := a.Reason != nil && (*a.Reason == ReasonFirstAccepted || *a.Reason == ReasonFirstRejected)
	if a.Basis == "response" || a.Basis == "reaper" || a.Basis == "evidence" && !uncalled {
		d.called[a.Attempt] = true
	}
	if a.Outcome == "accepted" && a.Basis == "evidence" {
		d.someAccepted, d.accepted = true, true
	}
	switch {
	case uncalled:
		d.without[a.Attempt] = true
	case a.Outcome == "accepted" && a.Basis == "response":
		d.delivered[a.Attempt] = true
	case a.Outcome == "rejected", a.Outcome == "refused", a.Outcome == "skipped":
		d.without[a.Attempt] = true
	}
}

// addResolution adds what late events have proven, which may be dropped since.
func (d *deliveries) addResolution(resolution string) {
	switch resolution {
	case "sent":
		d.someAccepted, d.accepted = true, true
	case "not_sent":
		d.without[1], d.without[2] = true, true
	}
}

// addEvidence adds what an event proves about an attempt; 0: the event names none. Such
// an acceptance may be of either, and such a rejection too.
func (d *deliveries) addEvidence(kind string, attempt int) {
	switch {
	case kind == "accepted" && attempt == 0:
		d.someAccepted, d.accepted = true, true
	case kind == "accepted":
		d.delivered[attempt], d.accepted = true, true
	case kind == "rejected" && attempt == 0:
		d.someRejected = true
	case kind == "rejected":
		d.without[attempt], d.rejected[attempt] = true, true
	}
}

// rejects reports that the worker or the reaper takes an event for a rejection of an attempt:
// one that names none counts as one of the first while the second was not called.
func (d *deliveries) rejects(attempt int) bool {
	return d.rejected[attempt] || attempt == 1 && d.someRejected && !d.called[2]
}

// acceptedOn is the attempt that the carrier accepted: the last one, unless only the
// other is known to be accepted.
func (d *deliveries) acceptedOn(last int) int {
	if other := 3 - last; !d.delivered[last] && d.delivered[other] {
		return other
	}
	return last
}

// bounds are the numbers of deliveries until now.
func (d *deliveries) bounds() (least, most int) {
	for attempt := 1; attempt <= 2; attempt++ {
		switch {
		case d.delivered[attempt]:
			least, most = least+1, most+1
		case d.called[attempt] && !d.without[attempt]:
			most++
		}
	}
	if d.someRejected && (!d.called[2] || len(d.without) == 0 && !d.again) {
		most = max(most-1, least)
	}
	if d.someAccepted {
		least, most = max(least, 1), max(most, 1)
	}
	return least, most
}

// furtherCalls is how many calls can still be made. Each 0 has the reason why none
// can; anything else counts as possible.
func (b *batchState) furtherCalls(status string, d *deliveries) int {
	if b == nil || status != "pending" && status != "processing" {
		return 0 // the outcome is final, and a batch that has ended is not claimed
	}
	leased := b.Status == "leased"
	switch {
	case b.Gate == "cancelled":
		return 0 // no window opens behind it, and the reaper allows no second attempt
	case status == "processing" && (b.Attempt == b.MaxAttempts || b.Late):
		return 0 // this call is the last, or the reaper allows no other after the send deadline
	case status == "processing" && (d.accepted || d.rejects(b.Attempt)):
		return 0 // the reaper settles by the evidence
	case status == "processing":
		return 1
	case b.Late && !leased:
		return 0 // it is not claimed any more
	case b.Late:
		return 1 // the worker may have checked the deadline before; the reaper allows no other
	case b.Attempt == 2 && !leased && (d.accepted || d.rejects(1)):
		return 0 // the next claim settles by the evidence; a current claim may have read before
	}
	return b.MaxAttempts - b.Attempt + 1
}

// summary is one sentence: the outcome, or what is waited for, and whether a second
// delivery is possible.
func summary(e Explanation, d *deliveries) string {
	n, reason := e.Notification, ""
	if n.Reason != nil {
		reason = " (" + *n.Reason + ")"
	}
	text := map[string]string{
		"sent":       "sent: the carrier accepted it on attempt " + strconv.Itoa(d.acceptedOn(n.Attempts)),
		"failed":     "not sent" + reason + ": the carrier did not accept it",
		"orphaned":   "unknown" + reason + ": it may have been sent, and is never sent again",
		"skipped":    "not sent" + reason,
		"cancelled":  "not sent: cancelled before it was called",
		"processing": "being called, or waiting for the answer",
		"pending":    "waiting to be called",
	}[n.Status]
	if e.Waiting != nil && e.Waiting.Detail != "" {
		text += ": " + e.Waiting.Detail
	}
	return text + "; " + secondDelivery(e)
}

func secondDelivery(e Explanation) string {
	switch {
	case e.DeliveriesAtLeast > 1:
		return "it was delivered twice"
	case e.DeliveriesAtMost > 1:
		return "it may have been delivered twice"
	case e.DeliveriesPossible > 1 && e.Notification.Status == "processing":
		return "a second delivery is possible, since it is called once more if no answer comes"
	case e.DeliveriesPossible > 1 && e.DeliveriesAtMost > 0:
		return "a second delivery is possible, since the outcome of the first call is unknown"
	case e.DeliveriesPossible > 1:
		return "a second delivery is possible only if the outcome of a call is unknown"
	case e.Waiting == nil:
		return "no second delivery was possible"
	default:
		return "no second delivery is possible"
	}
}

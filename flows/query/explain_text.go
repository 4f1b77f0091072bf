package query

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/webhooks"
)

// summary is the explanation in one sentence: the most important fact.
func (q *inquiry) summary() string {
	var last *Enrollment // that entered
	for i, e := range q.enrollments {
		if e.isActive() {
			return "The profile is enrolled: " + q.whereIs(e) + "."
		}
		if last == nil && e.Status != enrollment.Refused {
			last = &q.enrollments[i]
		}
	}
	refused := len(q.refusals) > 0 && (last == nil || q.refusals[0].At.After(last.EnrolledAt))
	switch {
	case last == nil && q.sameWasErased():
		return "The profile is not enrolled: a profile with this key was erased."
	case last != nil && refused:
		return fmt.Sprintf("The profile is not enrolled: its last enrollment %s, and the trigger of %s was refused as %s.", howEnded(*last),
			shownTime(q.refusals[0].At), because(q.refusals[0]))
	case last != nil:
		return fmt.Sprintf("The profile is not enrolled any more: its last enrollment %s.", howEnded(*last))
	case refused:
		return fmt.Sprintf("The profile is not enrolled: the trigger of %s was refused as %s.", shownTime(q.refusals[0].At),
			because(q.refusals[0]))
	case q.flow.Status == flows.Draft || q.version == nil:
		return "The profile is not enrolled: nothing of this flow was published yet."
	case q.flow.Status != flows.Live:
		return fmt.Sprintf("The profile is not enrolled: the flow is %s, and no trigger was recorded before.", q.flow.Status)
	case q.person != nil && q.person.Missing:
		return "The profile is not enrolled: it is not in the audience."
	}
	return "The profile is not enrolled: " + q.nothingCame() + "."
}

// nothingCame explains why no trigger was recorded.
func (q *inquiry) nothingCame() string {
	if e := q.lastTriggering(); e != nil {
		if q.version.PublishedAt != nil && e.ReceivedAt.Before(*q.version.PublishedAt) {
			return fmt.Sprintf("its last event %s came at %s, before version %d was published", e.Name, shownTime(e.ReceivedAt),
				q.version.Version)
		}
		return fmt.Sprintf("its event %s of %s led to no enrollment that is still known", e.Name, shownTime(e.ReceivedAt))
	}
	for _, v := range q.predictions {
		if v.trigger.Type == enrollment.FromAudience {
			return q.notSeen(v)
		}
	}
	if len(q.predictions) == 0 {
		return "the flow has no trigger, and no direct request enrolled the profile"
	}
	return "no event that triggers the flow was recorded of it"
}

// notSeen explains why no poll of the audience has found the profile.
func (q *inquiry) notSeen(v prediction) string {
	switch {
	case v.reason != "":
		return "the trigger on the audience would refuse it as " + v.reason
	case q.poll.fails():
		return "the audience cannot be polled (" + q.poll.LastError + ")"
	case q.unknown():
		return "whether it is in the audience is not known"
	}
	return "the audience was not polled since it is in it"
}

func because(r Refusal) string {
	if r.Detail == "" {
		return r.Reason
	}
	return r.Reason + " (" + r.Detail + ")"
}

func shownTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// isActive reports whether an enrollment has not ended.
func (e Enrollment) isActive() bool {
	return e.Status == enrollment.Active || e.Status == enrollment.Waiting
}

// whereIs describes where an active enrollment is.
func (q *inquiry) whereIs(e Enrollment) string {
	text := fmt.Sprintf("enrolled at %s in version %d, it is at the node %s", shownTime(e.EnrolledAt), e.Version, e.Node)
	if e.Node == "" {
		text = fmt.Sprintf("enrolled at %s in version %d, it has not entered yet", shownTime(e.EnrolledAt), e.Version)
	}
	text += endOfWait(e)
	call, isWebhook := q.calls[enrollment.NodeKey(e.ID, e.Node)]
	switch {
	case e.BlockedReason != "" && e.ResumeAt != nil:
		return text + fmt.Sprintf(" and is blocked by %s until %s", e.BlockedReason, shownTime(*e.ResumeAt))
	case e.Awaits != "":
		return text + fmt.Sprintf(" and waits for the event %s, until %s at the latest", e.Awaits, shownTime(*e.ResumeAt))
	case isWebhook:
		return text + "; " + howCalled(call)
	case e.Status == enrollment.Waiting && e.ResumeAt != nil:
		return text + " and waits until " + shownTime(*e.ResumeAt)
	case q.heldBack(e):
		return text + " and is due, and is released after the pause by " + shownTime(*q.flow.CatchUpUntil)
	}
	return text + " and is due"
}

// endOfWait describes how the wait for an event ended, for an enrollment that has not
// left its node: the flow is paused, or the enrollment is not processed yet.
func endOfWait(e Enrollment) string {
	switch {
	case e.Awaited == "" || e.Awaits != "" || e.DueAt == nil:
		return ""
	case e.Matched:
		return fmt.Sprintf(", where the event %s came at %s,", e.Awaited, shownTime(*e.DueAt))
	}
	return fmt.Sprintf(", where the wait for the event %s ended at %s,", e.Awaited, shownTime(*e.DueAt))
}

// heldBack reports whether an enrollment became due in a pause that is still being
// released.
func (q *inquiry) heldBack(e Enrollment) bool {
	f := q.flow
	return f.Status != flows.Paused && f.ResumedAt != nil && f.CatchUpUntil != nil && f.CatchUpUntil.After(q.at) && e.ResumeAt != nil &&
		!e.ResumeAt.After(*f.ResumedAt)
}

// howCalled describes the delivery of a webhook's message.
func howCalled(m webhooks.Delivery) string {
	last := fmt.Sprintf("last answered %d", m.StatusCode)
	if m.StatusCode == 0 {
		last = "the last ended as " + m.Reason
	}
	switch {
	case m.Status == webhooks.Delivered:
		return fmt.Sprintf("its message was delivered, with status %d", m.StatusCode)
	case m.Status == webhooks.Failed:
		return fmt.Sprintf("its message failed, called %s, %s", times(m.Attempts), last)
	case m.NextAt == nil:
		return fmt.Sprintf("its message is being called, %s by now", times(m.Attempts))
	case m.CalledAt == nil:
		return "its message is to be called at " + shownTime(*m.NextAt)
	}
	return fmt.Sprintf("its message was called %s, %s, next try at %s", times(m.Attempts), last, shownTime(*m.NextAt))
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func howEnded(e Enrollment) string {
	text := map[string]string{enrollment.Completed: "was completed", enrollment.Refused: "was refused when it entered"}[e.Status]
	if text == "" {
		text = "ended as " + e.Status
	}
	if e.EndedAt != nil {
		text += " at " + shownTime(*e.EndedAt)
	}
	if e.ExitReason != "" {
		text += " (" + e.ExitReason + ")"
	}
	return text
}

// facts go from the flow to the next trigger.
func (q *inquiry) facts() []string {
	facts := []string{q.aboutFlow()}
	if q.version == nil {
		return facts
	}
	facts = append(facts, q.aboutProfile())
	facts = append(facts, q.aboutTriggers()...)
	facts = append(facts, q.aboutEvents())
	facts = append(facts, q.aboutEnrollments()...)
	if len(q.refusals) > 0 {
		facts = append(facts, q.aboutRefusals())
	}
	return append(facts, q.aboutNow()...)
}

func (q *inquiry) aboutFlow() string {
	switch q.flow.Status {
	case flows.Draft:
		return "The flow is a draft: profiles can enroll after a version is published."
	case flows.Live:
		return fmt.Sprintf("The flow is live, with version %d.", *q.flow.LiveVersion)
	case flows.Paused:
		text := "The flow is paused: triggers are refused, and enrollments do not advance."
		if q.flow.StatusReason != "" {
			text = fmt.Sprintf("The flow is paused (%s): triggers are refused, and enrollments do not advance.", q.flow.StatusReason)
		}
		return text
	case flows.Draining:
		return "The flow is draining: triggers are refused, and active enrollments continue."
	}
	if q.flow.StatusReason != "" {
		return fmt.Sprintf("The flow is archived: triggers are refused, and its unsent messages were cancelled (%s).", q.flow.StatusReason)
	}
	return "The flow is archived: triggers are refused."
}

func (q *inquiry) aboutProfile() string {
	switch {
	case q.gone:
		return "Whether the profile was in the audience is not known: the audience was deleted."
	case q.sourceFails != "":
		return fmt.Sprintf("Whether the profile is in the audience is not known: it cannot be read (%s).", q.sourceFails)
	case q.person == nil:
		return "The version reads no profile, so it needs no audience."
	case q.person.Missing:
		return "The profile is not in the audience: there is no row with this key."
	}
	return "The profile is in the audience."
}

func (q *inquiry) aboutTriggers() (facts []string) {
	if len(q.predictions) == 0 {
		return []string{"The version has no trigger: profiles enroll only by direct request."}
	}
	for _, v := range q.predictions {
		text := fmt.Sprintf("The event %s enrolls", v.trigger.Event)
		if v.trigger.Type == enrollment.FromAudience {
			text = fmt.Sprintf("The audience is polled every %s, and its profiles enroll", v.trigger.Every)
		}
		if v.trigger.Condition != nil {
			text += ", if " + oneLine(v.trigger.Trigger.Condition)
		}
		facts = append(facts, text+".")
	}
	if q.poll != nil {
		facts = append(facts, q.poll.facts()...)
	}
	return facts
}

// fails reports whether the last poll of the audience failed.
func (p *AudiencePoll) fails() bool { return p != nil && p.Failures > 0 }

// facts describes the last polls and the next.
func (p *AudiencePoll) facts() (facts []string) {
	last := "No poll of the audience has completed yet."
	if p.LastAt != nil {
		last = fmt.Sprintf("The audience was last read at %s: %d rows, %d enrolled", shownTime(*p.LastAt), p.RowsRead, p.Enrolled)
		if len(p.Refused) > 0 {
			last += ", refused " + byReason(p.Refused)
		}
		last += "."
	}
	facts = append(facts, last)
	if p.fails() {
		polls := "poll"
		if p.Failures > 1 {
			polls = fmt.Sprintf("%d polls", p.Failures)
		}
		facts = append(facts, fmt.Sprintf("The last %s of the audience failed: %s.", polls, p.LastError))
	}
	if p.NextAt != nil {
		facts = append(facts, "The next poll of the audience is due at "+shownTime(*p.NextAt)+".")
	}
	return facts
}

// oneLine removes line breaks from an expression.
func oneLine(expression string) string { return strings.Join(strings.Fields(expression), " ") }

func (q *inquiry) aboutEvents() string {
	days := int(q.retention.Hours() / 24)
	names, e := q.triggerNames(), q.lastTriggering()
	if len(names) == 0 {
		return "No event enrolls into this version."
	}
	named := "named " + strings.Join(names, " or ")
	if e == nil {
		return fmt.Sprintf("No event %s is kept of the profile; events are kept for %d days.", named, days)
	}
	number := fmt.Sprintf("%d events %s are", len(q.triggering), named)
	switch {
	case len(q.triggering) >= explained:
		number = "At least " + number
	case len(q.triggering) == 1:
		number = "1 event " + named + " is"
	}
	return fmt.Sprintf("%s kept of the profile; the last, %s, happened at %s.", number, e.Name, shownTime(e.OccurredAt))
}

func (q *inquiry) aboutEnrollments() (facts []string) {
	switch {
	case len(q.enrollments) == 0 && q.sameWasErased():
		return []string{"A profile with this key was enrolled and has been erased."}
	case len(q.enrollments) == 0:
		return []string{"The profile was never enrolled in this flow."}
	}
	for _, e := range q.enrollments {
		if e.isActive() {
			facts = append(facts, "The profile is enrolled: "+q.whereIs(e)+".")
		} else {
			facts = append(facts, fmt.Sprintf("The enrollment of %s %s.", shownTime(e.EnrolledAt), howEnded(e)))
		}
	}
	return facts
}

func (q *inquiry) aboutRefusals() string {
	counts := map[string]int64{}
	for _, r := range q.refusals {
		counts[r.Reason]++
	}
	most := "Triggers of the profile were refused: "
	if len(q.refusals) == explained {
		most = fmt.Sprintf("Of the last %d refused triggers of the profile: ", explained)
	}
	return most + byReason(counts) + "; the last at " + shownTime(q.refusals[0].At) + "."
}

func byReason(counts map[string]int64) string {
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d as %s", counts[reason], reason))
	}
	return strings.Join(parts, ", ")
}

// sameWasErased reports whether the conflicting enrollment belongs to an erased
// profile: its key still counts for the recurrence.
func (q *inquiry) sameWasErased() bool {
	return q.same.enrollment != nil && q.same.enrollment.ProfileKey != q.key
}

package query

import (
	"fmt"
	"slices"
	"strings"

	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/graph"
)

// aboutNow explains the result that a trigger would have now.
func (q *inquiry) aboutNow() (facts []string) {
	switch q.flow.Status {
	case flows.Paused:
		return []string{"A trigger now would be refused as paused."}
	case flows.Live:
	default:
		return []string{"A trigger now would be refused as not_live."}
	}
	rule := q.graph.Definition()
	if rule.Recurrence.Policy == graph.Fields {
		for _, v := range q.predictions {
			facts = append(facts, q.predictFields(v)...)
		}
		return facts
	}
	if q.same.enrollment != nil {
		return []string{"A trigger now " + q.describeAlready(*q.same.enrollment)}
	}
	if q.blocksEnrollment() {
		return append(facts, "A trigger now"+alreadyActive)
	}
	for _, v := range q.predictions {
		facts = append(facts, q.predict(v, ""))
	}
	return facts
}

const alreadyActive = " would be refused as already_active: the version does not allow overlap."

// blocksEnrollment reports whether an active enrollment refuses another one.
func (q *inquiry) blocksEnrollment() bool {
	return q.graph.Definition().Overlap != "allow" && slices.ContainsFunc(q.enrollments, Enrollment.isActive)
}

func (q *inquiry) describeAlready(same Enrollment) string {
	which := shownTime(same.EnrolledAt)
	if same.ProfileKey != q.key {
		which = "an erased profile"
	}
	return fmt.Sprintf("would be refused as already_enrolled: by the recurrence %s it is the same as the enrollment of %s.",
		q.graph.Definition().Recurrence.Policy, which)
}

// predictFields is predict for a recurrence by fields: for an event like the last one
// of its name, and for one with other properties.
func (q *inquiry) predictFields(v prediction) []string {
	about, fields := "The event "+v.trigger.Event+" now", strings.Join(q.graph.Definition().Recurrence.Fields, ", ")
	last, same := about+", like its last one, ", q.sames[v.trigger.Event]
	switch {
	case v.event != nil && v.refusesAtOnce():
		return []string{q.predict(v, "")}
	case v.event != nil && same.missing != "":
		return []string{last + "would be refused as missing_field: " + same.missing + "."}
	case same.enrollment != nil && q.blocksEnrollment():
		return []string{last + q.describeAlready(*same.enrollment), about + " with other values of " + fields + alreadyActive}
	case same.enrollment != nil:
		return []string{last + q.describeAlready(*same.enrollment), q.predict(v, " with other values of "+fields)}
	case q.blocksEnrollment():
		return []string{about + alreadyActive}
	case v.event == nil && v.reason == "" && !v.undecidable(q):
		return []string{strings.TrimSuffix(q.predict(v, ""), ".") + ", if it has the properties " + fields + "."}
	case v.event != nil && !v.readsTrigger():
		return []string{q.predict(v, ", like its last one,")}
	}
	return []string{q.predict(v, "")}
}

func (v prediction) readsTrigger() bool {
	return v.trigger.Condition != nil && v.trigger.Condition.Uses().Trigger
}

// refusesAtOnce reports whether the condition refuses before the recurrence is
// checked: one on the profile is evaluated at the entry.
func (v prediction) refusesAtOnce() bool {
	return v.reason != "" && v.trigger.Condition != nil && !v.trigger.Condition.Uses().Profile && v.reason != enrollment.NoProfile
}

// predict explains the result of one trigger; others narrows it to events that differ
// from the last.
func (q *inquiry) predict(v prediction, others string) string {
	about := "The event " + v.trigger.Event + " now" + others
	switch {
	case v.trigger.Type == enrollment.FromAudience && q.poll.fails():
		about = "The next poll of the audience that succeeds"
	case v.trigger.Type == enrollment.FromAudience:
		about = "The next poll of the audience"
	case v.event != nil && v.readsTrigger() && others != "":
		about += ", otherwise like its last one,"
	case v.event != nil && v.readsTrigger():
		about += ", like its last one,"
	}
	switch {
	case v.reason != "":
		return fmt.Sprintf("%s would be refused as %s: %s.", about, v.reason, v.detail)
	case v.undecidable(q):
		return about + " would be decided by its condition, which cannot be evaluated without more data."
	case q.unknown():
		return about + " would enroll the profile, if it is in the audience."
	}
	return about + " would enroll the profile."
}

package flows

import (
	"fmt"
	"slices"
	"strings"

	"lemma/flows/graph"
)

// aboutNow says what would come of a trigger now.
func (q *inquiry) aboutNow() (facts []string) {
	switch q.flow.Status {
	case Paused:
		return []string{"A trigger now would be refused as paused."}
	case Live:
	default:
		return []string{"A trigger now would be refused as not_live."}
	}
	rule := q.graph.Definition()
	if rule.Recurrence.Policy == graph.Fields {
		for _, v := range q.verdicts {
			facts = append(facts, q.foretellFields(v)...)
		}
		return facts
	}
	if q.same.enrollment != nil {
		return []string{"A trigger now " + q.sayAlready(*q.same.enrollment)}
	}
	if q.standsInTheWay() {
		return append(facts, "A trigger now"+alreadyOnTheWay)
	}
	for _, v := range q.verdicts {
		facts = append(facts, q.foretell(v, ""))
	}
	return facts
}

const alreadyOnTheWay = " would be refused as already_active: the version does not allow overlap."

// standsInTheWay says whether the profile is on its way, which is in the way of
// another journey.
func (q *inquiry) standsInTheWay() bool {
	return q.graph.Definition().Overlap != "allow" && slices.ContainsFunc(q.enrollments, Enrollment.onTheWay)
}

func (q *inquiry) sayAlready(same Enrollment) string {
	which := spokenTime(same.EnrolledAt)
	if same.ProfileKey != q.key {
		which = "somebody who was erased"
	}
	return fmt.Sprintf("would be refused as already_enrolled: by the recurrence %s it is the same as the enrollment of %s.", q.graph.Definition().Recurrence.Policy, which)
}

// foretellFields is foretell where the recurrence goes by properties: of an
// event like the last one of its name, and of one with other properties.
func (q *inquiry) foretellFields(v verdict) []string {
	about, fields := "The event "+v.trigger.Event+" now", strings.Join(q.graph.Definition().Recurrence.Fields, ", ")
	last, same := about+", like its last one, ", q.sames[v.trigger.Event]
	switch {
	case v.event != nil && v.refusesAtOnce():
		return []string{q.foretell(v, "")}
	case v.event != nil && same.missing != "":
		return []string{last + "would be refused as missing_field: " + same.missing + "."}
	case same.enrollment != nil && q.standsInTheWay():
		return []string{last + q.sayAlready(*same.enrollment), about + " with other values of " + fields + alreadyOnTheWay}
	case same.enrollment != nil:
		return []string{last + q.sayAlready(*same.enrollment), q.foretell(v, " with other values of "+fields)}
	case q.standsInTheWay():
		return []string{about + alreadyOnTheWay}
	case v.event == nil && v.reason == "" && !v.undecidable(q):
		return []string{strings.TrimSuffix(q.foretell(v, ""), ".") + ", if it has the properties " + fields + "."}
	case v.event != nil && !v.readsTrigger():
		return []string{q.foretell(v, ", like its last one,")}
	}
	return []string{q.foretell(v, "")}
}

func (v verdict) readsTrigger() bool {
	return v.trigger.Condition != nil && v.trigger.Condition.Uses().Trigger
}

// refusesAtOnce says whether the condition refuses before the recurrence is
// asked: one on the profile is asked when the enrollment enters.
func (v verdict) refusesAtOnce() bool {
	return v.reason != "" && v.trigger.Condition != nil && !v.trigger.Condition.Uses().Profile && v.reason != NoProfile
}

// foretell says what one trigger would do; others narrows it down to events
// that are not the same as the last.
func (q *inquiry) foretell(v verdict, others string) string {
	about := "The event " + v.trigger.Event + " now" + others
	switch {
	case v.trigger.Type == fromAudience && q.poll.fails():
		about = "The next look at the audience that can read it"
	case v.trigger.Type == fromAudience:
		about = "The next look at the audience"
	case v.event != nil && v.readsTrigger() && others != "":
		about += ", otherwise like its last one,"
	case v.event != nil && v.readsTrigger():
		about += ", like its last one,"
	}
	switch {
	case v.reason != "":
		return fmt.Sprintf("%s would be refused as %s: %s.", about, v.reason, v.detail)
	case v.undecidable(q):
		return about + " would be decided by its condition, which cannot be asked without more data."
	case q.unknown():
		return about + " would enroll the profile, if it is in the audience."
	}
	return about + " would enroll the profile."
}

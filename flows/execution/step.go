package execution

import (
	"encoding/json"
	"fmt"
	"time"

	"lemma/flows/enrollment"
	"lemma/flows/graph"
)

// execute advances an execution until it ends, waits, needs a fact, has taken that long, or
// has messages of that many bytes. It executes at least one node. It decides and writes
// nothing: the same facts give the same steps, however often it runs.
func (t *Execution) execute(most time.Duration, bytes int) need {
	if t.Graph == nil {
		t.Block("version_unreadable", unreadableFor)
	}
	begun := time.Now()
	for nodes := 0; t.Status == enrollment.Active && t.Until.IsZero(); nodes++ {
		if nodes > 0 && time.Since(begun) > most {
			return needTime
		}
		if nodes > 0 && t.messages() > bytes {
			return needMemory
		}
		if n := t.executeNode(); n != nothing {
			return n
		}
	}
	return nothing
}

// unreadableFor is how long enrollments in a version that cannot be read are blocked:
// another release of Lemma may read it.
const unreadableFor = time.Minute

func (t *Execution) executeNode() need {
	if t.NodeID == "" {
		return t.enter()
	}
	if t.Definition().ExitWhenNotInAudience {
		if t.profile == nil {
			return needProfile
		}
		if t.profile.Missing {
			t.end(enrollment.Exited, enrollment.ExitLeft, nil)
			return nothing
		}
	}
	node, ok := t.Node(t.NodeID)
	if !ok { // unreachable by the guards; the history shows it if it happens
		t.end(enrollment.Exited, enrollment.ExitReplaced, map[string]any{"missing_node": t.NodeID})
		return nothing
	}
	switch node.Type {
	case graph.Send:
		return t.send(node)
	case graph.Delay:
		return t.delay(node)
	case graph.WaitUntil:
		return t.waitUntil(node)
	case graph.WaitForEvent:
		return t.waitForEvent(node)
	case graph.Branch:
		return t.branch(node)
	case graph.Split:
		arm := node.Arm(t.ProfileKey)
		t.leaveBy(node.Arms[arm].Next, enrollment.StepSplit, "arm", arm, "name", node.Arms[arm].Name)
	case graph.Webhook:
		return t.webhook(node)
	case graph.Exit:
		reason, status := "", enrollment.Completed
		if node.Goal {
			reason = enrollment.ExitGoal
		}
		t.end(status, reason, map[string]any{"goal": node.Goal})
	}
	return nothing
}

// MaxLookups is how often a profile that is not in the audience is looked up before the
// trigger is refused: an event may arrive before the row.
const MaxLookups = 3

// repollDelays are the delays between these lookups.
var repollDelays = [...]time.Duration{2 * time.Second, 15 * time.Second}

// enter checks the profile before the first node, and refuses it if the trigger's
// condition on the profile is false.
func (t *Execution) enter() need {
	if t.audience != [16]byte{} {
		if t.profile == nil {
			return needProfile
		}
		if t.profile.Missing {
			if n := t.FailuresBy(enrollment.NoProfile); n+1 < MaxLookups && t.Source == enrollment.FromEvent {
				t.Block(enrollment.NoProfile, repollDelays[n])
				return nothing
			}
			t.refuse(enrollment.NoProfile, "the profile is not in the audience")
			return nothing
		}
	}
	for _, c := range t.Triggers() {
		if !t.undecided(c) {
			continue
		}
		if t.trigger == nil {
			return needTrigger
		}
		if name, _ := t.trigger.value()["name"].(string); c.Event != name {
			continue
		}
		if ok, err := t.evaluate(c.Condition, t.vars(nil)); err != nil {
			t.refuse(enrollment.ConditionError, err.Error())
			return nothing
		} else if !ok {
			t.refuse(enrollment.Filtered, "the trigger's condition is false")
			return nothing
		}
	}
	t.leave(t.Start(), enrollment.StepChecked)
	return nothing
}

// undecided reports whether a trigger's condition is evaluated at the entry: conditions of
// events on the profile are; a direct request has none.
func (t *Execution) undecided(c graph.CompiledTrigger) bool {
	return c.Condition != nil && c.Type == t.Source && (t.Source == enrollment.FromAudience || c.Condition.Uses().Profile)
}

// vars are the facts that were read, of the past events those that are named.
func (t *Execution) vars(events []string) graph.Vars {
	v := graph.Vars{Trigger: t.trigger.value(), Event: t.matchedData.value(), Events: map[string]any{}, Now: t.Now}
	for _, name := range events {
		v.Events[name] = t.events[name].read()
	}
	if t.profile != nil {
		v.Profile = t.profile.Columns()
	}
	return v
}

// leave moves to another node: one step.
func (t *Execution) leave(to, event string, data ...any) {
	text := ""
	if len(data) > 0 {
		text = enrollment.StepData(data...)
	}
	t.logStep(event, text)
	t.NodeID = to
	t.clearWait()
}

// leaveBy moves where there are several paths: the path is counted too.
func (t *Execution) leaveBy(to, event string, data ...any) {
	t.leave(to, event, data...)
	t.Log[len(t.Log)-1].Next = to
}

func (t *Execution) logStep(event, data string) {
	t.Step++
	t.Log = append(t.Log, Logged{Step: t.Step, NodeID: t.NodeID, Event: event, Data: data})
}

func (t *Execution) clearWait() {
	t.Since, t.WaitsFor, t.waitingSince, t.awaits, t.MatchedEvent, t.matchedData, t.checked, t.answer = nil, "", nil, "", nil, nil, false, nil
	t.AnswerStep = 0
	t.Failures, t.Blocked = 0, ""
}

// end is the last step.
func (t *Execution) end(status, reason string, data map[string]any) {
	if reason != "" {
		if data == nil {
			data = map[string]any{}
		}
		data["reason"] = reason
	}
	text := ""
	if len(data) > 0 {
		raw, _ := json.Marshal(data)
		text = string(raw)
	}
	t.Status, t.Reason = status, reason
	t.logStep(status, text)
	t.Log[len(t.Log)-1].Next = reason
	t.clearWait()
}

// refuse ends an enrollment that has not entered yet.
func (t *Execution) refuse(reason, detail string) {
	t.Detail = detail
	t.end(enrollment.Refused, reason, map[string]any{"detail": detail})
}

// wait keeps the enrollment on the node until a time.
func (t *Execution) wait(until time.Time) {
	since := t.Now
	t.Since, t.Until = &since, until
}

// waitFor waits for an event as well, and for those since it arrived: the result must not
// depend on how late a worker is. The time may be over already: see FindMissedEvents.
func (t *Execution) waitFor(until time.Time, event string) {
	since := t.Arrived
	t.Since, t.Until, t.WaitsFor = &since, until, event
}

// reached is when the time of a wait begins: when the node was reached, however late a
// worker is. It is later if something else kept the enrollment from it (see delayedUntil),
// and not before a message was written, since nothing could answer that before.
func (t *Execution) reached() time.Time {
	if t.delayed.After(t.Arrived) {
		return t.delayed
	}
	return t.Arrived
}

// FirstDue is when an execution that is due again first became due, as its next chunk reads
// it; false if that is Until. After an event it is when the next wait begins at the earliest.
func (t *Execution) FirstDue() (at time.Time, is bool) {
	if t.MatchedEvent != nil {
		return t.reached(), true
	}
	return t.Arrived, t.Blocked != "" || t.Overdue
}

// Block sets a blocked reason, retries later and changes nothing else.
func (t *Execution) Block(reason string, after time.Duration) {
	t.postpone(reason, after)
	t.Failures++
}

// postpone is Block for what is no failure: later delays are no longer for it.
func (t *Execution) postpone(reason string, after time.Duration) {
	t.Until, t.Blocked, t.Failures = t.Now.Add(after), reason, t.FailuresBy(reason)
	t.Since, t.WaitsFor = t.waitingSince, t.awaits
}

// FailuresBy is how many tries in a row were blocked by a reason. Lookups that found no
// profile are counted apart from failures: a source that does not answer uses up no
// lookup.
func (t *Execution) FailuresBy(blocked string) int {
	if (blocked == enrollment.NoProfile) != (t.Read.blocked == enrollment.NoProfile) {
		return 0
	}
	return t.Failures
}

// waited reports whether the node's wait is over: only enrollments that are due are executed.
func (t *Execution) waited() bool { return t.waitingSince != nil }

func (t *Execution) delay(node *graph.Compiled) need {
	if t.waited() {
		t.leave(node.Next, enrollment.StepResumed, "since", t.waitingSince.UTC())
	} else {
		t.wait(t.Now.Add(node.For))
	}
	return nothing
}

func (t *Execution) waitUntil(node *graph.Compiled) need {
	if t.waited() {
		t.leave(node.Next, enrollment.StepResumed, "since", t.waitingSince.UTC())
		return nothing
	}
	var columns map[string]any
	if node.DateColumn != "" || node.ZoneColumn != "" {
		if t.profile == nil {
			return needProfile
		}
		columns = t.profile.Columns()
	}
	if zone, unknown := node.UnknownZone(columns); unknown { // the value itself is not stored
		t.logStep(enrollment.StepZone, enrollment.StepData("column", node.ZoneColumn, "zone", zone))
	}
	until, err := node.Until(t.Now, columns)
	switch {
	case err != nil:
		to := node.OnMissing
		if to == "" {
			to = node.Next
		}
		t.leave(to, enrollment.StepResumed, "error", err.Error())
	case !until.After(t.Now):
		t.leave(node.Next, enrollment.StepResumed, "until", until.UTC())
	default:
		t.wait(until)
	}
	return nothing
}

// waitForEvent ends with the event, or with the timeout after a last check of the recorded
// events: an event in time is never missed.
func (t *Execution) waitForEvent(node *graph.Compiled) need {
	switch {
	case !t.waited() && t.trigger == nil && node.Condition != nil && node.Condition.Uses().Trigger:
		return needTrigger
	case !t.waited():
		t.waitFor(t.reached().Add(node.Timeout), node.Event)
	case t.matchedData == nil && !t.checked && t.trigger == nil && node.Condition != nil && node.Condition.Uses().Trigger:
		return needTrigger
	case t.matchedData == nil && !t.checked:
		return needMatchedEvent
	case t.matchedData != nil:
		t.leave(node.Next, enrollment.StepResumed, "event", t.matchedData.value(), "since", t.waitingSince.UTC())
	default:
		to := node.OnTimeout
		if to == "" {
			to = node.Next
		}
		t.leave(to, enrollment.StepTimedOut, "since", t.waitingSince.UTC())
	}
	return nothing
}

// branch follows the path of the first case that is true. A case that cannot be evaluated
// is false, and the step records it.
func (t *Execution) branch(node *graph.Compiled) need {
	var faults []string
	seen, bytes := map[string]any{}, 0
	for i, c := range node.Cases {
		if c.Cond == nil {
			is, known := t.matched[caseKey(node.ID, i)]
			if !known {
				return needMatch
			}
			if is {
				t.branchTo(c.Next, i, seen, faults)
				return nothing
			}
			continue
		}
		if n := t.factsFor(c.Cond.Uses()); n != nothing {
			return n
		}
		events := c.Cond.Uses().Events
		for _, name := range events {
			if seen[name] == nil {
				seen[name] = t.events[name].stored(&bytes)
			}
		}
		is, err := t.evaluate(c.Cond, t.vars(events))
		if err != nil {
			faults = append(faults, fmt.Sprintf("case %d: %s", i, err))
		} else if is {
			t.branchTo(c.Next, i, seen, faults)
			return nothing
		}
	}
	t.branchTo(node.Else, "else", seen, faults)
	return nothing
}

// branchTo records what decided the branch: the case, and the events that it and the cases
// before it read. The profile's columns are not stored.
func (t *Execution) branchTo(to string, decided any, seen map[string]any, faults []string) {
	data := []any{"case", decided, "next", to}
	if len(seen) > 0 {
		data = append(data, "events", seen)
	}
	if len(faults) > 0 {
		data = append(data, "errors", faults)
	}
	t.leaveBy(to, enrollment.StepBranched, data...)
}

func caseKey(node string, i int) string { return fmt.Sprintf("%s#%d", node, i) }

// factsFor is a fact that a condition needs and that is not read yet.
func (t *Execution) factsFor(u graph.Uses) need {
	switch {
	case u.Profile && t.profile == nil && t.audience != [16]byte{}:
		return needProfile
	case u.Trigger && t.trigger == nil:
		return needTrigger
	case len(u.Events) > 0 && t.events == nil:
		return needEvents
	}
	return nothing
}

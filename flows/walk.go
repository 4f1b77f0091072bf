package flows

import (
	"encoding/json"
	"fmt"
	"time"

	"lemma/flows/graph"
)

// walk takes a traveller as far as it gets: to its end, to a wait, or to a
// question that only the outside can answer. It decides and writes nothing; the
// same facts lead the same way, whoever asks and how often.
func (t *traveller) walk() need {
	if t.Graph == nil {
		t.postpone("version_unreadable", unreadableFor)
	}
	for t.status == Active && t.until.IsZero() {
		if n := t.next(); n != nothing {
			return n
		}
	}
	return nothing
}

// unreadableFor is how long people of a version that cannot be read are left:
// another release of the program may read it.
const unreadableFor = time.Minute

func (t *traveller) next() need {
	if t.node == "" {
		return t.enter()
	}
	if t.Definition().ExitWhenNotInAudience {
		if t.profile == nil {
			return needProfile
		}
		if t.profile.missing {
			t.end(Exited, ExitLeft, nil)
			return nothing
		}
	}
	node, ok := t.Node(t.node)
	if !ok { // no guard of ours lets anybody come here; the history says so if one did
		t.end(Exited, ExitReplaced, map[string]any{"missing_node": t.node})
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
		arm := node.Arm(t.key)
		t.leaveBy(node.Arms[arm].Next, stepSplit, "arm", arm, "name", node.Arms[arm].Name)
	case graph.Webhook:
		return t.webhook(node)
	case graph.Exit:
		reason, status := "", Completed
		if node.Goal {
			reason = ExitGoal
		}
		t.end(status, reason, map[string]any{"goal": node.Goal})
	}
	return nothing
}

// looks is how often a profile that is not in the audience is looked for
// before the trigger is refused: an event may be faster than the row.
const looks = 3

// lookAgain is how long from one look to the next.
var lookAgain = [...]time.Duration{2 * time.Second, 15 * time.Second}

// enter looks at the profile before the first node, and refuses whom the
// trigger's condition on the profile does not let in.
func (t *traveller) enter() need {
	if t.audience != [16]byte{} {
		if t.profile == nil {
			return needProfile
		}
		if t.profile.missing {
			if t.failures+1 < looks && t.source == fromEvent {
				t.postpone("no_profile", lookAgain[t.failures])
				return nothing
			}
			t.refuse(NoProfile, "the profile is not in the audience")
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
		if name, _ := t.trigger["name"].(string); c.Event != name {
			continue
		}
		if ok, err := c.Condition.Eval(t.vars()); err != nil {
			t.refuse(ConditionError, err.Error())
			return nothing
		} else if !ok {
			t.refuse(Filtered, "the trigger's condition is false")
			return nothing
		}
	}
	t.leave(t.Start(), stepChecked)
	return nothing
}

// undecided says whether a trigger's condition is left to the entry: of events
// those on the profile are; who asks directly is not asked back.
func (t *traveller) undecided(c graph.CompiledTrigger) bool {
	return c.Condition != nil && c.Type == t.source && (t.source == fromAudience || c.Condition.Uses().Profile)
}

func (t *traveller) vars() graph.Vars {
	v := graph.Vars{Trigger: t.trigger, Events: t.events, Event: t.heardData, Now: t.now}
	if t.profile != nil {
		v.Profile = t.profile.columns()
	}
	return v
}

// leave moves on to another node: one step.
func (t *traveller) leave(to, event string, data ...any) {
	text := ""
	if len(data) > 0 {
		text = object(data...)
	}
	t.note(event, text)
	t.node = to
	t.clearWait()
}

// leaveBy moves on where there are several ways: which one is counted too.
func (t *traveller) leaveBy(to, event string, data ...any) {
	t.leave(to, event, data...)
	t.log[len(t.log)-1].way = to
}

func (t *traveller) note(event, data string) {
	t.step++
	t.log = append(t.log, logged{step: t.step, node: t.node, event: event, data: data})
}

func (t *traveller) clearWait() {
	t.since, t.waitsFor, t.waitingSince, t.awaits, t.heard, t.heardData, t.looked, t.answer = nil, "", nil, "", nil, nil, false, nil
	t.answerStep = 0
	t.failures, t.trouble = 0, ""
}

// end is the last step.
func (t *traveller) end(status, reason string, data map[string]any) {
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
	t.status, t.reason = status, reason
	t.note(status, text)
	t.clearWait()
}

// refuse takes an enrollment back that has not entered yet.
func (t *traveller) refuse(reason, detail string) {
	t.detail = detail
	t.end(statusRefused, reason, map[string]any{"detail": detail})
}

// wait stays at the node until a time.
func (t *traveller) wait(until time.Time) {
	since := t.now
	t.since, t.until = &since, until
}

// waitFor waits for an event as well, and for those that came since it arrived:
// how late a worker gets to it must not decide what counts. The time may be
// over by now: see lookOnce.
func (t *traveller) waitFor(until time.Time, event string) {
	since := t.arrived
	t.since, t.until, t.waitsFor = &since, until, event
}

// reached is when the time of a wait begins: when the node was reached, however
// late a worker is, or when the letter before it was written, which nobody could
// answer before.
func (t *traveller) reached() time.Time {
	if t.wrote {
		return t.now
	}
	return t.arrived
}

// postpone tries again later: nothing has happened but time.
func (t *traveller) postpone(trouble string, after time.Duration) {
	t.until, t.trouble, t.failures = t.now.Add(after), trouble, t.failures+1
	t.since, t.waitsFor = t.waitingSince, t.awaits
}

// waited says whether the node's wait has begun, and so is over: only who is
// due, by the database's clock, is walked.
func (t *traveller) waited() bool { return t.waitingSince != nil }

func (t *traveller) delay(node *graph.Compiled) need {
	if t.waited() {
		t.leave(node.Next, stepResumed, "since", t.waitingSince.UTC())
	} else {
		t.wait(t.now.Add(node.For))
	}
	return nothing
}

func (t *traveller) waitUntil(node *graph.Compiled) need {
	if t.waited() {
		t.leave(node.Next, stepResumed, "since", t.waitingSince.UTC())
		return nothing
	}
	var columns map[string]any
	if node.DateColumn != "" || node.ZoneColumn != "" {
		if t.profile == nil {
			return needProfile
		}
		columns = t.profile.columns()
	}
	if zone, unknown := node.UnknownZone(columns); unknown { // the value itself stays at the customer's
		t.note(stepZone, object("column", node.ZoneColumn, "zone", zone))
	}
	until, err := node.Until(t.now, columns)
	switch {
	case err != nil:
		to := node.OnMissing
		if to == "" {
			to = node.Next
		}
		t.leave(to, stepResumed, "error", err.Error())
	case !until.After(t.now):
		t.leave(node.Next, stepResumed, "until", until.UTC())
	default:
		t.wait(until)
	}
	return nothing
}

// waitForEvent ends with the event, or when its time is over and a last look
// at what was recorded finds none: an event that came in time is never missed.
func (t *traveller) waitForEvent(node *graph.Compiled) need {
	switch {
	case !t.waited() && t.trigger == nil && node.Condition != nil && node.Condition.Uses().Trigger:
		return needTrigger
	case !t.waited():
		t.waitFor(t.reached().Add(node.Timeout), node.Event)
	case t.heardData == nil && !t.looked && t.trigger == nil && node.Condition != nil && node.Condition.Uses().Trigger:
		return needTrigger
	case t.heardData == nil && !t.looked:
		return needHeard
	case t.heardData != nil:
		t.leave(node.Next, stepResumed, "event", t.heardData, "since", t.waitingSince.UTC())
	default:
		to := node.OnTimeout
		if to == "" {
			to = node.Next
		}
		t.leave(to, stepTimedOut, "since", t.waitingSince.UTC())
	}
	return nothing
}

// branch goes the way of the first case that is true. What cannot be decided
// is false, and the history says so.
func (t *traveller) branch(node *graph.Compiled) need {
	var faults []string
	seen := map[string]any{}
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
		for _, name := range c.Cond.Uses().Events {
			seen[name] = t.events[name]
		}
		is, err := c.Cond.Eval(t.vars())
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

// branchTo says what decided the branch: the case, and the events that it and
// those before it looked at. The profile's columns stay where they are, at the
// customer's.
func (t *traveller) branchTo(to string, decided any, seen map[string]any, faults []string) {
	data := []any{"case", decided, "next", to}
	if len(seen) > 0 {
		data = append(data, "events", seen)
	}
	if len(faults) > 0 {
		data = append(data, "errors", faults)
	}
	t.leaveBy(to, stepBranched, data...)
}

func caseKey(node string, i int) string { return fmt.Sprintf("%s#%d", node, i) }

// factsFor tells what a condition needs that is not known yet.
func (t *traveller) factsFor(u graph.Uses) need {
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

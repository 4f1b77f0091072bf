package graph

import (
	"slices"
	"time"
)

// Actions on enrollments that are active in other versions.
const (
	Stays    = "stay"
	Moves    = "move"
	Exits    = "exit"
	Stranded = "stranded"
)

// What a move does to a wait.
const (
	TimerKept      = "kept"
	TimerShifted   = "shifted"
	TimerRestarted = "restarted"
)

// Action is what a publish does to enrollments on a node of another version. Plan shows it
// and the move carries it out; nothing else decides it.
type Action struct {
	Kind          string
	Node          string // move: the target node
	Timer         string // move: what happens to the wait, if there is one
	Shift         time.Duration
	RegisterAgain bool // it waits for a webhook's answer, which names the old step: the wait has to be registered again
}

// ActionFor maps a node of one version to another version. An enrollment that has not
// entered the first node has not entered it there either. A node that both versions have
// maps to itself unless nodes has another target; a node that is gone needs a target.
func ActionFor(from *Definition, node string, to *Definition, nodes map[string]*string) Action {
	if node == "" {
		return Action{Kind: Moves, Timer: TimerKept}
	}
	target, mapped := nodes[node]
	if mapped && target == nil {
		return Action{Kind: Exits}
	}
	there := node
	if mapped {
		there = *target
	}
	next, ok := to.Nodes[there]
	if !ok {
		return Action{Kind: Stranded}
	}
	f := Action{Kind: Moves, Node: there, Timer: TimerRestarted}
	if there == node { // another node is another wait
		f.Timer, f.Shift = timerOf(from.Nodes[node], next)
		f.RegisterAgain = f.Timer == TimerKept && next.Type == Webhook
	}
	return f
}

// waits are the types of nodes on which time passes.
var waits = []string{Delay, WaitUntil, WaitForEvent, Webhook}

// timerOf compares a node's wait in two versions. An unchanged wait continues; one that
// only got longer or shorter is shifted; any other begins again.
func timerOf(was, is Node) (timer string, shift time.Duration) {
	if was.Type != is.Type || !slices.Contains(waits, was.Type) {
		return TimerRestarted, 0
	}
	same := false
	switch is.Type {
	case Delay:
		same, shift = true, longer(was.For, is.For)
	case WaitForEvent:
		same, shift = was.Event == is.Event && was.Condition == is.Condition, longer(was.Timeout, is.Timeout)
	case WaitUntil:
		same = was.Time == is.Time && was.DateColumn == is.DateColumn && was.Offset == is.Offset && was.Zone == is.Zone &&
			was.ZoneColumn == is.ZoneColumn && slices.Equal(slices.Sorted(slices.Values(was.Weekdays)),
			slices.Sorted(slices.Values(is.Weekdays)))
	case Webhook: // its message is in flight, and is not written a second time
		same = true
	}
	switch {
	case !same:
		return TimerRestarted, 0
	case shift != 0:
		return TimerShifted, shift
	}
	return TimerKept, 0
}

func longer(was, is string) time.Duration {
	before, errBefore := ParseDuration(was)
	after, errAfter := ParseDuration(is)
	if errBefore != nil || errAfter != nil {
		return 0 // published versions have durations
	}
	return after - before
}

// Reachable are the nodes of a version that enrollments on one of the current nodes may
// still reach, with those nodes themselves. The empty node is before the start.
func Reachable(d *Definition, current []string) map[string]bool {
	seen := map[string]bool{}
	next := slices.Clone(current)
	for len(next) > 0 {
		id := next[len(next)-1]
		next = next[:len(next)-1]
		if seen[id] {
			continue
		}
		seen[id] = true
		if id == "" {
			next = append(next, d.Start)
		} else {
			next = append(next, Successors(id, d.Nodes[id])...)
		}
	}
	return seen
}

// Reaching is the nodes from which one of some can be reached, these included; "" is the entry.
func Reaching(d *Definition, some []string) map[string]bool {
	seen := map[string]bool{}
	if len(some) == 0 {
		return seen
	}
	before := map[string][]string{d.Start: {""}}
	for id, n := range d.Nodes {
		for _, next := range Successors(id, n) {
			before[next] = append(before[next], id)
		}
	}
	for left := slices.Clone(some); len(left) > 0; {
		id := left[len(left)-1]
		if left = left[:len(left)-1]; !seen[id] {
			seen[id] = true
			left = append(left, before[id]...)
		}
	}
	return seen
}

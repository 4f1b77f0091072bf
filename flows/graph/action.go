package graph

import (
	"slices"
	"time"
)

// Outcomes of those that are active in other versions.
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

// Action is what becomes of whoever stands on a node of a version. Plan tells it
// and a move makes it so: there is no second place that decides it.
type Action struct {
	Kind     string
	Node     string // moves: where to
	Timer    string // moves: what becomes of the wait, should there be one
	Shift    time.Duration
	AskAgain bool // it waits for a webhook's answer, which wakes for the step that it was: it has to be asked for again
}

// ActionFor follows a node of one version into another. Who has yet to enter the
// first node has yet to enter it there. A node that both have is itself unless
// the map says otherwise; one that is gone needs the map.
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
		f.AskAgain = f.Timer == TimerKept && next.Type == Webhook
	}
	return f
}

// waits are the types of nodes that somebody stands on while time passes.
var waits = []string{Delay, WaitUntil, WaitForEvent, Webhook}

// timerOf compares a node's wait in two versions. One that is as it was goes on
// as if nothing had happened; one that only got longer or shorter began when it
// began; any other begins anew.
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

// Reachable are the nodes of a version that whoever stands on one of them may
// still come to, with those themselves. The empty node is before the start.
func Reachable(d *Definition, standing []string) map[string]bool {
	seen := map[string]bool{}
	next := slices.Clone(standing)
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

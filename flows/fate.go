package flows

import (
	"slices"
	"time"

	"lemma"
	"lemma/flows/graph"
)

// Modes of InFlight.
const (
	inFlightStay = "stay"
	inFlightMove = "move"
	inFlightExit = "exit"
)

// Fates of those who are on their way in other versions.
const (
	fateStays    = "stays"
	fateMoves    = "moves"
	fateExits    = "exits"
	fateStranded = "stranded"
)

// What a move does to a wait.
const (
	timerKept      = "kept"
	timerShifted   = "shifted"
	timerRestarted = "restarted"
)

// fate is what becomes of whoever stands on a node of a version. Plan tells it
// and a move makes it so: there is no second place that decides it.
type fate struct {
	kind  string
	node  string // moves: where to
	timer string // moves: what becomes of the wait, should there be one
	shift time.Duration
	ask   bool // it waits for a webhook's answer, which rings for the step that it was: it has to be asked for again
}

// fateOf follows a node of one version into another. Who has yet to enter the
// first node has yet to enter it there. A node that both have is itself unless
// the map says otherwise; one that is gone needs the map.
func fateOf(from *graph.Definition, node string, to *graph.Definition, nodes map[string]*string) fate {
	if node == "" {
		return fate{kind: fateMoves, timer: timerKept}
	}
	target, mapped := nodes[node]
	if mapped && target == nil {
		return fate{kind: fateExits}
	}
	there := node
	if mapped {
		there = *target
	}
	next, ok := to.Nodes[there]
	if !ok {
		return fate{kind: fateStranded}
	}
	f := fate{kind: fateMoves, node: there, timer: timerRestarted}
	if there == node { // another node is another wait
		f.timer, f.shift = timerOf(from.Nodes[node], next)
		f.ask = f.timer == timerKept && next.Type == graph.Webhook
	}
	return f
}

// waits are the types of nodes that somebody stands on while time passes.
var waits = []string{graph.Delay, graph.WaitUntil, graph.WaitForEvent, graph.Webhook}

// timerOf compares a node's wait in two versions. One that is as it was goes on
// as if nothing had happened; one that only got longer or shorter began when it
// began; any other begins anew.
func timerOf(was, is graph.Node) (timer string, shift time.Duration) {
	if was.Type != is.Type || !slices.Contains(waits, was.Type) {
		return timerRestarted, 0
	}
	same := false
	switch is.Type {
	case graph.Delay:
		same, shift = true, longer(was.For, is.For)
	case graph.WaitForEvent:
		same, shift = was.Event == is.Event && was.Condition == is.Condition, longer(was.Timeout, is.Timeout)
	case graph.WaitUntil:
		same = was.Time == is.Time && was.DateColumn == is.DateColumn && was.Offset == is.Offset && was.Zone == is.Zone &&
			was.ZoneColumn == is.ZoneColumn && slices.Equal(slices.Sorted(slices.Values(was.Weekdays)), slices.Sorted(slices.Values(is.Weekdays)))
	case graph.Webhook: // its message is on its way, and is not written a second time
		same = true
	}
	switch {
	case !same:
		return timerRestarted, 0
	case shift != 0:
		return timerShifted, shift
	}
	return timerKept, 0
}

func longer(was, is string) time.Duration {
	before, errBefore := graph.ParseDuration(was)
	after, errAfter := graph.ParseDuration(is)
	if errBefore != nil || errAfter != nil {
		return 0 // published versions have durations
	}
	return after - before
}

// check refuses what no flow could do. The empty mode is stay.
func (in InFlight) check() error {
	switch in.Mode {
	case "", inFlightStay, inFlightExit:
		if len(in.Map) > 0 {
			return lemma.Fault("/in_flight/map", "not_allowed", "a map goes with the mode move")
		}
		return nil
	case inFlightMove:
	default:
		return lemma.Fault("/in_flight/mode", "invalid", "the mode is stay, move or exit")
	}
	if _, ok := in.Map[""]; ok {
		return lemma.Fault("/in_flight/map/", "unknown_node", "who has yet to enter is moved as it is: the map is of nodes")
	}
	return nil
}

// mode is what it says, or stay.
func (in InFlight) mode() string {
	if in.Mode == "" {
		return inFlightStay
	}
	return in.Mode
}

// reachable are the nodes of a version that whoever stands on one of them may
// still come to, with those themselves. The empty node is before the start.
func reachable(d *graph.Definition, standing []string) map[string]bool {
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
			next = append(next, graph.Successors(id, d.Nodes[id])...)
		}
	}
	return seen
}

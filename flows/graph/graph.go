package graph

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"lemma"
)

// Facts are what the outside knows when a definition is checked.
type Facts struct {
	Columns []Column // of the audience; nil: not known, anything goes

	// Published reports that the definition was checked before. The columns then
	// only tell how values are to be read: when the audience has changed since,
	// and an expression does not fit any more, it is no fault, and the values
	// it reads are as they came.
	Published bool
}

// Column is one of an audience's columns.
type Column struct {
	Name string
	Type string // text, integer, number, boolean, timestamp, date, json, other, or a list of one (text[])
}

// Graph is a definition that has no fault of form or type. It never changes and
// may be used by many at a time.
type Graph struct {
	flow       Flow
	def        *Definition
	order      []string
	nodes      map[string]*Compiled
	triggers   []CompiledTrigger
	exits      []CompiledExit
	columns    []string
	allColumns bool
	profile    bool
	listens    map[string][]string
	zone       *time.Location // of the recurrence
}

// CompiledTrigger is a trigger that can be asked.
type CompiledTrigger struct {
	Trigger
	Condition *Condition    // nil: none
	Every     time.Duration // audience
}

// CompiledExit is an exit condition that can be asked.
type CompiledExit struct {
	ExitOn
	Condition *Condition // nil: none
}

// Compiled is a node that can be walked.
type Compiled struct {
	Node
	ID           string
	For          time.Duration
	Offset       time.Duration
	Timeout      time.Duration
	ExpiresAfter time.Duration
	Condition    *Condition // wait_for_event; nil: none
	Cases        []CompiledCase
	Successors   []string // every node that can come next, once, sorted

	when *when // wait_until
	salt string
	sum  uint64 // of the weights
}

// CompiledCase is a case that can be asked.
type CompiledCase struct {
	Case
	Cond *Condition // nil when the case has SQL
}

// Compile reads a definition and answers it as a graph, or all of its faults at
// once: of form, of structure and of type. Each has the JSON pointer of its
// place, and expressions the line and column as well. Without columns the
// profile's are taken to exist and to be of any type; the values are then as
// they came, so a timestamp is a text and an integer a double. Who evaluates
// conditions therefore gives the columns too, or an expression that was found
// right when it was checked fails when it is asked.
func Compile(raw []byte, flow Flow, facts Facts) (*Graph, error) {
	def, tree, form := decode(raw)
	if tree == nil {
		return nil, invalid(form)
	}
	c := newChecker(flow, def, tree, facts)
	c.check()
	for i, f := range c.faults {
		c.faults[i].Pointer = def.Place(f.Pointer)
	}
	if faults := tidy(form, c.faults); len(faults) > 0 {
		return nil, invalid(faults)
	}
	return c.graph(), nil
}

// Definition is what the graph was read from. Nobody changes it.
func (g *Graph) Definition() *Definition { return g.def }

// Start is the id of the first node.
func (g *Graph) Start() string { return g.def.Start }

// Node finds a node.
func (g *Graph) Node(id string) (*Compiled, bool) {
	n, ok := g.nodes[id]
	return n, ok
}

// Order lists the nodes so that each comes after all that lead to it: the start
// first, and of several that could come next the smallest id.
func (g *Graph) Order() []string { return slices.Clone(g.order) }

// Columns are those of the profile that conditions and nodes read, sorted; what
// templates read is not among them.
func (g *Graph) Columns() []string { return slices.Clone(g.columns) }

// AllColumns reports that a condition reads the profile as a whole, or by a
// computed name, so that every column has to be there.
func (g *Graph) AllColumns() bool { return g.allColumns }

// NeedsProfile reports that something reads a profile; every send does.
func (g *Graph) NeedsProfile() bool { return g.profile }

// Triggers are what enrolls.
func (g *Graph) Triggers() []CompiledTrigger { return slices.Clone(g.triggers) }

// ExitOn are the events that end an enrollment wherever it stands.
func (g *Graph) ExitOn() []CompiledExit { return slices.Clone(g.exits) }

// Listens answers each event's name with what it is listened to for: exit,
// trigger, wait.
func (g *Graph) Listens() map[string][]string { return maps.Clone(g.listens) }

// Arm deals a profile to an arm of a split, always to the same one: xxhash64 of
// the salt, a zero byte and the profile's key, modulo the sum of the weights.
// Without a salt of its own, a node's is the flow's id as the API writes it, a
// slash and the node's id; so anybody can recompute it.
func (c *Compiled) Arm(profileKey string) int {
	if c.sum == 0 {
		return 0
	}
	var scratch [128]byte
	form := append(scratch[:0], c.salt...)
	form = append(form, 0)
	form = append(form, profileKey...)
	dealt := xxhash.Sum64(form) % c.sum
	for i, arm := range c.Arms {
		if dealt < uint64(arm.Weight) {
			return i
		}
		dealt -= uint64(arm.Weight)
	}
	return 0
}

// AfterWebhook is the node that follows an answer with this status; 0 stands
// for a message that was given up. An exact status goes before its class, and
// 2xx goes on to next unless the node names another way.
func (c *Compiled) AfterWebhook(status int) string {
	if status > 0 {
		exact, class := statusNames(status)
		for _, value := range []string{exact, class} {
			if to, ok := c.OnStatus[value]; ok {
				return to
			}
		}
		if class == "2xx" {
			return c.Next
		}
	}
	if c.OnError != "" {
		return c.OnError
	}
	return c.Next
}

func statusNames(status int) (exact, class string) {
	digits := []byte{byte('0' + status/100%10), byte('0' + status/10%10), byte('0' + status%10)}
	return string(digits), string(digits[:1]) + "xx"
}

// defaultSalt differs between flows and nodes, so that two splits deal
// independently.
func defaultSalt(flow Flow, node string) string {
	return lemma.FormatID(lemma.PrefixFlow, flow.FlowID) + "/" + node
}

// edge is a way from a node to another, and where the document says so.
type edge struct {
	pointer, to string
	refused     bool // the type of the node has no such field, and that is what is wrong with it
}

// edges are all ways out of a node, in the order of its fields.
func edges(id string, n Node) []edge {
	var all []edge
	add := func(to string, tokens ...string) {
		if to != "" {
			all = append(all, edge{at(at("/nodes", id), tokens...), to, !has(n.Type, tokens[0])})
		}
	}
	add(n.Next, "next")
	add(n.OnTimeout, "on_timeout")
	add(n.OnMissing, "on_missing")
	for i, c := range n.Cases {
		add(c.Next, "cases", itoa(i), "next")
	}
	add(n.Else, "else")
	for i, a := range n.Arms {
		add(a.Next, "arms", itoa(i), "next")
	}
	for _, status := range sorted(n.OnStatus) {
		add(n.OnStatus[status], "on_status", status)
	}
	add(n.OnError, "on_error")
	return all
}

// Successors are the nodes that edges lead to, each once.
func Successors(id string, n Node) []string {
	var all []string
	for _, e := range edges(id, n) {
		all = append(all, e.to)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// walk is the shape of a graph: what its edges make of its nodes.
type walk struct {
	nodes map[string]Node
	mark  map[string]int // 0 not seen, 1 on the path, 2 done
	path  []string
	found func(pointer string, cycle []string)
}

// visit goes depth first and tells of each edge that leads back into its own
// path. How deep it gets is bounded by MaxNodes.
func (w *walk) visit(id string) {
	w.mark[id] = 1
	w.path = append(w.path, id)
	for _, e := range edges(id, w.nodes[id]) {
		if _, exists := w.nodes[e.to]; !exists || e.refused {
			continue
		}
		switch w.mark[e.to] {
		case 0:
			w.visit(e.to)
		case 1:
			from := slices.Index(w.path, e.to)
			w.found(e.pointer, append(slices.Clone(w.path[from:]), e.to))
		}
	}
	w.path = w.path[:len(w.path)-1]
	w.mark[id] = 2
}

// reached are the nodes to which a way leads from the start, be it one that the
// type of a node does not have: there is one fault then, not one for each node
// behind it.
func reached(nodes map[string]Node, start string) map[string]bool {
	seen := map[string]bool{}
	for next := []string{start}; len(next) > 0; {
		id := next[len(next)-1]
		next = next[:len(next)-1]
		if n, exists := nodes[id]; exists && !seen[id] {
			seen[id] = true
			next = append(next, Successors(id, n)...)
		}
	}
	return seen
}

// order sorts topologically, by id where the edges leave it open. It is called
// for graphs without cycles in which all nodes are reached.
func order(nodes map[string]Node) []string {
	waits := map[string]int{}
	for id, n := range nodes {
		for _, to := range Successors(id, n) {
			waits[to]++
		}
	}
	var ready, done []string
	for id := range nodes {
		if waits[id] == 0 {
			ready = append(ready, id)
		}
	}
	for len(ready) > 0 {
		slices.SortFunc(ready, func(a, b string) int { return strings.Compare(b, a) })
		id := ready[len(ready)-1]
		ready, done = ready[:len(ready)-1], append(done, id)
		for _, to := range Successors(id, nodes[id]) {
			if waits[to]--; waits[to] == 0 {
				ready = append(ready, to)
			}
		}
	}
	return done
}

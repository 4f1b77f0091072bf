package graph

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/abtest"
	"lemma/processors"
)

// Facts are the data against which a definition is checked.
type Facts struct {
	Columns []Column // of the audience; nil: unknown, any column is accepted

	// Published means that the definition was checked before. The columns then only decide
	// how values are read: an expression that no longer fits a changed audience is no
	// fault, and the values that it reads are not converted.
	Published bool

	Turn *processors.Turn // of Advance; nil: one of a request
}

// Column is one of an audience's columns.
type Column struct {
	Name string
	Type string // text, integer, number, boolean, timestamp, date, json, other, or a list of one (text[])
}

// Graph is a definition without faults of form or type. It never changes and is safe for
// concurrent use.
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
	patterns   int            // bytes of memory of all patterns
	zone       *time.Location // of the recurrence
}

// CompiledTrigger is a trigger with its condition compiled.
type CompiledTrigger struct {
	Trigger
	Condition *Condition    // nil: none
	Every     time.Duration // audience
}

// CompiledExit is an exit condition, compiled.
type CompiledExit struct {
	ExitOn
	Condition *Condition // nil: none
}

// Compiled is a node that can be executed.
type Compiled struct {
	Node
	ID           string
	For          time.Duration
	Offset       time.Duration
	Timeout      time.Duration
	ExpiresAfter time.Duration
	Converts     time.Duration // after a message: until then the event of its conversion counts
	Condition    *Condition    // wait_for_event; nil: none
	Cases        []CompiledCase
	Successors   []string // every node that can come next, once, sorted

	when *when        // wait_until
	arms abtest.Split // of a split
}

// CompiledCase is a case with its condition compiled.
type CompiledCase struct {
	Case
	Cond *Condition // nil when the case has SQL
}

// compiling bounds the definitions that are read or compiled at a time.
var compiling = processors.New()

// advancing bounds the versions that are compiled at a time to advance enrollments: a worker does not
// wait for the requests of its workspace that check definitions, nor a small version for large ones.
var advancing, advancingSmall = processors.Apart(), processors.Apart()

// smallDefinition is the size in bytes up to which a definition is small: it takes milliseconds.
const smallDefinition = 8 << 10

// IsSmall reports whether a definition is compiled beside large ones.
func IsSmall(definition string) bool { return len(definition) <= smallDefinition }

// Advance waits until a workspace may compile a version to advance enrollments.
func Advance(ctx context.Context, workspace uuid.UUID, isSmall bool) (*processors.Turn, error) {
	if isSmall {
		return advancingSmall.Turn(ctx, workspace)
	}
	return advancing.Turn(ctx, workspace)
}

// Compile reads a definition and returns it as a graph, or all of its faults at once: of
// form, structure and type. Each has a JSON pointer, and those in expressions a line and
// column. Without columns, any column of the profile exists and has any type; its values
// are not converted, so a timestamp is a text and an integer a double. A caller that
// evaluates conditions must therefore give the columns, or a valid expression may fail.
func Compile(raw []byte, flow Flow, facts Facts) (*Graph, error) {
	if facts.Turn != nil {
		defer facts.Turn.Enter()()
	} else {
		defer compiling.Enter(flow.WorkspaceID)()
	}
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

// Definition is what the graph was read from. It must not be changed.
func (g *Graph) Definition() *Definition { return g.def }

// Start is the id of the first node.
func (g *Graph) Start() string { return g.def.Start }

// Node finds a node.
func (g *Graph) Node(id string) (*Compiled, bool) {
	n, ok := g.nodes[id]
	return n, ok
}

// Order lists the nodes topologically: the start first, and of candidates the smallest id.
func (g *Graph) Order() []string { return slices.Clone(g.order) }

// Columns are those of the profile that conditions and nodes read, but not templates, sorted.
func (g *Graph) Columns() []string { return slices.Clone(g.columns) }

// AllColumns reports whether a condition reads the profile as a whole or by a computed name.
func (g *Graph) AllColumns() bool { return g.allColumns }

// PatternBytes is the memory of the patterns of its conditions, estimated.
func (g *Graph) PatternBytes() int { return g.patterns }

// Triggers are what can enroll.
func (g *Graph) Triggers() []CompiledTrigger { return slices.Clone(g.triggers) }

// ExitOn are the events that end an enrollment, whatever node it is on.
func (g *Graph) ExitOn() []CompiledExit { return slices.Clone(g.exits) }

// Listens maps each event's name to what the flow uses it for: exit, trigger, wait.
func (g *Graph) Listens() map[string][]string { return maps.Clone(g.listens) }

// Arm returns the arm of a split for a profile, as docs/reference/node-types.md describes it.
func (c *Compiled) Arm(profileKey string) int { return c.arms.Arm(profileKey) }

// AfterWebhook is the node that follows an answer with this status; 0 is a message that
// was given up. An exact status precedes its class, and 2xx leads to next unless the node
// has another target.
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

// defaultSalt differs between flows and nodes, so that splits are independent.
func defaultSalt(flow Flow, node string) string {
	return lemma.FormatID(lemma.PrefixFlow, flow.FlowID) + "/" + node
}

// edge is a path from a node to another, and its place in the document.
type edge struct {
	pointer, to string
	refused     bool // the type of the node has no such field, which is reported already
}

// edges are all paths out of a node, in the order of its fields.
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

// traversal is a depth-first search over the edges of a graph.
type traversal struct {
	nodes   map[string]Node
	state   map[string]int // 0 not seen, 1 on the path, 2 done
	path    []string
	onCycle func(pointer string, cycle []string)
}

// visit reports each edge that leads back into its own path. MaxNodes bounds its depth.
func (w *traversal) visit(id string) {
	w.state[id] = 1
	w.path = append(w.path, id)
	for _, e := range edges(id, w.nodes[id]) {
		if _, exists := w.nodes[e.to]; !exists || e.refused {
			continue
		}
		switch w.state[e.to] {
		case 0:
			w.visit(e.to)
		case 1:
			from := slices.Index(w.path, e.to)
			w.onCycle(e.pointer, append(slices.Clone(w.path[from:]), e.to))
		}
	}
	w.path = w.path[:len(w.path)-1]
	w.state[id] = 2
}

// reached are the nodes that a path from the start reaches. Fields that a node's type
// lacks count as paths: their own fault is reported, and not one for each node behind
// them.
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

package graph

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"lemma"
)

// Further limits on parts of a document.
const (
	maxID          = 64
	maxName        = 200
	maxDescription = 4 << 10
	maxSQL         = 16 << 10
	maxWeight      = 1_000_000
	maxFields      = 20 // of a recurrence, columns of a webhook, headers, statuses
	minEvery       = time.Minute
)

// checker reads a definition once, collects every fault, and builds the parts of the
// graph.
type checker struct {
	flow     Flow
	def      *Definition
	tree     map[string]any // which fields are present
	facts    Facts
	compiler *compiler
	faults   []lemma.Field

	g       *Graph
	columns map[string]bool
	events  map[string]bool // that branches read
}

func newChecker(flow Flow, def *Definition, tree map[string]any, facts Facts) *checker {
	return &checker{
		flow: flow, def: def, tree: tree, facts: facts, compiler: newCompiler(facts.Columns),
		columns: map[string]bool{}, events: map[string]bool{},
		g: &Graph{flow: flow, def: def, nodes: map[string]*Compiled{}, listens: map[string][]string{}, zone: time.UTC},
	}
}

func (c *checker) fault(pointer, code, format string, args ...any) {
	c.faults = append(c.faults, lemma.Field{Pointer: pointer, Code: code, Detail: fmt.Sprintf(format, args...)})
}

func (c *checker) check() {
	c.triggers()
	c.recurrence()
	c.exits()
	c.texts("", c.def.Description)
	c.defaults()
	oneOf(c, "/overlap", c.def.Overlap, "deny", "allow")
	c.nodes()
	c.shape()
	c.audience()
}

// graph builds the graph if check found no fault.
func (c *checker) graph() *Graph {
	c.g.order = order(c.def.Nodes)
	c.g.columns = sorted(c.columns)
	if !c.g.allColumns {
		c.compiler.world.keep(c.columns)
	}
	for name, uses := range c.g.listens {
		slices.Sort(uses)
		c.g.listens[name] = slices.Compact(uses)
	}
	return c.g
}

func (c *checker) triggers() {
	seen := map[[2]string]bool{}
	for i, t := range c.def.Triggers {
		pointer := index("/triggers", i)
		if what := [2]string{t.Type, t.Event}; seen[what] {
			c.fault(pointer, "duplicate", "must differ from the other triggers; join conditions on one event with ||")
		} else {
			seen[what] = true
		}
		c.g.triggers = append(c.g.triggers, c.trigger(pointer, t))
	}
}

func (c *checker) trigger(pointer string, t Trigger) CompiledTrigger {
	made := CompiledTrigger{Trigger: t}
	switch t.Type {
	case "event":
		c.event(at(pointer, "event"), t.Event, "trigger")
		c.mustNot(at(pointer, "every"), t.Every != "", "only a trigger of type audience has it")
	case "audience":
		c.mustNot(at(pointer, "event"), t.Event != "", "only a trigger of type event has it")
		made.Every = c.duration(at(pointer, "every"), t.Every, minEvery, MaxDuration)
	case "":
		c.fault(at(pointer, "type"), "required", "must be event or audience")
	default:
		c.fault(at(pointer, "type"), "not_allowed", "must be event or audience")
	}
	made.Condition = c.condition(enrolling, at(pointer, "condition"), t.Condition)
	return made
}

func (c *checker) recurrence() {
	r := c.def.Recurrence
	policies := []string{Once, Daily, Weekly, Monthly, PerEvent, Fields}
	if r.Policy == "" {
		c.fault("/recurrence/policy", "required", "choose how often a profile may enroll: %s", strings.Join(policies, ", "))
	} else {
		oneOf(c, "/recurrence/policy", r.Policy, policies...)
	}
	byDate := r.Policy == Daily || r.Policy == Weekly || r.Policy == Monthly
	if slices.Contains(policies, r.Policy) {
		c.mustNot("/recurrence/zone", r.Zone != "" && !byDate, "is allowed only with daily, weekly and monthly")
		c.mustNot("/recurrence/fields", len(r.Fields) > 0 && r.Policy != Fields, "is allowed only with the policy fields")
	}
	if zone, ok := c.zone("/recurrence/zone", r.Zone); ok {
		c.g.zone = zone
	}
	if r.Policy == Fields {
		c.recurrenceFields(r.Fields)
	}
	c.recurrenceOfAudience(r.Policy)
}

func (c *checker) recurrenceFields(fields []string) {
	if len(fields) == 0 {
		c.fault("/recurrence/fields", "required", "name the properties that distinguish triggers")
	}
	c.names("/recurrence/fields", fields)
}

// names checks a list of names of properties or columns.
func (c *checker) names(pointer string, names []string) {
	for i, name := range names {
		switch {
		case name == "" || len(name) > maxName || strings.ContainsRune(name, 0):
			c.fault(index(pointer, i), "invalid", "must have 1 to %d bytes", maxName)
		case slices.Contains(names[:i], name):
			c.fault(index(pointer, i), "duplicate", "%s must occur once", name)
		}
	}
}

func (c *checker) recurrenceOfAudience(policy string) {
	if policy != PerEvent && policy != Fields {
		return
	}
	for _, t := range c.def.Triggers {
		if t.Type == "audience" {
			c.fault("/recurrence/policy", "invalid", "must be once, daily, weekly or monthly for a trigger of type audience")
			return
		}
	}
}

func (c *checker) exits() {
	for i, e := range c.def.ExitOn {
		pointer := index("/exit_on", i)
		c.event(at(pointer, "event"), e.Event, "exit")
		condition := c.condition(onEvent, at(pointer, "condition"), e.Condition)
		c.g.exits = append(c.g.exits, CompiledExit{e, condition})
	}
}

func (c *checker) event(pointer, name, use string) {
	c.eventName(pointer, name)
	c.g.listens[name] = append(c.g.listens[name], use)
}

func (c *checker) eventName(pointer, name string) {
	switch {
	case name == "":
		c.fault(pointer, "required", "name the event")
	case utf8.RuneCountInString(name) > lemma.MaxEventName:
		c.fault(pointer, "too_long", "must have at most %d characters", lemma.MaxEventName)
	case strings.ContainsFunc(name, unicode.IsControl) || strings.TrimSpace(name) != name:
		c.fault(pointer, "invalid", "must have no control characters, and no space around it")
	}
}

// shape checks the graph as a whole.
func (c *checker) shape() {
	if c.def.Start == "" {
		c.fault("/start", "required", "name the first node")
	} else if _, ok := c.def.Nodes[c.def.Start]; !ok {
		c.fault("/start", "unknown_node", "there is no node %s%s", c.def.Start, hint(c.compiler.hints, c.def.Start, c.def.Nodes))
	}
	for _, id := range sorted(c.def.Nodes) {
		for _, e := range edges(id, c.def.Nodes[id]) {
			if _, ok := c.def.Nodes[e.to]; !ok && !e.refused {
				c.fault(e.pointer, "unknown_node", "there is no node %s%s", e.to, hint(c.compiler.hints, e.to, c.def.Nodes))
			}
		}
	}
	c.paths()
}

// paths finds cycles, and nodes that no path reaches.
func (c *checker) paths() {
	circling := map[string]bool{}
	w := &traversal{nodes: c.def.Nodes, state: map[string]int{}, onCycle: func(pointer string, cycle []string) {
		c.fault(pointer, "cycle", "must not lead back to an earlier node: %s", strings.Join(cycle, " -> "))
		for _, id := range cycle {
			circling[id] = true
		}
	}}
	_, begins := c.def.Nodes[c.def.Start]
	if begins {
		w.visit(c.def.Start)
	}
	for _, id := range sorted(c.def.Nodes) {
		if w.state[id] == 0 {
			w.visit(id)
		}
	}
	if begins {
		c.unreachable(circling)
	}
}

// unreachable reports the nodes that nothing leads to, but not those behind them, and a
// cycle, but not what follows it. Of nodes that lead to each other only by fields that
// their types lack, the first is reported.
func (c *checker) unreachable(circling map[string]bool) {
	leads := reached(c.def.Nodes, c.def.Start)
	entered := map[string]bool{}
	for id, n := range c.def.Nodes {
		for _, to := range Successors(id, n) {
			entered[to] = true
		}
	}
	name := func(id string) {
		c.fault(at("/nodes", id), "unreachable", "must be reachable from %s", c.def.Start)
		maps.Copy(leads, reached(c.def.Nodes, id))
	}
	ids := sorted(c.def.Nodes)
	for _, id := range ids {
		if !leads[id] && !entered[id] {
			name(id)
		}
	}
	for id := range circling {
		maps.Copy(leads, reached(c.def.Nodes, id))
	}
	for _, id := range ids {
		if !leads[id] {
			name(id)
		}
	}
}

// audience reports a missing audience if something needs one.
func (c *checker) audience() {
	if c.def.AudienceID != "" {
		return
	}
	if reason := c.needsAudience(); reason != "" {
		c.fault("/audience_id", "required", "%s", reason)
	}
}

func (c *checker) needsAudience() string {
	for _, t := range c.def.Triggers {
		if t.Type == "audience" {
			return "a trigger of type audience needs one"
		}
	}
	if c.def.ExitWhenNotInAudience {
		return "exit_when_not_in_audience needs one"
	}
	if c.g.profile {
		return "profiles are read, and come from an audience"
	}
	return ""
}

// condition compiles an expression and records what it reads; an empty one returns nil.
func (c *checker) condition(p place, pointer, expression string) *Condition {
	if expression == "" {
		return nil
	}
	if c.g.patterns > maxPatternBytes && !c.facts.Published {
		return nil // the fault is known
	}
	condition, read, faults := c.compiler.compile(p, pointer, expression)
	if len(faults) > 0 && c.facts.Published {
		condition, read, faults = newCompiler(nil).compile(p, pointer, expression)
	}
	c.faults = append(c.faults, faults...)
	if condition != nil {
		if c.g.patterns += condition.patterns; c.g.patterns > maxPatternBytes && !c.facts.Published {
			c.fault(pointer, "expression_cost", tooManyPatterns)
		}
	}
	for column := range read.columns {
		c.columns[column] = true
	}
	before := len(c.events)
	maps.Copy(c.events, read.events)
	if before <= MaxEventsRead && len(c.events) > MaxEventsRead && !c.facts.Published {
		c.fault(pointer, "too_many", "the branches of a version read at most %d events", MaxEventsRead)
	}
	c.g.allColumns = c.g.allColumns || read.whole
	c.g.profile = c.g.profile || read.variables["profile"]
	return condition
}

func (c *checker) duration(pointer, text string, shortest, longest time.Duration) time.Duration {
	if text == "" {
		c.fault(pointer, "required", "give an ISO 8601 duration such as P3D or PT2H")
		return 0
	}
	d, err := ParseDuration(text)
	switch {
	case err != nil:
		meant, ok := meantSpan(text)
		c.fault(pointer, "invalid_duration", "%v%s", err, hintIf(ok, "; write "+spelledISO(meant)))
	case d < shortest:
		c.fault(pointer, "invalid_duration", "%s", tooShort(shortest))
	case d > longest:
		c.fault(pointer, "invalid_duration", "must be at most %d days", longest/(24*time.Hour))
	}
	return d
}

func hintIf(there bool, hint string) string {
	if there {
		return hint
	}
	return ""
}

// tooShort names the minimum; without one a duration must be longer than zero.
func tooShort(shortest time.Duration) string {
	switch shortest {
	case minEvery:
		return "must be at least PT1M"
	case -MaxDuration:
		return fmt.Sprintf("must go back at most %d days", MaxDuration/(24*time.Hour))
	}
	return "must be longer than PT0S"
}

func (c *checker) zone(pointer, name string) (*time.Location, bool) {
	if name == "" {
		return time.UTC, true
	}
	zone, err := lemma.Zone(name)
	if err != nil {
		c.fault(pointer, "invalid_zone", "must be an IANA zone such as Europe/Kyiv")
	}
	return zone, err == nil
}

func (c *checker) mustNot(pointer string, there bool, why string) {
	if there {
		c.fault(pointer, "not_allowed", "%s", why)
	}
}

// oneOf accepts an empty value: it stands for the default.
func oneOf(c *checker, pointer, value string, values ...string) {
	if value != "" && !slices.Contains(values, value) {
		c.fault(pointer, "not_allowed", "must be one of %s", strings.Join(values, ", "))
	}
}

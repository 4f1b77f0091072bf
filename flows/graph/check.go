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

// More limits, of what a document's parts may be.
const (
	maxID          = 64
	maxName        = 200
	maxDescription = 4 << 10
	maxEvent       = 100
	maxSQL         = 16 << 10
	maxWeight      = 1_000_000
	maxFields      = 20 // of a recurrence, columns of a webhook, headers, statuses
	minEvery       = time.Minute
)

// checker goes through a definition once, gathers every fault, and makes the
// parts of the graph on the way.
type checker struct {
	flow     Flow
	def      *Definition
	tree     map[string]any // which fields were given
	facts    Facts
	compiler *compiler
	faults   []lemma.Field

	g       *Graph
	columns map[string]bool
}

func newChecker(flow Flow, def *Definition, tree map[string]any, facts Facts) *checker {
	return &checker{
		flow: flow, def: def, tree: tree, facts: facts, compiler: newCompiler(facts.Columns), columns: map[string]bool{},
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
	c.notes("", c.def.Description)
	c.defaults()
	oneOf(c, "/overlap", c.def.Overlap, "deny", "allow")
	c.nodes()
	c.shape()
	c.audience()
}

// graph is made of what check left, when that found nothing wrong.
func (c *checker) graph() *Graph {
	c.g.order = order(c.def.Nodes)
	c.g.columns = sorted(c.columns)
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
			c.fault(pointer, "duplicate", "there is such a trigger already; join their conditions with ||")
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
		c.mustNot(at(pointer, "every"), t.Every != "", "only an audience is looked at every so often")
	case "audience":
		c.mustNot(at(pointer, "event"), t.Event != "", "an audience is no event")
		made.Every = c.duration(at(pointer, "every"), t.Every, minEvery, MaxDuration)
	case "":
		c.fault(at(pointer, "type"), "required", "a trigger is an event or an audience")
	default:
		c.fault(at(pointer, "type"), "not_allowed", "a trigger is an event or an audience")
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
		c.mustNot("/recurrence/zone", r.Zone != "" && !byDate, "a zone is for daily, weekly and monthly")
		c.mustNot("/recurrence/fields", len(r.Fields) > 0 && r.Policy != Fields, "fields are for the policy fields")
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
			c.fault(index(pointer, i), "invalid", "a name has 1 to %d bytes", maxName)
		case slices.Contains(names[:i], name):
			c.fault(index(pointer, i), "duplicate", "%s is there already", name)
		}
	}
}

func (c *checker) recurrenceOfAudience(policy string) {
	if policy != PerEvent && policy != Fields {
		return
	}
	for _, t := range c.def.Triggers {
		if t.Type == "audience" {
			c.fault("/recurrence/policy", "invalid", "an audience has no events with properties; use once, daily, weekly or monthly")
			return
		}
	}
}

func (c *checker) exits() {
	for i, e := range c.def.ExitOn {
		pointer := index("/exit_on", i)
		c.event(at(pointer, "event"), e.Event, "exit")
		condition := c.condition(hearing, at(pointer, "condition"), e.Condition)
		c.g.exits = append(c.g.exits, CompiledExit{e, condition})
	}
}

func (c *checker) event(pointer, name, use string) {
	switch {
	case name == "":
		c.fault(pointer, "required", "which event")
	case utf8.RuneCountInString(name) > maxEvent:
		c.fault(pointer, "too_long", "the name of an event has at most %d characters", maxEvent)
	case strings.ContainsFunc(name, unicode.IsControl) || strings.TrimSpace(name) != name:
		c.fault(pointer, "invalid", "the name of an event has no control characters, and no space around it")
	}
	c.g.listens[name] = append(c.g.listens[name], use)
}

// shape checks the graph as a whole.
func (c *checker) shape() {
	if c.def.Start == "" {
		c.fault("/start", "required", "with which node does a journey begin")
	} else if _, ok := c.def.Nodes[c.def.Start]; !ok {
		c.fault("/start", "unknown_node", "there is no node %s%s", c.def.Start, didYouMean(c.def.Start, sorted(c.def.Nodes)))
	}
	for _, id := range sorted(c.def.Nodes) {
		for _, e := range edges(id, c.def.Nodes[id]) {
			if _, ok := c.def.Nodes[e.to]; !ok && !e.refused {
				c.fault(e.pointer, "unknown_node", "there is no node %s%s", e.to, didYouMean(e.to, sorted(c.def.Nodes)))
			}
		}
	}
	c.paths()
}

// paths finds cycles, and nodes to which no way leads.
func (c *checker) paths() {
	circling := map[string]bool{}
	w := &walk{nodes: c.def.Nodes, mark: map[string]int{}, found: func(pointer string, cycle []string) {
		c.fault(pointer, "cycle", "a journey must come to an end, and this leads in a circle: %s", strings.Join(cycle, " -> "))
		for _, id := range cycle {
			circling[id] = true
		}
	}}
	_, begins := c.def.Nodes[c.def.Start]
	if begins {
		w.visit(c.def.Start)
	}
	for _, id := range sorted(c.def.Nodes) {
		if w.mark[id] == 0 {
			w.visit(id)
		}
	}
	if begins {
		c.unreachable(circling)
	}
}

// unreachable names the nodes that nothing leads to. Those behind them follow
// from that, and those behind a circle from the circle. Of any others, which
// lead to each other by ways that their types do not have, the first is named.
func (c *checker) unreachable(circling map[string]bool) {
	leads := reached(c.def.Nodes, c.def.Start)
	entered := map[string]bool{}
	for id, n := range c.def.Nodes {
		for _, to := range Successors(id, n) {
			entered[to] = true
		}
	}
	name := func(id string) {
		c.fault(at("/nodes", id), "unreachable", "no way leads here from %s", c.def.Start)
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

// audience asks for one as soon as something needs it.
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
			return "an audience is to be looked at, and none is named"
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

// condition compiles an expression and notes what it reads; an empty one is none.
func (c *checker) condition(p place, pointer, expression string) *Condition {
	if expression == "" {
		return nil
	}
	condition, read, faults := c.compiler.compile(p, pointer, expression)
	if len(faults) > 0 && c.facts.Published {
		condition, read, faults = newCompiler(nil).compile(p, pointer, expression)
	}
	c.faults = append(c.faults, faults...)
	for column := range read.columns {
		c.columns[column] = true
	}
	c.g.allColumns = c.g.allColumns || read.whole
	c.g.profile = c.g.profile || read.variables["profile"]
	return condition
}

func (c *checker) duration(pointer, text string, shortest, longest time.Duration) time.Duration {
	if text == "" {
		c.fault(pointer, "required", "how long, as an ISO 8601 duration such as P3D or PT2H")
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
		c.fault(pointer, "invalid_duration", "it is longer than %d days", longest/(24*time.Hour))
	}
	return d
}

func hintIf(there bool, hint string) string {
	if there {
		return hint
	}
	return ""
}

// tooShort says the least; what has no other least has to be longer than nothing.
func tooShort(shortest time.Duration) string {
	switch shortest {
	case minEvery:
		return "it is too short: at least a minute, PT1M"
	case -MaxDuration:
		return fmt.Sprintf("it goes back more than %d days", MaxDuration/(24*time.Hour))
	}
	return "it is too short: it has to be longer than PT0S"
}

func (c *checker) zone(pointer, name string) (*time.Location, bool) {
	if name == "" {
		return time.UTC, true
	}
	zone, ok := loadZone(name)
	if !ok {
		c.fault(pointer, "invalid_zone", "it is no IANA zone such as Europe/Kyiv")
	}
	return zone, ok
}

func (c *checker) mustNot(pointer string, there bool, why string) {
	if there {
		c.fault(pointer, "not_allowed", "%s", why)
	}
}

// oneOf lets an empty word pass: it stands for the default.
func oneOf(c *checker, pointer, value string, values ...string) {
	if value != "" && !slices.Contains(values, value) {
		c.fault(pointer, "not_allowed", "must be one of %s", strings.Join(values, ", "))
	}
}

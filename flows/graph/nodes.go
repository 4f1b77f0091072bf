package graph

import (
	"slices"
	"strings"
	"time"

	"lemma"
	"lemma/abtest"
	"lemma/mail"
)

// always are the fields that each type of node has.
var always = []string{"type", "name", "description", "layout"}

// rule lists the further fields of a type of node.
type rule struct{ required, optional []string }

var rules = map[string]rule{
	Send: {
		[]string{"channel", "provider_id", "template_id", "next"},
		[]string{"from", "template_version", "reply_to", "headers", "strategy", "expires_after",
			"transactional", "topic_id", "conversion"}, // from: of an email required
	},
	Delay:        {[]string{"for", "next"}, nil},
	WaitUntil:    {[]string{"next"}, []string{"time", "weekdays", "date_column", "offset", "zone", "zone_column", "on_missing"}},
	WaitForEvent: {[]string{"event", "timeout", "on_timeout", "next"}, []string{"condition"}},
	Branch:       {[]string{"cases", "else"}, []string{"data_source_id"}},
	Split:        {[]string{"arms"}, []string{"salt"}},
	Webhook:      {[]string{"endpoint_id", "next"}, []string{"columns", "data", "on_status", "on_error"}},
	Exit:         {nil, []string{"goal"}},
}

// pathFields are paths out that a node must have if its type has them: without them it is
// a dead end.
var pathFields = []string{"next", "on_timeout", "else"}

func (c *checker) nodes() {
	if len(c.def.Nodes) == 0 {
		c.fault("/nodes", "required", "must have at least one node")
	}
	for _, id := range sorted(c.def.Nodes) {
		pointer, n := at("/nodes", id), c.def.Nodes[id]
		if !validID(id) {
			c.fault(pointer, "invalid", "the id of a node must have 1 to %d of the characters A-Z a-z 0-9 _ . -", maxID)
		}
		if len(n.Name) > maxName {
			c.fault(at(pointer, "name"), "too_long", "must have at most %d bytes", maxName)
		}
		c.texts(pointer, n.Description)
		if c.fieldsOf(pointer, id, n.Type) {
			c.g.nodes[id] = c.node(pointer, id, n)
		}
	}
}

// texts checks the fields for people and editors.
func (c *checker) texts(pointer, description string) {
	if len(description) > maxDescription {
		c.fault(at(pointer, "description"), "too_long", "must have at most %d bytes", maxDescription)
	}
}

func validID(id string) bool {
	return id != "" && len(id) <= maxID && !strings.ContainsFunc(id, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("_.-", r)
	})
}

// has reports whether a type of node has a field; an unknown type has any.
func has(kind, field string) bool {
	rule, known := rules[kind]
	return !known || slices.Contains(rule.required, field) || slices.Contains(rule.optional, field)
}

// fieldsOf compares a node's fields with those of its type.
func (c *checker) fieldsOf(pointer, id, kind string) bool {
	rule, known := rules[kind]
	if !known && kind == "" {
		c.fault(at(pointer, "type"), "required", "must be one of %s", strings.Join(sorted(rules), ", "))
	} else if !known {
		c.fault(at(pointer, "type"), "not_allowed", "must be one of %s", strings.Join(sorted(rules), ", "))
	}
	if !known {
		return false
	}
	nodes, _ := c.tree["nodes"].(map[string]any)
	given, _ := nodes[id].(map[string]any)
	for _, field := range rule.required {
		if !misspelt(given, field, kind) {
			c.required(pointer, field, given[field])
		}
	}
	if kind == Send && hasEnvelope(c.def.Nodes[id].Channel) && !misspelt(given, "from", kind) {
		c.required(pointer, "from", given["from"])
	}
	for _, field := range sorted(given) {
		if _, exists := nodeFields[field]; exists && !slices.Contains(always, field) && !has(kind, field) {
			c.fault(at(pointer, field), "not_allowed", "a node of type %s has no %s%s", kind, field, didYouMean(field, fieldsFor(kind)))
		}
	}
	return true
}

// fieldsFor are the fields of a type of node, sorted.
func fieldsFor(kind string) []string {
	return slices.Sorted(slices.Values(slices.Concat(always, rules[kind].required, rules[kind].optional)))
}

// misspelt reports whether an unknown field of the node is near to the missing one: the
// unknown field's own fault names it.
func misspelt(given map[string]any, field, kind string) bool {
	for name := range given {
		if _, known := nodeFields[name]; !known && nearest(name, fieldsFor(kind)) == field {
			return true
		}
	}
	return false
}

func (c *checker) required(pointer, field string, value any) {
	if _, object := value.(map[string]any); object || !isNothing(value) {
		return // its missing fields are reported below it
	}
	if slices.Contains(pathFields, field) {
		c.fault(at(pointer, field), "dead_end", "name the next node: only an exit ends an enrollment")
		return
	}
	c.fault(at(pointer, field), "required", "is required")
}

// node checks a node's fields and compiles it.
func (c *checker) node(pointer, id string, n Node) *Compiled {
	made := &Compiled{Node: n, ID: id, Successors: Successors(id, n)}
	switch n.Type {
	case Send:
		c.send(pointer, n, made)
	case Delay:
		made.For = c.given(at(pointer, "for"), n.For)
	case WaitUntil:
		made.when = c.waitUntil(pointer, n)
		made.Offset = made.when.offset
	case WaitForEvent:
		c.waitForEvent(pointer, n, made)
	case Branch:
		c.branch(pointer, n, made)
	case Split:
		c.split(pointer, id, n, made)
	case Webhook:
		c.webhook(pointer, n)
	}
	return made
}

// given parses a duration whose absence was reported already.
func (c *checker) given(pointer, text string) time.Duration {
	if text == "" {
		return 0
	}
	return c.duration(pointer, text, 1, MaxDuration)
}

func (c *checker) send(pointer string, n Node, made *Compiled) {
	c.g.profile = true
	oneOf(c, at(pointer, "channel"), n.Channel, channels...)
	oneOf(c, at(pointer, "strategy"), n.Strategy, "at_least_once", "at_most_once")
	made.ExpiresAfter = c.given(at(pointer, "expires_after"), n.ExpiresAfter)
	if n.TemplateVersion < 0 {
		c.fault(at(pointer, "template_version"), "invalid", "must be at least 1")
	}
	c.mustNot(at(pointer, "topic_id"), n.TopicID != "" && n.Transactional, "is not allowed for a transactional message")
	if m := n.Conversion; m != nil {
		c.eventName(at(pointer, "conversion", "event"), m.Event)
		made.Converts = c.duration(at(pointer, "conversion", "within"), m.Within, time.Second, lemma.MaxConversion)
	}
	c.envelope(pointer, n)
}

// channels are those of send nodes.
var channels = []string{string(lemma.Email), string(lemma.SMS), string(lemma.Push)}

// hasEnvelope reports whether the messages of a channel have a sender and headers.
func hasEnvelope(channel string) bool {
	return channel != string(lemma.SMS) && channel != string(lemma.Push)
}

// envelope applies the rules of campaigns' messages. A published version was checked by
// the rules of its time, and has active enrollments.
func (c *checker) envelope(pointer string, n Node) {
	if !hasEnvelope(n.Channel) {
		detail := "is not allowed for " + n.Channel
		c.mustNot(at(pointer, "from"), n.From != nil, detail)
		c.mustNot(at(pointer, "reply_to"), n.ReplyTo != "", detail)
		c.mustNot(at(pointer, "headers"), len(n.Headers) > 0, detail)
		return
	}
	if n.From == nil || c.facts.Published {
		return
	}
	e := mail.Envelope{FromEmail: n.From.Email, FromName: n.From.Name, ReplyTo: n.ReplyTo, Headers: n.Headers}
	for _, f := range e.Faults() {
		c.fault(pointer+f.Pointer, f.Code, "%s", f.Detail)
	}
}

func (c *checker) waitUntil(pointer string, n Node) *when {
	w := &when{dateColumn: n.DateColumn, zoneColumn: n.ZoneColumn}
	if n.Time == "" && len(n.Weekdays) == 0 && n.DateColumn == "" {
		c.fault(at(pointer, "time"), "required", "give a time, weekdays or a date_column")
	}
	if n.Time != "" {
		w.clock, w.hasClock = parseClock(n.Time)
		if !w.hasClock {
			c.fault(at(pointer, "time"), "invalid_time", "must be a time such as 09:00 or 09:00:30")
		}
	}
	c.weekdays(at(pointer, "weekdays"), n.Weekdays, w)
	w.zone, _ = c.zone(at(pointer, "zone"), n.Zone)
	if n.Offset != "" {
		w.offset = c.duration(at(pointer, "offset"), n.Offset, -MaxDuration, MaxDuration)
		c.mustNot(at(pointer, "offset"), n.DateColumn == "", "is allowed only with date_column")
	}
	c.mustNot(at(pointer, "on_missing"), n.OnMissing != "" && n.DateColumn == "", "is allowed only with date_column")
	c.reads(at(pointer, "date_column"), n.DateColumn, "date", "timestamp", "text")
	c.reads(at(pointer, "zone_column"), n.ZoneColumn, "text", "other")
	return w
}

func (c *checker) weekdays(pointer string, days []string, w *when) {
	for i, name := range days {
		d, ok := parseWeekday(name)
		switch {
		case !ok:
			c.fault(index(pointer, i), "invalid_weekday", "must be one of mon, tue, wed, thu, fri, sat, sun")
		case slices.Contains(w.days, d):
			c.fault(index(pointer, i), "duplicate", "%s must occur once", name)
		}
		w.days = append(w.days, d)
	}
}

// reads records a column of the profile that a node reads; it must have one of some types.
func (c *checker) reads(pointer, column string, types ...string) {
	if column == "" {
		return
	}
	c.g.profile, c.columns[column] = true, true
	kind, exists := c.compiler.world.columns[column]
	switch {
	case c.compiler.world.columns == nil || c.facts.Published:
	case !exists:
		c.fault(pointer, "unknown_column", "the audience has no column %s%s", column, hint(c.compiler.hints, column, c.compiler.world.columns))
	case len(types) > 0 && !slices.Contains(types, kind):
		c.fault(pointer, "wrong_type", "column %s is of type %s and must be %s", column, kind, strings.Join(types, " or "))
	}
}

func (c *checker) waitForEvent(pointer string, n Node, made *Compiled) {
	if n.Event != "" {
		c.event(at(pointer, "event"), n.Event, "wait")
	}
	made.Condition = c.condition(onEvent, at(pointer, "condition"), n.Condition)
	made.Timeout = c.given(at(pointer, "timeout"), n.Timeout)
}

func (c *checker) branch(pointer string, n Node, made *Compiled) {
	asks := false
	for i, one := range n.Cases {
		place := index(at(pointer, "cases"), i)
		asks = asks || one.SQL != ""
		switch {
		case one.If == "" && one.SQL == "":
			c.fault(at(place, "if"), "required", "must have if or sql")
		case one.If != "" && one.SQL != "":
			c.fault(at(place, "sql"), "not_allowed", "must have either if or sql")
		case len(one.SQL) > maxSQL:
			c.fault(at(place, "sql"), "too_long", "must have at most %d bytes", maxSQL)
		}
		c.nextPath(place, one.Next)
		made.Cases = append(made.Cases, CompiledCase{one, c.condition(branching, at(place, "if"), one.If)})
	}
	c.mustNot(at(pointer, "data_source_id"), n.DataSourceID != "" && !asks, "is allowed only with a case that has sql")
	if asks && n.DataSourceID == "" && c.def.AudienceID == "" {
		c.fault(at(pointer, "data_source_id"), "required", "name the data source to query, or an audience")
	}
}

func (c *checker) nextPath(pointer, next string) {
	if next == "" {
		c.fault(at(pointer, "next"), "dead_end", "name the next node: only an exit ends an enrollment")
	}
}

func (c *checker) split(pointer, id string, n Node, made *Compiled) {
	salt := n.Salt
	if salt == "" {
		salt = defaultSalt(c.flow, id)
	}
	if len(n.Salt) > maxName || strings.ContainsRune(n.Salt, 0) {
		c.fault(at(pointer, "salt"), "invalid", "must have at most %d bytes, and no NUL", maxName)
	}
	var sum int64
	weights := make([]int, len(n.Arms))
	for i, arm := range n.Arms {
		weights[i] = arm.Weight
		place := index(at(pointer, "arms"), i)
		if arm.Weight < 1 {
			c.fault(at(place, "weight"), "invalid_weight", "must be at least 1")
		}
		if len(arm.Name) > maxName {
			c.fault(at(place, "name"), "too_long", "must have at most %d bytes", maxName)
		}
		sum += int64(max(arm.Weight, 0))
		c.nextPath(place, arm.Next)
	}
	if sum > maxWeight {
		c.fault(at(pointer, "arms"), "invalid_weight", "the weights must add up to at most %d", maxWeight)
	}
	made.arms = abtest.NewSplit(salt, weights...)
}

func (c *checker) webhook(pointer string, n Node) {
	c.names(at(pointer, "columns"), n.Columns)
	for i, column := range n.Columns {
		c.reads(index(at(pointer, "columns"), i), column)
	}
	for _, status := range sorted(n.OnStatus) {
		if !validStatus(status) {
			c.fault(at(pointer, "on_status", status), "invalid", "must be three digits such as 410, or a class such as 4xx")
		}
		if n.OnStatus[status] == "" {
			c.fault(at(pointer, "on_status", status), "dead_end", "name the next node: only an exit ends an enrollment")
		}
	}
}

// validStatus reports whether an answer can have a final status like this; 1xx is never
// final.
func validStatus(s string) bool {
	if len(s) != 3 || s[0] < '2' || s[0] > '5' {
		return false
	}
	return s[1:] == "xx" || s[1] >= '0' && s[1] <= '9' && s[2] >= '0' && s[2] <= '9'
}

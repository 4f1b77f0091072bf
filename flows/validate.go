package flows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/flows/execution"
	"lemma/flows/graph"
)

// Validation is the result of validating a version.
type Validation struct {
	Valid    bool
	Faults   []lemma.Field
	Warnings []string
	Columns  []string // of the profile that the version reads
	ETag     Tag      // as of a Plan
}

// Validate returns every fault of a version with its JSON pointer: in the document,
// and in what it names.
func (f *Flows) Validate(ctx context.Context, ws, flow uuid.UUID, n int) (Validation, error) {
	now, v, err := f.seen(ctx, ws, flow, n, InFlight{})
	if err != nil {
		return Validation{}, err
	}
	c, err := f.check(ctx, ws, flow, v.Definition)
	if err != nil {
		return Validation{}, fmt.Errorf("validate version %d of flow %s: %w", n, flow, err)
	}
	if err := c.warnOfRecurrence(ctx, now.LiveVersion); err != nil {
		return Validation{}, fmt.Errorf("validate version %d of flow %s: %w", n, flow, err)
	}
	found := Validation{Valid: len(c.faults) == 0, Faults: c.faults, Warnings: c.warnings, Columns: c.columns(),
		ETag: Tag{Version: now.Version}}
	if found.Valid && v.Status == versionDraft {
		_, found.ETag.Planned, err = c.pinned(v)
	}
	return found, err
}

// checked is a definition and the faults and warnings found in it.
type checked struct {
	*Flows
	ws, flow uuid.UUID
	def      *graph.Definition
	graph    *graph.Graph // nil when the document itself has faults
	audience *audience.Audience

	faults   []lemma.Field
	warnings []string
	pins     map[string]int  // send node -> the template's newest version, where the document leaves it open
	used     map[string]bool // columns that templates use
	sources  map[string]error
}

// check checks a definition and everything it names. Faults of the definition are
// collected; the error is an internal one.
func (f *Flows) check(ctx context.Context, ws, flow uuid.UUID, raw json.RawMessage) (*checked, error) {
	c := &checked{Flows: f, ws: ws, flow: flow, faults: []lemma.Field{}, warnings: []string{}, pins: map[string]int{},
		used: map[string]bool{}, sources: map[string]error{}}
	var err error
	if c.def, err = wellFormed(ws, raw); err != nil {
		return c, c.collect("", err)
	}
	if err := c.checkAudience(ctx); err != nil {
		return nil, err
	}
	if c.graph, err = graph.Compile(raw, graph.Flow{WorkspaceID: ws, FlowID: flow}, c.facts()); err != nil {
		if err := c.collect("", err); err != nil {
			return nil, err
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.def.Nodes)) {
		if err := c.checkNode(ctx, id, c.def.Nodes[id]); err != nil {
			return nil, err
		}
	}
	if err := c.checkSize(raw); err != nil {
		return nil, err
	}
	c.warn()
	c.tidy()
	return c, nil
}

// checkSize checks that the version can still be read when the templates' versions are
// written into it.
func (c *checked) checkSize(raw json.RawMessage) error {
	text, err := graph.Pin(raw, c.pins)
	if err == nil && len(text) > graph.MaxDefinition {
		c.fault("", "too_large", "with every template_version written into it, the definition has %d bytes; %d are allowed", len(text),
			graph.MaxDefinition)
	}
	return err
}

// fault records a fault. Empty ids and the like are reported by the graph.
func (c *checked) fault(pointer, code, format string, args ...any) {
	c.faults = append(c.faults, lemma.Field{Pointer: c.def.Place(pointer), Code: code, Detail: fmt.Sprintf(format, args...)})
}

// collect turns an error for the caller into faults below a pointer, and returns any other. A
// busy source is no fault of the definition: the whole request is refused.
func (c *checked) collect(below string, err error) error {
	var e *lemma.Error
	switch {
	case !errors.As(err, &e) || e.Kind == lemma.Internal || e.Code == audience.CodeOverloaded:
		return err
	case e.Kind == lemma.Unavailable:
		c.fault(below, audience.CodeUnavailable, "%s", lemma.Public(err))
	case len(e.Fields) == 0:
		code := e.Code
		if code == "" {
			code = string(e.Kind)
		}
		c.fault(below, code, "%s", e.Message)
	}
	for _, field := range e.Fields {
		field.Pointer = below + field.Pointer
		c.faults = append(c.faults, field)
	}
	return nil
}

// named reads what an id names; found is false after a recorded fault.
func named[T any](c *checked, ctx context.Context, at, prefix, text, what string,
	get func(ctx context.Context, ws, id uuid.UUID) (T, error)) (found T, ok bool, err error) {
	if text == "" {
		return found, false, nil // the graph reports a missing id
	}
	id, known := lemma.ParseID(prefix, text)
	if known {
		found, err = get(ctx, c.ws, id)
	}
	if !known || lemma.KindOf(err) == lemma.NotFound && err != nil {
		c.fault(at, "unknown_id", "there is no such %s in this workspace", what)
		return found, false, nil //nolint:nilerr // reported as a fault
	}
	return found, err == nil, err
}

func (c *checked) checkAudience(ctx context.Context) error {
	a, ok, err := named(c, ctx, "/audience_id", lemma.PrefixAudience, c.def.AudienceID, "audience", c.audiences.Get)
	if ok {
		c.audience = &a
	}
	return err
}

// facts are what the graph needs of the audience; without one it accepts any column.
func (c *checked) facts() graph.Facts {
	if c.audience == nil {
		return graph.Facts{}
	}
	return graph.Facts{Columns: execution.ColumnFacts(*c.audience)}
}

func (c *checked) checkNode(ctx context.Context, id string, n graph.Node) error {
	at := lemma.Pointer("nodes", id)
	switch n.Type {
	case graph.Send:
		return c.checkSend(ctx, at, id, n)
	case graph.Branch:
		c.warnOfPeople(id, n)
		return c.checkBranch(ctx, at, n)
	case graph.Split:
		c.warnOfArms(id, n)
	case graph.Webhook:
		_, _, err := named(c, ctx, at+"/endpoint_id", lemma.PrefixEndpoint, n.EndpointID, "webhook endpoint", c.webhooks.Get)
		if n.OnError == "" {
			c.warnings = append(c.warnings,
				fmt.Sprintf("node %s has no on_error: after its last attempt the enrollment continues as if it had been delivered", id))
		}
		return err
	case graph.WaitUntil:
		c.warnOfDates(id, n)
	}
	return nil
}

// warnOfDates warns of dates that cannot be read.
func (c *checked) warnOfDates(id string, n graph.Node) {
	if n.DateColumn == "" {
		return
	}
	if n.OnMissing == "" {
		c.warnings = append(c.warnings,
			fmt.Sprintf("node %s has no on_missing: a profile without a date in %s continues at once", id, n.DateColumn))
	}
	if c.audience != nil && slices.ContainsFunc(c.audience.Columns,
		func(column audience.Column) bool { return column.Name == n.DateColumn && column.Type == "text" }) {
		c.warnings = append(c.warnings, fmt.Sprintf("node %s reads a date from %s, a text: a value that is neither YYYY-MM-DD nor RFC 3339 "+
			"counts as missing", id, n.DateColumn))
	}
}

// checkBranch lets the data source check cases in SQL.
func (c *checked) checkBranch(ctx context.Context, at string, n graph.Node) error {
	source, err := c.sourceOf(ctx, at, n)
	if err != nil || source == uuid.Nil {
		return err
	}
	for i, one := range n.Cases {
		if one.SQL == "" {
			continue
		}
		if err := c.collect(fmt.Sprintf("%s/cases/%d", at, i), c.check(ctx, source, one.SQL)); err != nil {
			return err
		}
	}
	return nil
}

// sourceOf is the data source that a branch queries; Nil if there is none, or no query.
func (c *checked) sourceOf(ctx context.Context, at string, n graph.Node) (uuid.UUID, error) {
	if n.DataSourceID != "" {
		s, _, err := named(c, ctx, at+"/data_source_id", lemma.PrefixDataSource, n.DataSourceID, "data source", c.audiences.GetSource)
		return s.ID, err
	}
	if !slices.ContainsFunc(n.Cases, func(one graph.Case) bool { return one.SQL != "" }) {
		return uuid.Nil, nil
	}
	if c.audience != nil {
		return c.audience.DataSourceID, nil
	}
	if c.def.AudienceID == "" {
		c.fault(at+"/data_source_id", "required", "name the data source to query, or an audience")
	}
	return uuid.Nil, nil
}

// check lets a source check a query, each once; a source that does not answer is not queried
// again.
func (c *checked) check(ctx context.Context, source uuid.UUID, sql string) error {
	if err := c.sources[source.String()]; err != nil {
		return err
	}
	err, known := c.sources[source.String()+sql]
	if !known {
		err = c.audiences.ValidateMatching(ctx, c.ws, source, sql)
		c.sources[source.String()+sql] = err
	}
	if err != nil && lemma.KindOf(err) == lemma.Unavailable {
		c.sources[source.String()] = err
	}
	return err
}

// warn collects warnings: what is allowed and probably not intended.
func (c *checked) warn() {
	if len(c.def.Triggers) == 0 {
		c.warnings = append(c.warnings, "there is no trigger: profiles enroll only by direct request")
	}
	c.warnOfOverlap()
	goal := slices.ContainsFunc(c.def.ExitOn, func(e graph.ExitOn) bool { return e.Goal })
	for _, n := range c.def.Nodes {
		goal = goal || n.Type == graph.Exit && n.Goal
	}
	if len(c.def.ExitOn) > 0 && !goal {
		c.warnings = append(c.warnings, "there is no goal: no enrollment will count as one that reached it")
	}
}

// tidy drops duplicates, and sorts by place.
func (c *checked) tidy() {
	slices.SortStableFunc(c.faults, func(a, b lemma.Field) int { return strings.Compare(a.Pointer, b.Pointer) })
	c.faults = slices.CompactFunc(c.faults,
		func(a, b lemma.Field) bool { return a.Pointer == b.Pointer && a.Code == b.Code && a.Detail == b.Detail })
}

// columns are those of the profile that the version reads.
func (c *checked) columns() []string {
	read := []string{}
	if c.graph == nil {
		return read
	}
	read = append(read, execution.ColumnsOf(c.graph, c.audience)...)
	for name := range c.used {
		read = append(read, name)
	}
	slices.Sort(read)
	return slices.Compact(read)
}

// pin finds the versions of templates that a draft would be published with. A template
// that it cannot find stays open: publishing reports why.
func (f *Flows) pin(ctx context.Context, ws uuid.UUID, raw json.RawMessage, def *graph.Definition) (json.RawMessage, error) {
	pins := map[string]int{}
	for id, n := range def.Nodes {
		template, ok := lemma.ParseID(lemma.PrefixTemplate, n.TemplateID)
		if !ok || n.Type != graph.Send || n.TemplateVersion != 0 {
			continue
		}
		t, err := f.templates.Get(ctx, ws, template)
		if lemma.KindOf(err) == lemma.Internal && err != nil {
			return nil, err
		}
		if err == nil {
			pins[id] = t.Version
		}
	}
	return graph.Pin(raw, pins)
}

// Route returns any version ready to be evaluated, or all faults of an invalid draft.
func (f *Flows) Route(ctx context.Context, ws uuid.UUID, v Version) (*execution.Route, error) {
	if v.Status != versionDraft {
		return f.Execution.Route(ctx, ws, v.FlowID, v.Version)
	}
	c, err := f.check(ctx, ws, v.FlowID, v.Definition)
	switch {
	case err != nil:
		return nil, err
	case len(c.faults) > 0:
		return nil, &lemma.Error{Kind: lemma.Invalid, Message: "the version has faults and cannot be simulated", Fields: c.faults}
	}
	return f.Execution.NewRoute(ctx, c.graph, ws, v.FlowID, v.Version)
}

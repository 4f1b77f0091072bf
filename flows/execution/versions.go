package execution

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/flows/enrollment"
	"lemma/flows/graph"
	"lemma/message"
)

// Route is a graph with all that its execution needs from other packages.
type Route struct {
	*graph.Graph
	WorkspaceID, FlowID uuid.UUID
	Version             int
	audience            uuid.UUID // Nil: it reads no profiles
	source              uuid.UUID // the audience's data source
	ProfileColumns      []string  // of a profile, that any node or condition reads
	sends               map[string]*Send
}

// Send is a send node, ready to write notifications.
type Send struct {
	Channel         lemma.Channel
	ProviderID      uuid.UUID
	TemplateID      uuid.UUID
	TemplateVersion int // its version
	ContentID       uuid.UUID
	headers         map[string]string
	variables       []string // of the template and the headers, that are columns of the profile
	trigger         bool     // a template uses the trigger
	whole           bool     // the variables are all columns that are read: the payload is stored as read
	MaxAttempts     int
	ExpiresAfter    time.Duration
	Converts        time.Duration // how long after a message the event of its conversion counts
}

// ReservedTrigger is the name under which templates see the trigger.
const ReservedTrigger = "trigger"

// Route returns a published version with its current audience, ready to execute. It reads
// outside of any transaction.
func (e *Evaluator) Route(ctx context.Context, ws, flow uuid.UUID, version int) (*Route, error) {
	g, err := e.Versions.Current(ctx, e.pool, ws, flow, version)
	if err != nil {
		return nil, err
	}
	key := VersionID{flow, version}
	e.Versions.mu.Lock()
	found := e.Versions.routes[key]
	e.Versions.mu.Unlock()
	if found != nil && found.Graph == g {
		return found, nil
	}
	made, err := e.NewRoute(ctx, g, ws, flow, version)
	if err != nil {
		return nil, err
	}
	e.Versions.keepRoute(key, made)
	return made, nil
}

// memory estimates the bytes that a route takes besides its graph.
func (r *Route) memory() int {
	n := 0
	for _, name := range r.ProfileColumns {
		n += len(name) + 16
	}
	for _, s := range r.sends {
		n += 500
		for _, name := range s.variables {
			n += len(name) + 16
		}
		for name, value := range s.headers {
			n += len(name) + len(value) + 32
		}
	}
	return n
}

// NewRoute resolves what a graph names.
func (e *Evaluator) NewRoute(ctx context.Context, g *graph.Graph, ws, flow uuid.UUID, version int) (*Route, error) {
	r := &Route{Graph: g, WorkspaceID: ws, FlowID: flow, Version: version, ProfileColumns: g.Columns(), sends: map[string]*Send{}}
	if err := e.addSends(ctx, r); err != nil {
		return nil, err
	}
	slices.Sort(r.ProfileColumns)
	r.ProfileColumns = slices.Compact(r.ProfileColumns)
	if g.Definition().AudienceID == "" {
		return r, nil
	}
	r.audience, _ = lemma.ParseID(lemma.PrefixAudience, g.Definition().AudienceID)
	a, err := e.audiences.Get(ctx, ws, r.audience)
	if err != nil {
		return nil, err
	}
	r.source = a.DataSourceID
	if g.AllColumns() {
		r.ProfileColumns = ColumnsOf(g, &a)
	}
	for _, s := range r.sends {
		s.whole = !s.trigger && slices.Equal(s.variables, r.ProfileColumns)
	}
	return r, nil
}

// addSends adds the send nodes. It compiles no template: a worker would compile those of all nodes, and a
// version may name very many.
func (e *Evaluator) addSends(ctx context.Context, r *Route) error {
	var named []message.VersionRef
	for id, n := range r.Definition().Nodes {
		if n.Type != graph.Send {
			continue
		}
		s, err := e.newSend(ctx, r, id, n)
		if err != nil {
			return fmt.Errorf("node %s: %w", id, err)
		}
		r.sends[id], named = s, append(named, s.template())
	}
	if len(named) == 0 {
		return nil
	}
	needs, err := e.templates.NeedsOf(ctx, r.WorkspaceID, named)
	if err != nil {
		return err
	}
	for id, s := range r.sends {
		of, exists := needs[s.template()]
		if !exists {
			return fmt.Errorf("node %s: %w", id, lemma.Missing("template version"))
		}
		if err := s.fill(of, r.Definition().Nodes[id]); err != nil {
			return fmt.Errorf("node %s: %w", id, err)
		}
		r.ProfileColumns = append(r.ProfileColumns, s.variables...)
	}
	return nil
}

func (s *Send) template() message.VersionRef {
	return message.VersionRef{Template: s.TemplateID, Version: s.TemplateVersion}
}

// ColumnsOf are the columns of its audience that a version's own text reads: those that it
// names, or all.
func ColumnsOf(g *graph.Graph, a *audience.Audience) []string {
	if !g.AllColumns() || a == nil {
		return g.Columns()
	}
	names := make([]string, len(a.Columns))
	for i, c := range a.Columns {
		names[i] = c.Name
	}
	return names
}

func (e *Evaluator) newSend(ctx context.Context, r *Route, id string, n graph.Node) (*Send, error) {
	s := &Send{MaxAttempts: 2, ContentID: enrollment.ContentID(r.FlowID, r.Version, id),
		TemplateVersion: n.TemplateVersion}
	if n.Strategy == "at_most_once" {
		s.MaxAttempts = 1
	}
	s.ProviderID, _ = lemma.ParseID(lemma.PrefixProvider, n.ProviderID)
	s.TemplateID, _ = lemma.ParseID(lemma.PrefixTemplate, n.TemplateID)
	if compiled, ok := r.Node(id); ok {
		s.ExpiresAfter, s.Converts = compiled.ExpiresAfter, compiled.Converts
	}
	if s.TemplateVersion == 0 { // a draft that is simulated; publishing pins it
		t, err := e.templates.Get(ctx, r.WorkspaceID, s.TemplateID)
		if err != nil {
			return nil, err
		}
		s.TemplateVersion = t.Version
	}
	return s, nil
}

// fill adds what follows from the template and the headers.
func (s *Send) fill(t message.Needs, n graph.Node) error {
	s.Channel = t.Channel
	s.headers = message.SentHeaders(s.Channel, n.Transactional, n.Headers)
	used, err := message.CheckHeaders(s.headers)
	if err != nil {
		return err
	}
	all := slices.Concat(t.Variables, used)
	slices.Sort(all)
	for _, name := range slices.Compact(all) {
		if name == ReservedTrigger {
			s.trigger = true
		} else {
			s.variables = append(s.variables, name)
		}
	}
	return nil
}

// ColumnFacts are an audience's columns as graph.Compile takes them.
func ColumnFacts(a audience.Audience) []graph.Column {
	columns := make([]graph.Column, len(a.Columns))
	for i, column := range a.Columns {
		columns[i] = graph.Column{Name: column.Name, Type: string(column.Type)}
	}
	return columns
}

package execution

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/audience"
	"lemma/flows/enrollment"
	"lemma/flows/graph"
	"lemma/message"
)

// Versions caches compiled versions. A published version never changes, so an entry is
// valid until the columns of its audience change.
type Versions struct {
	mu       sync.Mutex
	compiled map[VersionID]compiled
	routes   map[VersionID]*Route
	bytes    int // definitions in compiled
	hook     *enrollment.Hook
}

// compiled is a graph, and the version of the audience whose columns it was compiled with.
type compiled struct {
	*graph.Graph
	audience uuid.UUID // Nil: it reads none
	at       int

	workspace uuid.UUID
	bytes     int // of the definition
}

// VersionID is a version of a flow.
type VersionID struct {
	Flow    uuid.UUID
	Version int
}

// maxCached bounds the definitions in the cache, in bytes: compiled, a definition takes
// up to 80 times as much memory. One workspace has half of it at most.
const maxCached = 4 << 20

// Current returns a published version's graph with the audience's current columns. The
// audience of an archived flow may be deleted: then the graph stays as it was.
func (g *Versions) Current(ctx context.Context, q enrollment.Querier, ws, flow uuid.UUID, version int) (*graph.Graph, error) {
	g.mu.Lock()
	known := g.compiled[VersionID{flow, version}]
	g.mu.Unlock()
	if known.audience != uuid.Nil {
		var at int
		err := q.QueryRow(ctx, `select version from audiences where workspace_id = $1 and id = $2`, ws, known.audience).Scan(&at)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return nil, fmt.Errorf("read audience %s: %w", known.audience, err)
		}
		if err == nil && at != known.at {
			g.Drop(flow, version)
		}
	}
	return g.Get(ctx, q, ws, flow, version)
}

// Drop removes a version from the cache.
func (g *Versions) Drop(flow uuid.UUID, version int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drop(VersionID{flow, version})
}

func (g *Versions) drop(key VersionID) {
	g.bytes -= g.compiled[key].bytes
	delete(g.compiled, key)
	delete(g.routes, key)
}

// add caches a version. Others are evicted in random order until there is space for it.
func (g *Versions) add(key VersionID, c compiled) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.compiled == nil {
		g.compiled, g.routes = map[VersionID]compiled{}, map[VersionID]*Route{}
	}
	g.drop(key)
	own := 0
	for _, other := range g.compiled {
		if other.workspace == c.workspace {
			own += other.bytes
		}
	}
	for k, other := range g.compiled {
		if mine := other.workspace == c.workspace; mine && own+c.bytes > maxCached/2 {
			own -= other.bytes
			g.drop(k)
		}
	}
	for k := range g.compiled {
		if g.bytes+c.bytes <= maxCached {
			break
		}
		g.drop(k)
	}
	g.compiled[key], g.bytes = c, g.bytes+c.bytes
}

// Get returns a published version's graph with the known columns of the audience: enough
// for callers that read no profile. It may compile, so transactions use Ready instead.
func (g *Versions) Get(ctx context.Context, q enrollment.Querier, ws, flow uuid.UUID, version int) (*graph.Graph, error) {
	if found := g.cached(VersionID{flow, version}); found != nil {
		return found, nil
	}
	c, err := g.compile(ctx, q, ws, VersionID{flow, version})
	return c.Graph, err
}

// cached returns a version's graph if the cache has it.
func (g *Versions) cached(v VersionID) *graph.Graph {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.compiled[v].Graph
}

// compile compiles a version and caches it. It may take long.
func (g *Versions) compile(ctx context.Context, q enrollment.Querier, ws uuid.UUID, v VersionID) (compiled, error) {
	var text string
	err := q.QueryRow(ctx,
		`select definition from flow_versions where workspace_id = $1 and flow_id = $2 and version = $3 and status = 'published'`,
		ws, v.Flow, v.Version).Scan(&text)
	if errors.Is(err, pgx.ErrNoRows) {
		return compiled{}, &lemma.Error{Kind: lemma.NotFound, Message: fmt.Sprintf("the flow has no published version %d", v.Version)}
	}
	if err != nil {
		return compiled{}, fmt.Errorf("read version %d of flow %s: %w", v.Version, v.Flow, err)
	}
	facts, by, err := factsOf(ctx, q, ws, text)
	if err != nil {
		return compiled{}, err
	}
	g.hook.At("compile")
	by.Graph, err = graph.Compile(json.RawMessage(text), graph.Flow{WorkspaceID: ws, FlowID: v.Flow}, facts)
	if err != nil {
		return compiled{}, fmt.Errorf("compile version %d of flow %s: %w", v.Version, v.Flow, err)
	}
	by.workspace, by.bytes = ws, len(text)
	g.add(v, by)
	return by, nil
}

// factsOf are the audience's columns: conditions read values by their types.
func factsOf(ctx context.Context, q enrollment.Querier, ws uuid.UUID, definition string) (facts graph.Facts, by compiled, err error) {
	facts.Published = true
	var named struct {
		AudienceID string `json:"audience_id"`
	}
	if err := json.Unmarshal([]byte(definition), &named); err != nil {
		return facts, by, fmt.Errorf("read definition: %w", err)
	}
	id, ok := lemma.ParseID(lemma.PrefixAudience, named.AudienceID)
	if !ok {
		return facts, by, nil
	}
	by.audience = id
	err = q.QueryRow(ctx, `select columns, version from audiences where workspace_id = $1 and id = $2`, ws, id).Scan(&facts.Columns, &by.at)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return facts, by, fmt.Errorf("read columns of audience %s: %w", id, err)
	}
	return facts, by, nil
}

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
	e.Versions.mu.Lock()
	defer e.Versions.mu.Unlock()
	if e.Versions.compiled[key].Graph == g { // a route lives as long as its graph
		e.Versions.routes[key] = made
	}
	return made, nil
}

// NewRoute resolves what a graph names.
func (e *Evaluator) NewRoute(ctx context.Context, g *graph.Graph, ws, flow uuid.UUID, version int) (*Route, error) {
	r := &Route{Graph: g, WorkspaceID: ws, FlowID: flow, Version: version, ProfileColumns: g.Columns(), sends: map[string]*Send{}}
	for id, n := range g.Definition().Nodes {
		if n.Type != graph.Send {
			continue
		}
		s, err := e.newSend(ctx, r, id, n)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", id, err)
		}
		r.sends[id] = s
		r.ProfileColumns = append(r.ProfileColumns, s.variables...)
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
	t, err := e.templates.Compiled(ctx, r.WorkspaceID, s.TemplateID, s.TemplateVersion)
	if err != nil {
		return nil, err
	}
	s.Channel = t.Channel()
	s.headers = message.SentHeaders(s.Channel, n.Transactional, n.Headers)
	if t, err = t.WithHeaders(s.headers); err != nil {
		return nil, err
	}
	for _, name := range t.Variables() {
		if name == ReservedTrigger {
			s.trigger = true
		} else {
			s.variables = append(s.variables, name)
		}
	}
	return s, nil
}

// ColumnFacts are an audience's columns as graph.Compile takes them.
func ColumnFacts(a audience.Audience) []graph.Column {
	columns := make([]graph.Column, len(a.Columns))
	for i, column := range a.Columns {
		columns[i] = graph.Column{Name: column.Name, Type: string(column.Type)}
	}
	return columns
}

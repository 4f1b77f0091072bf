package flows

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
	"lemma/flows/graph"
)

// graphs holds compiled versions. A published version never changes, so what
// was compiled once holds until the audience that it reads is another.
type graphs struct {
	mu       sync.Mutex
	compiled map[versionKey]compiled
	routes   map[versionKey]*route
}

// compiled is a graph, and the version of the audience by whose columns it
// reads profiles.
type compiled struct {
	*graph.Graph
	audience uuid.UUID // Nil: it reads none
	at       int
}

type versionKey struct {
	flow    uuid.UUID
	version int
}

// mostGraphs bounds the cache, which is emptied when it is full.
const mostGraphs = 1000

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// now answers a published version's graph by the audience as it is now. One that
// an archived flow has let go of may be gone: then the graph is as it was.
func (g *graphs) now(ctx context.Context, q querier, ws, flow uuid.UUID, version int) (*graph.Graph, error) {
	g.mu.Lock()
	known := g.compiled[versionKey{flow, version}]
	g.mu.Unlock()
	if known.audience != uuid.Nil {
		var at int
		err := q.QueryRow(ctx, `select version from audiences where workspace_id = $1 and id = $2`, ws, known.audience).Scan(&at)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return nil, fmt.Errorf("look at audience %s: %w", known.audience, err)
		}
		if err == nil && at != known.at {
			g.drop(flow, version)
		}
	}
	return g.get(ctx, q, ws, flow, version)
}

// drop forgets what was compiled of a version: what it names has changed.
func (g *graphs) drop(flow uuid.UUID, version int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.compiled, versionKey{flow, version})
	delete(g.routes, versionKey{flow, version})
}

// get answers a published version's graph by what is known of the audience:
// enough for whoever looks at no profile.
func (g *graphs) get(ctx context.Context, q querier, ws, flow uuid.UUID, version int) (*graph.Graph, error) {
	key := versionKey{flow, version}
	g.mu.Lock()
	found := g.compiled[key]
	g.mu.Unlock()
	if found.Graph != nil {
		return found.Graph, nil
	}
	var text string
	err := q.QueryRow(ctx, `select definition from flow_versions where workspace_id = $1 and flow_id = $2 and version = $3 and status = 'published'`,
		ws, flow, version).Scan(&text)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, &lemma.Error{Kind: lemma.NotFound, Message: fmt.Sprintf("the flow has no published version %d", version)}
	}
	if err != nil {
		return nil, fmt.Errorf("read version %d of flow %s: %w", version, flow, err)
	}
	facts, by, err := factsOf(ctx, q, ws, text)
	if err != nil {
		return nil, err
	}
	by.Graph, err = graph.Compile(json.RawMessage(text), graph.Flow{WorkspaceID: ws, FlowID: flow}, facts)
	if err != nil {
		return nil, fmt.Errorf("compile version %d of flow %s: %w", version, flow, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.compiled == nil || len(g.compiled) >= mostGraphs {
		g.compiled, g.routes = map[versionKey]compiled{}, map[versionKey]*route{}
	}
	g.compiled[key] = by
	return by.Graph, nil
}

// factsOf are the audience's columns: conditions read values by their types.
func factsOf(ctx context.Context, q querier, ws uuid.UUID, definition string) (facts graph.Facts, by compiled, err error) {
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

// route is a graph with all that walking along it needs from other rooms.
type route struct {
	*graph.Graph
	workspace, flow uuid.UUID
	version         int
	audience        uuid.UUID // Nil: it reads no profiles
	source          uuid.UUID // the audience's data source
	columns         []string  // of a profile, that anything on the way reads
	sends           map[string]*send
}

// send is a send node, ready to write notifications.
type send struct {
	provider     uuid.UUID
	template     uuid.UUID
	templateAt   int // its version
	content      uuid.UUID
	headers      map[string]string
	variables    []string // of the template and the headers, that are columns of the profile
	trigger      bool     // it uses the trigger too
	whole        bool     // the variables are all columns that are read: the payload is taken as it is
	maxAttempts  int
	expiresAfter time.Duration
}

// reservedTrigger is the name under which templates see the trigger.
const reservedTrigger = "trigger"

// route answers a published version ready to be walked, through its audience as
// that is now. It reads outside of any transaction.
func (f *Flows) route(ctx context.Context, ws, flow uuid.UUID, version int) (*route, error) {
	g, err := f.graphs.now(ctx, f.pool, ws, flow, version)
	if err != nil {
		return nil, err
	}
	key := versionKey{flow, version}
	f.graphs.mu.Lock()
	found := f.graphs.routes[key]
	f.graphs.mu.Unlock()
	if found != nil && found.Graph == g {
		return found, nil
	}
	made, err := f.newRoute(ctx, g, ws, flow, version)
	if err != nil {
		return nil, err
	}
	f.graphs.mu.Lock()
	defer f.graphs.mu.Unlock()
	if f.graphs.routes == nil {
		f.graphs.routes = map[versionKey]*route{}
	}
	f.graphs.routes[key] = made
	return made, nil
}

// newRoute resolves what a graph names.
func (f *Flows) newRoute(ctx context.Context, g *graph.Graph, ws, flow uuid.UUID, version int) (*route, error) {
	r := &route{Graph: g, workspace: ws, flow: flow, version: version, columns: g.Columns(), sends: map[string]*send{}}
	for id, n := range g.Definition().Nodes {
		if n.Type != graph.Send {
			continue
		}
		s, err := f.newSend(ctx, r, id, n)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", id, err)
		}
		r.sends[id] = s
		r.columns = append(r.columns, s.variables...)
	}
	slices.Sort(r.columns)
	r.columns = slices.Compact(r.columns)
	if g.Definition().AudienceID == "" {
		return r, nil
	}
	r.audience, _ = lemma.ParseID(lemma.PrefixAudience, g.Definition().AudienceID)
	a, err := f.audiences.Get(ctx, ws, r.audience)
	if err != nil {
		return nil, err
	}
	r.source = a.DataSourceID
	if g.AllColumns() {
		r.columns = columnsOf(g, &a)
	}
	for _, s := range r.sends {
		s.whole = !s.trigger && slices.Equal(s.variables, r.columns)
	}
	return r, nil
}

// columnsOf are the columns of its audience that a version's own text reads:
// those that it names, or all of them.
func columnsOf(g *graph.Graph, a *audience.Audience) []string {
	if !g.AllColumns() || a == nil {
		return g.Columns()
	}
	names := make([]string, len(a.Columns))
	for i, c := range a.Columns {
		names[i] = c.Name
	}
	return names
}

func (f *Flows) newSend(ctx context.Context, r *route, id string, n graph.Node) (*send, error) {
	s := &send{headers: n.Headers, maxAttempts: 2, content: contentOf(r.flow, r.version, id), templateAt: n.TemplateVersion}
	if n.Strategy == "at_most_once" {
		s.maxAttempts = 1
	}
	s.provider, _ = lemma.ParseID(lemma.PrefixProvider, n.ProviderID)
	s.template, _ = lemma.ParseID(lemma.PrefixTemplate, n.TemplateID)
	if compiled, ok := r.Node(id); ok {
		s.expiresAfter = compiled.ExpiresAfter
	}
	if s.templateAt == 0 { // a draft that is simulated; publishing pins it
		t, err := f.templates.Get(ctx, r.workspace, s.template)
		if err != nil {
			return nil, err
		}
		s.templateAt = t.Version
	}
	t, err := f.templates.Compiled(ctx, r.workspace, s.template, s.templateAt)
	if err != nil {
		return nil, err
	}
	if t, err = t.WithHeaders(n.Headers); err != nil {
		return nil, err
	}
	for _, name := range t.Variables() {
		if name == reservedTrigger {
			s.trigger = true
		} else {
			s.variables = append(s.variables, name)
		}
	}
	return s, nil
}

// contentOf is the id of what a node says: written once for a version, by
// whoever comes first.
func contentOf(flow uuid.UUID, version int, node string) uuid.UUID {
	return lemma.Key("flow content/1", string(flow[:]), fmt.Sprint(version), node)
}

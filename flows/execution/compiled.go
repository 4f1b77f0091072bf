package execution

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/cache"
	"lemma/flows/enrollment"
	"lemma/flows/graph"
	"lemma/slots"
)

// Versions caches compiled versions. A published version never changes, so an entry is
// valid until the columns of its audience change.
type Versions struct {
	mu       sync.Mutex
	compiled map[VersionID]compiled
	routes   map[VersionID]*Route
	bytes    int               // definitions in compiled
	of       map[uuid.UUID]int // of each workspace
	hook     *enrollment.Hook
	history  *cache.History
	read     cache.Moment // of all that is compiled

	flights   flights
	compiling *slots.Slots // large versions that are being compiled
	small     *slots.Slots // and small ones, which take milliseconds
	holding   *slots.Slots // transactions that hold many compiled versions
}

// newVersions makes an empty cache.
func newVersions(hook *enrollment.Hook) Versions {
	compiling := slots.Limits{Process: max(1, runtime.GOMAXPROCS(0)/2), Workspace: 1}
	return Versions{hook: hook, compiling: slots.New(compiling, nil), small: slots.New(compiling, nil),
		holding: slots.New(slots.Limits{Process: 4, Workspace: 1}, nil)}
}

// compiled is a graph, and the version of the audience whose columns it was compiled with.
type compiled struct {
	*graph.Graph
	audience uuid.UUID // Nil: it reads none
	at       int

	workspace  uuid.UUID
	definition int // bytes of it
	bytes      int // that count in the cache: those of the definition, and a share of the memory of its route
	read       cache.Moment
}

// VersionID is a version of a flow.
type VersionID struct {
	Flow    uuid.UUID
	Version int
}

// MaxListening bounds the live definitions of a workspace that listen to one event, in
// bytes. They are compiled for the event, and the cache has space for them.
const MaxListening = 2 << 20

// maxCached bounds the definitions in the cache, in bytes. One workspace has half of it at most: all that
// listen to one event, with their routes.
const maxCached = 2 * (MaxListening + MaxListening/4)

// compiledTimes is how many times as much memory as its definition a compiled version takes at most. Its
// route, which has the variables of all its templates, counts as so many times less than its memory.
const compiledTimes = 80

// Current returns a published version's graph with the audience's current columns. The
// audience of an archived flow may be deleted: then the graph stays as it was.
func (g *Versions) Current(ctx context.Context, q enrollment.Querier, ws, flow uuid.UUID, version int) (*graph.Graph, error) {
	g.mu.Lock()
	g.follow()
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

// follow requires the lock. It drops all versions when another server answers, which may have
// others under the same numbers.
func (g *Versions) follow() {
	if now := g.history.Now(); now != g.read {
		g.read, g.bytes = now, 0
		g.compiled, g.routes, g.of = map[VersionID]compiled{}, map[VersionID]*Route{}, map[uuid.UUID]int{}
	}
}

// Drop removes a version from the cache.
func (g *Versions) Drop(flow uuid.UUID, version int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drop(VersionID{flow, version})
}

func (g *Versions) drop(key VersionID) {
	was, ok := g.compiled[key]
	if !ok {
		return
	}
	g.bytes -= was.bytes
	if g.of[was.workspace] -= was.bytes; g.of[was.workspace] <= 0 {
		delete(g.of, was.workspace)
	}
	delete(g.compiled, key)
	delete(g.routes, key)
}

// add caches a version. Others are evicted until there is space for it: those of the
// workspace that has most, so that large flows do not displace those of other workspaces.
func (g *Versions) add(key VersionID, c compiled) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.compiled == nil {
		g.compiled, g.routes, g.of = map[VersionID]compiled{}, map[VersionID]*Route{}, map[uuid.UUID]int{}
	}
	if g.follow(); c.read != g.read {
		return
	}
	g.drop(key)
	c.bytes = min(c.bytes, maxCached/2) // one that takes more than a share evicts no others
	g.evict(c.workspace, maxCached/2-c.bytes)
	for len(g.compiled) > 0 && g.bytes+c.bytes > maxCached {
		largest, most := uuid.Nil, 0
		for ws, bytes := range g.of {
			if ws == c.workspace {
				bytes += c.bytes
			}
			if bytes > most {
				largest, most = ws, bytes
			}
		}
		g.evict(largest, g.of[largest]-1)
	}
	g.compiled[key], g.bytes = c, g.bytes+c.bytes
	g.of[c.workspace] += c.bytes
}

// keepRoute keeps the route of a graph as long as the graph.
func (g *Versions) keepRoute(key VersionID, r *Route) {
	g.mu.Lock()
	c := g.compiled[key]
	g.mu.Unlock()
	if c.Graph != r.Graph {
		return
	}
	c.bytes = c.definition + r.memory()/compiledTimes
	g.add(key, c)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.compiled[key].Graph == r.Graph {
		g.routes[key] = r
	}
}

// evict drops versions of a workspace in random order until they have so many bytes at most.
func (g *Versions) evict(ws uuid.UUID, most int) {
	for k, other := range g.compiled {
		if g.of[ws] <= most {
			return
		}
		if other.workspace == ws {
			g.drop(k)
		}
	}
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
	g.follow()
	return g.compiled[v].Graph
}

// compile returns a version compiled with the current columns, and caches it. It may take
// long. Callers that need the same version at the same time wait for one.
func (g *Versions) compile(ctx context.Context, q enrollment.Querier, ws uuid.UUID, v VersionID) (compiled, error) {
	read := g.history.Now()
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
	by.workspace, by.definition, by.bytes, by.read = ws, len(text), len(text), read
	c, err := g.flights.do(ctx, flightKey{v, by.at, read}, func(ctx context.Context) (compiled, error) {
		return g.compileOnce(ctx, v, text, facts, by)
	})
	return c, lemma.Wrap(err, "compile version %d of flow %s", v.Version, v.Flow)
}

// compileOnce compiles a version that is not cached with the same columns.
func (g *Versions) compileOnce(ctx context.Context, v VersionID, text string, facts graph.Facts, by compiled) (c compiled, err error) {
	free := g.compiling
	if graph.IsSmall(text) {
		free = g.small
	}
	if facts.Turn, err = graph.Advance(ctx, by.workspace, graph.IsSmall(text)); err != nil {
		return c, err
	}
	defer facts.Turn.Leave()
	leave, err := free.Await(ctx, slots.Resource{Workspace: by.workspace})
	if err != nil {
		return c, err
	}
	defer leave()
	if err := ctx.Err(); err != nil { // every caller has left
		return c, err
	}
	g.mu.Lock()
	c = g.compiled[v]
	g.mu.Unlock()
	if c.Graph != nil && c.at == by.at && c.read == by.read {
		return c, nil
	}
	g.hook.At("compile")
	by.Graph, err = graph.Compile(json.RawMessage(text), graph.Flow{WorkspaceID: by.workspace, FlowID: v.Flow}, facts)
	if err != nil {
		return compiled{}, err
	}
	if by.AllColumns() { // its conditions keep them
		for _, column := range facts.Columns {
			by.definition += (len(column.Name) + columnBytes) / compiledTimes
		}
	}
	by.definition += by.PatternBytes() / compiledTimes
	by.bytes = by.definition
	g.add(v, by)
	return by, nil
}

// columnBytes is what a column takes in memory besides its name.
const columnBytes = 2 * compiledTimes

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

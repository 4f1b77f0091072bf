package suppression

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// Config has the sizes of a Checker. NewChecker replaces zero values by defaults.
type Config struct {
	Checks int           // addresses of a workspace that are looked up before its filter is loaded; 1,000
	Memory int           // bytes, of all workspaces; 256 MiB, for 100 million entries
	New    int           // entries that one check reads of what was added since the one before; 10,000, and 1 % of the list
	Wait   time.Duration // until a filter is loaded again that was given up, or was not stored; 10 s
}

// unusedAfter is when the memory of a workspace may be taken for another.
const unusedAfter = 10 * time.Minute

// Metrics count what a Checker does. The names are documented in docs/reference/metrics.md.
type Metrics struct {
	bytes   prometheus.Gauge
	checked *prometheus.CounterVec
	stored  prometheus.Counter
}

// NewMetrics registers the metrics of a Checker; with nil they are not exported.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		bytes: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lemma_suppression_filter_bytes",
			Help: "Memory of the filters with which addresses are checked for suppressions."}),
		checked: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_suppression_checks_total",
			Help: "Addresses that were checked for suppressions, by what answered (filter, database)."}, []string{"by"}),
		stored: prometheus.NewCounter(prometheus.CounterOpts{Name: "lemma_suppression_filters_stored_total",
			Help: "Filters of long lists of suppressions that were stored for processes that start later."}),
	}
	if r != nil {
		r.MustRegister(m.bytes, m.checked, m.stored)
	}
	return m
}

// Checker checks addresses as Check does, with less work in workspaces with long lists: a
// lookup in an index of ten million keys costs as much as a quarter of a message. It has the
// lists as filters in memory. Check asks the database what was added since, and only about
// the addresses that a filter may have.
//
// A process loads the filter that StoreFilters has stored, or an empty one: what was added
// since is then a short list as a whole.
//
// Nothing that was added is missed: each check reads what the snapshot of the one before
// did not see, by the transactions that wrote it. If that is too much, such as a long list
// that was imported at once, the filter is given up, and addresses are looked up until one
// is stored that has seen it. What was removed stays in the filter, and costs a lookup.
type Checker struct {
	pool    *pgxpool.Pool
	metrics *Metrics
	cfg     Config

	mu     sync.Mutex
	of     map[uuid.UUID]*lists
	memory int
}

// lists is what a process has of a workspace. All but the filter's content is guarded by Checker.mu.
type lists struct {
	workspace uuid.UUID

	filter    *filter // nil: not loaded
	size      int     // bytes that are taken for the filter
	used      time.Time
	checked   int           // addresses
	loadAfter time.Time     // no load before
	loading   chan struct{} // has one element while a check loads the filter
}

// NewChecker returns a Checker.
func NewChecker(pool *pgxpool.Pool, m *Metrics, cfg Config) *Checker {
	if m == nil {
		m = NewMetrics(nil)
	}
	return &Checker{pool: pool, metrics: m, of: map[uuid.UUID]*lists{},
		cfg: Config{cmp.Or(cfg.Checks, 1000), cmp.Or(cfg.Memory, 256<<20), cmp.Or(cfg.New, 10_000), cmp.Or(cfg.Wait, 10*time.Second)}}
}

// Check returns which of the addresses must not be sent to. It finds everything that was
// added before the call.
func (c *Checker) Check(ctx context.Context, ws uuid.UUID, m Message, addresses []string) ([]Found, error) {
	keys := keysOf(m.Channel, addresses)
	open, err := c.open(ctx, ws, m, keys)
	if err != nil {
		return nil, err
	}
	c.metrics.checked.WithLabelValues("filter").Add(float64(len(keys) - len(open)))
	c.metrics.checked.WithLabelValues("database").Add(float64(len(open)))
	if len(open) == 0 {
		return nil, nil
	}
	asked := make([]uuid.UUID, len(open))
	for i, at := range open {
		asked[i] = keys[at]
	}
	found, err := check(ctx, c.pool, ws, m, asked)
	if err != nil {
		return nil, err
	}
	for i := range found {
		found[i].Index = open[found[i].Index]
	}
	return found, nil
}

// open returns the indexes of the keys that the lists may have.
func (c *Checker) open(ctx context.Context, ws uuid.UUID, m Message, keys []uuid.UUID) ([]int, error) {
	l := c.lists(ws)
	f, err := c.filter(ctx, l, len(keys))
	if err != nil {
		return nil, err
	}
	if f == nil {
		return all(len(keys)), nil
	}
	since, pairs := f.state()
	now, err := readSince(ctx, c.pool, ws, since, c.most(pairs))
	if err != nil {
		return nil, err
	}
	open, ok := f.pass(now, m, keys)
	if !ok {
		c.forget(l, f)
		return all(len(keys)), nil
	}
	return open, nil
}

func all(n int) []int {
	indexes := make([]int, n)
	for i := range indexes {
		indexes[i] = i
	}
	return indexes
}

// lists returns what there is of a workspace: nothing at first.
func (c *Checker) lists(ws uuid.UUID) *lists {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.of[ws]
	if l == nil {
		l = &lists{workspace: ws, loading: make(chan struct{}, 1)}
		c.of[ws] = l
	}
	l.used = time.Now()
	return l
}

// filter returns the filter of a workspace, and loads it if that is due. Other checks wait
// meanwhile, since their lookups would cost more. It is nil if there is none.
func (c *Checker) filter(ctx context.Context, l *lists, checked int) (*filter, error) {
	if f, isDue := c.loaded(l, checked); !isDue {
		return f, nil
	}
	select {
	case l.loading <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-l.loading }()
	if f, isDue := c.loaded(l, 0); !isDue { // another check has loaded it
		return f, nil
	}
	f, err := c.load(ctx, l)
	c.keep(l, f)
	switch {
	case errors.Is(err, errNoMemory):
		c.postpone(l, unusedAfter)
		return nil, nil
	case err == nil:
		c.postpone(l, c.cfg.Wait)
	}
	return f, err
}

// loaded returns the filter, or whether it is due: when lookups have cost as much.
func (c *Checker) loaded(l *lists, checked int) (f *filter, isDue bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.checked += checked
	return l.filter, l.filter == nil && l.checked > c.cfg.Checks && !time.Now().Before(l.loadAfter)
}

// load reads the filter that is stored. Without one, it reads the lists if they are short.
func (c *Checker) load(ctx context.Context, l *lists) (*filter, error) {
	f, err := readStored(ctx, c.pool, l.workspace, func(bytes int) bool { return c.reserve(l, bytes) })
	if f != nil || err != nil {
		return f, err
	}
	now, err := readSince(ctx, c.pool, l.workspace, nothing, c.cfg.New)
	if err != nil || now.isMore {
		return nil, err
	}
	f = &filter{database: now.database, since: now.snapshot, bits: newBloom(len(now.added), spare)}
	if !c.reserve(l, f.bits.size()) {
		return nil, errNoMemory
	}
	for _, p := range now.added {
		f.bits.add(p)
	}
	return f, nil
}

// spare is the capacity of a short list for more.
const spare = 1000

// keep keeps a filter that was loaded. Without one its memory is free.
func (c *Checker) keep(l *lists, f *filter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.filter = f; f == nil {
		c.free(l)
	}
}

func (c *Checker) postpone(l *lists, wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.loadAfter = time.Now().Add(wait)
}

// reserve takes memory for a filter instead of what it had. If the memory does not suffice,
// filters that were not used for a while are dropped.
func (c *Checker) reserve(l *lists, size int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.free(l)
	for ws, unused := range c.of {
		if c.memory+size > c.cfg.Memory && time.Since(unused.used) > unusedAfter {
			c.free(unused)
			delete(c.of, ws)
		}
	}
	if c.of[l.workspace] != l || c.memory+size > c.cfg.Memory {
		return false
	}
	c.take(l, size)
	return true
}

// forget gives a filter up.
func (c *Checker) forget(l *lists, f *filter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.filter == f {
		c.free(l)
	}
}

// free drops a filter.
func (c *Checker) free(l *lists) {
	l.filter = nil
	c.take(l, 0)
}

// take changes the memory of a workspace.
func (c *Checker) take(l *lists, size int) {
	c.memory += size - l.size
	l.size = size
	c.metrics.bytes.Set(float64(c.memory))
}

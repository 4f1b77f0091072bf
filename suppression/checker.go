package suppression

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// Config has the sizes of a Checker. NewChecker replaces zero values by defaults.
type Config struct {
	Page   int // entries of a list that are read at a time; 50,000
	Checks int // addresses that are checked in a workspace before the next page of its lists is read; 2,000
	Memory int // bytes, of all workspaces; 256 MiB, for 70 million entries
	New    int // entries that one check reads of what was added since the one before; 10,000
}

// unusedAfter is when the memory of a workspace may be taken for another.
const unusedAfter = 10 * time.Minute

// Metrics count what a Checker does. The names are documented in docs/reference/metrics.md.
type Metrics struct {
	bytes   prometheus.Gauge
	checked *prometheus.CounterVec
}

// NewMetrics registers the metrics of a Checker; with nil they are not exported.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		bytes: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lemma_suppression_filter_bytes",
			Help: "Memory of the filters with which addresses are checked for suppressions."}),
		checked: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_suppression_checks_total",
			Help: "Addresses that were checked for suppressions, by what answered (filter, database)."}, []string{"by"}),
	}
	if r != nil {
		r.MustRegister(m.bytes, m.checked)
	}
	return m
}

// Checker checks addresses as Check does, with less work in workspaces with long lists: a
// lookup in an index of ten million keys costs as much as a quarter of a message. It reads
// the lists into filters in memory, a page after so many addresses that reading does not cost
// more than their lookups would: about 10 ms. Check asks the database what was added since,
// and only about the addresses that a filter may have.
//
// Nothing that was added is missed: each check reads what the snapshot of the one before
// did not see, by the transactions that wrote it. If that is too much, such as a long list
// that was imported at once, the filter is given up, and the lists are read again by pages.
// What was removed stays in the filter, and costs a lookup.
type Checker struct {
	pool    *pgxpool.Pool
	metrics *Metrics
	cfg     Config

	mu     sync.Mutex
	of     map[uuid.UUID]*filter
	memory int
}

// NewChecker returns a Checker.
func NewChecker(pool *pgxpool.Pool, m *Metrics, cfg Config) *Checker {
	if m == nil {
		m = NewMetrics(nil)
	}
	return &Checker{pool: pool, metrics: m, of: map[uuid.UUID]*filter{},
		cfg: Config{cmp.Or(cfg.Page, 50_000), cmp.Or(cfg.Checks, 2000), cmp.Or(cfg.Memory, 256<<20),
			cmp.Or(cfg.New, 10_000)}}
}

// Check returns which of the addresses must not be sent to. It finds everything that was
// added before the call.
func (c *Checker) Check(ctx context.Context, ws uuid.UUID, m Message, addresses []string) ([]Found, error) {
	keys := keysOf(m.Channel, addresses)
	f := c.filter(ws)
	open, err := c.open(ctx, f, ws, m, keys)
	if err != nil {
		return nil, err
	}
	c.metrics.checked.WithLabelValues("filter").Add(float64(len(keys) - len(open)))
	c.metrics.checked.WithLabelValues("database").Add(float64(len(open)))
	if err := c.readOn(ctx, ws, f, len(keys)); err != nil || len(open) == 0 {
		return nil, err
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
func (c *Checker) open(ctx context.Context, f *filter, ws uuid.UUID, m Message, keys []uuid.UUID) ([]int, error) {
	for {
		since, segments := f.state()
		if segments == 0 {
			return all(len(keys)), nil
		}
		now, err := readSince(ctx, c.pool, ws, since, c.cfg.New)
		if err != nil {
			return nil, err
		}
		open, answer := f.pass(now, segments, m, keys)
		switch answer {
		case passed:
			return open, nil
		case useless:
			c.forget(ws, f)
			return all(len(keys)), nil
		}
	}
}

func all(n int) []int {
	indexes := make([]int, n)
	for i := range indexes {
		indexes[i] = i
	}
	return indexes
}

// readOn reads the next pages of the lists when enough addresses were checked for them.
func (c *Checker) readOn(ctx context.Context, ws uuid.UUID, f *filter, checked int) error {
	list, pages := f.next(checked, c.cfg.Checks)
	if pages == 0 {
		return nil
	}
	var s *segment
	var since string
	var isLast bool
	err := f.begin(ctx, c.pool, ws)
	if err == nil {
		since, s, isLast, err = f.read(ctx, c.pool, ws, list, pages*c.cfg.Page)
	}
	isFull := err == nil && !c.reserve(ws, f, s.size())
	if err != nil || isFull {
		f.stop(isFull)
		return err
	}
	f.append(list, since, s, isLast)
	return nil
}

// IsWhole reports whether the lists of a workspace are read to their end.
func (c *Checker) IsWhole(ws uuid.UUID) bool {
	f := c.filter(ws)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lists[1].whole
}

// filter returns the filter of a workspace. It is empty at first.
func (c *Checker) filter(ws uuid.UUID) *filter {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.of[ws]
	if f == nil {
		f = &filter{}
		c.of[ws] = f
	}
	f.used = time.Now()
	return f
}

// reserve takes memory for a segment. If it does not suffice, filters that were not used
// for a while are dropped.
func (c *Checker) reserve(ws uuid.UUID, f *filter, size int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for other, unused := range c.of {
		if c.memory+size > c.cfg.Memory && time.Since(unused.used) > unusedAfter {
			c.drop(other, unused)
		}
	}
	if c.of[ws] != f || c.memory+size > c.cfg.Memory {
		return false
	}
	f.size += size
	c.memory += size
	c.metrics.bytes.Set(float64(c.memory))
	return true
}

// forget gives a filter up. The next checks read the lists anew.
func (c *Checker) forget(ws uuid.UUID, f *filter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[ws] == f {
		c.drop(ws, f)
	}
}

func (c *Checker) drop(ws uuid.UUID, f *filter) {
	delete(c.of, ws)
	c.memory -= f.size
	c.metrics.bytes.Set(float64(c.memory))
}

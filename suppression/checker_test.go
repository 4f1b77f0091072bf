package suppression

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/pgtest"
)

// listed is a workspace whose filter is loaded after a few checks.
type listed struct {
	*testing.T
	pool    *pgxpool.Pool
	ws      uuid.UUID
	topic   uuid.UUID
	checker *Checker
}

func newList(t *testing.T, cfg Config) listed {
	t.Helper()
	t.Parallel()
	return newListIn(t, pgtest.DB(t), cfg)
}

func newListIn(t *testing.T, pool *pgxpool.Pool, cfg Config) listed {
	t.Helper()
	cfg.Checks, cfg.Wait = 1, 1
	l := listed{t, pool, pgtest.Workspace(t, pool), lemma.NewID(), NewChecker(pool, nil, cfg)}
	_, err := New(pool).CreateTopic(t.Context(), l.ws, NewTopic{ID: l.topic, Name: "News"})
	l.must(err)
	return l
}

func (l listed) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

func person(i int) string { return fmt.Sprintf("p%d@shop.example", i) }

// beginner is a pool or a transaction.
type beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

func (l listed) suppress(db beginner, people ...int) {
	l.Helper()
	var entries []Entry
	for _, i := range people {
		entries = append(entries, Entry{ID: lemma.NewID(), Channel: lemma.Email, Address: person(i), Cause: Complaint})
	}
	l.must(pgx.BeginFunc(l.Context(), db, func(tx pgx.Tx) error {
		_, _, err := insert(l.Context(), tx, l.ws, entries)
		return err
	}))
}

// check returns which of the first n people must not be sent to.
func (l listed) check(n int) []int {
	l.Helper()
	addresses := make([]string, n)
	for i := range addresses {
		addresses[i] = person(i)
	}
	found, err := l.checker.Check(l.Context(), l.ws, Message{Channel: lemma.Email, TopicID: l.topic}, addresses)
	l.must(err)
	var people []int
	for _, f := range found {
		people = append(people, f.Index)
	}
	slices.Sort(people)
	return people
}

// load checks until the filter is in memory.
func (l listed) load() *filter {
	l.Helper()
	for range 10 {
		if f := l.loaded(); f != nil {
			return f
		}
		l.check(10)
	}
	l.Fatal("the filter is not loaded")
	return nil
}

func (l listed) loaded() *filter {
	f, _ := l.checker.loaded(l.checker.lists(l.ws), 0)
	return f
}

// stored stores the filter, and returns it as another process reads it.
func (l listed) stored() *filter {
	l.Helper()
	l.must(l.checker.StoreFilters(l.Context()))
	f, err := readStored(l.Context(), l.pool, l.ws, func(int) bool { return true })
	l.must(err)
	return f
}

// restart is another process.
func (l listed) restart() listed {
	l.checker = NewChecker(l.pool, nil, l.checker.cfg)
	return l
}

func people(from, to int) (all []int) {
	for i := from; i < to; i++ {
		all = append(all, i)
	}
	return all
}

func (l listed) want(n int, people ...int) {
	l.Helper()
	if got := l.check(n); !slices.Equal(got, people) {
		l.Errorf("%v must not be sent to, want %v", got, people)
	}
}

// A filter answers for almost all addresses, and finds what was added after it was read:
// that of a short list, and one that is stored.
func TestAFilterThatIsLoaded(t *testing.T) {
	for name, most := range map[string]int{"short": 1000, "stored": 20} {
		t.Run(name, func(t *testing.T) {
			l := newList(t, Config{New: most})
			l.suppress(l.pool, people(1000, 1050)...)
			l.suppress(l.pool, 3)
			if f := l.stored(); (f != nil) != (name == "stored") {
				t.Fatalf("%v is stored", f)
			}
			f := l.load()
			now, err := readSince(t.Context(), l.pool, l.ws, f.since, 10)
			l.must(err)
			keys := keysOf(lemma.Email, []string{person(1), person(2), person(3)})
			if open, ok := f.pass(now, Message{Channel: lemma.Email}, keys); !ok || !slices.Equal(open, []int{2}) {
				t.Errorf("the filter leaves %v open (%t)", open, ok)
			}
			l.want(10, 3)
			l.suppress(l.pool, 5)
			l.must(New(l.pool).SetTopic(t.Context(), l.ws, l.topic, lemma.Email, person(7), false))
			l.want(10, 3, 5, 7)
			pgtest.Exec(t, l.pool, `delete from suppressions where address = $1`, person(3))
			l.want(10, 5, 7)
			if l.loaded() != f {
				t.Error("the filter is given up")
			}
		})
	}
}

// A transaction may begin before the filter is read, or is stored, and end after younger
// ones were seen.
func TestATransactionThatEndsLate(t *testing.T) {
	for name, most := range map[string]int{"short": 1000, "stored": 10} {
		t.Run(name, func(t *testing.T) {
			l := newList(t, Config{New: most})
			late, err := l.pool.Begin(t.Context())
			l.must(err)
			defer func() { _ = late.Rollback(context.WithoutCancel(t.Context())) }()
			l.suppress(late, 1)
			_, err = late.Exec(t.Context(), `insert into topic_unsubscribes (workspace_id, topic_id, key) values ($1, $2, $3)`,
				l.ws, l.topic, KeyOf(lemma.Email, person(5)))
			l.must(err)
			l.suppress(l.pool, 2)
			l.suppress(l.pool, people(100, 120)...)
			if f := l.stored(); (f != nil) != (name == "stored") {
				t.Fatalf("%v is stored", f)
			}
			f := l.load()
			l.want(10, 2)
			l.suppress(l.pool, 3)
			l.want(10, 2, 3)
			l.must(late.Commit(t.Context()))
			l.want(10, 1, 2, 3, 5)
			if l.loaded() != f {
				t.Error("the filter is given up")
			}
			if l = l.restart(); l.load() != nil {
				l.want(10, 1, 2, 3, 5)
			}
		})
	}
}

// More entries than a filter has capacity for: the lists are read again.
func TestAFilterWithoutCapacity(t *testing.T) {
	l := newList(t, Config{New: 2000})
	l.suppress(l.pool, 1)
	f := l.load()
	all := people(0, 1100)
	l.suppress(l.pool, all...)
	l.want(1100, all...)
	l.want(1100, all...)
	if l.load() == f || l.checker.memory != l.load().bits.size() {
		t.Errorf("%d bytes are taken", l.checker.memory)
	}
	l.want(1100, all...)
}

// Without memory, addresses are looked up. The filter is not loaded again at once.
func TestAFilterWithoutMemory(t *testing.T) {
	for name, most := range map[string]int{"short": 1000, "stored": 10} {
		t.Run(name, func(t *testing.T) {
			l := newList(t, Config{New: most, Memory: 63})
			all := people(0, 20)
			l.suppress(l.pool, all...)
			l.stored()
			for range 10 {
				l.want(30, all...)
			}
			if w := l.checker.lists(l.ws); l.loaded() != nil || l.checker.memory != 0 || time.Until(w.loadAfter) < unusedAfter/2 {
				t.Errorf("%d bytes are taken until %v", l.checker.memory, w.loadAfter)
			}
		})
	}
}

// A filter is loaded when enough addresses were looked up, by one check. The others wait
// for it, and no longer than their context.
func TestOneCheckLoads(t *testing.T) {
	l := newList(t, Config{})
	l.checker.cfg.Checks = 20
	l.suppress(l.pool, 3)
	if l.want(20, 3); l.loaded() != nil {
		t.Error("the filter is loaded early")
	}
	w := l.checker.lists(l.ws)
	w.loading <- struct{}{}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := l.checker.Check(ctx, l.ws, Message{Channel: lemma.Email}, []string{person(3)}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a check beside a load ends with %v", err)
	}
	other, waits := pgtest.Waits(t.Context())
	got := make(chan *filter)
	go func() {
		f, _ := l.checker.filter(other, w, 1000)
		got <- f
	}()
	<-waits
	f := &filter{database: "another", bits: newBloom(0, 0), since: nothing}
	l.checker.keep(w, f)
	<-w.loading
	if <-got != f {
		t.Error("the filter is loaded twice")
	}
}

// Whatever commits while filters are stored, processes start and addresses are checked is
// found by every check that begins after it.
func TestNothingThatWasAddedIsMissed(t *testing.T) {
	l := newList(t, Config{New: 12})
	const all = 400
	var mu sync.Mutex
	committed := map[int]bool{}
	known := func() []int {
		mu.Lock()
		defer mu.Unlock()
		return slices.Collect(maps.Keys(committed))
	}
	add := func(tx pgx.Tx, i int) error {
		if i%5 == 0 {
			_, err := tx.Exec(t.Context(), `insert into topic_unsubscribes (workspace_id, topic_id, key) values ($1, $2, $3)`,
				l.ws, l.topic, KeyOf(lemma.Email, person(i)))
			return err
		}
		_, _, err := insert(t.Context(), tx, l.ws, []Entry{{ID: lemma.NewID(), Channel: lemma.Email, Address: person(i), Cause: Complaint}})
		return err
	}
	var writers, others sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := w; i < all; i += 4 {
				if err := pgx.BeginFunc(t.Context(), l.pool, func(tx pgx.Tx) error { return add(tx, i) }); err != nil {
					t.Error(err)
				}
				mu.Lock()
				committed[i] = true
				mu.Unlock()
			}
		})
	}
	done := make(chan struct{})
	until := func(work func()) {
		others.Go(func() {
			for {
				work()
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	until(func() {
		if err := l.checker.StoreFilters(t.Context()); err != nil {
			t.Error(err)
		}
	})
	filters := atomic.Int64{}
	for range 3 {
		until(func() {
			process := l.restart()
			for range 4 {
				people := known()
				addresses := make([]string, len(people))
				for i, p := range people {
					addresses[i] = person(p)
				}
				found, err := process.checker.Check(t.Context(), l.ws, Message{Channel: lemma.Email, TopicID: l.topic}, addresses)
				if err != nil || len(found) != len(people) {
					t.Errorf("%d of %d are found (%v)", len(found), len(people), err)
				}
				if process.loaded() != nil {
					filters.Add(1)
				}
			}
		})
	}
	writers.Wait()
	close(done)
	others.Wait()
	if filters.Load() == 0 {
		t.Error("no check used a filter")
	}
}

package suppression

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/pgtest"
)

// listed is a workspace whose lists are read in pages of a few entries.
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
	pool := pgtest.DB(t)
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

func (l listed) suppress(db DB, people ...int) {
	l.Helper()
	var entries []Entry
	for _, i := range people {
		entries = append(entries, Entry{ID: lemma.NewID(), Channel: lemma.Email, Address: person(i), Cause: Complaint})
	}
	_, err := insert(l.Context(), db, l.ws, entries)
	l.must(err)
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

// fill reads the lists to their end.
func (l listed) fill() *filter {
	l.Helper()
	for range 1000 {
		if f := l.checker.filter(l.ws); f.lists[1].whole {
			return f
		}
		l.check(10)
	}
	l.Fatal("the lists are not read to their end")
	return nil
}

// begun is a filter that has read the topics, and what sorts before all suppressions.
func (l listed) begun() *filter {
	l.Helper()
	f := l.checker.filter(l.ws)
	l.must(f.begin(l.Context(), l.pool, l.ws))
	for i := range f.lists {
		f.lists[i].segments = []*segment{newSegment(nil, pair{})}
	}
	f.lists[1].whole = true
	return f
}

func (l listed) want(n int, people ...int) {
	l.Helper()
	if got := l.check(n); !slices.Equal(got, people) {
		l.Errorf("%v must not be sent to, want %v", got, people)
	}
}

// A filter answers for almost all addresses, and finds what was added after it was read.
func TestAFilterThatIsWhole(t *testing.T) {
	l := newList(t, Config{Page: 7, Checks: 1})
	for i := range 50 {
		l.suppress(l.pool, 1000+i)
	}
	l.suppress(l.pool, 3)
	l.fill()
	f := l.checker.filter(l.ws)
	now, err := readSince(t.Context(), l.pool, l.ws, f.since, 10)
	l.must(err)
	keys := keysOf(lemma.Email, []string{person(1), person(2), person(3)})
	open, answer := f.pass(now, f.segments(), Message{Channel: lemma.Email}, keys)
	if answer != passed || !slices.Equal(open, []int{2}) {
		t.Errorf("the filter leaves %v open (%d)", open, answer)
	}
	l.want(10, 3)
	l.suppress(l.pool, 5)
	l.must(New(l.pool).SetTopic(t.Context(), l.ws, l.topic, lemma.Email, person(7), false))
	l.want(10, 3, 5, 7)
	pgtest.Exec(t, l.pool, `delete from suppressions where address = $1`, person(3))
	l.want(10, 5, 7)
}

// A transaction may begin before the filter is read and end after younger ones were seen.
func TestATransactionThatEndsLate(t *testing.T) {
	l := newList(t, Config{Page: 7, Checks: 1})
	late, err := l.pool.Begin(t.Context())
	l.must(err)
	defer func() { _ = late.Rollback(context.WithoutCancel(t.Context())) }()
	l.suppress(late, 1)
	_, err = late.Exec(t.Context(), `insert into topic_unsubscribes (workspace_id, topic_id, key) values ($1, $2, $3)`,
		l.ws, l.topic, KeyOf(lemma.Email, person(5)))
	l.must(err)
	l.suppress(l.pool, 2)
	l.fill()
	l.want(10, 2)
	l.suppress(l.pool, 3)
	l.want(10, 2, 3)
	l.must(late.Commit(t.Context()))
	l.want(10, 1, 2, 3, 5)
}

// A page does not see what a check beside it has read: the next one reads it again.
func TestAPageBesideAnUpdate(t *testing.T) {
	l := newList(t, Config{Page: 1000, Checks: 1_000_000})
	f := l.begun()
	l.suppress(l.pool, 100)
	since, s, isLast, err := f.read(t.Context(), l.pool, l.ws, 0, 1000)
	l.must(err)
	l.suppress(l.pool, 1) // after the page was read
	l.want(10, 1)         // updates to a snapshot that sees it
	f.append(0, since, s, isLast)
	l.want(10, 1)
}

// A check that has read before a page was appended reads again.
func TestACheckBesideAPage(t *testing.T) {
	l := newList(t, Config{Page: 1000, Checks: 1_000_000})
	f := l.begun()
	l.suppress(l.pool, 100)
	since, s, isLast, err := f.read(t.Context(), l.pool, l.ws, 0, 1000)
	l.must(err)
	l.suppress(l.pool, 1)
	before, segments := f.state()
	now, err := readSince(t.Context(), l.pool, l.ws, before, 10)
	l.must(err)
	f.append(0, since, s, isLast)
	keys := keysOf(lemma.Email, []string{person(1)})
	if open, answer := f.pass(now, segments, Message{Channel: lemma.Email}, keys); answer != outdated {
		t.Errorf("the check leaves %v open (%d)", open, answer)
	}
	l.want(10, 1)
}

// More entries than a segment has capacity for: the lists are read again.
func TestAFilterWithoutCapacity(t *testing.T) {
	l := newList(t, Config{Page: 7, Checks: 1})
	l.suppress(l.pool, 1)
	f := l.fill()
	people := make([]int, 1100)
	for i := range people {
		people[i] = i
	}
	l.suppress(l.pool, people...)
	l.want(1100, people...)
	if l.checker.filter(l.ws) == f || l.checker.memory >= f.size {
		t.Errorf("%d bytes are taken", l.checker.memory)
	}
	l.want(1100, people...)
}

// Without memory for more, the rest is looked up.
func TestAFilterWithoutMemory(t *testing.T) {
	l := newList(t, Config{Page: 3, Checks: 1, Memory: 2 * newSegment(make([]pair, 3), pair{}).size()})
	people := make([]int, 20)
	for i := range people {
		people[i] = i
	}
	l.suppress(l.pool, people...)
	for range 10 {
		l.want(30, people...)
	}
	f := l.checker.filter(l.ws)
	if !f.isFull || len(f.lists[0].segments) != 2 || l.checker.memory > l.checker.cfg.Memory {
		t.Errorf("%d segments in %d bytes", len(f.lists[0].segments), l.checker.memory)
	}
}

// Whatever commits while lists are read and addresses are checked is found by every check
// that begins after it.
func TestNothingThatWasAddedIsMissed(t *testing.T) {
	l := newList(t, Config{Page: 5, Checks: 3})
	const people = 400
	var mu sync.Mutex
	committed := map[int]bool{}
	snapshot := func() (all []int) {
		mu.Lock()
		defer mu.Unlock()
		for i := range committed {
			all = append(all, i)
		}
		return all
	}
	var writers, checkers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := w; i < people; i += 4 {
				err := pgx.BeginFunc(t.Context(), l.pool, func(tx pgx.Tx) error {
					if i%5 == 0 {
						_, err := tx.Exec(t.Context(), `insert into topic_unsubscribes (workspace_id, topic_id, key) values ($1, $2, $3)`,
							l.ws, l.topic, KeyOf(lemma.Email, person(i)))
						return err
					}
					_, err := insert(t.Context(), tx, l.ws,
						[]Entry{{ID: lemma.NewID(), Channel: lemma.Email, Address: person(i), Cause: Complaint}})
					return err
				})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				committed[i] = true
				mu.Unlock()
			}
		})
	}
	done := make(chan struct{})
	for range 3 {
		checkers.Go(func() {
			for {
				known := snapshot()
				addresses := make([]string, len(known))
				for i, p := range known {
					addresses[i] = person(p)
				}
				found, err := l.checker.Check(t.Context(), l.ws, Message{Channel: lemma.Email, TopicID: l.topic}, addresses)
				if err != nil || len(found) != len(known) {
					t.Errorf("%d of %d are found (%v)", len(found), len(known), err)
					return
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	writers.Wait()
	close(done)
	checkers.Wait()
}

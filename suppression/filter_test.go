package suppression

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
)

// Reading costs no more than lookups would: pages are read by the number of addresses that
// were checked, also of those that were checked while one was read. One reads at a time.
func TestPagesThatAreDue(t *testing.T) {
	t.Parallel()
	f := &filter{}
	want := func(checked, list, pages int) {
		t.Helper()
		if gotList, got := f.next(checked, 10); got != pages || gotList != list {
			t.Errorf("%d pages of list %d, want %d of list %d", got, gotList, pages, list)
		}
	}
	want(9, 0, 0)
	want(1, 0, 1)
	want(25, 0, 0) // the page is being read
	f.stop(false)
	want(0, 0, 2)
	f.stop(false)
	want(4, 0, 0)
	want(51, 0, pagesAtOnce)
	f.append(0, "", newSegment(nil, pair{}), true)
	want(0, 1, 2)
	f.append(1, "", newSegment(nil, pair{}), true)
	want(1000, 0, 0)
}

// Pages are in the order of topics and keys, over several topics.
func TestPagesOfSeveralTopics(t *testing.T) {
	l := newList(t, Config{Page: 3, Checks: 1})
	topics := []uuid.UUID{l.topic, lemma.NewID(), lemma.NewID()}
	for i, topic := range topics {
		if i > 0 {
			_, err := New(l.pool).CreateTopic(t.Context(), l.ws, NewTopic{ID: topic, Name: fmt.Sprint("Topic ", i)})
			l.must(err)
		}
		for p := i; p < 20; p += 3 {
			l.must(New(l.pool).SetTopic(t.Context(), l.ws, topic, lemma.Email, person(p), false))
		}
	}
	f := l.fill()
	for i, topic := range topics {
		l.topic = topic
		var people []int
		for p := i; p < 20; p += 3 {
			people = append(people, p)
		}
		l.want(20, people...)
		first := pair{topic, KeyOf(lemma.Email, person(people[0]))}
		if s := f.lists[1].of(first); s == nil || !s.has(first) {
			t.Errorf("the filter has not topic %d", i)
		}
	}
	if len(f.lists[1].segments) < 2 {
		t.Errorf("%d segments", len(f.lists[1].segments))
	}
}

// A page has the next pairs of the list, also by a plan that does not read them in order.
func TestAPageIsTheNextOfTheList(t *testing.T) {
	l := newList(t, Config{})
	var all []pair
	for i := range 12 {
		l.suppress(l.pool, i)
		l.must(New(l.pool).SetTopic(t.Context(), l.ws, l.topic, lemma.Email, person(i), false))
		all = append(all, pair{key: KeyOf(lemma.Email, person(i))})
	}
	slices.SortFunc(all, pair.compare)
	tx, err := l.pool.Begin(t.Context())
	l.must(err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), `set local enable_seqscan = on; set local enable_indexscan = off;
		set local enable_indexonlyscan = off; set local enable_bitmapscan = off`)
	l.must(err)
	for list, topic := range []uuid.UUID{uuid.Nil, l.topic} {
		page, err := readPage(t.Context(), tx, l.ws, list, pair{topic, all[3].key}, 5)
		l.must(err)
		slices.SortFunc(page, pair.compare)
		want := make([]pair, 5)
		for i := range want {
			want[i] = pair{topic, all[4+i].key}
		}
		if !slices.Equal(page, want) {
			t.Errorf("list %d: %v, want %v", list, page, want)
		}
	}
}

// A segment ends with the last pair of its page, whatever the order of the page.
func TestASegmentEndsWithItsLastPair(t *testing.T) {
	t.Parallel()
	keys := keysOf(lemma.Email, []string{person(1), person(2), person(3), person(4)})
	slices.SortFunc(keys, func(a, b uuid.UUID) int { return pair{key: a}.compare(pair{key: b}) })
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}} {
		var page []pair
		for _, i := range order {
			page = append(page, pair{key: keys[i]})
		}
		if s := newSegment(page, pair{}); s.last.key != keys[3] {
			t.Errorf("%v: it ends with %s", order, s.last.key)
		}
	}
}

// The memory of workspaces that were not used for a while is taken for others; that of
// others stays.
func TestMemoryOfUnusedWorkspaces(t *testing.T) {
	t.Parallel()
	c := NewChecker(nil, nil, Config{Memory: 100})
	unused, used, next := lemma.NewID(), lemma.NewID(), lemma.NewID()
	for _, ws := range []uuid.UUID{unused, used} {
		if !c.reserve(ws, c.filter(ws), 50) {
			t.Fatal("there is memory for two")
		}
	}
	if c.reserve(next, c.filter(next), 50) {
		t.Error("the memory of a workspace in use is taken")
	}
	c.of[unused].used = time.Now().Add(-2 * unusedAfter)
	if !c.reserve(next, c.filter(next), 50) || c.of[unused] != nil || c.of[used] == nil || c.memory != 100 {
		t.Errorf("%d filters in %d bytes", len(c.of), c.memory)
	}
	gone := &filter{}
	if c.drop(used, c.of[used]); c.reserve(used, gone, 50) {
		t.Error("memory is taken for a filter that is given up")
	}
}

package admission

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/pgtest"
)

// Waiting bulks are bounded, of one workspace and of all, and single requests are not
// refused because of them.
func TestBulksThatWaitAreBounded(t *testing.T) {
	t.Parallel()
	var b Bulks
	ctx, stop := context.WithCancel(context.Background())
	var waiting sync.WaitGroup
	fill := func(ws uuid.UUID) {
		for range mostBulksOfWorkspace {
			ctx, waits := pgtest.Waits(ctx)
			waiting.Go(func() {
				if place, err := b.Acquire(ctx, ws, 2); err == nil {
					<-ctx.Done()
					place.Leave()
				}
			})
			<-waits
		}
	}
	refused := func(what string, ws uuid.UUID) {
		t.Helper()
		short, cancel := context.WithTimeout(ctx, 20*time.Second) // for a bulk that waits after all
		defer cancel()
		if _, err := b.Acquire(short, ws, 2); !IsOverloaded(err) {
			t.Errorf("%s: %v", what, err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.all.full(false, mostWaiting, mostBulks) || b.using[ws].full(false, mostOfWorkspace, mostBulksOfWorkspace) {
			t.Errorf("%s: a single request is refused with the bulks", what)
		}
	}
	busy := lemma.NewID()
	fill(busy)
	refused("one too many of the workspace", busy)
	for range mostBulks/mostBulksOfWorkspace - 1 {
		fill(lemma.NewID())
	}
	refused("one too many of all", lemma.NewID())
	stop()
	waiting.Wait()
	if b.all.bulks != 0 || len(b.using) != 0 {
		t.Errorf("%d bulks are left", b.all.bulks)
	}
}

// Single requests wait apart from bulks, and are bounded as well.
func TestSingleRequestsThatWaitAreBounded(t *testing.T) {
	t.Parallel()
	ws := lemma.NewID()
	enter := func(using here) error {
		b := Bulks{using: map[uuid.UUID]here{ws: using}, places: make(chan struct{}, bulksAtOnce), of: map[uuid.UUID]chan struct{}{}}
		_, err := b.Acquire(context.Background(), ws, 1)
		return err
	}
	if err := enter(here{requests: mostBulksOfWorkspace, bulks: mostBulksOfWorkspace}); err != nil {
		t.Errorf("refused with the bulks: %v", err)
	}
	if err := enter(here{requests: mostOfWorkspace}); !IsOverloaded(err) {
		t.Errorf("one too many: %v", err)
	}
}

// echo is a Gatherer that returns its requests.
func echo() *Gatherer[int, int] {
	return NewGatherer(256, func(_ context.Context, _ uuid.UUID, all []int) ([]int, error) { return all, nil })
}

// The queue is bounded: of all workspaces together, and of one before it displaces the
// others.
func TestTheQueueIsBounded(t *testing.T) {
	t.Parallel()
	g, ctx := echo(), context.Background()
	g.length = mostWaiting
	if _, err := g.Do(ctx, lemma.NewID(), 1); !IsOverloaded(err) {
		t.Error(err)
	}
	greedy := lemma.NewID()
	g.length = mostOfWorkspace
	g.queues[greedy] = &queue[int, int]{waiting: make([]*waiting[int, int], mostOfWorkspace), writers: writers}
	if _, err := g.Do(ctx, greedy, 1); !IsOverloaded(err) {
		t.Error(err)
	}
	if got, err := g.Do(ctx, lemma.NewID(), 7); got != 7 || err != nil {
		t.Error(got, err)
	}
	for { // its writer ends after the answer
		g.mu.Lock()
		length, queues := g.length, len(g.queues)
		g.mu.Unlock()
		if length == mostOfWorkspace && queues == 1 {
			return
		}
	}
}

// A request whose caller has gone before it began has no effect.
func TestACallerThatIsGone(t *testing.T) {
	t.Parallel()
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	g := NewGatherer(256, func(context.Context, uuid.UUID, []int) ([]int, error) {
		t.Error("it was processed")
		return nil, nil
	})
	g.length = 1
	w := &waiting[int, int]{in: 1, done: make(chan struct{}), caller: gone}
	g.write(lemma.NewID(), &queue[int, int]{waiting: []*waiting[int, int]{w}, writers: 1})
	<-w.done
	if w.err == nil {
		t.Error("it has no error")
	}
}

// The bulks of one workspace leave slots for others. A bulk that gets no slot in time is
// refused and holds none.
func TestBulksLeavePlacesForOthers(t *testing.T) {
	t.Parallel()
	var b Bulks
	const tries = 50
	one, other := lemma.NewID(), lemma.NewID()
	var places []*Place
	for range bulksOfWorkspace {
		place, err := b.Acquire(context.Background(), one, 2)
		if err != nil {
			t.Fatal(err)
		}
		places = append(places, place)
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	for range tries { // a select with several ready cases takes any
		if _, err := b.Acquire(gone, one, 2); !errors.Is(err, context.Canceled) {
			t.Fatalf("one more of the same workspace: %v", err)
		}
	}
	for range bulksAtOnce - bulksOfWorkspace {
		place, err := b.Acquire(context.Background(), other, 2)
		if err != nil {
			t.Fatal(err)
		}
		places = append(places, place)
	}
	for range tries {
		if _, err := b.Acquire(gone, other, 2); !errors.Is(err, context.Canceled) {
			t.Fatalf("one more of all: %v", err)
		}
	}
	if n := len(b.of[other]); n != bulksAtOnce-bulksOfWorkspace {
		t.Errorf("a refused bulk holds one of %d slots", n)
	}
	for _, place := range places {
		place.Leave()
	}
	if len(b.places) != 0 || len(b.of) != 0 || len(b.using) != 0 || b.all != (here{}) {
		t.Errorf("%d slots are taken, of %d workspaces", len(b.places), len(b.of))
	}
}

package flows

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"lemma"
	"lemma/webhooks"
)

// One sender's bulks leave places for others, and whoever does not get one in
// time is told so and holds none.
func TestBulksLeavePlacesForOthers(t *testing.T) {
	t.Parallel()
	var b bulks
	const tries = 50
	one, other := lemma.NewID(), lemma.NewID()
	var leave []func()
	for range bulksOfWorkspace {
		l, err := b.enter(bg, one, 2)
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, l)
	}
	gone, cancel := context.WithCancel(bg)
	cancel()
	for range tries { // of several ways that are open a select takes any
		if _, err := b.enter(gone, one, 2); !errors.Is(err, context.Canceled) {
			t.Fatalf("one more of the same workspace: %v", err)
		}
	}
	for range bulksAtOnce - bulksOfWorkspace {
		l, err := b.enter(bg, other, 2)
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, l)
	}
	for range tries {
		if _, err := b.enter(gone, other, 2); !errors.Is(err, context.Canceled) {
			t.Fatalf("one more of all: %v", err)
		}
	}
	if n := len(b.of[other]); n != bulksAtOnce-bulksOfWorkspace {
		t.Errorf("whoever got no place holds one of %d", n)
	}
	for _, l := range leave {
		l()
	}
	if len(b.places) != 0 || len(b.of) != 0 || len(b.using) != 0 || b.all != (here{}) {
		t.Errorf("%d places are taken, of %d workspaces", len(b.places), len(b.of))
	}
}

// Bulks that wait are bounded, of one workspace and of all, and whoever is turned
// away is told to come again.
func TestBulksThatWaitAreBounded(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(hourAfter("go"))
	ctx, stop := context.WithCancel(bg)
	var waiting sync.WaitGroup
	fill := func(ws uuid.UUID, n int) {
		for range n {
			waiting.Go(func() {
				if leave, err := b.bulks.enter(ctx, ws, 2); err == nil {
					<-ctx.Done()
					leave()
				}
			})
		}
		for full := false; !full; {
			b.bulks.mu.Lock()
			full = b.bulks.using[ws].bulks == n
			b.bulks.mu.Unlock()
		}
	}
	turnedAway := func(what string) {
		t.Helper()
		bg, cancel := context.WithTimeout(bg, 5*time.Second) // for whoever waits after all
		defer cancel()
		if _, err := b.RecordAll(bg, b.ws, []Event{{ProfileKey: "c1", Name: "x"}, {ProfileKey: "c2", Name: "x"}}); !isOverloaded(err) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := b.EnrollAll(bg, b.ws, flow, []Enrolling{{ProfileKey: "c1"}, {ProfileKey: "c2"}}, false); !isOverloaded(err) {
			t.Errorf("%s: %v", what, err)
		}
		b.bulks.mu.Lock()
		single := b.bulks.all.full(false, mostWaiting, mostBulks) || b.bulks.using[b.ws].full(false, mostOfWorkspace, mostBulksOfWorkspace)
		b.bulks.mu.Unlock()
		if single {
			t.Errorf("%s: a single request is turned away with the bulks", what)
		}
	}
	fill(b.ws, mostBulksOfWorkspace)
	turnedAway("one too many of the workspace")
	for range mostBulks/mostBulksOfWorkspace - 1 {
		fill(lemma.NewID(), mostBulksOfWorkspace)
	}
	b.ws = lemma.NewID()
	turnedAway("one too many of all")
	stop()
	waiting.Wait()
	if b.bulks.all.bulks != 0 || len(b.bulks.using) != 0 {
		t.Errorf("%d are still there", b.bulks.all.bulks)
	}
	if n := counted(b.metrics.events.WithLabelValues(codeOverloaded)); n != 4 {
		t.Errorf("%v events are counted", n)
	}
	if n := counted(b.metrics.triggers.WithLabelValues(codeOverloaded)); n != 4 {
		t.Errorf("%v triggers are counted", n)
	}
}

// counted reads a counter.
func counted(c prometheus.Counter) float64 {
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	all, err := r.Gather()
	if err != nil {
		panic(err)
	}
	return all[0].GetMetric()[0].GetCounter().GetValue()
}

// Senders who are too many are told so: of all together, and of one workspace
// before its events leave no place for another's.
func TestTheQueueOfEventsIsBounded(t *testing.T) {
	b := setup(t, 0)
	e := Event{ProfileKey: "c1", Name: "x"}
	bg, cancel := context.WithTimeout(bg, 5*time.Second) // for whoever waits after all
	defer cancel()
	b.gather.length = mostWaiting
	if _, err := b.Record(bg, b.ws, e); !isOverloaded(err) || !strings.Contains(err.Error(), "try again") {
		t.Error(err)
	}
	greedy := lemma.NewID()
	b.gather.length = mostOfWorkspace
	b.gather.queues[greedy] = &queue{waiting: make([]*waiting, mostOfWorkspace), writers: writers}
	if _, err := b.Record(bg, greedy, e); !isOverloaded(err) {
		t.Error(err)
	}
	b.tell("c1", "x")
	if b.gather.length != mostOfWorkspace || len(b.gather.queues) != 1 {
		t.Errorf("%d wait, %d queues", b.gather.length, len(b.gather.queues))
	}
	if n := counted(b.metrics.events.WithLabelValues(codeOverloaded)); n != 2 {
		t.Errorf("%v are counted", n)
	}
}

// Nothing is recorded for a caller who was gone before it began.
func TestACallerWhoIsGone(t *testing.T) {
	b := setup(t, 0)
	gone, cancel := context.WithCancel(bg)
	cancel()
	o, err := Event{ProfileKey: "c1", Name: "go"}.occurrence()
	b.must(err)
	w := &waiting{occurrence: o, done: make(chan struct{}), caller: gone}
	b.gather.length = 1
	b.gather.write(b.Flows, b.ws, &queue{waiting: []*waiting{w}, writers: 1})
	<-w.done
	if n := b.count(`select count(*) from trigger_events where workspace_id = $1`); n != 0 || !errors.Is(w.err, context.Canceled) {
		t.Errorf("%d events, %v", n, w.err)
	}
}

// A trigger of a flow whose live version cannot be read is refused with that
// reason, and the event is recorded all the same.
func TestATriggerOfAVersionThatCannotBeRead(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(hourAfter("go"))
	b.run(b.pool, `update flow_versions set definition = '{"no":1}' where flow_id = $1`, flow)
	b.graphs = graphs{}
	if r := b.tell("c1", "go"); len(r.Results) != 1 || r.Results[0].Reason != ConditionError {
		t.Errorf("%+v", r)
	}
}

// An event that might end the journey of somebody whose version cannot be read
// is recorded, and touches her not.
func TestAnEventForAVersionThatCannotBeRead(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(forAnHour)
	b.tell("c1", "cart")
	b.settleDown()
	b.run(b.pool, `update flow_versions set definition = '{"no":1}' where flow_id = $1`, flow)
	b.graphs = graphs{}
	if r := b.tell("c1", "bought"); r.Woken != 0 || r.Exited != 0 {
		t.Errorf("%+v", r)
	}
}

// A message that is larger than the outbox takes is not written, and the
// journey goes on as after one that was given up. An answer that nobody has any
// more is one that was given up, too.
func TestMessagesThatCannotBeAnswered(t *testing.T) {
	b := setup(t, 1)
	hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer hook.Close()
	e, _, err := b.rooms.Webhooks.Create(bg, b.ws, webhooks.NewEndpoint{ID: lemma.NewID(), Name: "crm", URL: hook.URL})
	b.must(err)
	definition := func(columns string) string {
		return `{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"per_event"},"start":"call","nodes":{
			"call":{"type":"webhook","endpoint_id":"` + lemma.FormatID(lemma.PrefixEndpoint, e.ID) + `"` + columns + `,"next":"done","on_error":"lost"},
			"done":{"type":"exit"},"lost":{"type":"exit"}}}`
	}
	large := b.live(definition(`,"columns":["name"]`))
	b.run(b.shop, `update customers set name = $1`, strings.Repeat("\x01", webhooks.MaxBody/4)) // six bytes each in JSON
	b.tell("c1", "go")
	b.settleDown()
	if got := b.story(b.enrollment(large, "c1").ID); got != "enrolled@ checked@ skipped@call completed@lost" {
		t.Error(got)
	}
	b.run(b.shop, `update customers set name = 'N1'`)
	_, err = b.Archive(bg, b.ws, large, nil)
	b.must(err)
	flow := b.live(definition(""))
	b.tell("c1", "go")
	b.settleDown()
	b.run(b.pool, `delete from outbox where workspace_id = $1`, b.ws)
	b.pass(answerWithin + time.Hour)
	b.settleDown()
	if got := b.story(b.enrollment(flow, "c1").ID); got != "enrolled@ checked@ webhook@call answered@call completed@lost" {
		t.Error(got)
	}
}

// Single requests wait apart from bulks, and are bounded as well.
func TestSingleRequestsThatWaitAreBounded(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(hourAfter("go"))
	enroll := func(waiting here) error {
		b.bulks.using = map[uuid.UUID]here{b.ws: waiting}
		b.bulks.places, b.bulks.of = make(chan struct{}, bulksAtOnce), map[uuid.UUID]chan struct{}{}
		return second(b.Enroll(bg, b.ws, flow, Enrolling{ProfileKey: "c1"}, false))
	}
	if err := enroll(here{requests: mostBulksOfWorkspace, bulks: mostBulksOfWorkspace}); err != nil {
		t.Errorf("turned away with the bulks: %v", err)
	}
	if err := enroll(here{requests: mostOfWorkspace}); !isOverloaded(err) {
		t.Errorf("one too many: %v", err)
	}
}

package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/eventsout"
	"lemma/pgerr"
)

// subscriber creates an endpoint at the receiver with subscriptions.
func (b bundle) subscriber(path string, all ...Subscription) Endpoint {
	b.T.Helper()
	e, _, err := b.Create(b.T.Context(), b.Workspace,
		NewEndpoint{ID: lemma.NewID(), Name: path, URL: b.receiver.URL + path, Subscriptions: all})
	b.Must(err)
	return e
}

func types(names ...string) Subscription { return Subscription{Types: names} }

// record commits events.
func (b bundle) record(all ...eventsout.Event) {
	b.T.Helper()
	b.Must(pgx.BeginFunc(b.T.Context(), b.Pool, func(tx pgx.Tx) error { return eventsout.Record(b.T.Context(), tx, all...) }))
}

func (b bundle) started() eventsout.Event {
	return eventsout.Event{WorkspaceID: b.Workspace, Type: eventsout.CampaignStarted, OriginID: lemma.NewID()}
}

// publish publishes all events that wait.
func (b bundle) publish(want int) {
	b.T.Helper()
	n, err := b.Publish(b.T.Context())
	b.Must(err)
	if n != want {
		b.T.Fatalf("%d events were published, want %d", n, want)
	}
}

// sequences are the numbers of an endpoint's messages.
func (b bundle) sequences(e Endpoint) []int {
	b.T.Helper()
	rows, _ := b.Pool.Query(b.T.Context(), `select sequence from outbox where endpoint_id = $1 order by sequence`, e.ID)
	all, err := pgx.CollectRows(rows, pgx.RowTo[int])
	b.Must(err)
	return all
}

// A transaction that has an endpoint of one workspace locked, such as a deletion, does not delay the events of others. Those
// of its workspace are published afterwards, with numbers without gaps.
func TestEventsWhoseEndpointIsLocked(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	other := b.tenant()
	first, second := b.subscriber("/first", types(eventsout.CampaignStarted)), b.subscriber("/second", types(eventsout.CampaignStarted))
	theirs := other.subscriber("/theirs", types(eventsout.CampaignStarted))
	held, err := b.Pool.Begin(t.Context())
	b.Must(err)
	_, err = held.Exec(t.Context(), `select from webhook_endpoints where id = $1 for update`, second.ID)
	b.Must(err)
	b.record(b.started(), b.started())
	other.record(other.started())
	b.publish(1)
	b.publish(0)
	if mine, others := b.sequences(first), b.sequences(theirs); len(mine) > 0 || len(others) != 1 {
		t.Errorf("published %v, and for the other workspace %v", mine, others)
	}
	b.Must(held.Rollback(t.Context()))
	b.publish(2)
	for _, e := range []Endpoint{first, second} {
		if got := b.sequences(e); !slices.Equal(got, []int{1, 2}) {
			t.Errorf("%s: %v", e.Name, got)
		}
	}
}

func TestAnEventIsPublishedToItsSubscribers(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	first := b.subscriber("/first", types(eventsout.CampaignStarted))
	second := b.subscriber("/second", types(eventsout.CampaignPaused), types(eventsout.CampaignStarted), types(eventsout.CampaignStarted))
	b.subscriber("/other", types(eventsout.CampaignFailed))
	b.endpoint("/none")
	paused := b.started()
	paused.Type, paused.Data = eventsout.CampaignPaused, map[string]any{"reason": "requested"}
	completed := b.started()
	completed.Type = eventsout.CampaignCompleted
	b.record(b.started(), paused, completed)
	b.WantCount(2, `select count(*) from events_out`) // no endpoint subscribes to campaign.completed
	b.publish(2)
	b.publish(0)
	b.run(b.Webhooks, 3)
	if diff := cmp.Diff([]any{[]int{1}, []int{1, 2}}, []any{b.sequences(first), b.sequences(second)}); diff != "" {
		t.Error(diff)
	}
	bodies := map[string][]string{}
	for _, r := range b.receiver.all() {
		var body eventBody
		b.Must(json.Unmarshal([]byte(r.body), &body))
		bodies[r.path] = append(bodies[r.path], body.Type)
		if id, ok := lemma.ParseID(lemma.PrefixEventOut, body.ID); !ok || b.Count(`select count(*) from events_out where id = $1`, id) != 1 {
			t.Errorf("%s is no event", body.ID)
		}
		if body.Type == eventsout.CampaignPaused && string(body.Data) != `{"reason":"requested"}` {
			t.Errorf("the event has %v", body.Data)
		}
	}
	slices.Sort(bodies["/second"])
	if diff := cmp.Diff(map[string][]string{"/first": {eventsout.CampaignStarted},
		"/second": {eventsout.CampaignPaused, eventsout.CampaignStarted}}, bodies); diff != "" {
		t.Error(diff)
	}
}

// A transaction that is rolled back sends nothing.
func TestNoEventWithoutItsChange(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.subscriber("/", types(eventsout.CampaignStarted))
	failed := errors.New("rolled back")
	err := pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		b.Must(eventsout.Record(t.Context(), tx, b.started()))
		return failed
	})
	if !errors.Is(err, failed) {
		t.Fatal(err)
	}
	b.publish(0)
}

// A subscription waits for transactions that may have read before it that there is none.
func TestASubscriptionWaitsForOlderTransactions(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	tx, err := b.Pool.Begin(t.Context())
	b.Must(err)
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(t.Context(), `insert into topics (workspace_id, id, name) values ($1, $1, 'News')`, b.Workspace)
	b.Must(err)
	b.Must(eventsout.Record(t.Context(), tx, b.started())) // it has changed something, and asked for subscribers
	answered := b.subscribesLater()
	b.Must(tx.Commit(t.Context()))
	<-answered
	b.record(b.started())
	b.publish(1)
}

// Several publishers, some of which crash before their commit, publish each event once,
// with numbers without gaps.
func TestPublishersNumberWithoutGaps(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	endpoints := []Endpoint{b.subscriber("/1", types(eventsout.CampaignStarted)), b.subscriber("/2", types(eventsout.CampaignStarted))}
	const events = 3*publishMost + 7
	for range events {
		b.record(b.started())
	}
	var processes sync.WaitGroup
	for i := range 4 {
		w := b.another(b.Pool, b.options)
		ctx, kill := context.WithCancel(t.Context())
		w.hook = func(stage string) {
			if stage == "publishing" && i%2 == 0 && rand.IntN(3) == 0 {
				kill()
			}
		}
		processes.Go(func() {
			defer kill()
			for ctx.Err() == nil {
				if n, _ := w.Publish(ctx); n == 0 && b.Count(`select count(*) from events_out where published_at is null`) == 0 {
					return
				}
			}
		})
	}
	processes.Wait()
	want := make([]int, events)
	for i := range want {
		want[i] = i + 1
	}
	for _, e := range endpoints {
		if diff := cmp.Diff(want, b.sequences(e)); diff != "" {
			t.Errorf("the numbers of %s: %s", e.Name, diff)
		}
	}
	b.WantCount(2*events, `select count(distinct (event_id, endpoint_id)) from outbox`)
}

// A publisher leaves events to the one that has locked them.
func TestPublishersTakeDifferentEvents(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.subscriber("/", types(eventsout.CampaignStarted))
	b.record(b.started())
	other := b.another(b.Pool, b.options)
	b.hook = func(stage string) {
		if stage != "publishing" {
			return
		}
		if n, err := other.Publish(t.Context()); n != 0 || err != nil {
			t.Errorf("another publisher has published %d events, %v", n, err)
		}
	}
	b.publish(1)
	b.WantCount(1, `select count(*) from outbox`)
}

// An event that waits again, as after a restored row, has no second message.
func TestAnEventHasOneMessageForEachEndpoint(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	endpoints := []Endpoint{b.subscriber("/1", types(eventsout.CampaignStarted)), b.subscriber("/2", types(eventsout.CampaignStarted))}
	b.record(b.started())
	b.publish(1)
	b.Exec(`update events_out set published_at = null`)
	if _, err := b.Publish(t.Context()); !pgerr.Violation(err) {
		t.Errorf("it is published twice: %v", err)
	}
	for _, e := range endpoints {
		if diff := cmp.Diff([]int{1}, b.sequences(e)); diff != "" {
			t.Errorf("the numbers of %s: %s", e.Name, diff)
		}
	}
}

// A receiver that fails 30 % of requests, redirects some, answers some after the time,
// and drops connections after it has processed others, has each event once in the end,
// while processes crash between call and settlement.
func TestAnUnreliableReceiverHasEachEventOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) {
		o.Timeout, o.Lease = 200*time.Millisecond, 600*time.Millisecond
		o.BackOff = []time.Duration{time.Millisecond, 20 * time.Millisecond}
	})
	e := b.subscriber("/", types(eventsout.CampaignStarted))
	b.receiver.answers(func(w http.ResponseWriter, q *http.Request) {
		switch n := rand.IntN(100); {
		case n < 20:
			w.WriteHeader(http.StatusInternalServerError)
		case n < 25:
			w.WriteHeader(http.StatusNotFound)
		case n < 30:
			http.Redirect(w, q, b.receiver.URL+"/elsewhere", http.StatusFound)
		case n < 32:
			<-q.Context().Done()
		case n < 34:
			panic(http.ErrAbortHandler)
		}
	})
	const events = 300
	ctx, cancel := context.WithCancel(t.Context())
	var processes sync.WaitGroup
	for range 3 {
		w := b.another(b.Pool, b.options)
		var mu sync.Mutex
		w.hook = func(stage string) {
			mu.Lock()
			defer mu.Unlock()
			if stage == "called" && rand.IntN(60) == 0 {
				runtime.Goexit() // as a process that is killed
			}
		}
		processes.Go(func() { w.Loop(ctx) })
	}
	for range events {
		b.record(b.started())
	}
	b.Eventually("all events are delivered", func() bool {
		return b.Count(`select count(*) from outbox where status = 'delivered'`) == events
	})
	cancel()
	processes.Wait()
	bodies, numbers := map[string]string{}, map[int64]bool{}
	for _, r := range b.receiver.all() {
		id := r.header.Get("webhook-id")
		if r.path != "/" || bodies[id] != "" && bodies[id] != r.body {
			t.Fatalf("%s was sent to %s as %s and %s", id, r.path, bodies[id], r.body)
		}
		bodies[id] = r.body
		var body eventBody
		b.Must(json.Unmarshal([]byte(r.body), &body))
		numbers[body.Sequence] = true
	}
	if len(bodies) != events || len(numbers) != events || len(b.sequences(e)) != events {
		t.Errorf("%d ids with %d numbers, want %d", len(bodies), len(numbers), events)
	}
}

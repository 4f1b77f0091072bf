package webhooks

import (
	"net/http"
	"testing"

	"github.com/google/uuid"

	"lemma"
	"lemma/eventsout"
)

// sent is an event with items, whose body is shared.
func (b bundle) sent(items int) eventsout.Event {
	e := eventsout.Event{WorkspaceID: b.Workspace, Type: eventsout.NotificationSent, OriginID: lemma.NewID()}
	for range items {
		e.Keys = append(e.Keys, lemma.NewID())
	}
	return e
}

// The body of an event is stored once. Each call of its messages has the same bytes: of
// the process that has published it, of one that has not, and when it is sent again.
func TestMessagesShareTheBodyOfTheirEvent(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.subscriber("/1", types(eventsout.NotificationSent))
	b.subscriber("/2", types(eventsout.NotificationSent))
	b.record(b.sent(100))
	b.publish(1)
	b.WantCount(2, `select count(*) from outbox where body_of = event_id and length(body) < 200`)
	b.receiver.status(http.StatusInternalServerError)
	b.run(b.Webhooks, 2)
	b.due()
	b.receiver.status(http.StatusOK)
	b.run(b.another(b.Pool, b.options), 2)
	b.Exec(`update outbox set status = 'pending', finished_at = null, due_at = now()`)
	b.run(b.another(b.Pool, b.options), 2)
	first := map[string]received{}
	for _, r := range b.receiver.all() {
		was, known := first[r.path]
		if !known {
			first[r.path] = r
			continue
		}
		if r.body != was.body || r.header.Get("webhook-id") != was.header.Get("webhook-id") {
			t.Errorf("%s receives %s, and before %s", r.path, r.body, was.body)
		}
	}
	if n := len(b.receiver.all()); n != 6 || len(first) != 2 || first["/1"].body == "" {
		t.Errorf("%d calls of %d messages", n, len(first))
	}
}

// The data of an event is made of its row in each call, also by later versions: its form
// must never change.
func TestTheFormOfEventsIsFixed(t *testing.T) {
	t.Parallel()
	origin, keys := uuid.UUID{0: 1, 15: 2}, eventsout.Pack([]uuid.UUID{{0: 3}, {15: 0xff}})
	for name, want := range map[string]string{
		eventsout.NotificationSent: `{"count":2,"notification_ids":["ntf_040000000000000000000000081g000000000000000000000000",` +
			`"ntf_04000000000000000000000008000000000000000000000003zg"]}`,
		eventsout.EnrollmentStarted: `{"count":2,"enrollment_ids":["enr_0c000000000000000000000000","enr_000000000000000000000000zw"]}`,
		eventsout.CampaignStarted:   `{}`,
	} {
		e := waiting{Type: name, OriginID: origin, Keys: keys}
		if err := e.encode(); err != nil || string(e.data) != want {
			t.Errorf("%s: %v, %s", name, err, e.data)
		}
		if again := e.withItems(e.data[:e.start]); string(again) != want {
			t.Errorf("%s is made again as %s", name, again)
		}
	}
}

// An event is kept for a message that was sent again, which needs its body.
func TestCleanKeepsEventsOfMessages(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.subscriber("/", types(eventsout.NotificationSent))
	b.record(b.sent(100))
	b.publish(1)
	b.run(b.Webhooks, 1)
	b.Exec(`update events_out set published_at = now() - interval '15 days'`)
	_, err := b.Clean(t.Context())
	b.Must(err)
	b.WantCount(1, `select count(*) from events_out`)
	b.Exec(`update outbox set finished_at = now() - interval '7 days 1 minute'`)
	_, err = b.Clean(t.Context())
	b.Must(err)
	b.WantCount(0, `select count(*) from events_out`)
}

// Events that are kept for messages hold up no others, also if they fill pages.
func TestKeptEventsHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.cleanPage = 10
	b.subscriber("/", types(eventsout.NotificationSent))
	b.record(b.sent(100))
	b.publish(1)
	b.Exec(`update events_out set published_at = now() - interval '15 days'`)
	b.Exec(`insert into events_out (workspace_id, id, type, origin_id, count, published_at, body)
		select workspace_id, gen_random_uuid(), type, origin_id, 1, now() - interval '14 days 1 hour' + i / 3 * interval '1 minute', body
		from events_out, generate_series(1, 50) i`)
	b.Exec(`insert into outbox (workspace_id, id, endpoint_id, body, body_of, event_id, type, sequence)
		select e.workspace_id, e.id, o.endpoint_id, '', e.id, e.id, e.type, e.sequence from outbox o, (
			select *, row_number() over (order by published_at) + 100 as sequence from events_out where count = 1) e
		where e.sequence <= 145`)
	_, err := b.Clean(t.Context())
	b.Must(err)
	b.WantCount(46, `select count(*) from events_out`)
}

// A process keeps the latest bodies, up to a number of bytes.
func TestKeptBodiesAreBounded(t *testing.T) {
	t.Parallel()
	var b bodies
	ids := make([]uuid.UUID, 5)
	for i := range ids {
		ids[i] = lemma.NewID()
		b.put(ids[i], make([]byte, maxBodies/4))
		b.put(ids[i], make([]byte, maxBodies/4)) // read by two claims
	}
	if b.get(ids[0]) != nil || b.get(ids[1]) == nil || b.get(ids[4]) == nil || b.size != maxBodies || len(b.order) != 4 {
		t.Errorf("%d bodies of %d bytes are kept", len(b.of), b.size)
	}
}

// Events that occurred at different times are not joined, since the first gives the time.
func TestDistantEventsAreNotJoined(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e := b.subscriber("/", types(eventsout.NotificationSent))
	sent := b.sent(1)
	b.record(sent)
	b.Exec(`update events_out set occurred_at = now() - interval '11 seconds'`)
	b.record(sent)
	b.record(sent)
	b.publish(3)
	if n := len(b.sequences(e)); n != 2 {
		t.Errorf("there are %d messages, want 2", n)
	}
}

package tracking

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/pgtest"
	"lemma/queue"
)

// convertible gives the notifications of the bundle a conversion.
func (b *bundle) convertible(event string, within time.Duration) {
	b.T.Helper()
	b.Exec(`update contents set conversion_event = $2, conversion_within = $3 where workspace_id = $1`, b.Workspace, event, within)
	b.Exec(`update notifications set converts = true where workspace_id = $1`, b.Workspace)
}

// triggerEvent inserts a trigger event of profile i.
func (b *bundle) triggerEvent(i int, name string, occurred, received time.Time) {
	b.T.Helper()
	b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at) values ($1, $2, $3, $4, $5, $6)`,
		b.Workspace, lemma.NewID(), fmt.Sprint(i), name, occurred, received)
	b.Exec(`update conversion_positions set until = least(until, $1) where queue = 'conversion_queue'`, received.Add(-time.Second))
}

// convert matches all events older than age, and applies what was found.
func (b *bundle) convert(age time.Duration) int {
	b.T.Helper()
	n, err := b.QueueEvents(b.T.Context(), age)
	b.Must(err)
	_, err = b.Convert(b.T.Context())
	b.Must(err)
	_, err = b.Apply(b.T.Context(), 0)
	b.Must(err)
	return n
}

func (b *bundle) conversions() (n int64) {
	b.T.Helper()
	b.Must(b.Pool.QueryRow(b.T.Context(), `select coalesce(sum(conversions), 0)::bigint from engagement_counts where workspace_id = $1`,
		b.Workspace).Scan(&n))
	return n
}

func TestConversionsWithinTheirTime(t *testing.T) {
	b := setup(t)
	b.convertible("bought", 30*time.Minute)
	b.Exec(`insert into contents (workspace_id, id, channel, template_id, template_version, from_name, from_email, reply_to, headers,
			conversion_event, conversion_within)
		values ($1, $2, 'email', $2, 1, 'Shop', 'news@shop.example', '', '{}', 'looked', '1 hour')`, b.Workspace, b.provider)
	now := time.Now()
	b.triggerEvent(0, "bought", b.sent, now)                                       // at the send
	b.triggerEvent(1, "bought", b.sent.Add(30*time.Minute-time.Millisecond), now)  // at the end
	b.triggerEvent(2, "bought", b.sent.Add(-time.Millisecond), now)                // before the message
	b.triggerEvent(3, "bought", b.sent.Add(30*time.Minute), now)                   // too late
	b.triggerEvent(4, "looked", b.sent.Add(time.Minute), now)                      // an event of other messages
	b.triggerEvent(99, "bought", b.sent.Add(time.Minute), now)                     // of no profile with a message
	b.triggerEvent(5, "bought", b.sent.Add(time.Minute), b.sent.Add(-time.Second)) // dated ahead, received before the message
	b.triggerEvent(6, "bought", now.Add(time.Hour), b.sent.Add(10*time.Minute))    // dated ahead, received in time
	b.convert(0)
	for i := range 7 {
		want := i == 0 || i == 1 || i == 6
		b.WantCount(map[bool]int{true: 1}[want], `select count(*) from engagements where key = $1 and conversions = 1`, keyOf(i))
	}
}

func TestANotificationConvertsOnce(t *testing.T) {
	b := setup(t)
	b.convertible("bought", time.Hour)
	for i := range 3 {
		b.triggerEvent(0, "bought", b.sent.Add(time.Duration(i)*time.Minute), time.Now())
		b.convert(0)
		if n := b.conversions(); n != 1 {
			t.Fatalf("%d conversions after event %d", n, i)
		}
	}
	if n := b.convert(0); n != 0 {
		t.Errorf("%d events are matched again", n)
	}
}

func TestConversionsNeedAnAcceptedMessage(t *testing.T) {
	b := setup(t)
	b.convertible("bought", time.Hour)
	b.Exec(`update attempts set outcome = 'rejected' where workspace_id = $1`, b.Workspace)
	b.triggerEvent(0, "bought", b.sent.Add(time.Minute), time.Now())
	b.convert(0)
	if n := b.conversions(); n != 0 {
		t.Errorf("%d conversions of messages that were never accepted", n)
	}
}

// Events that may not be committed yet are not passed over.
func TestYoungEventsWait(t *testing.T) {
	b := setup(t)
	b.convertible("bought", 2*time.Hour)
	b.triggerEvent(0, "bought", b.sent.Add(time.Minute), time.Now())
	if n := b.convert(time.Minute); n != 0 || b.conversions() != 0 {
		t.Fatalf("%d events of now were matched", n)
	}
	if b.convert(0); b.conversions() != 1 {
		t.Error("the event was passed over")
	}
}

// A process that is stopped before its commit holds the position or the events: another
// one leaves them to it, and they are found once.
func TestOneProcessMatchesEvents(t *testing.T) {
	b := setup(t)
	b.convertible("bought", time.Hour)
	b.triggerEvent(0, "bought", b.sent.Add(time.Minute), time.Now())
	stopped := func(work func(tx pgx.Tx) int) {
		t.Helper()
		tx, err := b.Pool.Begin(t.Context())
		b.Must(err)
		if n := work(tx); n != 1 {
			t.Fatalf("%d events", n)
		}
		if n := b.convert(0) + int(b.conversions()); n != 0 {
			t.Errorf("a second process matched %d events", n)
		}
		b.Must(tx.Rollback(t.Context())) // it crashes
	}
	stopped(func(tx pgx.Tx) int {
		_, _, n, err := advance(t.Context(), tx, nextEvents, 0)
		b.Must(err)
		return n
	})
	_, err := b.QueueEvents(t.Context(), 0)
	b.Must(err)
	stopped(func(tx pgx.Tx) int {
		n, events, err := takeEvents(t.Context(), tx, b.Workspace, queue.Part{Most: 10})
		b.Must(err)
		b.Must(events.convert(t.Context(), tx, b.Workspace))
		return n
	})
	b.convert(0)
	if n := b.conversions(); n != 1 {
		t.Errorf("%d conversions", n)
	}
}

// Many notifications and events of one profile are matched by statements that are bounded.
func TestAProfileWithManyNotificationsStopsNoConversions(t *testing.T) {
	b := setup(t)
	b.convertible("bought", 24*time.Hour)
	const many, events = matchPage + 500, 1_000 // notifications of profile 0, and its events
	b.Exec(`insert into notifications (workspace_id, origin_id, key, batch_id, ordinal, profile_key, address, payload, converts)
		select n.workspace_id, n.origin_id, gen_random_uuid(), n.batch_id, n.ordinal, '0', n.address, '{}', true
		from (select * from notifications where workspace_id = $1 and profile_key = '0') n, generate_series(2, $2::int)`, b.Workspace, many)
	b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
		select $1, gen_random_uuid(), '0', 'bought', $2::timestamptz + i * interval '1 ms', now() - interval '1 minute'
		from generate_series(1, $3::int) i`,
		b.Workspace, b.sent, events)
	b.triggerEvent(1, "bought", b.sent.Add(time.Minute), time.Now())
	b.Exec(`update conversion_positions set until = now() - interval '1 hour'`)
	b.Deps.Pool = b.Connect(func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["statement_timeout"] = "2s" })
	_, err := b.QueueEvents(t.Context(), 0)
	b.Must(err)
	_, err = b.Convert(t.Context())
	b.Must(err)
	b.WantCount(many+1, `select count(*) from tracking_queue`)
	b.WantCount(0, `select count(*) from conversion_queue`)
}

func TestAWorkspaceThatFailsStopsNoConversions(t *testing.T) {
	b := setup(t)
	b.convertible("bought", time.Hour)
	b.triggerEvent(0, "bought", b.sent.Add(time.Minute), time.Now())
	other := pgtest.Workspace(t, b.Pool)
	b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at)
		values ($1, $1, 'p', 'n', '-infinity')`, other) // is no time of Go
	b.Exec(`insert into conversion_queue (workspace_id, received_at, key) values ($1, now(), $1)`, other)
	_, err := b.QueueEvents(t.Context(), 0)
	b.Must(err)
	if _, err := b.Convert(t.Context()); err == nil {
		t.Error("the other workspace does not fail")
	}
	b.WantCount(1, `select count(*) from tracking_queue where workspace_id = $1`, b.Workspace)
	b.WantCount(1, `select count(*) from conversion_queue where workspace_id = $1`, other)
}

// Settlements are found by an index of their own: nearly all attempts were settled by the
// response of the carrier, and are not read.
func TestSettlementsAreFoundByTheirIndex(t *testing.T) {
	b := setup(t)
	b.convertible("bought", time.Hour)
	b.Exec(`insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis, at)
		select $1, gen_random_uuid(), 0, 1, 'accepted', true, case when i % 2000 = 0 then 'evidence' else 'response' end,
			now() - interval '1 hour' + i * interval '100 ms' from generate_series(1, 20000) i`, b.Workspace)
	b.Exec(`update conversion_positions set until = now() - interval '2 hours'`)
	b.Exec(`analyze attempts`)
	plan := strings.Join(pgtest.Column[string](t, b.Pool, `explain (analyze, costs off, timing off, summary off) `+nextSettled,
		time.Minute, convertChunk), "\n")
	for _, read := range regexp.MustCompile(`rows=(\d+)|Filter: (\d+)`).FindAllStringSubmatch(plan, -1) {
		if n, _ := strconv.Atoi(read[1] + read[2]); n > 100 {
			t.Fatalf("%d rows:\n%s", n, plan)
		}
	}
}

func TestUnsubscribesAreCountedOnce(t *testing.T) {
	b := setup(t)
	for range 2 {
		tx, err := b.Pool.Begin(t.Context())
		b.Must(err)
		b.Must(Unsubscribed(t.Context(), tx, b.Workspace, Notification{b.origin, keyOf(1)}, Notification{b.origin, keyOf(2)},
			Notification{b.origin, uuid.New()}))
		b.Must(tx.Commit(t.Context()))
		_, err = b.Apply(t.Context(), 0)
		b.Must(err)
	}
	var n, clicks int64
	b.Must(b.Pool.QueryRow(t.Context(), `select sum(unsubscribes)::bigint, sum(clicks)::bigint from engagement_counts where workspace_id = $1`,
		b.Workspace).Scan(&n, &clicks))
	if n != 2 || clicks != 0 {
		t.Errorf("%d notifications unsubscribed and %d clicks, want 2 and 0", n, clicks)
	}
}

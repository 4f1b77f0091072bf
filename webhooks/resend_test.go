package webhooks

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/eventsout"
	"lemma/page"
	"lemma/pgtest"
)

func TestMessagesAreSentAgainUnchanged(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e := b.subscriber("/", types(eventsout.CampaignStarted))
	b.record(b.started(), b.started(), b.started())
	b.publish(3)
	b.receiver.status(404)
	b.run(b.Webhooks, 3)
	b.Exec(`update outbox set created_at = now() - interval '4 days' where sequence <= 2`)
	b.due()
	b.run(b.Webhooks, 3)
	b.WantCount(2, `select count(*) from outbox where status = 'failed' and sequence <= 2`) // older than GiveUp

	b.receiver.status(200)
	yesterday := time.Now().Add(-24 * time.Hour)
	if n, err := b.ResendAll(t.Context(), b.Workspace, e.ID, Range{After: &yesterday}); n != 0 || err != nil {
		t.Errorf("%d, %v: none of the range has ended", n, err)
	}
	if n, err := b.ResendAll(t.Context(), b.Workspace, e.ID, Range{Before: &yesterday}); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	b.run(b.Webhooks, 2)
	bodies := map[string]map[string]int{}
	for _, r := range b.receiver.all() {
		id := r.header.Get("webhook-id")
		if bodies[id] == nil {
			bodies[id] = map[string]int{}
		}
		bodies[id][r.body]++
	}
	if len(bodies) != 3 {
		t.Errorf("%d ids", len(bodies))
	}
	for id, of := range bodies {
		if len(of) != 1 {
			t.Errorf("%s was sent with %d bodies", id, len(of))
		}
	}
	all, _, err := b.Messages(t.Context(), b.Workspace, e.ID, eventsout.CampaignStarted, page.Query{Status: Delivered, Limit: 10})
	b.Must(err)
	if len(all) != 2 || *all[0].Type != eventsout.CampaignStarted || all[0].EventID == nil || *all[0].Sequence > 2 {
		t.Errorf("%+v", all)
	}
	again, err := b.Resend(t.Context(), b.Workspace, e.ID, all[0].ID)
	b.Must(err)
	if again.Status != Pending || again.Attempts != 3 {
		t.Errorf("%+v", again)
	}
	b.receiver.status(500)
	b.run(b.Webhooks, 1)
	b.WantCount(1, `select count(*) from outbox where id = $1 and status = 'pending'`, all[0].ID) // its three days begin anew
}

// Only ended messages of the endpoint, with the statuses that are named, are sent again; what was
// published since the request is not.
func TestOtherMessagesAreNotSentAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e, other := b.subscriber("/", types(eventsout.CampaignStarted)), b.subscriber("/other", types(eventsout.CampaignStarted))
	b.record(b.started(), b.started(), b.started(), b.started())
	b.publish(4)
	b.Exec(`update outbox set status = 'failed', last_error = 'timeout', finished_at = now() where sequence <> 2`)
	b.Exec(`update outbox set status = 'delivered', finished_at = now() where sequence = 2`)
	b.Exec(`update outbox set status = 'pending', finished_at = null where sequence = 3`)
	b.Exec(`update webhook_endpoints set sequence = 3`)
	again := func(statuses []string, want int64) {
		t.Helper()
		if n, err := b.ResendAll(t.Context(), b.Workspace, e.ID, Range{Statuses: statuses}); n != want || err != nil {
			t.Errorf("%d, %v, want %d", n, err, want)
		}
	}
	again(nil, 1)
	again([]string{Delivered}, 1)
	b.WantCount(2, `select count(*) from outbox where resent_at is not null and endpoint_id = $1 and sequence < 3`, e.ID)
	b.WantCount(2, `select count(*) from outbox where resent_at is not null`)
	pending := pgtest.One[uuid.UUID](t, b.Pool, `select id from outbox where endpoint_id = $1 and sequence = 3`, e.ID)
	_, err := b.Resend(t.Context(), b.Workspace, e.ID, pending)
	b.Must(err)
	ended := pgtest.One[uuid.UUID](t, b.Pool, `select id from outbox where endpoint_id = $1 and sequence = 4`, e.ID)
	if _, err := b.Resend(t.Context(), b.Workspace, other.ID, ended); lemma.KindOf(err) != lemma.NotFound {
		t.Error(err)
	}
	b.WantCount(2, `select count(*) from outbox where resent_at is not null`)
}

func TestAnAnswerToANodeIsNotSentAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	m := b.written()
	b.run(b.Webhooks, 1)
	if _, err := b.Resend(t.Context(), b.Workspace, m.EndpointID, m.ID); lemma.KindOf(err) != lemma.Conflict {
		t.Error(err)
	}
	b.run(b.Webhooks, 0)
	if _, err := b.Resend(t.Context(), b.Workspace, m.EndpointID, uuid.New()); lemma.KindOf(err) != lemma.NotFound {
		t.Error(err)
	}
}

func TestATestIsSigned(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e, secret := b.endpoint("/")
	id := lemma.NewID()
	for range 2 {
		m, err := b.Test(t.Context(), b.Workspace, e.ID, id)
		b.Must(err)
		if m.ID != id || *m.Type != "test" || m.Sequence != nil {
			t.Errorf("%+v", m)
		}
	}
	b.run(b.Webhooks, 1)
	if err := verifies(t, secret, b.receiver.all()[0]); err != nil {
		t.Error(err)
	}
}

// Its time is that of the database, whatever that of the process.
func TestATestHasTheTimeOfTheDatabase(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e, _ := b.endpoint("/")
	now := time.Now().Add(-2 * time.Hour).Truncate(time.Second)
	pgtest.SetClock(t, b.Pool, now)
	id := lemma.NewID()
	_, err := b.Test(t.Context(), b.Workspace, e.ID, id)
	b.Must(err)
	b.WantCount(1, `select count(*) from outbox where id = $1 and (body::json->>'timestamp')::timestamptz = $2`, id, now)
}

// An endpoint is disabled when an event has failed for DisableAfter, none was delivered
// meanwhile, and it still fails.
func TestFailingEndpointsAreDisabled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change string
		want   int
	}{
		"failing for five days": {``, 1},
		"failing for less":      {`update webhook_endpoints set failing_since = now() - interval '4 days 23 hours'`, 0},
		"failing for a moment":  {`update webhook_endpoints set failing_since = null`, 0},
		"a delivery meanwhile":  {`update outbox set status = 'delivered', last_error = null where sequence = 2`, 0},
		"no failure for a day":  {`update outbox set called_at = now() - '25 h'::interval, finished_at = now() - '25 h'::interval`, 0},
		"a further call comes":  {`update outbox set status = 'pending', finished_at = null, waits = true where sequence > 1`, 1},
		"all failures at once":  {`update outbox set finished_at = now() - interval '1 hour'`, 0}, // the clock was set ahead
		"a call came a day before": {`update outbox set status = 'pending', finished_at = null, waits = true,
			called_at = now() - '25 h'::interval`, 0},
		"no call has failed": {`update outbox set status = 'pending', finished_at = null, waits = true, last_error = null`, 0},
		"calls of flow nodes only": {`update outbox set status = 'pending', finished_at = null, waits = true,
			event_id = null, sequence = null, body_of = null`, 0},
		"failures of another endpoint": {`update outbox o set finished_at = now() - '25 h'::interval from webhook_endpoints e
			where e.id = o.endpoint_id and e.failing_since is not null`, 0},
		"further calls of another endpoint": {`update outbox o set
			finished_at = case when e.failing_since is not null then now() - '25 h'::interval end,
			status = case when e.failing_since is not null then 'failed' else 'pending' end, waits = e.failing_since is null
			from webhook_endpoints e where e.id = o.endpoint_id`, 0},
		"a delivery to another endpoint": {`update outbox o set status = 'delivered', last_error = null from webhook_endpoints e
			where e.id = o.endpoint_id and e.failing_since is null`, 1},
		"enabled since the first failure": {`update webhook_endpoints set enabled_at = now() - interval '4 days'`, 0},
		"failures of flow nodes only":     {`update outbox set event_id = null, sequence = null, body_of = null`, 0},
		"disabled already":                {`update webhook_endpoints set status = 'disabled', status_reason = '', disabled_at = now()`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			e := b.subscriber("/", types(eventsout.CampaignStarted))
			b.Exec(`update webhook_endpoints set enabled_at = now() - interval '6 days', failing_since = now() - interval '5 days 1 minute'`)
			b.subscriber("/other", types(eventsout.CampaignStarted))
			b.record(b.started(), b.started(), b.started())
			b.publish(3)
			b.Exec(`update outbox set status = 'failed', last_error = 'timeout', called_at = now() - ago, finished_at = now() - ago
				from (select id as of, case sequence when 1 then interval '2 days' else interval '1 hour' end as ago from outbox) o
				where of = id`)
			if c.change != "" {
				b.Exec(c.change)
			}
			n, err := b.DisableFailing(t.Context())
			b.Must(err)
			if n != c.want {
				t.Fatalf("%d were disabled, want %d", n, c.want)
			}
			if n == 0 {
				return
			}
			now, err := b.Get(t.Context(), b.Workspace, e.ID)
			b.Must(err)
			if now.Status != Disabled || *now.StatusReason != DisabledByFailure || now.DisabledAt == nil || now.Version != 2 {
				t.Errorf("%+v", now)
			}
		})
	}
}

// A disabled endpoint is not called. Its events are kept, to be sent again.
func TestADisabledEndpointIsNotCalled(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e := b.subscriber("/", types(eventsout.CampaignStarted))
	_, err := b.Update(t.Context(), b.Workspace, e.ID, nil, Patch{Status: new(Disabled)})
	b.Must(err)
	b.record(b.started())
	b.publish(1)
	b.run(b.Webhooks, 1)
	if state, reason, _, _, _ := b.row(); state != Failed || reason != ReasonDisabled || len(b.receiver.all()) != 0 {
		t.Errorf("%s, %s after %d calls", state, reason, len(b.receiver.all()))
	}
	if _, err := b.ResendAll(t.Context(), b.Workspace, e.ID, Range{}); lemma.KindOf(err) != lemma.WrongStatus {
		t.Error(err)
	}
	b.Exec(`update webhook_endpoints set failing_since = now() - interval '9 days'`)
	enabled, err := b.Update(t.Context(), b.Workspace, e.ID, nil, Patch{Status: new(Enabled)})
	b.Must(err)
	b.WantCount(0, `select count(*) from webhook_endpoints where failing_since is not null`) // it may fail for long again
	if enabled.Status != Enabled || enabled.StatusReason != nil || enabled.DisabledAt != nil {
		t.Errorf("%+v", enabled)
	}
	n, err := b.ResendAll(t.Context(), b.Workspace, e.ID, Range{})
	b.Must(err)
	b.run(b.Webhooks, 1)
	if n != 1 || len(b.receiver.all()) != 1 {
		t.Errorf("%d are sent again after %d calls", n, len(b.receiver.all()))
	}
}

func TestCleanDeletesOldEvents(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.subscriber("/", types(eventsout.CampaignStarted))
	b.record(b.started(), b.started(), b.started())
	b.publish(3)
	b.record(b.started())
	b.run(b.Webhooks, 3)
	b.Exec(`update outbox set finished_at = now() - interval '7 days 1 minute' where sequence <= 2`)
	b.Exec(`update events_out set published_at = now() - interval '14 days 1 minute'
		where id in (select event_id from outbox where sequence = 1)`)
	_, err := b.Clean(t.Context())
	b.Must(err)
	b.WantCount(1, `select count(*) from outbox`)
	b.WantCount(3, `select count(*) from events_out`) // one of them waits
}

// An endpoint fails since its first failed call of an event after the last delivery.
func TestFailingSince(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e := b.subscriber("/", types(eventsout.CampaignStarted))
	fails := func(want int) {
		t.Helper()
		b.WantCount(want, `select count(*) from webhook_endpoints where failing_since is not null`)
	}
	call := func(status int) {
		t.Helper()
		b.receiver.status(status)
		b.due()
		b.run(b.Webhooks, 1)
	}
	b.write(b.message(e))
	call(503)
	fails(0) // of a flow node, which has an answer of its own
	call(200)
	b.record(b.started())
	b.publish(1)
	call(503)
	fails(1)
	b.Exec(`update webhook_endpoints set failing_since = now() - interval '1 day'`)
	call(503)
	b.WantCount(1, `select count(*) from webhook_endpoints where failing_since < now() - interval '23 hours'`)
	claimedBefore := &settlement{claimed: claimed{WorkspaceID: b.Workspace, EndpointID: e.ID, EventID: new(lemma.NewID())},
		result: result{status: 503, reason: "status"}, held: true}
	b.Must(pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		return recordFailing(t.Context(), tx, []*settlement{claimedBefore})
	}))
	b.WantCount(1, `select count(*) from webhook_endpoints where failing_since < now() - interval '23 hours'`)
	call(200)
	fails(0)
}

// One endpoint that cannot be checked delays no other, and those that stay are read once.
func TestEachFailingEndpointIsChecked(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e := b.subscriber("/", types(eventsout.CampaignStarted))
	b.record(b.started(), b.started())
	b.publish(2)
	b.Exec(`update outbox set status = 'failed', last_error = 'timeout', called_at = now(),
		finished_at = now() - (sequence - 1) * interval '2 days'`)
	b.Exec(`update webhook_endpoints set enabled_at = now() - interval '9 days', failing_since = now() - interval '5 days 1 minute'`)
	b.Exec(`insert into webhook_endpoints (workspace_id, id, name, url, secret, enabled_at, failing_since)
		select workspace_id, gen_random_uuid(), 'e' || i, url, secret, now() - interval '9 days', now() - interval '8 days'
		from webhook_endpoints, generate_series(1, $1::int) i`, failingPage+1) // without a call of late
	if n, err := b.DisableFailing(t.Context()); n != 1 || err != nil {
		t.Errorf("%d were disabled, %v", n, err)
	}
	now, err := b.Get(t.Context(), b.Workspace, e.ID)
	b.Must(err)
	if now.Status != Disabled {
		t.Errorf("%+v", now)
	}
}

// transactions counts the transactions of a pool.
type transactions struct{ begun int }

func (t *transactions) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if strings.HasPrefix(d.SQL, "begin") {
		t.begun++
	}
	return ctx
}

func (*transactions) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Results for which no enrollment waits, and which change no endpoint, are one statement
// without a transaction: nearly all results of events are of this kind.
func TestResultsWithoutEffectsAreOneStatement(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	seen := &transactions{}
	w := New(Deps{Pool: b.Connect(func(c *pgxpool.Config) { c.ConnConfig.Tracer = seen }), Box: pgtest.Box(t)}, Options{})
	delivered, failed := result{status: 200, final: true}, result{status: 503, reason: ReasonStatus}
	event := claimed{WorkspaceID: b.Workspace, ID: lemma.NewID(), EndpointID: lemma.NewID(), EventID: new(lemma.NewID()), LeasedBy: "t"}
	answer, failing := event, event
	answer.EnrollmentID, answer.Step, answer.EventID = new(lemma.NewID()), new(1), nil
	failing.FailingSince = new(time.Now())
	for name, c := range map[string]struct {
		claimed
		result
		begun int
	}{
		"an event is delivered": {event, delivered, 0}, "it fails again": {failing, failed, 0},
		"it fails": {event, failed, 1}, "it is delivered after a failure": {failing, delivered, 1},
		"an enrollment waits": {answer, delivered, 1},
	} {
		seen.begun = 0
		b.Must(w.settleAll(t.Context(), []*settlement{{claimed: c.claimed, result: c.result}}, settleTime))
		if seen.begun != c.begun {
			t.Errorf("%s: %d transactions", name, seen.begun)
		}
	}
}

package server

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/blobs"
	"lemma/campaigns"
	"lemma/events"
	"lemma/exports"
	"lemma/exports/format"
	"lemma/flows"
	"lemma/flows/intake"
	"lemma/message"
	"lemma/notifications"
	"lemma/pgtest"
	"lemma/pgtest/shop"
	"lemma/sender"
	"lemma/suppression"
	"lemma/tracking"
	"lemma/webhooks"
)

// accepting is a kind of carrier that accepts every message at once.
type accepting string

func (k accepting) kind() sender.Kind {
	return sender.Kind{Name: string(k), Open: func(sender.Account) (sender.Carrier, error) { return k, nil }}
}

func (accepting) Close() {}

func (accepting) Send(_ context.Context, messages []sender.Message) []sender.Receipt {
	receipts := make([]sender.Receipt, len(messages))
	for i := range receipts {
		receipts[i] = sender.Receipt{Outcome: sender.Accepted, Code: 250, At: time.Now()}
	}
	return receipts
}

// planned is a process with the resources for a flow and a campaign.
type planned struct {
	*shop.Fixture
	*Server
	flow       uuid.UUID
	definition func(string) json.RawMessage
}

func startPlanned(t *testing.T, hot *pgtest.Statements) *planned {
	s := pgtest.NewShop(t, `create table people (id text primary key, email text, name text, opted_out boolean)`,
		`insert into people select i, 'user' || i || '@bench.example', 'N' || i, i = 61 from generate_series(1, 61) i`)
	s.Pool = hot.Trace(t, s.Pool)
	p := &planned{Fixture: shop.New(s, shop.Local, nil)}
	p.Fill("select id, email, name, opted_out from people")
	const often = 50 * time.Millisecond
	store, err := blobs.OpenFolder(t.TempDir())
	p.Must(err)
	p.Server, err = New(Deps{Pool: s.Pool, Blobs: store, Box: p.Box, Log: slog.New(slog.DiscardHandler),
		Kinds: []sender.Kind{accepting("smtp").kind()}}, Config{SendWorkers: 2, PublicURL: "https://lemma.shop.example",
		Sender:  sender.Config{Workers: 2, ReapEvery: often, SweepEvery: often, SweepGrace: often},
		Checker: suppression.Config{New: 10, Checks: 1, Wait: 1}, StoreFilters: often, Campaigns: campaigns.Config{Grace: often},
		Sources: shop.Local, Webhooks: webhooks.Options{AllowPrivate: true}})
	p.Must(err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		p.Must(p.Drain(ctx))
	})
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {}))
	t.Cleanup(hook.Close)
	e, _, err := p.Webhooks.Create(t.Context(), p.Workspace, webhooks.NewEndpoint{ID: lemma.NewID(), Name: "crm", URL: hook.URL})
	p.Must(err)
	p.definition = func(text string) json.RawMessage {
		return json.RawMessage(strings.NewReplacer("$audience", lemma.FormatID(lemma.PrefixAudience, p.Audience),
			"$call", `"type":"webhook","endpoint_id":"`+lemma.FormatID(lemma.PrefixEndpoint, e.ID)+`","columns":["name"]`,
			"$send", `"type":"send","channel":"email","from":{"email":"hi@shop.example"},"provider_id":"`+
				lemma.FormatID(lemma.PrefixProvider, p.Provider)+`","template_id":"`+
				lemma.FormatID(lemma.PrefixTemplate, p.Template)+`"`).Replace(text))
	}
	return p
}

// wholeFlow is a definition with a node of each type, and events for triggers, waits and
// exits.
const wholeFlow = `{"audience_id":"$audience","triggers":[{"type":"event","event":"joined","condition":"profile.name != ''"}],
	"recurrence":{"policy":"per_event"}%s,
	"exit_on":[{"event":"left","goal":true,"condition":"trigger.properties.n == event.properties.n"}],"start":"wait","nodes":{
	"wait":{"type":"delay","for":"PT0.01S","next":"hello"},"hello":{$send,"next":"call"},"call":{$call,"next":"ask"},
	"ask":{"type":"branch","cases":[{"if":"events.viewed.times > 3","next":"end"}],"else":"buy"},
	"buy":{"type":"wait_for_event","event":"bought","condition":"event.properties.n == trigger.properties.n","timeout":"P1D",
		"next":"arms","on_timeout":"end"},
	"arms":{"type":"split","arms":[{"weight":1,"next":"late"},{"weight":1,"next":"late"}]},
	"late":{"type":"wait_until","time":"09:00","zone":"UTC","next":"end"},"end":{"type":"exit"}}}`

const polledFlow = `{"audience_id":"$audience","triggers":[{"type":"audience","every":"PT1M"}],"recurrence":{"policy":"once"},
	"start":"wait","nodes":{"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`

// live makes the process send all its statements.
func (p *planned) live() {
	ctx := p.T.Context()
	p.Must(p.StartWorkers(ctx))
	p.flow = p.publish(fmt.Sprintf(wholeFlow, ""))
	apart := p.publish(fmt.Sprintf(strings.Replace(wholeFlow, `"joined"`, `"came"`, 1), `,"overlap":"allow"`))
	polled := p.publish(polledFlow)
	all := func(event string, ids bool) {
		var events []intake.Event
		for i := 1; i <= 20; i++ {
			e := intake.Event{ProfileKey: fmt.Sprint(i), Name: event, Properties: json.RawMessage(`{"n":1}`)}
			if ids {
				e.ID = fmt.Sprint(event, i)
			}
			events = append(events, e)
		}
		_, err := p.Flows.Intake.RecordAll(ctx, p.Workspace, events)
		p.Must(err)
	}
	for range 2 { // the second time, the events are duplicates and the profiles are enrolled
		all("joined", true)
		all("came", false)
		_, err := p.Flows.Intake.EnrollAll(ctx, p.Workspace, p.flow,
			[]intake.Enrolling{{ProfileKey: "31", ID: "x"}, {ProfileKey: "32"}, {ProfileKey: "missing", ID: "y"}}, false)
		p.Must(err)
		_, err = p.Flows.Intake.Record(ctx, p.Workspace, intake.Event{ProfileKey: "missing", Name: "joined"})
		p.Must(err)
	}
	p.until(`select count(*) >= 30 from enrollments where flow_id = any($1) and node = 'buy' and waiting_since is not null`,
		[]uuid.UUID{p.flow, apart})
	p.until(`select count(*) >= 20 from enrollments where flow_id = any($1)`, []uuid.UUID{polled})
	all("bought", true)
	p.until(`select count(*) >= 20 from enrollments where flow_id = any($1) and node = 'late'`, []uuid.UUID{p.flow, apart})
	p.otherRules(apart)
	p.sourceFails()
	_, err := p.Flows.Pause(ctx, p.Workspace, apart, nil)
	p.Must(err)
	_, err = p.Flows.Resume(ctx, p.Workspace, apart, new(time.Duration(0)), nil)
	p.Must(err)
	_, err = p.Flows.Pause(ctx, p.Workspace, polled, nil)
	p.Must(err)
	p.Exec(`update enrollments set resume_at = now() - interval '1 hour' where flow_id = $1`, polled)
	_, err = p.Flows.Resume(ctx, p.Workspace, polled, new(time.Second), nil)
	p.Must(err)
	p.Exec(`update flow_polls set next_at = now() where flow_id = $1`, polled)
	p.until(`select count(*) = 0 from enrollments where flow_id = any($1) and status = 'active' and resume_at < now()`, []uuid.UUID{polled})
	all("left", true)
	p.move()
	p.suppressions()
	p.campaign()
	p.events()
	p.direct()
	p.export()
	p.engagement()
	for _, once := range []func(context.Context) error{
		func(ctx context.Context) error { _, err := p.Flows.Forget(ctx); return err },
		func(ctx context.Context) error { _, err := p.Webhooks.DisableFailing(ctx); return err },
		func(ctx context.Context) error { _, err := p.Webhooks.Clean(ctx); return err },
	} {
		p.Must(once(ctx))
	}
}

// suppressions fills the lists that the claims of the campaign read and check.
func (p *planned) suppressions() {
	topic := lemma.NewID()
	p.Exec(`insert into topics (workspace_id, id, name) values ($1, $2, 'News')`, p.Workspace, topic)
	p.Exec(`insert into suppressions (workspace_id, key, cause, id, channel, address)
		select $1, md5(i::text)::uuid, 'manual', gen_random_uuid(), 'email', i || '@elsewhere.example' from generate_series(1, 15) i`,
		p.Workspace)
	p.Exec(`insert into topic_unsubscribes (workspace_id, topic_id, key)
		select $1, $2, md5(i::text)::uuid from generate_series(1, 15) i`, p.Workspace, topic)
	p.until(`select count(*) = 1 from suppression_filters`)
}

// A process stores the filters of long lists.
func TestFiltersOfSuppressionsAreStored(t *testing.T) {
	t.Parallel()
	p := startPlanned(t, &pgtest.Statements{Settings: session})
	p.Must(p.StartWorkers(t.Context()))
	p.suppressions()
}

// export writes the rows of each type.
func (p *planned) export() {
	ctx := p.T.Context()
	for _, kind := range exports.Types() {
		_, err := p.Exports.Create(ctx, p.Workspace, exports.NewExport{ID: lemma.NewID(), Type: kind, Format: format.CSV})
		p.Must(err)
	}
	p.until(`select count(*) = 0 from exports where status <> 'completed'`)
}

// events receives and applies all types of provider events.
func (p *planned) events() {
	ctx := p.T.Context()
	rows, err := p.Fixture.Pool.Query(ctx, `select n.origin_id, n.key from notifications n where batch_id is not null limit 10`)
	p.Must(err)
	var origin, key uuid.UUID
	var all []events.Received
	_, err = pgx.ForEachRow(rows, []any{&origin, &key}, func() error {
		for _, kind := range events.Types {
			all = append(all, events.Received{ProviderID: p.Provider, Report: events.Report{
				Notification: lemma.FormatNotificationID(origin, key), Attempt: 1, Type: kind, OccurredAt: time.Now()}})
		}
		return nil
	})
	p.Must(err)
	for range 2 {
		_, err = events.Receive(ctx, p.Pool, p.Workspace, all)
		p.Must(err)
		_, err = p.Deliveries.Apply(ctx)
		p.Must(err)
	}
	_, err = events.Purge(ctx, p.Pool)
	p.Must(err)
}

// engagement receives and applies opens, clicks, conversions and unsubscribes.
func (p *planned) engagement() {
	ctx := p.T.Context()
	var of tracking.Notification
	p.Must(p.Fixture.Pool.QueryRow(ctx, `select origin_id, key from notifications where converts limit 1`).Scan(&of.Origin, &of.Key))
	signer, err := p.Tracking.Signer(ctx, p.Workspace, time.Now(), message.Track{Opens: true, Clicks: true})
	p.Must(err)
	made := signer.Of("", "", of.Origin, of.Key)
	for _, path := range []string{made.Open, made.Click(1, "https://shop.example")} {
		r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
		r.Header.Set("User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0")
		p.Tracking.ServeHTTP(httptest.NewRecorder(), r)
	}
	p.Must(pgx.BeginFunc(ctx, p.Pool, func(tx pgx.Tx) error { return tracking.Unsubscribed(ctx, tx, p.Workspace, of) }))
	_, err = p.Flows.Intake.Record(ctx, p.Workspace, intake.Event{ProfileKey: "1", Name: "paid"})
	p.Must(err)
	_, err = p.Tracking.QueueEvents(ctx, 0)
	p.Must(err)
	_, err = p.Tracking.QueueSettled(ctx, 0)
	p.Must(err)
	_, err = p.Tracking.QueueResolved(ctx, 0)
	p.Must(err)
	p.Exec(`with one as (select workspace_id, origin_id, key, batch_id, ordinal from notifications where converts limit 1), proof as (
			insert into provider_events (workspace_id, origin_id, id, provider_id, source, source_event_id, batch_id, ordinal, kind, occurred_at)
			select workspace_id, origin_id, key, key, 'webhook', key, batch_id, ordinal, 'accepted', now() - interval '1 hour' from one)
		insert into settlement_queue (workspace_id, settled_at, batch_id, ordinal) select workspace_id, now(), batch_id, ordinal from one`)
	_, err = p.Tracking.Convert(ctx)
	p.Must(err)
	_, err = p.Tracking.Apply(ctx, 0)
	p.Must(err)
	p.until(`select count(*) = 1 from engagements where opens = 1 and unsubscribes = 1 and origin_id = any($1)`, []uuid.UUID{of.Origin})
}

// inherits takes over the work of a process that was killed: a lease has expired during a
// window, and jobs are lost.
func (p *planned) inherits() {
	t, ctx := p.T, p.T.Context()
	c := p.newCampaign()
	_, err := p.Campaigns.Send(ctx, p.Workspace, c, uuid.Nil)
	p.Must(err)
	_, err = p.Campaigns.Fanout(ctx, p.Workspace, c)
	p.Must(err)
	p.Exec(`update fanouts set finished_at = null`)
	_, err = p.Campaigns.Fanout(ctx, p.Workspace, c) // a second run
	p.Must(err)
	ref := notifications.Ref{WorkspaceID: p.Workspace, OriginID: c}
	p.Must(p.Fixture.Pool.QueryRow(ctx, `select id from batches where origin_id = $1`, c).Scan(&ref.BatchID))
	p.Exec(`update batches set due_at = now() + interval '1 hour'`)
	filled, err := p.Sender.FillRate(ctx)
	p.Must(err)
	p.Exec(`update batches set gate = 'held' where origin_id = $1`, c)
	p.Exec(`insert into releases (workspace_id, origin_id) values ($1, $2)`, p.Workspace, c)
	p.Must(p.Sender.Release(ctx))
	_, err = p.Sender.Claim(ctx, ref)
	p.Must(err)
	p.Exec(`update batches set lease_until = now() - interval '1 minute', called_through = 9 where id = $1`, ref.BatchID)
	reaped, err := p.Sender.Reap(ctx)
	p.Must(err)
	p.Exec(`delete from river_job`)
	p.Exec(`update batches set due_at = now() - interval '1 hour', enqueued_at = now() - interval '1 hour'`)
	enqueued, err := p.Sender.Sweep(ctx)
	p.Must(err)
	p.Exec(`update batches set due_at = now() + interval '1 day', created_at = now() + interval '1 day'`)
	p.Must(p.RepairTimes(ctx))
	p.Exec(`update batches set expires_at = now() - interval '1 second'`)
	_, err = p.Sender.Sweep(ctx)
	p.Must(err)
	if reaped.Retried != 10 || filled != 1 || enqueued != 2 {
		t.Errorf("%+v was reaped, %d batches were made due, and %d were given a job", reaped, filled, enqueued)
	}
}

func (p *planned) publish(definition string) uuid.UUID {
	p.T.Helper()
	f, err := p.Flows.Create(p.T.Context(), p.Workspace,
		flows.NewFlow{ID: lemma.NewID(), Name: uuid.NewString(), Definition: p.definition(definition)})
	p.Must(err)
	_, err = p.Flows.Publish(p.T.Context(), p.Workspace, f.ID, 1, nil, flows.InFlight{Mode: "stay"}, nil)
	p.Must(err)
	return f.ID
}

func (p *planned) again(flow uuid.UUID, definition string, in flows.InFlight) {
	p.T.Helper()
	v, err := p.Flows.CreateVersion(p.T.Context(), p.Workspace, flow, p.definition(definition), uuid.New())
	p.Must(err)
	_, err = p.Flows.Publish(p.T.Context(), p.Workspace, flow, v.Version, nil, in, nil)
	p.Must(err)
}

// otherRules publishes versions without overlap and with other recurrences, so that
// enrollments under earlier rules are searched.
func (p *planned) otherRules(flow uuid.UUID) {
	for i, recurrence := range []string{"per_event", "once", "daily"} {
		text := strings.NewReplacer(`"joined"`, `"came"`, `"per_event"`, `"`+recurrence+`"`).Replace(wholeFlow)
		p.again(flow, fmt.Sprintf(text, ""), flows.InFlight{Mode: "stay"})
		_, err := p.Flows.Intake.RecordAll(p.T.Context(), p.Workspace,
			[]intake.Event{{ProfileKey: "1", Name: "came"}, {ProfileKey: fmt.Sprint(45 + i), Name: "came"}})
		p.Must(err)
	}
}

// sourceFails makes the data source fail until each enrollment has been blocked.
func (p *planned) sourceFails() {
	p.ExecDB(`alter table people rename to away`)
	_, err := p.Flows.Intake.RecordAll(p.T.Context(), p.Workspace,
		[]intake.Event{{ProfileKey: "51", Name: "joined"}, {ProfileKey: "52", Name: "joined"}})
	p.Must(err)
	p.until(`select count(*) >= 2 from enrollments where flow_id = any($1) and blocked_reason is not null`, []uuid.UUID{p.flow})
	p.ExecDB(`alter table away rename to people`)
	p.until(`select count(*) = 0 from enrollments where flow_id = any($1) and blocked_reason is not null`, []uuid.UUID{p.flow})
}

// move moves active enrollments to another version, and then ends them.
func (p *planned) move() {
	p.again(p.flow, fmt.Sprintf(wholeFlow, ""), flows.InFlight{Mode: "move", Map: map[string]*string{"late": new("hello")}})
	p.until(`select not exists (select from flow_moves where flow_id = any($1) and finished_at is null)`, []uuid.UUID{p.flow})
	p.Exec(`update enrollments set resume_at = now() where flow_id = $1 and status = 'active'`, p.flow)
	p.until(`select count(*) = 0 from enrollments where flow_id = any($1) and status = 'active' and resume_at < now()`, []uuid.UUID{p.flow})
	_, err := p.Flows.Archive(p.T.Context(), p.Workspace, p.flow, nil)
	p.Must(err)
	p.until(`select not exists (select from enrollments where flow_id = any($1) and status = 'active')`, []uuid.UUID{p.flow})
}

// campaign sends to all profiles, in two fan-outs.
func (p *planned) campaign() {
	ctx := p.T.Context()
	c := p.newCampaign()
	_, err := p.Campaigns.Send(ctx, p.Workspace, c, uuid.Nil)
	p.Must(err)
	p.until(`select status = 'completed' from campaigns where id = any($1)`, []uuid.UUID{c})
}

func (p *planned) newCampaign() uuid.UUID {
	p.T.Helper()
	c, err := p.Campaigns.Create(p.T.Context(), p.Workspace,
		campaigns.NewCampaign{ID: lemma.NewID(), Name: "all", AudienceID: p.Audience, TemplateID: p.Template, ProviderID: p.Provider,
			FromName: "Shop", FromEmail: "news@shop.example",
			Conversion: campaigns.Conversion{ConversionEvent: "paid", ConversionWithin: 24 * time.Hour}})
	p.Must(err)
	return c.ID
}

// until polls a condition with a deadline.
func (p *planned) until(sql string, args ...any) {
	p.T.Helper()
	pgtest.Eventually(p.T, time.Minute, sql, func() bool { return pgtest.One[bool](p.T, p.Fixture.Pool, sql, args...) })
}

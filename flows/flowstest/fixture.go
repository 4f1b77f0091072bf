package flowstest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/intake"
	"lemma/flows/query"
	"lemma/pgtest"
	"lemma/pgtest/shop"
	"lemma/webhooks"
)

// Fixture is a workspace with a customer's database.
type Fixture struct {
	*shop.Fixture
	Deps   flows.Deps
	Config flows.Config
	*Process
}

// Process is one process, with what its tests check.
type Process struct {
	*flows.Flows
	*intake.Intake
	*query.Reader
	Hook    *enrollment.Hook
	Metrics *enrollment.Metrics
}

// NewProcess makes a process with a hook and metrics of its own.
func NewProcess(d flows.Deps, cfg flows.Config) *Process {
	d.Hook, d.Metrics = &enrollment.Hook{}, enrollment.NewMetrics(nil)
	f := flows.New(d, cfg)
	reader := query.New(query.Deps{Pool: d.Pool, Flows: f, Ledger: d.Ledger, Audiences: d.Audiences, Webhooks: d.Webhooks})
	return &Process{Flows: f, Intake: f.Intake, Reader: reader, Hook: d.Hook, Metrics: d.Metrics}
}

// New fills the customer's database with n customers, c1 to cn, and makes all that a
// flow needs.
func New(t *testing.T, n int, change ...func(*flows.Config)) *Fixture {
	t.Helper()
	t.Parallel()
	b := &Fixture{Fixture: shop.New(pgtest.NewShop(t), shop.Local, nil)}
	b.OpenCustomers()
	b.ExecDB(`insert into customers select 'c' || i, 'c' || i || '@shop.example', 'N' || i, case when i % 2 = 0 then 'DE'
		else 'US' end, 'Europe/Berlin' from generate_series(1, $1::int) i`, n)
	b.Fill("select id, email, name, country, zone, renews_on, opted_out from customers")

	hooks := webhooks.New(webhooks.Deps{Pool: b.Pool, Box: b.Box, Log: slog.New(slog.DiscardHandler)}, webhooks.Options{AllowPrivate: true})
	b.Deps = flows.Deps{Pool: b.Pool, Ledger: b.Ledger, Audiences: b.Audiences, Templates: b.Templates, Providers: b.Providers,
		Webhooks: hooks, Log: slog.New(slog.DiscardHandler)}
	b.Config = flows.Config{BackOff: time.Millisecond, Workers: 2, Poll: 5 * time.Millisecond}
	for _, c := range change {
		c(&b.Config)
	}
	b.Subscribe("enrollment.started", "enrollment.completed", "enrollment.exited")
	t.Cleanup(b.wantEvents)
	t.Cleanup(b.wantEnded)
	b.Process = NewProcess(b.Deps, b.Config)
	hooks.OnSettled(b.WebhookSettled)
	return b
}

// OpenCustomers replaces the customer's database by one without customers.
func (b *Fixture) OpenCustomers() {
	b.T.Helper()
	b.OpenDB(`create table customers (id text primary key, email text, name text, country text, zone text, renews_on date,
		opted_out boolean default false)`, `create table orders (customer_id text, at timestamptz not null default now())`)
}

// Another is a second process on the same database.
func (b *Fixture) Another(change ...func(*flows.Config)) *Process {
	cfg := b.Config
	for _, c := range change {
		c(&cfg)
	}
	return NewProcess(b.Deps, cfg)
}

// Definition fills in the ids: $audience, $provider, $template and $source are those of
// the fixture, and $send is the body of a send node.
func (b *Fixture) Definition(text string) json.RawMessage {
	return json.RawMessage(strings.NewReplacer(
		"$audience", lemma.FormatID(lemma.PrefixAudience, b.Audience), "$source", lemma.FormatID(lemma.PrefixDataSource, b.Source),
		"$send", `"type":"send","channel":"email","from":{"email":"hi@shop.example"},"provider_id":"`+lemma.FormatID(lemma.PrefixProvider,
			b.Provider)+
			`","template_id":"`+lemma.FormatID(lemma.PrefixTemplate, b.Template)+`"`).Replace(text))
}

// Live makes and publishes a flow.
func (b *Fixture) Live(text string) uuid.UUID {
	b.T.Helper()
	f, err := b.Create(context.Background(), b.Workspace,
		flows.NewFlow{ID: lemma.NewID(), Name: uuid.NewString(), Definition: b.Definition(text)})
	b.Must(err)
	_, err = b.Publish(context.Background(), b.Workspace, f.ID, 1, nil, flows.InFlight{Mode: "stay"}, nil)
	b.Must(err)
	return f.ID
}

// PublishNext adds a version to a flow and publishes it.
func (b *Fixture) PublishNext(flow uuid.UUID, text string, in flows.InFlight) int {
	b.T.Helper()
	v, err := b.CreateVersion(context.Background(), b.Workspace, flow, b.Definition(text))
	b.Must(err)
	_, err = b.Publish(context.Background(), b.Workspace, flow, v.Version, nil, in, nil)
	b.Must(err)
	return v.Version
}

// CreateVersion is Flows.CreateVersion without a request.
func (b *Fixture) CreateVersion(ctx context.Context, ws, flow uuid.UUID, d json.RawMessage) (flows.Version, error) {
	return b.Flows.CreateVersion(ctx, ws, flow, d, uuid.Nil)
}

// Exit ends an enrollment manually, and reads it.
func (b *Fixture) Exit(ctx context.Context, ws, enrollment uuid.UUID, note string) (query.Enrollment, error) {
	if err := b.Flows.Exit(ctx, ws, enrollment, note, nil); err != nil {
		return query.Enrollment{}, err
	}
	return b.GetEnrollment(ctx, ws, enrollment)
}

// Move moves an enrollment manually, and reads it.
func (b *Fixture) Move(ctx context.Context, ws, enrollment uuid.UUID, version *int, node string) (query.Enrollment, error) {
	if err := b.Flows.Move(ctx, ws, enrollment, version, node, nil); err != nil {
		return query.Enrollment{}, err
	}
	return b.GetEnrollment(ctx, ws, enrollment)
}

// RecordEvent records an event of a profile.
func (b *Fixture) RecordEvent(profile, name string, more ...func(*intake.Event)) intake.Recorded {
	b.T.Helper()
	e := intake.Event{ProfileKey: profile, Name: name}
	for _, m := range more {
		m(&e)
	}
	r, err := b.Record(context.Background(), b.Workspace, e)
	b.Must(err)
	return r
}

// WithID gives an event the client's own id.
func WithID(id string) func(*intake.Event) { return func(e *intake.Event) { e.ID = id } }

// At gives an event a time of its own.
func At(t time.Time) func(*intake.Event) { return func(e *intake.Event) { e.OccurredAt = t } }

// Properties gives an event properties.
func Properties(text string) func(*intake.Event) {
	return func(e *intake.Event) { e.Properties = json.RawMessage(text) }
}

// Settle advances until no enrollment is due.
func (b *Fixture) Settle() {
	b.T.Helper()
	for range 10_000 {
		n, err := b.RunOnce(context.Background())
		b.Must(err)
		if n == 0 {
			return
		}
	}
	b.T.Fatal("it never settles down")
}

// Pass simulates that time passes: waits that end within d become due.
func (b *Fixture) Pass(d time.Duration) {
	b.Exec(`update enrollments set resume_at = resume_at - $2::interval, waiting_since = waiting_since - $2::interval
		where workspace_id = $1 and status = 'active'`, b.Workspace, d)
}

// NewDraft makes a flow that is not published.
func (b *Fixture) NewDraft(text string) flows.Flow {
	b.T.Helper()
	f, err := b.Create(context.Background(), b.Workspace,
		flows.NewFlow{ID: lemma.NewID(), Name: uuid.NewString(), Definition: b.Definition(text)})
	b.Must(err)
	return f
}

// RecordEvents records events of a profile in one transaction.
func (b *Fixture) RecordEvents(profile string, names ...string) []intake.Recorded {
	b.T.Helper()
	var all []intake.Event
	for _, name := range names {
		all = append(all, intake.Event{ProfileKey: profile, Name: name})
	}
	done, err := b.RecordAll(context.Background(), b.Workspace, all)
	b.Must(err)
	return done
}

// RecordOfAll records an event of c1 to cn.
func (b *Fixture) RecordOfAll(n int, event string) {
	b.T.Helper()
	var all []intake.Event
	for i := range n {
		all = append(all, intake.Event{ProfileKey: fmt.Sprint("c", i+1), Name: event})
	}
	_, err := b.RecordAll(context.Background(), b.Workspace, all)
	b.Must(err)
}

// Endpoint makes a webhook endpoint, and returns its id.
func (b *Fixture) Endpoint() string {
	b.T.Helper()
	e, _, err := b.Deps.Webhooks.Create(context.Background(), b.Workspace,
		webhooks.NewEndpoint{ID: lemma.NewID(), Name: lemma.NewID().String(), URL: "http://127.0.0.1:9/"})
	b.Must(err)
	return lemma.FormatID(lemma.PrefixEndpoint, e.ID)
}

// Patient are audiences with a long timeout, and a function that makes another data source
// with its audience.
func (b *Fixture) Patient() (*audience.Audiences, func(ws uuid.UUID) uuid.UUID) {
	b.T.Helper()
	f := *b.Fixture
	f.Audiences = b.NewAudiences(audience.Options{AllowPrivate: true, AllowUnix: true, LookupTimeout: time.Minute})
	return f.Audiences, func(ws uuid.UUID) uuid.UUID {
		b.T.Helper()
		f.Workspace = ws
		return f.NewAudience(f.NewSource(f.DSN), "select id, email from customers")
	}
}

// PollOne polls once, and fails unless a poll was due.
func (b *Fixture) PollOne() {
	b.T.Helper()
	if was, err := b.PollOnce(context.Background()); !was || err != nil {
		b.T.Fatalf("%v %v", was, err)
	}
}

// MakePollsDue makes the polls of all audiences due.
func (b *Fixture) MakePollsDue() {
	b.Exec(`update flow_polls set next_at = now()`)
}

// PollFlow polls the audience of a flow, and returns how many enroll.
func (b *Fixture) PollFlow(flow uuid.UUID) int {
	b.T.Helper()
	before := b.Count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, b.Workspace, flow)
	b.Exec(`update flow_polls set next_at = now() where flow_id = $1`, flow)
	b.Must(b.Tick(context.Background()))
	b.Wait()
	return b.Count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, b.Workspace, flow) - before
}

// TimeOut ends all waits now, as if they had just begun.
func (b *Fixture) TimeOut() {
	b.T.Helper()
	b.Exec(`update enrollments set resume_at = now() where workspace_id = $1 and status = 'active'`, b.Workspace)
	b.Settle()
}

// Refuse writes a refusal, minutes ago.
func (b *Fixture) Refuse(flow any, profile, reason string, ago time.Duration) {
	b.T.Helper()
	b.Exec(`insert into refusals (workspace_id, flow_id, key, profile_key, reason, source, at)
		values ($1, $2, $3, $4, $5, 'event', date_trunc('minute', now()) - $6::interval)`,
		b.Workspace, flow, lemma.NewID(), profile, reason, ago)
}

// PutBack moves an enrollment to a node manually, and lets it advance from there.
func (b *Fixture) PutBack(id uuid.UUID, node string) query.Step {
	b.T.Helper()
	b.Must(Second(b.Move(context.Background(), b.Workspace, id, nil, node)))
	b.Settle()
	return b.LastStepOn(id, node)
}

// AnsweringEndpoint is an endpoint that answers with a status.
func (b *Fixture) AnsweringEndpoint(status *atomic.Int32) string {
	b.T.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(status.Load())) }))
	b.T.Cleanup(server.Close)
	e, _, err := b.Deps.Webhooks.Create(context.Background(), b.Workspace,
		webhooks.NewEndpoint{ID: lemma.NewID(), Name: server.URL, URL: server.URL})
	b.Must(err)
	return lemma.FormatID(lemma.PrefixEndpoint, e.ID)
}

// CallWebhooks makes the outbox send the messages that are due.
func (b *Fixture) CallWebhooks() {
	b.T.Helper()
	if n, err := b.Deps.Webhooks.RunOnce(context.Background()); err != nil || n != 1 {
		b.T.Fatalf("%d messages were called: %v", n, err)
	}
}

package flows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/audience"
	"lemma/message"
	"lemma/notifications"
	"lemma/pgtest"
	"lemma/providers"
	"lemma/secrets"
	"lemma/webhooks"
)

// bundle is a workspace with a customer's database of its own.
type bundle struct {
	t        *testing.T
	pool     *pgxpool.Pool
	shop     *pgxpool.Pool // as its owner
	ws       uuid.UUID
	source   uuid.UUID
	audience uuid.UUID
	template uuid.UUID
	provider uuid.UUID
	rooms    Rooms
	*Flows
}

// setup fills the shop with n customers, c1 to cn, and makes all that a flow needs.
func setup(t *testing.T, n int, change ...func(*Config)) *bundle {
	t.Helper()
	t.Parallel()
	ctx := context.Background()
	b := &bundle{t: t, pool: pgtest.DB(t)}
	b.ws = pgtest.Workspace(t, b.pool)
	shop, dsn := b.newShop()
	b.shop = shop
	b.run(b.shop, `insert into customers select 'c' || i, 'c' || i || '@shop.example', 'N' || i, case when i % 2 = 0 then 'DE' else 'US' end, 'Europe/Berlin' from generate_series(1, $1::int) i`, n)

	box, err := secrets.ParseKeys(secrets.NewKey())
	b.must(err)
	audiences := audience.New(b.pool, box, audience.Options{AllowPrivate: true, AllowUnix: true, FetchTimeout: 2 * time.Second, LookupTimeout: 2 * time.Second})
	t.Cleanup(audiences.Close)
	hooks := webhooks.New(webhooks.Rooms{Pool: b.pool, Box: box, Log: slog.New(slog.DiscardHandler)}, webhooks.Options{AllowPrivate: true})
	b.rooms = Rooms{Pool: b.pool, Ledger: notifications.New(b.pool), Audiences: audiences, Templates: message.New(b.pool),
		Providers: providers.New(b.pool, box, nil), Webhooks: hooks, Log: slog.New(slog.DiscardHandler)}
	cfg := Config{BackOff: time.Millisecond, Workers: 2, Poll: 5 * time.Millisecond}
	for _, c := range change {
		c(&cfg)
	}
	b.Flows = New(b.rooms, cfg)
	hooks.OnSettled(b.WebhookSettled)

	source, err := audiences.CreateSource(ctx, b.ws, audience.NewSource{ID: lemma.NewID(), Name: "shop", Kind: "postgres", DSN: dsn})
	b.must(err)
	aud, err := audiences.Create(ctx, b.ws, audience.NewAudience{ID: lemma.NewID(), DataSourceID: source.ID, Name: "all",
		SQL: "select id, email, name, country, zone, renews_on, opted_out from customers", KeyColumn: "id", EmailColumn: "email", OptedOutColumn: "opted_out"})
	b.must(err)
	tpl, err := b.rooms.Templates.Create(ctx, b.ws, message.NewTemplate{ID: lemma.NewID(), Name: "hello", Content: message.Content{Subject: "Hi {{ name }}", HTML: "<p>Hi {{ name }}</p>"}})
	b.must(err)
	b.source, b.audience, b.template, b.provider = source.ID, aud.ID, tpl.ID, lemma.NewID()
	b.run(b.pool, `insert into providers (workspace_id, id, name, channel, kind, config) values ($1, $2, 'p', 'email', 'smtp', '{}')`, b.ws, b.provider)
	return b
}

// newShop is a shop without customers: as its owner, and as who may read it.
func (b *bundle) newShop() (shop *pgxpool.Pool, dsn string) {
	b.t.Helper()
	shop = pgtest.Empty(b.t)
	b.run(shop, `create table customers (id text primary key, email text, name text, country text, zone text, renews_on date, opted_out boolean default false)`)
	b.run(shop, `create table orders (customer_id text, at timestamptz not null default now())`)
	role := "reader_" + uuid.NewString()[:8]
	b.run(shop, fmt.Sprintf(`create role %s login; grant select on all tables in schema public to %s; revoke create on schema public from public`, role, role))
	b.t.Cleanup(func() { _, _ = shop.Exec(context.Background(), `drop owned by `+role+`; drop role `+role) })
	return shop, asRole(shop, role)
}

func asRole(pool *pgxpool.Pool, role string) string {
	c := pool.Config().ConnConfig
	return "postgres://" + role + "@/" + c.Database + "?host=" + url.QueryEscape(c.Host)
}

func (b *bundle) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bundle) run(pool *pgxpool.Pool, sql string, args ...any) {
	b.t.Helper()
	_, err := pool.Exec(context.Background(), sql, args...)
	b.must(err)
}

func ptr[T any](v T) *T { return &v }

// another is a second node on the same database.
func (b *bundle) another(change ...func(*Config)) *Flows {
	cfg := b.cfg
	for _, c := range change {
		c(&cfg)
	}
	return New(b.rooms, cfg)
}

// definition fills in the ids: $audience, $provider, $template and $source
// stand for those of the bundle, and a node "send" for a whole send node.
func (b *bundle) definition(text string) json.RawMessage {
	return json.RawMessage(strings.NewReplacer(
		"$audience", lemma.FormatID(lemma.PrefixAudience, b.audience), "$source", lemma.FormatID(lemma.PrefixDataSource, b.source),
		"$send", `"type":"send","channel":"email","from":{"email":"hi@shop.example"},"provider_id":"`+lemma.FormatID(lemma.PrefixProvider, b.provider)+
			`","template_id":"`+lemma.FormatID(lemma.PrefixTemplate, b.template)+`"`).Replace(text))
}

// live makes and publishes a flow.
func (b *bundle) live(text string) uuid.UUID {
	b.t.Helper()
	f, err := b.Create(context.Background(), b.ws, NewFlow{ID: lemma.NewID(), Name: uuid.NewString(), Definition: b.definition(text)})
	b.must(err)
	_, err = b.Publish(context.Background(), b.ws, f.ID, 1, nil, InFlight{Mode: "stay"}, nil)
	b.must(err)
	return f.ID
}

// next adds a version to a flow and publishes it.
func (b *bundle) publish(flow uuid.UUID, text string, in InFlight) int {
	b.t.Helper()
	v, err := b.CreateVersion(context.Background(), b.ws, flow, b.definition(text))
	b.must(err)
	_, err = b.Publish(context.Background(), b.ws, flow, v.Version, nil, in, nil)
	b.must(err)
	return v.Version
}

// What most tests ask for is asked once.
func (b *bundle) CreateVersion(ctx context.Context, ws, flow uuid.UUID, d json.RawMessage) (Version, error) {
	return b.Flows.CreateVersion(ctx, ws, flow, d, uuid.Nil)
}

func (b *bundle) Exit(ctx context.Context, ws, enrollment uuid.UUID, words string) (Enrollment, error) {
	return b.Flows.Exit(ctx, ws, enrollment, words, nil)
}

func (b *bundle) Move(ctx context.Context, ws, enrollment uuid.UUID, version *int, node string) (Enrollment, error) {
	return b.Flows.Move(ctx, ws, enrollment, version, node, nil)
}

// tell records an event of a profile.
func (b *bundle) tell(profile, name string, more ...func(*Event)) Recorded {
	b.t.Helper()
	e := Event{ProfileKey: profile, Name: name}
	for _, m := range more {
		m(&e)
	}
	r, err := b.Record(context.Background(), b.ws, e)
	b.must(err)
	return r
}

func withID(id string) func(*Event) { return func(e *Event) { e.ID = id } }
func at(t time.Time) func(*Event)   { return func(e *Event) { e.OccurredAt = t } }
func properties(text string) func(*Event) {
	return func(e *Event) { e.Properties = json.RawMessage(text) }
}

// settleDown advances until nobody is due.
func (b *bundle) settleDown() {
	b.t.Helper()
	for range 10_000 {
		n, err := b.RunOnce(context.Background())
		b.must(err)
		if n == 0 {
			return
		}
	}
	b.t.Fatal("it never settles down")
}

// Tick does once what Loop does each second.
func (f *Flows) Tick(ctx context.Context) error {
	return errors.Join(f.moveAround(ctx), f.archiveDrained(ctx), f.pollDue(ctx), f.retrySources(ctx))
}

// pass lets time go by for everybody who waits: what is due within d becomes due.
func (b *bundle) pass(d time.Duration) {
	b.run(b.pool, `update enrollments set resume_at = resume_at - $2::interval, waiting_since = waiting_since - $2::interval where workspace_id = $1 and status = 'active'`, b.ws, d)
}

// enrollment is the only one of a profile.
func (b *bundle) enrollment(flow uuid.UUID, profile string) Enrollment {
	b.t.Helper()
	all := b.enrollments(flow, profile)
	if len(all) != 1 {
		b.t.Fatalf("%s has %d enrollments", profile, len(all))
	}
	return all[0]
}

func (b *bundle) enrollments(flow uuid.UUID, profile string) []Enrollment {
	b.t.Helper()
	all, _, err := b.ListEnrollments(context.Background(), b.ws, EnrollmentFilter{FlowID: &flow, ProfileKey: profile}, lemma.Page{Limit: 200})
	b.must(err)
	return all
}

// story is an enrollment's history in short: event@node.
func (b *bundle) story(id uuid.UUID) string {
	b.t.Helper()
	rows, err := b.pool.Query(context.Background(), `select event || '@' || node from enrollment_steps where workspace_id = $1 and enrollment_id = $2 order by step`, b.ws, id)
	b.must(err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	b.must(err)
	return strings.Join(all, " ")
}

func (b *bundle) count(sql string, args ...any) int {
	b.t.Helper()
	var n int
	b.must(b.pool.QueryRow(context.Background(), sql, append([]any{b.ws}, args...)...).Scan(&n))
	return n
}

func (b *bundle) notifications() int {
	b.t.Helper()
	return b.count(`select count(*) from notifications where workspace_id = $1`)
}

// welcome is a flow of one letter, a wait and another letter.
const welcome = `{"audience_id":"$audience","triggers":[{"type":"event","event":"signed_up"}],"recurrence":{"policy":"once"},
	"start":"hello","nodes":{"hello":{$send,"next":"wait"},"wait":{"type":"delay","for":"P3D","next":"nudge"},"nudge":{$send,"next":"end"},"end":{"type":"exit"}}}`

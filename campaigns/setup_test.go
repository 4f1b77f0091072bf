package campaigns

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"sync"
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
)

// bundle is a workspace with a customer's database of its own.
type bundle struct {
	t        testing.TB
	pool     *pgxpool.Pool
	shop     *pgxpool.Pool // as its owner
	role     string        // the role that Lemma reads the shop as
	ws       uuid.UUID
	source   uuid.UUID
	audience uuid.UUID
	template uuid.UUID
	provider uuid.UUID
	deps     Deps
	cfg      Config
	*Campaigns
}

// setup fills the shop with n customers with valid addresses, and makes all
// that a campaign needs.
func setup(t *testing.T, n int, change ...func(*Config)) *bundle {
	t.Helper()
	t.Parallel()
	return open(t, n, change...)
}

func open(t testing.TB, n int, change ...func(*Config)) *bundle {
	t.Helper()
	b := &bundle{t: t, pool: pgtest.DB(t)}
	box, err := secrets.ParseKeys(secrets.NewKey())
	b.must(err)
	b.deps = Deps{Pool: b.pool, Ledger: notifications.New(b.pool),
		Audiences: audience.New(b.pool, box, audience.Options{AllowPrivate: true, AllowUnix: true, FetchTimeout: 2 * time.Second}),
		Templates: message.New(b.pool), Providers: providers.New(b.pool, box, nil), Log: slog.New(slog.DiscardHandler)}
	b.cfg = Config{Chunk: 50, BatchSize: 20, RetryFor: time.Millisecond, Grace: time.Millisecond}
	for _, c := range change {
		c(&b.cfg)
	}
	b.Campaigns = New(b.deps, b.cfg)
	b.openShop(n)
	return b
}

// neighbour is another workspace of the same database, with its own shop.
func (b *bundle) neighbour(n int) *bundle {
	b.t.Helper()
	other := *b
	other.openShop(n)
	return &other
}

func (b *bundle) openShop(n int) {
	b.t.Helper()
	b.openShopIn(pgtest.Workspace(b.t, b.pool), n)
}

func (b *bundle) openShopIn(ws uuid.UUID, n int) {
	b.t.Helper()
	ctx := context.Background()
	b.ws, b.shop = ws, pgtest.Empty(b.t)
	b.run(b.shop, `create table customers (id text, email text, name text, opted_out boolean default false)`)
	b.run(b.shop, `insert into customers select i, 'c' || i || '@shop.example', 'N' || i from generate_series(1, $1::int) i`, n)
	role := "reader_" + uuid.NewString()[:8]
	b.role = role
	b.run(b.shop, fmt.Sprintf(`create role %s login; grant select on all tables in schema public to %s;
		revoke create on schema public from public`, role, role))
	shop := b.shop
	b.t.Cleanup(func() { _, _ = shop.Exec(ctx, `drop owned by `+role+`; drop role `+role) })

	source, err := b.deps.Audiences.CreateSource(ctx, b.ws,
		audience.NewSource{ID: lemma.NewID(), Name: role, Kind: "postgres", DSN: asRole(b.shop, role)})
	b.must(err)
	aud, err := b.deps.Audiences.Create(ctx, b.ws, audience.NewAudience{ID: lemma.NewID(), DataSourceID: source.ID, Name: role,
		SQL: "select id, email, name, opted_out from customers", KeyColumn: "id", EmailColumn: "email", OptedOutColumn: "opted_out"})
	b.must(err)
	tpl, err := b.deps.Templates.Create(ctx, b.ws, message.NewTemplate{ID: lemma.NewID(), Name: role,
		Content: message.Content{Subject: "Hi {{ name }}", HTML: "<p>Hi {{ name }}</p>"}})
	b.must(err)
	b.source, b.audience, b.template, b.provider = source.ID, aud.ID, tpl.ID, lemma.NewID()
	b.run(b.pool, `insert into providers (workspace_id, id, name, channel, kind, config) values ($1, $2, $3, 'email', 'smtp', '{}')`, b.ws,
		b.provider, role)
}

// tracer counts the statements of a pool.
type tracer struct {
	mu         sync.Mutex
	statements []string
	copying    func() // called before each COPY; may block
}

func (t *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.statements = append(t.statements, q.SQL)
	return ctx
}

func (t *tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (t *tracer) TraceCopyFromStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceCopyFromStartData) context.Context {
	if t.copying != nil {
		t.copying()
	}
	return ctx
}

func (t *tracer) TraceCopyFromEnd(context.Context, *pgx.Conn, pgx.TraceCopyFromEndData) {}

// connect opens another pool on Lemma's database.
func (b *bundle) connect(t pgx.QueryTracer, settings map[string]string) *pgxpool.Pool {
	b.t.Helper()
	cfg := b.pool.Config()
	cfg.ConnConfig.Tracer = t
	maps.Copy(cfg.ConnConfig.RuntimeParams, settings)
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	b.must(err)
	b.t.Cleanup(pool.Close)
	return pool
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

func (b *bundle) draft() Campaign {
	b.t.Helper()
	c, err := b.Create(context.Background(), b.ws, NewCampaign{ID: lemma.NewID(), Name: "c", AudienceID: b.audience, TemplateID: b.template,
		ProviderID: b.provider, FromName: "Shop", FromEmail: "news@shop.example"})
	b.must(err)
	return c
}

func (b *bundle) sent() Campaign {
	b.t.Helper()
	c, err := b.Send(context.Background(), b.ws, b.draft().ID, uuid.Nil)
	b.must(err)
	return c
}

func (b *bundle) get(id uuid.UUID) Campaign {
	b.t.Helper()
	c, err := b.Get(context.Background(), b.ws, id)
	b.must(err)
	return c
}

func (b *bundle) fanout(id uuid.UUID) {
	b.t.Helper()
	if _, err := b.Fanout(context.Background(), b.ws, id); err != nil {
		b.t.Fatal(err)
	}
}

// endBatches ends every batch as sent, as the sender does.
func (b *bundle) endBatches() {
	b.run(b.pool, `update batches set status = 'done', sent = size, finished_at = now() where workspace_id = $1 and status = 'ready'`, b.ws)
}

func (b *bundle) addresses(id uuid.UUID) map[string]int {
	b.t.Helper()
	rows, err := b.pool.Query(context.Background(),
		`select address from notifications where workspace_id = $1 and origin_id = $2 and skip_reason is null`, b.ws, id)
	b.must(err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	b.must(err)
	counts := map[string]int{}
	for _, a := range all {
		counts[a]++
	}
	return counts
}

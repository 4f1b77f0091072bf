package campaigns

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/pgtest"
	"lemma/pgtest/shop"
)

// bundle is a workspace with a customer's database of its own.
type bundle struct {
	*shop.Fixture
	deps Deps
	cfg  Config
	*Campaigns
	customers int // their ids are 1 to n
}

// setup fills the customer's database with n customers with valid addresses, and makes
// all that a campaign needs.
func setup(t *testing.T, n int, change ...func(*Config)) *bundle {
	t.Helper()
	t.Parallel()
	return open(t, n, change...)
}

func open(t testing.TB, n int, change ...func(*Config)) *bundle {
	t.Helper()
	b := &bundle{Fixture: shop.New(pgtest.NewShop(t), shop.Local, nil)}
	b.deps = Deps{Pool: b.Pool, Ledger: b.Ledger, Audiences: b.Audiences, Templates: b.Templates, Providers: b.Providers,
		Log: slog.New(slog.DiscardHandler)}
	b.cfg = Config{Chunk: 50, BatchSize: 20, RetryFor: time.Millisecond, Grace: time.Millisecond}
	for _, c := range change {
		c(&b.cfg)
	}
	b.Campaigns = New(b.deps, b.cfg)
	b.Subscribe("campaign.started", "campaign.paused", "campaign.completed", "campaign.failed", "iteration.decided",
		"iteration.inconclusive", "notification.skipped")
	b.customers = n
	b.fill(n)
	return b
}

// another is a workspace of the same database with its own customer's database.
func (b *bundle) another(ws uuid.UUID, n int) *bundle {
	b.T.Helper()
	other, f := *b, *b.Fixture
	other.Fixture = &f
	other.Workspace = ws
	other.fill(n)
	return &other
}

func (b *bundle) fill(n int) {
	b.T.Helper()
	b.OpenDB(`create table customers (id text, email text, name text, opted_out boolean default false)`)
	b.ExecDB(`insert into customers select i, 'c' || i || '@shop.example', 'N' || i from generate_series(1, $1::int) i`, n)
	b.Fill("select id, email, name, opted_out from customers")
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
	b.T.Helper()
	return b.Connect(func(cfg *pgxpool.Config) {
		cfg.ConnConfig.Tracer = t
		maps.Copy(cfg.ConnConfig.RuntimeParams, settings)
	})
}

func (b *bundle) draft() Campaign {
	b.T.Helper()
	c, err := b.Create(context.Background(), b.Workspace, NewCampaign{ID: lemma.NewID(), Name: "c", AudienceID: b.Audience,
		TemplateID: b.Template, ProviderID: b.Provider, FromName: "Shop", FromEmail: "news@shop.example"})
	b.Must(err)
	return c
}

func (b *bundle) sent() Campaign {
	b.T.Helper()
	c, err := b.Send(context.Background(), b.Workspace, b.draft().ID, uuid.Nil)
	b.Must(err)
	return c
}

func (b *bundle) get(id uuid.UUID) Campaign {
	b.T.Helper()
	c, err := b.Get(context.Background(), b.Workspace, id)
	b.Must(err)
	return c
}

func (b *bundle) fanout(id uuid.UUID) {
	b.T.Helper()
	if _, err := b.Fanout(context.Background(), b.Workspace, id); err != nil {
		b.T.Fatal(err)
	}
}

// endBatches ends every batch as sent, as the sender does.
func (b *bundle) endBatches() {
	for _, id := range pgtest.Column[uuid.UUID](b.T, b.Pool, `
		update batches set status = 'done', sent = size, finished_at = now() where workspace_id = $1 and status = 'ready'
		returning origin_id`, b.Workspace) {
		b.BatchEnded(b.Workspace, id)
	}
}

func (b *bundle) addresses(id uuid.UUID) map[string]int {
	b.T.Helper()
	all := pgtest.Column[string](b.T, b.Pool, `select address from notifications where workspace_id = $1 and origin_id = $2 and skip_reason
		is null`, b.Workspace, id)
	counts := map[string]int{}
	for _, a := range all {
		counts[a]++
	}
	return counts
}

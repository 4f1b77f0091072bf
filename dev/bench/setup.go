package bench

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/audience"
	"lemma/campaigns"
	"lemma/dev/postgres"
	"lemma/message"
	"lemma/migrations"
	"lemma/providers"
	"lemma/secrets"
	"lemma/sender"
	"lemma/server"
)

// env is the environment of the benchmarks: a Postgres cluster with fsync on, and
// in it a customer's database and one database for each figure.
type env struct {
	cluster *postgres.Cluster
	admin   *pgxpool.Pool
	dsn     func(database string) string
	box     *secrets.Box
	null    *nullCarrier
	cfg     server.Config
	mailing mailing
	runs    int
}

// instance is the database and the process of one figure.
type instance struct {
	env *env
	*server.Server
	name      string
	workspace uuid.UUID
}

// fresh creates a migrated database and a process on it, until drop.
func (e *env) fresh(ctx context.Context, kinds ...sender.Kind) (*instance, error) {
	e.runs++
	name := fmt.Sprintf("bench_%d", e.runs)
	if _, err := e.admin.Exec(ctx, "create database "+name); err != nil {
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	n, err := e.process(ctx, name, kinds)
	if err != nil {
		return nil, err
	}
	if err := migrations.Up(ctx, n.Pool); err != nil {
		return nil, err
	}
	ws, err := n.Workspaces.Create(ctx, "bench")
	if err != nil {
		return nil, err
	}
	return &instance{e, n, name, ws.ID}, nil
}

// process is a process on a database.
func (e *env) process(ctx context.Context, database string, kinds []sender.Kind) (*server.Server, error) {
	cfg := e.cfg
	cfg.DatabaseURL = e.dsn(database)
	cfg.PublicURL = benchPublic // marketing has links to unsubscribe
	pool, err := server.OpenPool(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return server.New(server.Deps{Pool: pool, Box: e.box, Log: slog.New(slog.DiscardHandler), Kinds: kinds}, cfg)
}

// drop ends the process and drops its database. A database that cannot be dropped is left.
func (b *instance) drop() {
	stop, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if b.Drain(stop) != nil {
		return
	}
	b.Pool.Close()
	_, _ = b.env.admin.Exec(context.Background(), "drop database "+b.name+" with (force)")
}

// people creates the customer's database: n rows with the columns that a
// personalized message needs, and a role that can only read them.
func (e *env) people(ctx context.Context, n int) (dsn string, err error) {
	name := "people_" + strconv.Itoa(n)
	var there bool
	if err := e.admin.QueryRow(ctx, `select exists (select from pg_database where datname = $1)`, name).Scan(&there); err != nil {
		return "", err
	}
	reader, err := asReader(e.dsn(name))
	if err != nil {
		return "", err
	}
	if there {
		return reader, nil
	}
	if _, err := e.admin.Exec(ctx, "create database "+name); err != nil {
		return "", err
	}
	conn, err := pgx.Connect(ctx, e.dsn(name))
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, fmt.Sprintf(`
		create table people (id int primary key, email text, name text, city text, points int, last_order date);
		insert into people select i as id, 'user' || i || '@bench.example' as email, 'Name ' || i as name,
			'City ' || i %% 1000 as city, i %% 97 as points, date '2026-01-01' + i %% 300 as last_order
		from generate_series(1, %d) i;
		do $$ begin create role bench_reader login password 'bench'; exception when duplicate_object then null; end $$;
		revoke create on schema public from public; grant select on people to bench_reader`, n))
	if err == nil {
		_, err = conn.Exec(ctx, `vacuum analyze people`)
	}
	return reader, err
}

func asReader(dsn string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return "", err
	}
	u.User = url.UserPassword("bench_reader", "bench")
	return u.String(), nil
}

const benchHTML = `<!doctype html><html><body style="font-family:sans-serif"><h1>Hello {{ name }}</h1>
<p>You have <b>{{ points }}</b> points, and there is news from {{ city }}: the shop around the corner has new opening hours,
and all guests before noon get a coffee. Your last order was on {{ last_order }}.</p>
<p><a href="https://shop.example/points?c={{ city }}">Use your points</a> while they last. This offer holds until the end of the month,
cannot be combined with others, and is meant for you alone. If you have questions, answer this mail; our team reads it.</p>
<hr><p style="color:#777">Shop Ltd, 1 Main Street. You get this mail because you are a customer.</p></body></html>`

// materials are what a campaign or a flow needs.
type materials struct {
	audience, template, provider uuid.UUID
	transactional                bool
}

// materials creates them for n profiles.
func (b *instance) materials(ctx context.Context, e *env, n int, kind string, config, secret []byte) (m materials, err error) {
	dsn, err := e.people(ctx, n)
	if err != nil {
		return m, fmt.Errorf("fill source: %w", err)
	}
	source, err := b.Audiences.CreateSource(ctx, b.workspace, audience.NewSource{
		ID: lemma.NewID(), Name: "people", Kind: "postgres", DSN: dsn})
	if err != nil {
		return m, fmt.Errorf("create source: %w", err)
	}
	aud, err := b.Audiences.Create(ctx, b.workspace, audience.NewAudience{ID: lemma.NewID(), DataSourceID: source.ID, Name: "people",
		SQL: "select id, email, name, city, points, last_order from people", KeyColumn: "id", EmailColumn: "email"})
	if err != nil {
		return m, fmt.Errorf("create audience: %w", err)
	}
	tpl, err := b.Templates.Create(ctx, b.workspace, message.NewTemplate{ID: lemma.NewID(), Name: "news",
		Content: message.Content{Subject: "News for {{ name }}", HTML: benchHTML,
			Text:       "Hello {{ name }}, you have {{ points }} points. News from {{ city }}.",
			TrackOpens: e.mailing.track, TrackClicks: e.mailing.track}})
	if err != nil {
		return m, fmt.Errorf("create template: %w", err)
	}
	prv, err := b.Providers.Create(ctx, b.workspace, providers.NewProvider{ID: lemma.NewID(), Name: "sink", Kind: kind,
		Config: config, Secrets: secret})
	if err != nil {
		return m, fmt.Errorf("create provider: %w", err)
	}
	return materials{aud.ID, tpl.ID, prv.ID, e.mailing.transactional}, nil
}

// campaign creates a campaign for n profiles.
func (b *instance) campaign(ctx context.Context, e *env, n int, kind string, config, secret []byte) (uuid.UUID, error) {
	m, err := b.materials(ctx, e, n, kind, config, secret)
	if err != nil {
		return uuid.Nil, err
	}
	return b.campaignOf(ctx, m)
}

func (b *instance) campaignOf(ctx context.Context, m materials) (uuid.UUID, error) {
	c, err := b.Campaigns.Create(ctx, b.workspace, campaigns.NewCampaign{ID: lemma.NewID(), Name: "bench",
		AudienceID: m.audience, TemplateID: m.template, Transactional: m.transactional,
		ProviderID: m.provider, FromName: "Shop", FromEmail: "news@shop.example"})
	return c.ID, err
}

// await polls a campaign until it has ended.
func (b *instance) await(ctx context.Context, id uuid.UUID) (campaigns.Campaign, error) {
	for {
		c, err := b.Campaigns.Get(ctx, b.workspace, id)
		if err != nil || c.FinishedAt != nil {
			return c, err
		}
		select {
		case <-ctx.Done():
			return c, fmt.Errorf("campaign is %s after the time limit: %+v", c.Status, c.Counts)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// nullCarrier accepts every message at once, and records the recipients, one bit each.
type nullCarrier struct {
	mu         sync.Mutex
	seen       []uint64
	count      int
	duplicates int
}

func (c *nullCarrier) kind() sender.Kind {
	return sender.Kind{Name: "null", Open: func(sender.Account) (sender.Carrier, error) { return c, nil }}
}

// received is the number of messages so far.
func (c *nullCarrier) received() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

func (c *nullCarrier) reset(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen, c.count, c.duplicates = make([]uint64, n/64+1), 0, 0
}

// Send counts the messages and accepts them.
func (c *nullCarrier) Send(_ context.Context, messages []sender.Message) []sender.Receipt {
	now := time.Now()
	out := make([]sender.Receipt, len(messages))
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, m := range messages {
		c.record(m.To)
		out[i] = sender.Receipt{Outcome: sender.Accepted, Code: 250, At: now}
	}
	return out
}

func (c *nullCarrier) record(to string) {
	n := 0
	for _, d := range to {
		if d >= '0' && d <= '9' {
			n = n*10 + int(d-'0')
		} else if d == '@' {
			break
		}
	}
	if c.seen[n/64]&(1<<(n%64)) != 0 {
		c.duplicates++
		return
	}
	c.seen[n/64] |= 1 << (n % 64)
	c.count++
}

// Close does nothing.
func (c *nullCarrier) Close() {}

// openEnv starts a cluster in a folder that is removed at the end, or uses the
// Postgres of the options.
func openEnv(ctx context.Context, o Options) (*env, func(), error) {
	box, err := secrets.ParseKeys(secrets.NewKey())
	if err != nil {
		return nil, nil, err
	}
	cfg := o.Server
	cfg.Sources = audience.Options{AllowPrivate: true, AllowUnix: true}
	cfg.Carriers.AllowPrivate = true
	e := &env{box: box, null: &nullCarrier{}, cfg: cfg}
	end := func() {}
	if cfg.DatabaseURL == "" {
		dir, err := os.MkdirTemp("", "lemma-bench-")
		if err != nil {
			return nil, nil, err
		}
		e.cluster, err = postgres.Start(ctx, postgres.Options{Dir: dir, Durable: true, Bin: o.PGBin})
		if err != nil {
			return nil, nil, err
		}
		end = func() { _ = e.cluster.Stop(); _ = os.RemoveAll(dir) }
		e.dsn = e.cluster.DSN
	} else {
		e.dsn = func(name string) string {
			u, _ := url.Parse(cfg.DatabaseURL)
			u.Path = "/" + name
			return u.String()
		}
	}
	e.admin, err = pgxpool.New(ctx, e.dsn("postgres"))
	if err != nil {
		end()
		return nil, nil, err
	}
	return e, func() { e.admin.Close(); end() }, nil
}

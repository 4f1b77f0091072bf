package main

import (
	"context"
	"fmt"
	"io"
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
	"lemma/providers"
	"lemma/secrets"
	"lemma/sender"
)

// rig is what the benchmarks run on: a cluster of their own with fsync on, a
// customer's database in it, and a node.
type rig struct {
	cluster *postgres.Cluster
	admin   *pgxpool.Pool
	dsn     func(database string) string
	box     *secrets.Box
	null    *nullCarrier
	cfg     Config
	runs    int
}

// benchNode is one figure's own database and node.
type benchNode struct {
	*node
	name      string
	workspace uuid.UUID
}

// fresh makes a migrated database with a node on it, so that no figure feels
// what another has left.
func (r *rig) fresh(ctx context.Context, kinds []sender.Kind) (*benchNode, error) {
	r.runs++
	name := fmt.Sprintf("bench_%d", r.runs)
	if _, err := r.admin.Exec(ctx, "create database "+name); err != nil {
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	cfg := r.cfg
	cfg.DatabaseURL = r.dsn(name)
	cfg.AllowPrivateProviders = true
	pool, err := openPool(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := migrateUp(ctx, cfg); err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	n, err := newNode(cfg, pool, r.box, log, nodeOptions{Kinds: kinds, Limits: audience.Options{AllowPrivate: true, AllowUnix: true}})
	if err != nil {
		return nil, err
	}
	ws, err := n.workspaces.Create(ctx, "bench")
	if err != nil {
		return nil, err
	}
	return &benchNode{n, name, ws.ID}, nil
}

func (r *rig) drop(ctx context.Context, b *benchNode) error {
	stop, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := b.drain(stop); err != nil {
		return err
	}
	b.pool.Close()
	_, err := r.admin.Exec(ctx, "drop database "+b.name+" with (force)")
	return err
}

// people fills the customer's database: n rows with the columns that a
// personalised mail needs, and a role that may read them and nothing else.
func (r *rig) people(ctx context.Context, n int) (dsn string, err error) {
	name := "people_" + strconv.Itoa(n)
	var there bool
	if err := r.admin.QueryRow(ctx, `select exists (select from pg_database where datname = $1)`, name).Scan(&there); err != nil {
		return "", err
	}
	reader, err := asReader(r.dsn(name))
	if err != nil {
		return "", err
	}
	if there {
		return reader, nil
	}
	if _, err := r.admin.Exec(ctx, "create database "+name); err != nil {
		return "", err
	}
	conn, err := pgx.Connect(ctx, r.dsn(name))
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
and whoever comes before noon gets a coffee. Your last order was on {{ last_order }}.</p>
<p><a href="https://shop.example/points?c={{ city }}">Use your points</a> while they last. This offer holds until the end of the month,
cannot be combined with others, and is meant for you alone. If you have questions, answer this mail; somebody reads it.</p>
<hr><p style="color:#777">Shop Ltd, 1 Main Street. You get this mail because you are a customer.</p></body></html>`

// materials are what a campaign or a flow is made of.
type materials struct{ audience, template, provider uuid.UUID }

// materials makes them for n people, through the rooms that the API uses.
func (b *benchNode) materials(ctx context.Context, r *rig, n int, kind string, config, secret []byte) (m materials, err error) {
	dsn, err := r.people(ctx, n)
	if err != nil {
		return m, fmt.Errorf("fill source: %w", err)
	}
	source, err := b.audiences.CreateSource(ctx, b.workspace, audience.NewSource{ID: lemma.NewID(), Name: "people", Kind: "postgres", DSN: dsn})
	if err != nil {
		return m, fmt.Errorf("create source: %w", err)
	}
	aud, err := b.audiences.Create(ctx, b.workspace, audience.NewAudience{ID: lemma.NewID(), DataSourceID: source.ID, Name: "everybody",
		SQL: "select id, email, name, city, points, last_order from people", KeyColumn: "id", EmailColumn: "email"})
	if err != nil {
		return m, fmt.Errorf("create audience: %w", err)
	}
	tpl, err := b.templates.Create(ctx, b.workspace, message.NewTemplate{ID: lemma.NewID(), Name: "news",
		Content: message.Content{Subject: "News for {{ name }}", HTML: benchHTML, Text: "Hello {{ name }}, you have {{ points }} points. News from {{ city }}."}})
	if err != nil {
		return m, fmt.Errorf("create template: %w", err)
	}
	prv, err := b.providers.Create(ctx, b.workspace, providers.NewProvider{ID: lemma.NewID(), Name: "sink", Kind: kind, Config: config, Secrets: secret})
	if err != nil {
		return m, fmt.Errorf("create provider: %w", err)
	}
	return materials{aud.ID, tpl.ID, prv.ID}, nil
}

// campaign makes a campaign over n people.
func (b *benchNode) campaign(ctx context.Context, r *rig, n int, kind string, config, secret []byte) (uuid.UUID, error) {
	m, err := b.materials(ctx, r, n, kind, config, secret)
	if err != nil {
		return uuid.Nil, err
	}
	c, err := b.campaigns.Create(ctx, b.workspace, campaigns.NewCampaign{ID: lemma.NewID(), Name: "bench", AudienceID: m.audience, TemplateID: m.template,
		ProviderID: m.provider, FromName: "Shop", FromEmail: "news@shop.example"})
	return c.ID, err
}

// await polls a campaign until it has ended.
func (b *benchNode) await(ctx context.Context, id uuid.UUID) (campaigns.Campaign, error) {
	for {
		c, err := b.campaigns.Get(ctx, b.workspace, id)
		if err != nil || c.FinishedAt != nil {
			return c, err
		}
		select {
		case <-ctx.Done():
			return c, fmt.Errorf("campaign is %s after the time limit: %+v", c.Status, c.Books)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// nullCarrier accepts at once, and remembers whom it heard of: one bit each.
type nullCarrier struct {
	mu         sync.Mutex
	seen       []uint64
	count      int
	duplicates int
}

func (c *nullCarrier) kind() sender.Kind {
	return sender.Kind{Name: "null", Open: func(sender.Account) (sender.Carrier, error) { return c, nil }}
}

func (c *nullCarrier) reset(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen, c.count, c.duplicates = make([]uint64, n/64+1), 0, 0
}

func (c *nullCarrier) Send(_ context.Context, letters []sender.Message) []sender.Receipt {
	now := time.Now()
	out := make([]sender.Receipt, len(letters))
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, l := range letters {
		c.mark(l.To)
		out[i] = sender.Receipt{Outcome: sender.Accepted, Code: 250, At: now}
	}
	return out
}

func (c *nullCarrier) mark(to string) {
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

func (c *nullCarrier) Close() {}

// openRig starts the cluster in a folder that is removed at the end. A
// DATABASE_URL is used instead when it is given; its role must be able to
// create databases.
func openRig(ctx context.Context, cfg Config) (*rig, func(), error) {
	box, err := secrets.ParseKeys(secrets.NewKey())
	if err != nil {
		return nil, nil, err
	}
	r := &rig{box: box, null: &nullCarrier{}, cfg: cfg}
	end := func() {}
	if cfg.DatabaseURL == "" {
		dir, err := os.MkdirTemp("", "lemma-bench-")
		if err != nil {
			return nil, nil, err
		}
		r.cluster, err = postgres.Start(ctx, postgres.Options{Dir: dir, Durable: true, Bin: cfg.PGBin})
		if err != nil {
			return nil, nil, err
		}
		end = func() { r.cluster.Stop(); os.RemoveAll(dir) }
		r.dsn = r.cluster.DSN
	} else {
		r.dsn = func(name string) string {
			u, _ := url.Parse(cfg.DatabaseURL)
			u.Path = "/" + name
			return u.String()
		}
	}
	r.admin, err = pgxpool.New(ctx, r.dsn("postgres"))
	if err != nil {
		end()
		return nil, nil, err
	}
	return r, func() { r.admin.Close(); end() }, nil
}

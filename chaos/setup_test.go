package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/audience"
	"lemma/campaigns"
	"lemma/dev/postgres"
	"lemma/message"
	"lemma/notifications"
	"lemma/pgtest"
	"lemma/providers"
	"lemma/secrets"
	"lemma/sender/smtp"
)

// scratch is the folder of the program and the clusters of this test process.
var scratch string

func TestMain(m *testing.M) {
	os.Exit(inScratch(m.Run))
}

func inScratch(run func() int) int {
	dir, err := os.MkdirTemp("", "lemma-chaos-")
	if err == nil {
		err = os.Chmod(dir, 0o711) // Postgres may run as somebody else, who must pass
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	scratch = dir
	defer os.RemoveAll(dir)
	defer func() {
		if c, err := shared(); err == nil {
			_ = c.Crash() // nobody needs it any more
		}
	}()
	return run()
}

// shared is the cluster of tests that leave Postgres alone. Like that of any
// real installation it is durable: workers refuse to send on one that is not.
var shared = sync.OnceValues(func() (*postgres.Cluster, error) { return durable("shared") })

func durable(name string) (*postgres.Cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return postgres.Start(ctx, postgres.Options{Dir: filepath.Join(scratch, name), Bin: os.Getenv("LEMMA_PG_BIN"), Durable: true})
}

// house is one Lemma with its own database, a customer, and a mail server.
// Its workers are processes; the deps here play the API.
type house struct {
	t    *testing.T
	dsn  string
	key  string
	pool *pgxpool.Pool
	ws   uuid.UUID
	post *post

	audiences *audience.Audiences
	campaigns *campaigns.Campaigns
	ledger    *notifications.Ledger
	templates *message.Templates
	accounts  *providers.Providers
	template  uuid.UUID
	provider  uuid.UUID
}

// build makes a house in the shared cluster.
func build(t *testing.T) *house {
	t.Helper()
	pgtest.Empty(t) // skips where there is no Postgres
	c, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return buildIn(t, c)
}

func buildIn(t *testing.T, c *postgres.Cluster) *house {
	t.Helper()
	h := &house{t: t, pool: pgtest.DBIn(t, c), key: secrets.NewKey(), post: openPost(t)}
	h.dsn, h.ws = pgtest.DSN(h.pool), pgtest.Workspace(t, h.pool)
	box, err := secrets.ParseKeys(h.key)
	h.must(err)
	check := func(_ string, config, secrets json.RawMessage) error {
		return smtp.Check(config, secrets, smtp.Options{AllowPrivate: true})
	}
	h.accounts, h.templates = providers.New(h.pool, box, check), message.New(h.pool)
	h.ledger = notifications.New(h.pool)
	h.audiences = audience.New(h.pool, box, audience.Options{AllowPrivate: true})
	h.campaigns = campaigns.New(campaigns.Deps{Pool: h.pool, Ledger: h.ledger, Audiences: h.audiences, Templates: h.templates,
		Providers: h.accounts, Log: slog.New(slog.DiscardHandler)}, campaigns.Config{})
	h.template, h.provider = h.newTemplate(), h.newProvider(2)
	return h
}

// neighbour is another workspace of the same Lemma, with a mail server of its
// own that is waited for so many seconds.
func (h *house) neighbour(patience int) *house {
	h.t.Helper()
	n := *h
	n.ws, n.post = pgtest.Workspace(h.t, h.pool), openPost(h.t)
	n.template, n.provider = n.newTemplate(), n.newProvider(patience)
	return &n
}

func (h *house) newTemplate() uuid.UUID {
	h.t.Helper()
	letter := message.Content{Subject: "Hello {{ name }}", HTML: "<p>Hello {{ name }}, it is customer {{ id }}.</p>", Text: "Hello {{ name }}"}
	tpl, err := h.templates.Create(h.t.Context(), h.ws, message.NewTemplate{ID: lemma.NewID(), Name: "hello", Content: letter})
	h.must(err)
	return tpl.ID
}

func (h *house) newProvider(patience int) uuid.UUID {
	h.t.Helper()
	account := fmt.Sprintf(`{"host": "127.0.0.1", "port": %d, "tls": "none", "timeout_seconds": %d}`, h.post.port(), patience)
	prv, err := h.accounts.Create(h.t.Context(), h.ws, providers.NewProvider{ID: lemma.NewID(), Name: lemma.NewID().String(), Kind: "smtp", Config: json.RawMessage(account)})
	h.must(err)
	return prv.ID
}

// customer is somebody's database of people and the way to it.
type customer struct {
	pool     *pgxpool.Pool
	wire     *wire
	audience uuid.UUID
}

// everybody are n people, of whom some have no address, one that is none, one
// that another has too, or no wish to hear from us.
const everybody = `
	insert into people select i, case i % 50 when 7 then null when 11 then 'person at ' || i when 13 then upper('p' || i - 1 || '@shop.example')
		else 'p' || i || '@shop.example' end, 'Name ' || i, i % 50 = 17 from generate_series(1, $1::int) i`

// customer makes a database with n people, and an audience of all of them.
func (h *house) customer(n int) *customer {
	h.t.Helper()
	c := h.customerOf(everybody, n)
	c.wire.quick = 80 * n // what the reading of the opt-outs carries, which comes before the first batch
	return c
}

func (h *house) customerOf(sql string, args ...any) *customer {
	h.t.Helper()
	ctx := h.t.Context()
	c := &customer{pool: pgtest.Empty(h.t)}
	role := "reader_" + lemma.NewID().String()[24:]
	h.run(c.pool, `create table people (id int, email text, name text, opted_out boolean)`)
	h.run(c.pool, sql, args...)
	h.run(c.pool, `create role `+role+` login; grant select on people to `+role)
	h.t.Cleanup(func() { _, _ = c.pool.Exec(context.Background(), `drop owned by `+role+`; drop role `+role) })
	at := c.pool.Config().ConnConfig
	c.wire = stretch(h.t, filepath.Join(at.Host, ".s.PGSQL."+strconv.Itoa(int(at.Port))))
	dsn := url.URL{Scheme: "postgres", User: url.User(role), Host: c.wire.address(), Path: "/" + at.Database, RawQuery: "sslmode=disable"}
	src, err := h.audiences.CreateSource(ctx, h.ws, audience.NewSource{ID: lemma.NewID(), Name: role, Kind: audience.Postgres, DSN: dsn.String()})
	h.must(err)
	aud, err := h.audiences.Create(ctx, h.ws, audience.NewAudience{ID: lemma.NewID(), DataSourceID: src.ID, Name: role,
		SQL: "select id, email, name, opted_out from people order by id", KeyColumn: "id", EmailColumn: "email", OptedOutColumn: "opted_out"})
	h.must(err)
	c.audience = aud.ID
	return c
}

// send makes a campaign to a customer's people and sends it.
func (h *house) send(c *customer) uuid.UUID {
	h.t.Helper()
	id := lemma.NewID()
	_, err := h.campaigns.Create(h.t.Context(), h.ws, campaigns.NewCampaign{ID: id, Name: "chaos", AudienceID: c.audience, TemplateID: h.template,
		ProviderID: h.provider, FromName: "Shop", FromEmail: "news@shop.example"})
	h.must(err)
	_, err = h.campaigns.Send(h.t.Context(), h.ws, id, uuid.Nil)
	h.must(err)
	return id
}

func (h *house) campaign(id uuid.UUID) campaigns.Campaign {
	h.t.Helper()
	c, err := h.campaigns.Get(h.t.Context(), h.ws, id)
	h.must(err)
	return c
}

// completed waits until a campaign is, and shows where it hangs when it is not.
func (h *house) completed(id uuid.UUID, within time.Duration) {
	h.t.Helper()
	last := campaigns.Campaign{}
	h.t.Cleanup(func() {
		if h.t.Failed() {
			h.t.Logf("campaign %s %s %s: %+v", last.Status, last.StatusReason, last.StatusDetail, last.Counts)
		}
	})
	h.until(within, "the campaign is completed", func() bool {
		last = h.campaign(id)
		return last.Status == campaigns.Completed
	})
}

// completedInNoTime is completed, without the waits that are meant to be long.
func (h *house) completedInNoTime(id uuid.UUID, within time.Duration) {
	h.t.Helper()
	h.until(within, "the campaign is completed", func() bool {
		h.letTimePass()
		return h.campaign(id).Status == campaigns.Completed
	})
}

// lettersOut waits until the mail server has n mails.
func (h *house) lettersOut(n int, within time.Duration) {
	h.t.Helper()
	h.until(within, fmt.Sprintf("%d mails are out", n), func() bool { return h.post.taken() >= n })
}

// letTimePass makes everything due that waits for a time to come.
func (h *house) letTimePass() {
	h.t.Helper()
	h.run(h.pool, `update batches set due_at = now() where status = 'ready' and due_at > now()`)
	h.run(h.pool, `update provider_meters set open_until = now() where open_until > now()`)
	h.run(h.pool, `update fanouts set retry_at = now() where retry_at > now()`)
	h.run(h.pool, `update river_job set state = 'available', scheduled_at = now() where state in ('scheduled', 'retryable')`)
}

// until polls, since nothing tells from outside when another process has done
// what it will do.
func (h *house) until(within time.Duration, what string, is func() bool) {
	h.t.Helper()
	tick, late := time.NewTicker(20*time.Millisecond), time.After(within)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-late:
			h.t.Fatalf("after %v it is still not so that %s", within, what)
		}
	}
}

func (h *house) count(sql string, args ...any) (n int) {
	h.t.Helper()
	h.must(h.pool.QueryRow(h.t.Context(), sql, args...).Scan(&n))
	return n
}

func (h *house) run(pool *pgxpool.Pool, sql string, args ...any) {
	h.t.Helper()
	_, err := pool.Exec(context.Background(), sql, args...)
	h.must(err)
}

func (h *house) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// forgetReader lets the lease of a fan-out run out, and rings for it as any
// node's sweep does then.
func (h *house) forgetReader(id uuid.UUID) {
	h.t.Helper()
	h.run(h.pool, `update fanouts set lease_until = now() - interval '1 second' where campaign_id = $1 and finished_at is null`, id)
	_, err := h.campaigns.Sweep(h.t.Context())
	h.must(err)
}

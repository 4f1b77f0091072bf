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

// scratch is the folder of the program and of the clusters.
var scratch string

func TestMain(m *testing.M) {
	os.Exit(inScratch(m.Run))
}

func inScratch(run func() int) int {
	dir, err := os.MkdirTemp("", "lemma-chaos-")
	if err == nil {
		err = os.Chmod(dir, 0o711) // Postgres may run as another user
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	scratch = dir
	defer os.RemoveAll(dir)
	defer func() {
		if c, err := shared(); err == nil {
			_ = c.Crash() // its data is not needed any more
		}
	}()
	return run()
}

// shared is the cluster of tests that do not stop Postgres. It is durable, since
// workers refuse to send otherwise.
var shared = sync.OnceValues(func() (*postgres.Cluster, error) { return durable("shared") })

func durable(name string) (*postgres.Cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return postgres.Start(ctx, postgres.Options{Dir: filepath.Join(scratch, name), Bin: os.Getenv("LEMMA_PG_BIN"), Durable: true})
}

// env is a Lemma installation with its own database and a mail server. Its workers
// are processes; the fields are used as the API uses them.
type env struct {
	t    *testing.T
	dsn  string
	key  string
	pool *pgxpool.Pool
	ws   uuid.UUID
	mail *mailServer

	audiences *audience.Audiences
	campaigns *campaigns.Campaigns
	ledger    *notifications.Ledger
	templates *message.Templates
	accounts  *providers.Providers
	template  uuid.UUID
	provider  uuid.UUID
}

// setup creates an env in the shared cluster.
func setup(t *testing.T) *env {
	t.Helper()
	pgtest.Empty(t) // skips where there is no Postgres
	c, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return setupIn(t, c)
}

func setupIn(t *testing.T, c *postgres.Cluster) *env {
	t.Helper()
	h := &env{t: t, pool: pgtest.DBIn(t, c), key: secrets.NewKey(), mail: startMailServer(t)}
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

// anotherWorkspace is another workspace of the same installation, with its own mail
// server and a provider with that timeout.
func (h *env) anotherWorkspace(timeoutSeconds int) *env {
	h.t.Helper()
	n := *h
	n.ws, n.mail = pgtest.Workspace(h.t, h.pool), startMailServer(h.t)
	n.template, n.provider = n.newTemplate(), n.newProvider(timeoutSeconds)
	return &n
}

func (h *env) newTemplate() uuid.UUID {
	h.t.Helper()
	content := message.Content{Subject: "Hello {{ name }}", HTML: "<p>Hello {{ name }}, it is customer {{ id }}.</p>",
		Text: "Hello {{ name }}"}
	tpl, err := h.templates.Create(h.t.Context(), h.ws, message.NewTemplate{ID: lemma.NewID(), Name: "hello", Content: content})
	h.must(err)
	return tpl.ID
}

func (h *env) newProvider(timeoutSeconds int) uuid.UUID {
	h.t.Helper()
	account := fmt.Sprintf(`{"host": "127.0.0.1", "port": %d, "tls": "none", "timeout_seconds": %d}`, h.mail.port(), timeoutSeconds)
	prv, err := h.accounts.Create(h.t.Context(), h.ws, providers.NewProvider{ID: lemma.NewID(), Name: lemma.NewID().String(),
		Kind: "smtp", Config: json.RawMessage(account)})
	h.must(err)
	return prv.ID
}

// customer is a customer's database of people, behind a proxy.
type customer struct {
	pool     *pgxpool.Pool
	proxy    *sourceProxy
	audience uuid.UUID
}

// insertPeople inserts n people. Some have no address, an invalid one, that of another
// profile, or have opted out.
const insertPeople = `
	insert into people select i, case i % 50 when 7 then null
		when 11 then 'person at ' || i when 13 then upper('p' || i - 1 || '@shop.example')
		else 'p' || i || '@shop.example' end, 'Name ' || i, i % 50 = 17 from generate_series(1, $1::int) i`

// customer creates a database with n people, and an audience of all of them.
func (h *env) customer(n int) *customer {
	h.t.Helper()
	c := h.customerOf(insertPeople, n)
	c.proxy.quick = 80 * n // the bytes of the opt-outs, which are read before the first batch
	return c
}

func (h *env) customerOf(sql string, args ...any) *customer {
	h.t.Helper()
	ctx := h.t.Context()
	c := &customer{pool: pgtest.Empty(h.t)}
	role := "reader_" + lemma.NewID().String()[24:]
	h.run(c.pool, `create table people (id int, email text, name text, opted_out boolean)`)
	h.run(c.pool, sql, args...)
	h.run(c.pool, `create role `+role+` login; grant select on people to `+role)
	h.t.Cleanup(func() { _, _ = c.pool.Exec(context.Background(), `drop owned by `+role+`; drop role `+role) })
	at := c.pool.Config().ConnConfig
	c.proxy = startSourceProxy(h.t, filepath.Join(at.Host, ".s.PGSQL."+strconv.Itoa(int(at.Port))))
	dsn := url.URL{Scheme: "postgres", User: url.User(role), Host: c.proxy.address(), Path: "/" + at.Database, RawQuery: "sslmode=disable"}
	src, err := h.audiences.CreateSource(ctx, h.ws, audience.NewSource{ID: lemma.NewID(), Name: role,
		Kind: audience.Postgres, DSN: dsn.String()})
	h.must(err)
	aud, err := h.audiences.Create(ctx, h.ws, audience.NewAudience{ID: lemma.NewID(), DataSourceID: src.ID, Name: role,
		SQL:       "select id, email, name, opted_out from people order by id",
		KeyColumn: "id", EmailColumn: "email", OptedOutColumn: "opted_out"})
	h.must(err)
	c.audience = aud.ID
	return c
}

// send creates a campaign to a customer's audience and sends it.
func (h *env) send(c *customer) uuid.UUID {
	h.t.Helper()
	id := lemma.NewID()
	_, err := h.campaigns.Create(h.t.Context(), h.ws, campaigns.NewCampaign{ID: id, Name: "chaos", AudienceID: c.audience,
		TemplateID: h.template, ProviderID: h.provider, FromName: "Shop", FromEmail: "news@shop.example"})
	h.must(err)
	_, err = h.campaigns.Send(h.t.Context(), h.ws, id, uuid.Nil)
	h.must(err)
	return id
}

func (h *env) campaign(id uuid.UUID) campaigns.Campaign {
	h.t.Helper()
	c, err := h.campaigns.Get(h.t.Context(), h.ws, id)
	h.must(err)
	return c
}

// completed waits until a campaign is completed, and logs its state if the test fails.
func (h *env) completed(id uuid.UUID, within time.Duration) {
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

// completedSoon is completed without back-offs.
func (h *env) completedSoon(id uuid.UUID, within time.Duration) {
	h.t.Helper()
	h.until(within, "the campaign is completed", func() bool {
		h.makeAllDue()
		return h.campaign(id).Status == campaigns.Completed
	})
}

// waitForMessages waits until the mail server has n messages.
func (h *env) waitForMessages(n int, within time.Duration) {
	h.t.Helper()
	h.until(within, fmt.Sprintf("%d messages are sent", n), func() bool { return h.mail.received() >= n })
}

// makeAllDue makes everything due that waits for a time.
func (h *env) makeAllDue() {
	h.t.Helper()
	h.run(h.pool, `update batches set due_at = now() where status = 'ready' and due_at > now()`)
	h.run(h.pool, `update provider_meters set open_until = now() where open_until > now()`)
	h.run(h.pool, `update fanouts set retry_at = now() where retry_at > now()`)
	h.run(h.pool, `update river_job set state = 'available', scheduled_at = now() where state in ('scheduled', 'retryable')`)
}

// until polls a condition, since other processes send no signals.
func (h *env) until(within time.Duration, what string, is func() bool) {
	h.t.Helper()
	tick, late := time.NewTicker(20*time.Millisecond), time.After(within)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-late:
			h.t.Fatalf("after %v it is still not true that %s", within, what)
		}
	}
}

func (h *env) count(sql string, args ...any) (n int) {
	h.t.Helper()
	h.must(h.pool.QueryRow(h.t.Context(), sql, args...).Scan(&n))
	return n
}

func (h *env) run(pool *pgxpool.Pool, sql string, args ...any) {
	h.t.Helper()
	_, err := pool.Exec(context.Background(), sql, args...)
	h.must(err)
}

func (h *env) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// expireFanoutLease ends the lease of a fan-out and runs the sweep, which enqueues it.
func (h *env) expireFanoutLease(id uuid.UUID) {
	h.t.Helper()
	h.run(h.pool, `update fanouts set lease_until = now() - interval '1 second' where campaign_id = $1 and finished_at is null`, id)
	_, err := h.campaigns.Sweep(h.t.Context())
	h.must(err)
}

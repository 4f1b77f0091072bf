package chaos

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/campaigns"
	"lemma/dev/postgres"
	"lemma/message"
	"lemma/pgtest"
	"lemma/pgtest/shop"
	"lemma/providers"
	"lemma/sender"
	"lemma/sender/gateway"
	"lemma/sender/ses"
	"lemma/sender/smtp"
	"lemma/sender/twilio"
	"lemma/sender/wire"
)

// scratch is the folder of the program and of the clusters.
var scratch string

// atOnce is how many tests run at the same time: they wait more than they compute.
const atOnce = "4"

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", atOnce); err != nil { // `go test -parallel` overrides it
		panic(err)
	}
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
	ctx, cancel := context.WithTimeout(context.Background(), longestWait)
	defer cancel()
	return postgres.Start(ctx, postgres.Options{Dir: filepath.Join(scratch, name), Bin: os.Getenv("LEMMA_PG_BIN"), Durable: true,
		Connections: 600})
}

// env is a Lemma installation with its own database and a mail server. Its workers
// are processes; the fields are used as the API uses them.
type env struct {
	*shop.Fixture
	t         *testing.T
	dsn       string // of Lemma's database
	mail      *mailServer
	carrier   carrier // of the provider: mail, or a reporter
	sms       bool    // campaigns are SMS
	campaigns *campaigns.Campaigns
	killed    *killed // workers that were killed

	stateLogged *sync.Once
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
	local := wire.Operator{AllowPrivate: true}
	kinds := map[string]sender.Kind{"smtp": smtp.Kind(smtp.Options{AllowPrivate: true}), "http": gateway.Kind(local), "ses": ses.Kind(local),
		"twilio": twilio.Kind(local)}
	check := func(kind string, config, secrets json.RawMessage) error { return kinds[kind].Check(config, secrets) }
	f := shop.New(pgtest.ShopIn(t, pgtest.DBIn(t, c)), audience.Options{AllowPrivate: true}, check)
	f.Providers.OnChannel(func(kind string) []lemma.Channel { return kinds[kind].Carried() })
	h := &env{Fixture: f, t: t, dsn: pgtest.DSN(f.Pool), killed: &killed{}, stateLogged: &sync.Once{}}
	t.Cleanup(h.logFailure)
	h.campaigns = campaigns.New(campaigns.Deps{Pool: h.Pool, Ledger: h.Ledger, Audiences: h.Audiences, Templates: h.Templates,
		Providers: h.Providers, Log: slog.New(slog.DiscardHandler)}, campaigns.Config{})
	h.openMail()
	return h
}

// anotherWorkspace is another workspace of the same installation, with its own mail
// server.
func (h *env) anotherWorkspace() *env {
	h.t.Helper()
	n, f := *h, *h.Fixture
	n.Fixture = &f
	n.Workspace = pgtest.Workspace(h.t, h.Pool)
	n.openMail()
	return &n
}

// openMail makes a mail server, and the template and the provider for it.
func (h *env) openMail() {
	h.t.Helper()
	h.mail = startMailServer(h.t)
	h.carrier = h.mail
	h.Template = h.NewTemplate(message.Content{Subject: "Hello {{ name }}", HTML: "<p>Hello {{ name }}, it is customer {{ id }}.</p>",
		Text: "Hello {{ name }}"})
	h.Provider = h.newProvider(60)
}

// newProvider is a provider for the mail server that waits so long for each answer.
func (h *env) newProvider(timeoutSeconds int) uuid.UUID {
	h.t.Helper()
	account := fmt.Sprintf(`{"host": "127.0.0.1", "port": %d, "tls": "none", "timeout_seconds": %d}`, h.mail.port(), timeoutSeconds)
	prv, err := h.Providers.Create(h.t.Context(), h.Workspace, providers.NewProvider{ID: lemma.NewID(), Name: lemma.NewID().String(),
		Kind: "smtp", Config: json.RawMessage(account)})
	h.Must(err)
	return prv.ID
}

// customer is a customer's database of people, behind a proxy.
type customer struct {
	pgtest.Shop // its DB has the people
	proxy       *sourceProxy
	audience    uuid.UUID
}

// insertPeople inserts n people with names of a length at least. Some have no address, an
// invalid one, that of another profile, or have opted out.
const insertPeople = `
	insert into people select i, case i % 50 when 7 then null
		when 11 then 'person at ' || i when 13 then upper('p' || i - 1 || '@shop.example')
		else 'p' || i || '@shop.example' end, rpad('Name ' || i, greatest($2, length('Name ' || i)), 'e'), i % 50 = 17
	from generate_series(1, $1::int) i`

// customer creates a database with n people, and an audience of all of them.
func (h *env) customer(n int) *customer {
	h.t.Helper()
	return h.customerOf(insertPeople, n, 0)
}

// largeCustomer is a customer with 6,000 people or more and long names, whose source freezes
// until proxy.thaw while the audience is read: the first chunk is written, and the last
// rows are not read. Each profile has 299 bytes, of which 49 are of the opt-outs, which are
// read before. A chunk has 4,000 profiles, and a round trip 1,150.
func (h *env) largeCustomer(n int) *customer {
	h.t.Helper()
	c := h.customerOf(insertPeople, n, 200)
	c.proxy.freezeAfter(283 * n)
	return c
}

func (h *env) customerOf(sql string, args ...any) *customer {
	h.t.Helper()
	c := &customer{Shop: h.Shop}
	c.OpenDB(`create table people (id int, email text, name text, opted_out boolean)`)
	c.ExecDB(sql, args...)
	at := c.DB.Config().ConnConfig
	c.proxy = startSourceProxy(h.t, filepath.Join(at.Host, ".s.PGSQL."+strconv.Itoa(int(at.Port))))
	dsn := url.URL{Scheme: "postgres", User: url.User(c.Role), Host: c.proxy.address(), Path: "/" + at.Database, RawQuery: "sslmode=disable"}
	c.audience = h.audienceOf(h.NewSource(dsn.String()))
	return c
}

// audienceOf is all people of a data source, by email or, over Twilio, by number.
func (h *env) audienceOf(source uuid.UUID) uuid.UUID {
	h.t.Helper()
	if !h.sms {
		return h.NewAudience(source, "select id, email, name, opted_out from people order by id")
	}
	a, err := h.Audiences.Create(h.t.Context(), h.Workspace, audience.NewAudience{ID: lemma.NewID(), DataSourceID: source,
		Name: lemma.NewID().String(), SQL: `select id, '+4915100' || lpad(id::text, 6, '0') as phone, name, opted_out from people order by id`,
		KeyColumn: "id", PhoneColumn: "phone", OptedOutColumn: "opted_out"})
	h.Must(err)
	return a.ID
}

// send creates a campaign to a customer's audience and sends it.
func (h *env) send(c *customer) uuid.UUID {
	h.t.Helper()
	id := lemma.NewID()
	n := campaigns.NewCampaign{ID: id, Name: "chaos", AudienceID: c.audience, TemplateID: h.Template, ProviderID: h.Provider}
	if !h.sms {
		n.FromName, n.FromEmail = "Shop", "news@shop.example"
	}
	_, err := h.campaigns.Create(h.t.Context(), h.Workspace, n)
	h.Must(err)
	_, err = h.campaigns.Send(h.t.Context(), h.Workspace, id, uuid.Nil)
	h.Must(err)
	return id
}

func (h *env) campaign(id uuid.UUID) campaigns.Campaign {
	h.t.Helper()
	c, err := h.campaigns.Get(h.t.Context(), h.Workspace, id)
	h.Must(err)
	return c
}

// completed waits until a campaign is completed.
func (h *env) completed(id uuid.UUID) {
	h.t.Helper()
	h.eventually("the campaign is completed", func() bool { return h.campaign(id).Status == campaigns.Completed })
}

// completedSoon is completed without back-offs.
func (h *env) completedSoon(id uuid.UUID) {
	h.t.Helper()
	h.eventually("the campaign is completed", func() bool {
		h.makeAllDue()
		return h.campaign(id).Status == campaigns.Completed
	})
}

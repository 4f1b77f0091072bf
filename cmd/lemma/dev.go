package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/audience"
	"lemma/client"
	"lemma/dev/catcher"
	"lemma/dev/postgres"
	"lemma/dev/shop"
	"lemma/migrations"
	"lemma/secrets"
	"lemma/workspaces"
)

// devCommand is a whole Lemma on one machine. What it shows, it does through
// its own HTTP API.
type devCommand struct {
	Once    bool   `help:"End after the books; fail when they do not balance, or the flow went another way."`
	Home    string `default:".lemma" type:"path" help:"Folder of the database, the caught mail and the keys."`
	People  int    `default:"50000" help:"Customers of the demo shop."`
	SMTP    string `default:"127.0.0.1:1025" help:"Where the mail catcher takes mail."`
	Catcher string `default:"127.0.0.1:8025" help:"Where the mail catcher's page is."`
}

func (d *devCommand) run(ctx context.Context, cfg Config, out io.Writer) (err error) {
	h, err := d.open(ctx, cfg, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	w := &walk{api: &webClient{base: "http://" + h.listen + "/v1", key: h.key}, out: out, quiet: !isTerminal(out)}
	c, err := w.send(ctx, h.shop.DSN, h.smtpPort())
	if err != nil {
		if ctx.Err() != nil {
			return nil // Ctrl-C while it was sending: the next run goes on
		}
		return err
	}
	books := booksOf(c, int64(h.catcher.Stats().Duplicates))
	books.print(out)
	wrong := books.balance(c)
	f, err := d.journey(ctx, h, w.api, out)
	if ctx.Err() != nil {
		return nil
	}
	wrong = errors.Join(wrong, err, f.err())
	if d.Once {
		books.Flow = &f
		return errors.Join(books.json(out), wrong)
	}
	if wrong != nil {
		fmt.Fprintln(out, "\n ", wrong)
	}
	h.greet(out, c)
	<-ctx.Done()
	fmt.Fprintln(out, "\nStopping.")
	return nil
}

// journey walks the shop's customers through the demo flow.
func (d *devCommand) journey(ctx context.Context, h *home, rest *webClient, out io.Writer) (journeyBooks, error) {
	api, err := client.New("http://"+h.listen, h.key, client.UserAgent("lemma-dev"))
	if err != nil {
		return journeyBooks{}, err
	}
	j := &journey{rest: rest, api: api, out: out, shop: h.shop, catcher: h.catcher, people: d.People}
	books, err := j.run(ctx)
	if err != nil {
		return books, err
	}
	return books, books.print(out)
}

// home is everything that `lemma dev` has started, in the order of starting.
type home struct {
	dir     string
	cluster *postgres.Cluster // nil when DATABASE_URL names another Postgres
	catcher *catcher.Catcher
	shop    shop.Shop
	node    *node
	key     string
	listen  string
	served  chan error
	stop    context.CancelFunc
}

func (d *devCommand) open(ctx context.Context, cfg Config, out io.Writer) (h *home, err error) {
	h = &home{dir: d.Home, served: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	if err := os.MkdirAll(d.Home, 0o755); err != nil {
		return h, err
	}
	dsn, err := h.database(ctx, cfg)
	if err != nil {
		return h, err
	}
	fmt.Fprintln(out, "Postgres is running.")
	if h.shop, err = shop.Create(ctx, dsn("lemma_shop"), d.People); err != nil {
		return h, fmt.Errorf("make the demo shop: %w", err)
	}
	if h.catcher, err = catcher.Start(catcher.Options{SMTP: freeNear(d.SMTP), HTTP: freeNear(d.Catcher), Folder: filepath.Join(d.Home, "mail")}); err != nil {
		return h, fmt.Errorf("start the mail catcher: %w", err)
	}
	cfg.DatabaseURL = dsn("lemma")
	cfg.Listen, cfg.MetricsListen = freePair(cfg.Listen, cfg.MetricsListen)
	cfg.AllowPrivateProviders = true // the mail catcher is on loopback
	if err := h.lemma(ctx, cfg); err != nil {
		return h, err
	}
	fmt.Fprintf(out, "Lemma answers on http://%s, the mail catcher on %s.\n", h.listen, h.catcher.URL())
	return h, nil
}

// database finds or starts a Postgres and makes the two databases: Lemma's
// own, and the one that plays the customer's.
func (h *home) database(ctx context.Context, cfg Config) (dsn func(string) string, err error) {
	if cfg.DatabaseURL != "" {
		dsn = func(name string) string { return inDatabase(cfg.DatabaseURL, name) }
	} else {
		if h.cluster, err = postgres.Start(ctx, postgres.Options{Dir: filepath.Join(h.dir, "postgres"), Bin: cfg.PGBin, Durable: true}); err != nil {
			return nil, err
		}
		dsn = h.cluster.DSN
	}
	admin := cfg.DatabaseURL
	if admin == "" {
		admin = dsn("postgres")
	}
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return nil, fmt.Errorf("reach Postgres: %w", err)
	}
	defer conn.Close(ctx)
	for _, name := range []string{"lemma", "lemma_shop"} {
		if err := ensureDatabase(ctx, conn, name); err != nil {
			return nil, err
		}
	}
	return dsn, nil
}

func ensureDatabase(ctx context.Context, conn *pgx.Conn, name string) error {
	var there bool
	if err := conn.QueryRow(ctx, `select exists (select from pg_database where datname = $1)`, name).Scan(&there); err != nil || there {
		return err
	}
	if _, err := conn.Exec(ctx, "create database "+pgx.Identifier{name}.Sanitize()); err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

// inDatabase names another database of the same server.
func inDatabase(url, name string) string {
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return url
	}
	if strings.HasPrefix(url, "postgres") {
		before, query, _ := strings.Cut(url, "?")
		if i := strings.LastIndex(before, "/"); i > len("postgresql://") {
			before = before[:i]
		}
		return strings.TrimSuffix(before+"/"+name+"?"+query, "?")
	}
	return strings.Replace(url, "dbname="+c.Database, "", 1) + " dbname=" + name
}

// lemma migrates, makes the workspace and its key, and begins to serve and to work.
func (h *home) lemma(ctx context.Context, cfg Config) error {
	sealing, err := h.keep("secret", func() (string, error) { return secrets.NewKey(), nil })
	if err != nil {
		return err
	}
	box, err := secrets.ParseKeys(sealing)
	if err != nil {
		return err
	}
	pool, err := openPool(ctx, cfg)
	if err != nil {
		return err
	}
	log, err := h.logger(cfg)
	if err != nil {
		return err
	}
	if err := migrations.Up(ctx, pool); err != nil {
		return err
	}
	if h.node, err = newNode(cfg, pool, box, log, nodeOptions{Kinds: carriers(cfg.mail(log)), Limits: cfg.localSources()}); err != nil {
		return err
	}
	if err := h.node.start(ctx); err != nil {
		return err
	}
	if h.key, err = h.apiKey(ctx, pool); err != nil {
		return err
	}
	h.listen = cfg.Listen
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	h.stop = stop
	go func() { h.served <- serve(serving, log, h.node.counts, h.node.listeners()...) }()
	return h.awaitAPI(ctx)
}

// localSources are the limits of data sources where the demo shop is one, which
// is on this machine.
func (c Config) localSources() audience.Options {
	o := c.sources(0)
	o.AllowPrivate, o.AllowUnix = true, true
	return o
}

// logger writes to a file: the terminal is for what the newcomer is to see.
func (h *home) logger(cfg Config) (*slog.Logger, error) {
	f, err := os.OpenFile(filepath.Join(h.dir, "lemma.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	return cfg.logger(f), nil
}

// apiKey makes a workspace and a key on the first run, and finds them on later
// ones. Only here is a key kept in the clear, since this machine is its owner's.
func (h *home) apiKey(ctx context.Context, pool *pgxpool.Pool) (string, error) {
	room := workspaces.New(pool)
	ws, err := room.ByName(ctx, "Demo")
	if lemma.KindOf(err) == lemma.NotFound {
		ws, err = room.Create(ctx, "Demo")
	}
	if err != nil {
		return "", err
	}
	make := func() (string, error) {
		_, secret, err := room.CreateKey(ctx, ws.ID, workspaces.NewKey{ID: lemma.NewID(), Name: "dev", Scopes: []string{"admin"}})
		return secret, err
	}
	key, err := h.keep("key", make)
	if err != nil {
		return "", err
	}
	if _, err := room.Authenticate(ctx, key); err == nil {
		return key, nil
	}
	// The database is a new one and the key an old one's.
	if err := os.Remove(filepath.Join(h.dir, "key")); err != nil {
		return "", err
	}
	return h.keep("key", make)
}

// keep reads a secret from a file of the home, and makes it when there is none.
func (h *home) keep(name string, make func() (string, error)) (string, error) {
	file := filepath.Join(h.dir, name)
	raw, err := os.ReadFile(file)
	if err == nil {
		return strings.TrimSpace(string(raw)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	made, err := make()
	if err != nil {
		return "", err
	}
	return made, os.WriteFile(file, []byte(made+"\n"), 0o600)
}

func (h *home) awaitAPI(ctx context.Context) error {
	for ctx.Err() == nil {
		conn, err := net.DialTimeout("tcp", h.listen, time.Second)
		if err == nil {
			return conn.Close()
		}
		select {
		case err := <-h.served:
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
	return ctx.Err()
}

func (h *home) smtpPort() int {
	addr, err := net.ResolveTCPAddr("tcp", h.catcher.Addr())
	if err != nil {
		return 0
	}
	return addr.Port
}

// close stops everything in the reverse order of starting.
func (h *home) close() (err error) {
	if h.stop != nil {
		h.stop()
		err = <-h.served
	}
	if h.node != nil {
		err = errors.Join(err, h.node.end(nil))
		h.node.pool.Close()
	}
	if h.catcher != nil {
		h.catcher.Close()
	}
	if h.cluster != nil {
		err = errors.Join(err, h.cluster.Stop())
	}
	return err
}

func (h *home) metricsURL() string {
	if h.node.cfg.MetricsListen == "" {
		return "none (LEMMA_METRICS_LISTEN is empty)"
	}
	return "http://" + h.node.cfg.MetricsListen + "/metrics"
}

func (h *home) greet(out io.Writer, c campaignView) {
	fmt.Fprintf(out, `
  API            http://%[1]s/v1
  API docs       http://%[1]s/docs
  mail catcher   %[2]s
  metrics        %[7]s
  key            %[3]s

  curl -H "Authorization: Bearer %[3]s" http://%[1]s/v1/campaigns/%[4]s
  LEMMA_URL=http://%[1]s LEMMA_API_KEY_FILE=%[6]s bin/lemma flows counts '%[5]s'

Ctrl-C stops everything. The next run is warm, and sends nobody anything again.
`, h.listen, h.catcher.URL(), h.key, c.ID, demoFlowName, filepath.Join(h.dir, "key"), h.metricsURL())
}

// freeNear is the address itself when nobody listens there, or else one on the
// same host with a port that the system chooses.
func freeNear(address string) string {
	for _, try := range []string{address, hostOf(address) + ":0"} {
		if l, err := net.Listen("tcp", try); err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	return address
}

// freePair is freeNear for the API and the metrics, which may share an address
// or have none.
func freePair(api, metrics string) (string, string) {
	free := freeNear(api)
	switch metrics {
	case "":
		return free, ""
	case api:
		return free, free
	}
	return free, freeNear(metrics)
}

func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "127.0.0.1"
	}
	return host
}

func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func sortedKeys(m map[string]int64) []string { return slices.Sorted(maps.Keys(m)) }

// Package demo runs a whole Lemma on one machine, with a demo shop and a mail
// catcher. It sends a campaign, runs a flow, and checks that every count is
// right. It calls Lemma over HTTP only, as any other client does.
//
// A second run finds what the first one created, and sends no message again.
package demo

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
	"lemma/client"
	"lemma/dev/catcher"
	"lemma/dev/postgres"
	"lemma/dev/shop"
	"lemma/migrations"
	"lemma/secrets"
	"lemma/server"
	"lemma/workspaces"
)

// Options are the options of a run.
type Options struct {
	Once    bool          // stop after the flow and print the counts as JSON; otherwise run until ctx ends
	Home    string        // folder of the database, the caught mail and the keys
	People  int           // customers of the demo shop
	SMTP    string        // address of the mail catcher for SMTP; another free port if it is in use
	Catcher string        // the same for HTTP
	Server  server.Config // with DatabaseURL: that Postgres is used instead of one in Home
	PGBin   string        // folder of initdb and postgres
	Logger  func(io.Writer) *slog.Logger
}

// Run runs the demo and prints its progress and results to out. With Once, an
// error is returned when a count is wrong.
func Run(ctx context.Context, o Options, out io.Writer) (err error) {
	h, err := start(ctx, o, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	d := &campaignDemo{api: &httpClient{base: "http://" + h.listen + "/v1", key: h.key}, out: out, quiet: !isTerminal(out)}
	c, err := d.send(ctx, h.shop.DSN, h.smtpPort())
	if err != nil {
		if ctx.Err() != nil {
			return nil // Ctrl-C while it was sending: the next run continues
		}
		return err
	}
	counts := countsOf(c, int64(h.catcher.Stats().Duplicates))
	counts.print(out)
	wrong := counts.check(c)
	f, err := runFlow(ctx, h, o.People, d.api, out)
	if ctx.Err() != nil {
		return nil
	}
	wrong = errors.Join(wrong, err, f.err())
	if o.Once {
		counts.Flow = &f
		return errors.Join(counts.json(out), wrong)
	}
	if wrong != nil {
		fmt.Fprintln(out, "\n ", wrong)
	}
	h.greet(out, c)
	<-ctx.Done()
	fmt.Fprintln(out, "\nStopping.")
	return nil
}

// runFlow runs the demo flow for customers of the shop.
func runFlow(ctx context.Context, h *home, people int, rest *httpClient, out io.Writer) (FlowCounts, error) {
	api, err := client.New("http://"+h.listen, h.key, client.UserAgent("lemma-dev"))
	if err != nil {
		return FlowCounts{}, err
	}
	d := &flowDemo{rest: rest, api: api, out: out, shop: h.shop, catcher: h.catcher, people: people}
	counts, err := d.run(ctx)
	if err != nil {
		return counts, err
	}
	return counts, counts.print(out)
}

// home is everything that a run has started, in the order of starting.
type home struct {
	dir     string
	cluster *postgres.Cluster // nil when DATABASE_URL names another Postgres
	catcher *catcher.Catcher
	shop    shop.Shop
	server  *server.Server
	key     string
	listen  string
	metrics string
	served  chan error
	stop    context.CancelFunc
}

func start(ctx context.Context, o Options, out io.Writer) (h *home, err error) {
	h = &home{dir: o.Home, served: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	if err := os.MkdirAll(o.Home, 0o755); err != nil {
		return h, err
	}
	dsn, err := h.database(ctx, o)
	if err != nil {
		return h, err
	}
	fmt.Fprintln(out, "Postgres is running.")
	if h.shop, err = shop.Create(ctx, dsn("lemma_shop"), o.People); err != nil {
		return h, fmt.Errorf("create the demo shop: %w", err)
	}
	if h.catcher, err = catcher.Start(catcher.Options{
		SMTP: freeNear(o.SMTP), HTTP: freeNear(o.Catcher), Folder: filepath.Join(o.Home, "mail"),
	}); err != nil {
		return h, fmt.Errorf("start the mail catcher: %w", err)
	}
	cfg := onThisMachine(o.Server)
	cfg.DatabaseURL = dsn("lemma")
	cfg.Listen, cfg.MetricsListen = freePair(cfg.Listen, cfg.MetricsListen)
	h.listen, h.metrics = cfg.Listen, cfg.MetricsListen
	if err := h.lemma(ctx, cfg, o.Logger); err != nil {
		return h, err
	}
	fmt.Fprintf(out, "Lemma is on http://%s, the mail catcher on %s.\n", h.listen, h.catcher.URL())
	return h, nil
}

// database finds or starts a Postgres and creates two databases: Lemma's own, and
// that of the demo shop.
func (h *home) database(ctx context.Context, o Options) (dsn func(string) string, err error) {
	if o.Server.DatabaseURL != "" {
		dsn = func(name string) string { return inDatabase(o.Server.DatabaseURL, name) }
	} else {
		if h.cluster, err = postgres.Start(ctx, postgres.Options{
			Dir: filepath.Join(h.dir, "postgres"), Bin: o.PGBin, Durable: true,
		}); err != nil {
			return nil, err
		}
		dsn = h.cluster.DSN
	}
	admin := o.Server.DatabaseURL
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

// inDatabase returns the DSN of another database on the same server.
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

// lemma migrates, creates the workspace and its key, and starts the API and the
// workers.
func (h *home) lemma(ctx context.Context, cfg server.Config, logger func(io.Writer) *slog.Logger) error {
	sealing, err := h.keep("secret", func() (string, error) { return secrets.NewKey(), nil })
	if err != nil {
		return err
	}
	box, err := secrets.ParseKeys(sealing)
	if err != nil {
		return err
	}
	pool, err := server.OpenPool(ctx, cfg)
	if err != nil {
		return err
	}
	// The terminal is for the demo: the log goes to a file.
	file, err := os.OpenFile(filepath.Join(h.dir, "lemma.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := migrations.Up(ctx, pool); err != nil {
		return err
	}
	if h.server, err = server.New(server.Deps{Pool: pool, Box: box, Log: logger(file)}, cfg); err != nil {
		return err
	}
	if err := h.server.Start(ctx); err != nil {
		return err
	}
	if h.key, err = h.apiKey(ctx, pool); err != nil {
		return err
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	h.stop = stop
	go func() { h.served <- h.server.ServeAPI(serving) }()
	return h.awaitAPI(ctx)
}

// onThisMachine allows what the demo needs: its shop and its mail catcher are on
// loopback, or on a Unix socket.
func onThisMachine(c server.Config) server.Config {
	c.Sources.AllowPrivate, c.Sources.AllowUnix = true, true
	c.Carriers.AllowPrivate = true
	return c
}

// apiKey creates a workspace and a key in the first run, and finds them in later
// ones. Only the demo stores a key in clear text.
func (h *home) apiKey(ctx context.Context, pool *pgxpool.Pool) (string, error) {
	all := workspaces.New(pool)
	ws, err := all.ByName(ctx, "Demo")
	if lemma.KindOf(err) == lemma.NotFound {
		ws, err = all.Create(ctx, "Demo")
	}
	if err != nil {
		return "", err
	}
	make := func() (string, error) {
		_, secret, err := all.CreateKey(ctx, ws.ID, workspaces.NewKey{ID: lemma.NewID(), Name: "dev", Scopes: []string{"admin"}})
		return secret, err
	}
	key, err := h.keep("key", make)
	if err != nil {
		return "", err
	}
	if _, err := all.Authenticate(ctx, key); err == nil {
		return key, nil
	}
	// The database is new, and the key is from an older one.
	if err := os.Remove(filepath.Join(h.dir, "key")); err != nil {
		return "", err
	}
	return h.keep("key", make)
}

// keep reads a secret from a file in the home folder, and creates it if there is none.
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
	if h.server != nil {
		err = errors.Join(err, h.server.Stop())
		h.server.Pool.Close()
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
	if h.metrics == "" {
		return "none (LEMMA_METRICS_LISTEN is empty)"
	}
	return "http://" + h.metrics + "/metrics"
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

Ctrl-C stops everything. The next run starts faster, and sends no message again.
`, h.listen, h.catcher.URL(), h.key, c.ID, flowName, filepath.Join(h.dir, "key"), h.metricsURL())
}

// freeNear returns the address if it is free, or else one on the same host with
// a port that the system chooses.
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

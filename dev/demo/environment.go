package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/blobs"
	"lemma/dev/catcher"
	"lemma/dev/postgres"
	"lemma/dev/shop"
	"lemma/migrations"
	"lemma/secrets"
	"lemma/server"
	"lemma/workspaces"
)

// environment is everything that a run has started, in the order of starting.
type environment struct {
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

// keptMessages is how many messages the mail catcher keeps with their content: more than
// arrive between two polls of the readers.
const keptMessages = 2 * abSample

func start(ctx context.Context, o Options, out io.Writer) (e *environment, err error) {
	e = &environment{dir: o.Home, served: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if err := os.MkdirAll(o.Home, 0o755); err != nil {
		return e, err
	}
	dsn, err := e.database(ctx, o)
	if err != nil {
		return e, err
	}
	fmt.Fprintln(out, "Postgres is running.")
	if e.shop, err = shop.Create(ctx, dsn("lemma_shop"), o.People); err != nil {
		return e, fmt.Errorf("create the demo shop: %w", err)
	}
	if e.catcher, err = catcher.Start(catcher.Options{
		SMTP: freeNear(o.SMTP), HTTP: freeNear(o.Catcher), Folder: filepath.Join(o.Home, "mail"), Keep: keptMessages,
	}); err != nil {
		return e, fmt.Errorf("start the mail catcher: %w", err)
	}
	cfg := onThisMachine(o.Server)
	cfg.DatabaseURL = dsn("lemma")
	cfg.Listen, cfg.MetricsListen = freePair(cfg.Listen, cfg.MetricsListen)
	e.listen, e.metrics = cfg.Listen, cfg.MetricsListen
	if err := e.lemma(ctx, cfg, o.Logger); err != nil {
		return e, err
	}
	fmt.Fprintf(out, "Lemma is on http://%s, the mail catcher on %s.\n", e.listen, e.catcher.URL())
	return e, nil
}

// database finds or starts a Postgres and creates two databases: Lemma's own, and
// that of the demo shop.
func (e *environment) database(ctx context.Context, o Options) (dsn func(string) string, err error) {
	if o.Server.DatabaseURL != "" {
		dsn = func(name string) string { return inDatabase(o.Server.DatabaseURL, name) }
	} else {
		if e.cluster, err = postgres.Start(ctx, postgres.Options{
			Dir: filepath.Join(e.dir, "postgres"), Bin: o.PGBin, Durable: true,
		}); err != nil {
			return nil, err
		}
		dsn = e.cluster.DSN
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
	_, err := conn.Exec(ctx, "create database "+pgx.Identifier{name}.Sanitize())
	return lemma.Wrap(err, "create database %s", name)
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
func (e *environment) lemma(ctx context.Context, cfg server.Config, logger func(io.Writer) *slog.Logger) error {
	cfg.PublicURL = cmp.Or(cfg.PublicURL, "http://"+e.listen)
	sealing, err := e.keep("secret", func() (string, error) { return secrets.NewKey(), nil })
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
	file, err := os.OpenFile(filepath.Join(e.dir, "lemma.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := migrations.Up(ctx, pool); err != nil {
		return err
	}
	files, err := blobs.OpenFolder(filepath.Join(e.dir, "blobs"))
	if err != nil {
		return err
	}
	log := logger(file)
	server.SetDefaultLog(log)
	if e.server, err = server.New(server.Deps{Pool: pool, Box: box, Log: log, Blobs: files}, cfg); err != nil {
		return err
	}
	if err := e.server.Start(ctx); err != nil {
		return err
	}
	if e.key, err = e.apiKey(ctx, pool); err != nil {
		return err
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	e.stop = stop
	go func() { e.served <- e.server.ServeAPI(serving) }()
	return e.awaitAPI(ctx)
}

// onThisMachine allows what the demo needs: its shop and its mail catcher are on
// loopback, or on a Unix socket.
func onThisMachine(c server.Config) server.Config {
	c.Sources.AllowPrivate, c.Sources.AllowUnix = true, true
	c.Campaigns.EventGrace = 5 * time.Second // its transactions are short, and its A/B test is watched
	c.Carriers.AllowPrivate, c.Carriers.AllowStrange, c.Carriers.ShowPrivate = true, true, true
	return c
}

// apiKey creates a workspace and a key in the first run, and finds them in later
// ones. Only the demo stores a key in clear text.
func (e *environment) apiKey(ctx context.Context, pool *pgxpool.Pool) (string, error) {
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
	key, err := e.keep("key", make)
	if err != nil {
		return "", err
	}
	if _, err := all.Authenticate(ctx, key); err == nil {
		return key, nil
	}
	// The database is new, and the key is from an older one.
	if err := os.Remove(filepath.Join(e.dir, "key")); err != nil {
		return "", err
	}
	return e.keep("key", make)
}

// keep reads a secret from a file in its folder, and creates it if there is none.
func (e *environment) keep(name string, make func() (string, error)) (string, error) {
	file := filepath.Join(e.dir, name)
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

func (e *environment) smtpPort() int {
	addr, err := net.ResolveTCPAddr("tcp", e.catcher.Addr())
	if err != nil {
		return 0
	}
	return addr.Port
}

// close stops everything: first the workers, since the listeners wait for requests.
func (e *environment) close() (err error) {
	if e.server != nil {
		err = e.server.Stop()
	}
	if e.stop != nil {
		e.stop()
		err = errors.Join(err, <-e.served)
	}
	if e.server != nil {
		e.server.Pool.Close()
	}
	if e.catcher != nil {
		e.catcher.Close()
	}
	if e.cluster != nil {
		err = errors.Join(err, e.cluster.Stop())
	}
	return err
}

func (e *environment) metricsURL() string {
	if e.metrics == "" {
		return "none (LEMMA_METRICS_LISTEN is empty)"
	}
	return "http://" + e.metrics + "/metrics"
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

func (e *environment) awaitAPI(ctx context.Context) error {
	for ctx.Err() == nil {
		conn, err := net.DialTimeout("tcp", e.listen, time.Second)
		if err == nil {
			return conn.Close()
		}
		select {
		case err := <-e.served: // it has ended: close does not wait for it
			e.stop()
			e.stop = nil
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
	return ctx.Err()
}

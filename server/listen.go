package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
)

// Limits of every listener, against slow clients. Package api bounds how long the
// work for a request may take (50 s).
const (
	maxHeader   = 16 << 10         // bytes; short fields take sixteen times as much memory
	headerTime  = 10 * time.Second // for the header of a request
	bodyTime    = 5 * time.Second  // for the first bytes of a body; more when it arrives faster than bodyRate
	requestTime = 30 * time.Second // for the whole body; not for the work that follows
	totalTime   = 2 * time.Minute  // from the header to the end of the response: more than the body, the work and the response
	answerTime  = 30 * time.Second // for the client to receive the response
	writeTime   = 10 * time.Second // for the client to receive the next writeSize bytes of it
	idleTime    = 2 * time.Minute  // between two requests
	silentTime  = time.Second      // for the header of a first request, or a body, while all connections are in use
	slowTime    = 5 * time.Second  // for the client to receive responses, while all connections are in use
	unreadTime  = time.Second      // for the rest of a body that is not read
	stopTime    = 15 * time.Second // for running requests when the process stops
)

// writeSize is how many bytes are written to a connection at a time.
const writeSize = 32 << 10

// opsConnections bounds the connections of a listener for operators.
const opsConnections = 32

// endpoint is an address and its handler.
type endpoint struct {
	name    string // in metrics and errors
	address string
	opened  net.Listener // on address; nil: serve opens it
	handler http.Handler
	most    int // connections at a time
	limits  timeLimits
}

// timeLimits of zero are the constants above.
type timeLimits struct {
	header, body, request, total, answer, write, idle, silent, slow, unread time.Duration
}

func (l timeLimits) withDefaults() timeLimits {
	for _, d := range []struct {
		set       *time.Duration
		otherwise time.Duration
	}{{&l.header, headerTime}, {&l.body, bodyTime}, {&l.request, requestTime}, {&l.total, totalTime}, {&l.answer, answerTime},
		{&l.write, writeTime}, {&l.idle, idleTime}, {&l.silent, silentTime}, {&l.slow, slowTime}, {&l.unread, unreadTime}} {
		if *d.set == 0 {
			*d.set = d.otherwise
		}
	}
	return l
}

// connectionMetrics count the connections of the listeners of a process.
type connectionMetrics struct {
	open             *prometheus.GaugeVec
	refused, evicted *prometheus.CounterVec
}

func newConnectionMetrics(r prometheus.Registerer) *connectionMetrics {
	label := []string{"listener"}
	m := &connectionMetrics{
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "lemma_http_connections",
			Help: "Open connections, by listener (api, metrics, work)."}, label),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_http_connections_refused_total",
			Help: "Connections refused with 503 because LEMMA_MAX_CONNECTIONS were in use."}, label),
		evicted: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_http_connections_evicted_total",
			Help: "Connections that were closed for a new one: without a request or a known key, or whose client sent or received slowly."},
			label),
	}
	r.MustRegister(m.open, m.refused, m.evicted)
	for _, listener := range []string{"api", "metrics", "work"} {
		m.refused.WithLabelValues(listener) // increase() leaves out the first one otherwise
	}
	return m
}

// ServeAPI serves the API, the metrics and LMTP beside it, until ctx ends.
func (s *Server) ServeAPI(ctx context.Context) error {
	s.newAPI() // before the first request
	s.log.Info("serving", "listen", s.cfg.Listen, "metrics", s.cfg.MetricsListen)
	both, ctx := errgroup.WithContext(ctx)
	if s.river == nil { // the workers do it otherwise
		s.findSettings(ctx)
		both.Go(func() error { s.Settings.Loop(ctx); return nil })
		both.Go(func() error { s.Exports.Help(ctx); return nil })
		both.Go(func() error { s.follow(ctx); return nil })
	}
	both.Go(func() error { return serve(ctx, s.log, s.connections, s.apiEndpoints()...) })
	both.Go(func() error { return s.serveMail(ctx) })
	return both.Wait()
}

// findSettings waits at most 5 s for the database. A process that serves is ready later if
// the database is away, or not migrated.
func (s *Server) findSettings(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := s.Settings.Sync(ctx); err != nil {
		s.log.WarnContext(ctx, "the settings of all processes cannot be read yet", "error", err)
	}
}

func (s *Server) apiEndpoints() []endpoint {
	all := []endpoint{{name: "api", address: s.cfg.Listen, handler: s.API, most: s.cfg.MaxConnections}}
	if s.cfg.MetricsListen != "" && s.cfg.MetricsListen != s.cfg.Listen {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", metricsHandler(s.metrics))
		all = append(all, endpoint{name: "metrics", address: s.cfg.MetricsListen, handler: mux, most: opsConnections})
	}
	return all
}

// ServeWork serves the health checks and metrics of a process without the API, if
// they have an address, until ctx ends.
func (s *Server) ServeWork(ctx context.Context) error {
	s.log.Info("working", "process", s.Sender.Process(), "workers", s.cfg.SendWorkers)
	if s.cfg.WorkListen == "" {
		<-ctx.Done()
		return nil
	}
	return serve(ctx, s.log, s.connections,
		endpoint{name: "work", address: s.cfg.WorkListen, handler: s.healthHandler(), most: opsConnections})
}

func (s *Server) healthHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := s.ready(r.Context()); err != nil {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	})
	mux.Handle("GET /metrics", metricsHandler(s.metrics))
	return mux
}

// serve serves all endpoints until ctx ends or one of them fails, then waits for
// running requests.
func serve(ctx context.Context, log *slog.Logger, counts *connectionMetrics, all ...endpoint) error {
	var servers []*http.Server
	var gates []*gate
	for _, e := range all {
		l, err := e.listen(ctx)
		if err != nil {
			for _, g := range gates {
				_ = g.Close()
			}
			return fmt.Errorf("listen on %s for %s: %w", e.address, e.name, err)
		}
		g := newGate(l, e, counts)
		gates, servers = append(gates, g), append(servers, e.server(g, log))
	}
	failed := make(chan error, len(servers))
	for i, s := range servers {
		go func() { failed <- s.Serve(gates[i]) }()
	}
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	var stopped sync.WaitGroup
	errs := make([]error, len(servers))
	for i, s := range servers {
		stopped.Go(func() { errs[i] = s.Shutdown(stop) })
	}
	stopped.Wait()
	return errors.Join(errors.Join(errs...), err)
}

func (e endpoint) listen(ctx context.Context) (net.Listener, error) {
	if e.opened != nil {
		return e.opened, nil
	}
	return (&net.ListenConfig{}).Listen(ctx, "tcp", e.address)
}

func (e endpoint) server(g *gate, log *slog.Logger) *http.Server {
	limits := e.limits.withDefaults()
	return &http.Server{Handler: bounded(e.handler, limits), ConnState: g.state, ConnContext: withConnection, MaxHeaderBytes: maxHeader,
		ErrorLog: newErrorLog(log, e.name), ReadHeaderTimeout: limits.header, ReadTimeout: limits.request,
		WriteTimeout: limits.total, IdleTimeout: limits.idle}
}

// gate is a listener that bounds the open connections. At the bound, a new
// connection replaces the one whose client the server has waited for longest: an
// idle one, whose client can reconnect, one without a first request or whose body
// has not arrived for silentTime, or one whose client has not received its responses
// for slowTime. Without one it replaces one without a known API key, chosen at random, and it does
// so first while more than half of all are such. So clients without a key keep no others out,
// however long they send, receive, or wait for a place or the database, and while there are too
// many of them most are still answered. Without any such connection the new one is refused with 503.
type gate struct {
	net.Listener
	name   string
	most   int
	limits timeLimits
	counts *connectionMetrics
	busy   chan struct{} // bounds how many connections are being refused

	mu   sync.Mutex
	open map[*gated]waiting
}

// waiting is the state of a connection and when it began.
type waiting struct {
	state    http.ConnState // new and idle connections have no request
	since    time.Time
	arriving time.Time // since when a body arrives; zero: none does
	known    bool      // the request has a valid API key

	writing time.Time     // when the current write began; zero: there is none
	wrote   time.Time     // when the last one ended
	blocked time.Duration // writes took so long, less the time between them; those of pipelined requests too
}

// write records that a write begins.
func (w *waiting) write(now time.Time) {
	w.blocked, w.writing = max(0, w.blocked-now.Sub(w.wrote)), now
}

// written records that it has ended.
func (w *waiting) written(now time.Time) {
	w.blocked, w.writing, w.wrote = w.blocked+now.Sub(w.writing), time.Time{}, now
}

// time returns how long the server has waited for the client, and whether the
// connection may be closed for it.
func (w waiting) time(l timeLimits) (waited time.Duration, mayClose bool) {
	switch {
	case w.state == http.StateIdle:
		return time.Since(w.since), true
	case w.state == http.StateNew:
		waited = time.Since(w.since)
		return waited, waited >= l.silent
	case !w.arriving.IsZero():
		waited = time.Since(w.arriving)
		return waited, waited >= l.silent
	case w.writing.IsZero():
		return 0, false
	}
	waited = w.blocked + time.Since(w.writing)
	return waited, waited >= l.slow
}

// isStranger reports whether a connection has no request with a known key, whatever it does.
func (w waiting) isStranger() bool { return w.state != http.StateIdle && !w.known }

func newGate(l net.Listener, e endpoint, counts *connectionMetrics) *gate {
	return &gate{Listener: l, name: e.name, most: e.most, limits: e.limits.withDefaults(), counts: counts, busy: make(chan struct{}, 64),
		open: map[*gated]waiting{}}
}

// Accept returns the next connection that is within the bound.
func (g *gate) Accept() (net.Conn, error) {
	for {
		conn, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := g.admit(conn); c != nil {
			return c, nil
		}
		g.counts.refused.WithLabelValues(g.name).Inc()
		g.refuse(conn)
	}
}

// admit adds a connection, or returns nil when there are too many.
func (g *gate) admit(conn net.Conn) *gated {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.open) >= g.most && !g.evict() {
		return nil
	}
	c := &gated{Conn: conn, gate: g}
	g.open[c] = waiting{state: http.StateNew, since: time.Now()}
	g.counts.open.WithLabelValues(g.name).Inc()
	return c
}

// evict closes a connection, if one may be closed: first one that is idle, or slow without a known
// key. Then clients that open many connections lose their own: one without a known key at random
// while these are more than half of all, and otherwise one with a key that is slow. Of several, it
// is the one that has been waited for longest.
func (g *gate) evict() bool {
	var idle, slow, stranger *gated // slow ones have a known key
	var idleFor, slowFor time.Duration
	strangers := 0
	for c, w := range g.open {
		waited, mayClose := w.time(g.limits)
		switch {
		case mayClose && !w.known:
			if idle == nil || waited > idleFor {
				idle, idleFor = c, waited
			}
		case mayClose:
			if slow == nil || waited > slowFor {
				slow, slowFor = c, waited
			}
		case w.isStranger():
			if strangers++; rand.IntN(strangers) == 0 {
				stranger = c
			}
		}
	}
	order := []*gated{idle, slow, stranger}
	if strangers > g.most/2 {
		order = []*gated{idle, stranger, slow}
	}
	for _, c := range order {
		if c != nil {
			g.remove(c)
			g.counts.evicted.WithLabelValues(g.name).Inc()
			_ = c.Conn.Close()
			return true
		}
	}
	return false
}

// remove stops counting a connection, once. The caller holds the lock.
func (g *gate) remove(c *gated) {
	if _, open := g.open[c]; open {
		delete(g.open, c)
		if c.cancel != nil {
			c.cancel()
		}
		g.counts.open.WithLabelValues(g.name).Dec()
	}
}

// state is the ConnState hook of http.Server.
func (g *gate) state(conn net.Conn, s http.ConnState) {
	c, ok := conn.(*gated)
	if !ok {
		return
	}
	c.record(func(w *waiting) { w.state, w.since, w.arriving, w.known = s, time.Now(), time.Time{}, false })
}

const tooMany = `{"type":"urn:lemma:problem:too_many_connections","title":"Service Unavailable","status":503,` +
	`"code":"too_many_connections",` +
	`"detail":"the server has too many open connections; try again later","request_id":""}` + "\n"

// refuse responds with 503 and closes the connection in the background. It waits
// for the request first: closing a connection with unread bytes discards the
// response.
func (g *gate) refuse(conn net.Conn) {
	select {
	case g.busy <- struct{}{}:
	default:
		_ = conn.Close()
		return
	}
	go func() {
		defer func() { <-g.busy }()
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		_, err := conn.Write([]byte("HTTP/1.1 503 Service Unavailable\r\n" +
			"Content-Type: application/problem+json\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: " +
			strconv.Itoa(len(tooMany)) + "\r\n\r\n" + tooMany))
		if half, ok := conn.(interface{ CloseWrite() error }); ok && err == nil && half.CloseWrite() == nil {
			var rest [4 << 10]byte
			_, _ = conn.Read(rest[:]) // the request; then the response has arrived
		}
	}()
}

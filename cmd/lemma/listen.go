package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Limits of every listener: a slow connection holds its place no longer. How
// long the work for a request may take is bounded by package api (50 s).
const (
	maxHeader   = 64 << 10         // bytes
	headerTime  = 10 * time.Second // for the header of a request
	requestTime = 30 * time.Second // for the whole request; not for the work that follows
	totalTime   = 2 * time.Minute  // from the header to the end of the answer: more than the body, the work and 30 s for the answer
	idleTime    = 2 * time.Minute  // between two requests
	silentTime  = time.Second      // for the header of a first request, while others wait for a place
	unreadTime  = time.Second      // for the rest of a body that is not read
	stopTime    = 15 * time.Second // for requests that run when the process is to end
)

// opsConnections bound a listener that is for the operator alone.
const opsConnections = 32

// endpoint is an address and what answers there.
type endpoint struct {
	name    string // in metrics and errors
	address string
	opened  net.Listener // on address; nil: serve opens it
	handler http.Handler
	most    int // connections at a time
	limits  timeLimits
}

// timeLimits of zero are the constants above.
type timeLimits struct{ header, request, total, idle, silent, unread time.Duration }

func (l timeLimits) withDefaults() timeLimits {
	for _, d := range []struct {
		set       *time.Duration
		otherwise time.Duration
	}{{&l.header, headerTime}, {&l.request, requestTime}, {&l.total, totalTime}, {&l.idle, idleTime}, {&l.silent, silentTime}, {&l.unread, unreadTime}} {
		if *d.set == 0 {
			*d.set = d.otherwise
		}
	}
	return l
}

// connectionMetrics count the connections of a process's listeners.
type connectionMetrics struct {
	open             *prometheus.GaugeVec
	refused, evicted *prometheus.CounterVec
}

func newConnectionMetrics(r prometheus.Registerer) *connectionMetrics {
	label := []string{"listener"}
	m := &connectionMetrics{
		open:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "lemma_http_connections", Help: "Open connections, by listener (api, metrics, work)."}, label),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_http_connections_refused_total", Help: "Connections that were answered with 503, since LEMMA_MAX_CONNECTIONS were in use."}, label),
		evicted: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_http_connections_evicted_total", Help: "Connections without a request that were closed to make room for new ones."}, label),
	}
	r.MustRegister(m.open, m.refused, m.evicted)
	return m
}

// serve answers at all endpoints until ctx ends or one of them fails, then lets
// requests finish.
func serve(ctx context.Context, log *slog.Logger, counts *connectionMetrics, all ...endpoint) error {
	var servers []*http.Server
	var gates []*gate
	for _, e := range all {
		l, err := e.listen()
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
	return errors.Join(append(errs, err)...)
}

func (e endpoint) listen() (net.Listener, error) {
	if e.opened != nil {
		return e.opened, nil
	}
	return net.Listen("tcp", e.address)
}

func (e endpoint) server(g *gate, log *slog.Logger) *http.Server {
	limits := e.limits.withDefaults()
	return &http.Server{Handler: unread(e.handler, limits.unread), ConnState: g.state, MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ReadHeaderTimeout: limits.header, ReadTimeout: limits.request, WriteTimeout: limits.total, IdleTimeout: limits.idle}
}

// gate is a listener with a bound of connections. Beyond it a connection gives
// way that has no request: one that is idle, since its client opens another one
// at no cost, or one that has sent none for silentTime. The one that has waited
// longest is closed, so that whoever opens many pushes out their own. If there is
// none, the new connection is answered with 503 and closed.
type gate struct {
	net.Listener
	name   string
	most   int
	silent time.Duration
	counts *connectionMetrics
	busy   chan struct{} // bounds how many are being answered with 503

	mu   sync.Mutex
	open map[*gated]waiting
}

// waiting is since when a connection has no request.
type waiting struct {
	state http.ConnState // new or idle; of another one nothing is waited for
	since time.Time
}

func newGate(l net.Listener, e endpoint, counts *connectionMetrics) *gate {
	return &gate{Listener: l, name: e.name, most: e.most, silent: e.limits.withDefaults().silent, counts: counts, busy: make(chan struct{}, 64), open: map[*gated]waiting{}}
}

// Accept answers with the next connection that has a place.
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

// admit gives a connection a place, or answers nil.
func (g *gate) admit(conn net.Conn) *gated {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.open) >= g.most && !g.makeRoom() {
		return nil
	}
	c := &gated{Conn: conn, gate: g}
	g.open[c] = waiting{http.StateNew, time.Now()}
	g.counts.open.WithLabelValues(g.name).Inc()
	return c
}

// makeRoom closes the connection that has waited longest, if one may be closed.
func (g *gate) makeRoom() bool {
	var oldest *gated
	for c, w := range g.open {
		mayGo := w.state == http.StateIdle || w.state == http.StateNew && time.Since(w.since) >= g.silent
		if mayGo && (oldest == nil || w.since.Before(g.open[oldest].since)) {
			oldest = c
		}
	}
	if oldest == nil {
		return false
	}
	g.forget(oldest)
	g.counts.evicted.WithLabelValues(g.name).Inc()
	_ = oldest.Conn.Close()
	return true
}

// forget frees a connection's place, once. The caller holds the lock.
func (g *gate) forget(c *gated) {
	if _, there := g.open[c]; there {
		delete(g.open, c)
		g.counts.open.WithLabelValues(g.name).Dec()
	}
}

// state is http.Server's report of what a connection does.
func (g *gate) state(conn net.Conn, s http.ConnState) {
	c, ok := conn.(*gated)
	if !ok {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, there := g.open[c]; there {
		g.open[c] = waiting{s, time.Now()}
	}
}

const tooMany = `{"type":"urn:lemma:problem:too_many_connections","title":"Service Unavailable","status":503,"code":"too_many_connections",` +
	`"detail":"the server has as many connections as it takes; try again later","request_id":""}` + "\n"

// refuse answers without having read, which takes a moment: a connection that is
// closed with unread bytes in it loses the answer.
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
		_, err := conn.Write([]byte("HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: " +
			strconv.Itoa(len(tooMany)) + "\r\n\r\n" + tooMany))
		if half, ok := conn.(interface{ CloseWrite() error }); ok && err == nil && half.CloseWrite() == nil {
			var rest [4 << 10]byte
			_, _ = conn.Read(rest[:]) // what was on its way; then the answer has arrived
		}
	}()
}

// gated is a connection that has a place.
type gated struct {
	net.Conn
	gate *gate
}

// Close frees the place.
func (c *gated) Close() error {
	c.gate.mu.Lock()
	c.gate.forget(c)
	c.gate.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite is what http.Server ends a connection with, so that its last answer
// arrives although the request was not read to its end.
func (c *gated) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

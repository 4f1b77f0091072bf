package api

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"lemma"
	"lemma/audience"
	"lemma/slots"
)

// cost is what kind of slot an action takes, so that the requests of one
// workspace do not take the processors of the others.
type cost int

const (
	cheap          cost = iota
	renders             // compiles or renders what the request names
	previews            // so, and may wait for a data source: its slots are not those of renders
	dryRunPreviews      // as previews, with dry_run=true alone
	answers             // writes nothing: its slot is given back when its answer has been written
)

// limitsOfCosts hold for renders and for previews, each by itself. An answer to
// a read can have several MB, which are held for as long as its caller takes to
// receive it.
var (
	limitsOfCosts = slots.Limits{Process: 16, Workspace: 4}
	limitsOfReads = slots.Limits{Process: 128, Workspace: 32}
)

// costly is an action that takes a slot while it is carried out.
func costly(kind cost, a action) action {
	a.cost = kind
	return a
}

func newSlots(m *Metrics) map[cost]*slots.Slots {
	of := func(l slots.Limits, doing, suffix string) *slots.Slots {
		whose := map[string]string{"workspace": "too many requests of this workspace ", "process": "too many requests "}
		return slots.New(l, func(limit string) error {
			m.refused(limit + suffix)
			return &lemma.Error{Kind: lemma.Unavailable, Code: audience.CodeOverloaded, Message: whose[limit] + doing + " now; try again in a moment"}
		})
	}
	const rendering = "render, validate or preview"
	return map[cost]*slots.Slots{renders: of(limitsOfCosts, rendering, ""), previews: of(limitsOfCosts, rendering, ""),
		answers: of(limitsOfReads, "read, or receive their answer slowly,", "_reads")}
}

// enter takes the slot that a call of this cost needs.
func (s *server) enter(ctx context.Context, kind cost, c *call) (leave func(), err error) {
	if kind == dryRunPreviews && c.dryRun() {
		kind = previews
	}
	taken, limited := s.slots[kind]
	if !limited {
		return func() {}, nil
	}
	return taken.Enter(ctx, slots.Resource{Workspace: c.workspace()})
}

// enterRead takes the slot of a call that writes nothing. It is given back by
// serve, once the answer has been written.
func (s *server) enterRead(ctx context.Context, e endpoint, c *call) error {
	if e.method != http.MethodGet && e.do.writes && !c.dryRun() {
		return nil
	}
	leave, err := s.enter(ctx, answers, c)
	if err == nil {
		trailOf(c.request.Context()).written = leave
	}
	return err
}

// Metrics count the requests that were refused without being carried out.
type Metrics struct{ overloaded *prometheus.CounterVec }

// NewMetrics registers them.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{overloaded: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_api_requests_refused_total",
		Help: "Requests that were refused because too many were carried out: renders and previews by workspace and process, reads by workspace_reads and process_reads."}, []string{"limit"})}
	r.MustRegister(m.overloaded)
	return m
}

func (m *Metrics) refused(limit string) {
	if m != nil {
		m.overloaded.WithLabelValues(limit).Inc()
	}
}

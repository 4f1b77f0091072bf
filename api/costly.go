package api

import (
	"bytes"
	"context"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lemma"
	"lemma/audience"
	"lemma/slots"
)

// cost is the kind of slot that an action takes, so that the requests of one workspace
// do not use the processors of the others.
type cost int

const (
	cheap          cost = iota
	renders             // compiles or renders templates
	previews            // renders, and may wait for a data source: has slots of its own
	dryRunPreviews      // previews if dry_run=true
	connects            // may wait for a data source, for which package audience has slots
	gathered            // writes that flows/admission bounds; no slot of writes
	requests            // any request; released when its answer has been written
	bodies              // a byte of a body in memory
	decodings           // decoding a body
	imports             // a CSV of up to maxUpload bytes in memory
	answers             // writes nothing; released when its answer has been written
	answerBytes         // a byte of a large answer in memory; likewise
	writtenBytes        // a byte of a large answer of a call that writes; likewise
	writes              // writes rows
	slowWrites          // writes rows, and may wait for a data source
	queriesSource       // waits for a data source, for which package audience has slots, and writes nothing
	database            // works on the database: it may hold a connection
)

// limitsOfCosts hold for renders and for previews, each by itself. The answer to a read
// can have several MB, which stay in memory until the caller has received them. A write
// can wait for a row that other requests of its workspace write, and holds a connection to
// the database meanwhile.
var (
	limitsOfCosts     = slots.Limits{Process: 16, Workspace: 4}
	limitsOfReads     = slots.Limits{Process: 128, Workspace: 32}
	limitsOfWrites    = slots.Limits{Process: 32, Workspace: 16}
	limitsOfBodies    = slots.Limits{Process: 128 << 20, Workspace: 32 << 20}
	limitsOfAnswers   = slots.Limits{Process: 128 << 20, Workspace: 32 << 20}
	limitsOfWritten   = slots.Limits{Workspace: 16 << 20} // no workspace keeps another from its answer
	limitsOfImports   = slots.Limits{Process: 2, Workspace: 1}
	limitsOfDecodings = slots.Limits{Process: 16, Workspace: max(1, min(4, runtime.GOMAXPROCS(0)-1))}
)

// limitsOfDatabase are the requests that work on the database, for a pool of so many
// connections: one workspace has a quarter of them, and a third is left for the workers.
// Events and enrollments have six more at most: see flows/admission.
func limitsOfDatabase(connections int) slots.Limits {
	return slots.Limits{Process: max(2, connections*2/3), Workspace: max(1, connections/4)}
}

// limitsOfSlowWrites are those that may wait for a data source. They hold a connection only
// before and after, and not one that limitsOfDatabase counts.
func limitsOfSlowWrites(connections int) slots.Limits {
	return slots.Limits{Process: max(2, connections/4), Workspace: max(1, connections/8)}
}

// countsAsDatabase reports whether a call of a cost takes a slot of database. Those that do
// not wait for a data source, a body, or others of their kind, and have limits of their own.
func countsAsDatabase(kind cost) bool {
	switch kind {
	case gathered, imports, connects, previews, queriesSource:
		return false
	}
	return true
}

// readTime bounds a request that only reads the database.
const readTime = 10 * time.Second

// smallBody is the number of bytes that each body counts at least. A body up to this size
// is decoded without a slot.
const smallBody = 4 << 10

// smallAnswer is the number of bytes up to which answers are bounded by their number alone.
const smallAnswer = 64 << 10

// costly gives an action its cost.
func costly(kind cost, a action) action {
	a.cost = kind
	return a
}

func newSlots(m *Metrics, ofWorkspace, connections int) map[cost]*slots.Slots {
	of := func(l slots.Limits, doing, suffix string) *slots.Slots {
		whose := map[string]string{"workspace": "too many requests of this workspace ", "process": "too many requests "}
		return slots.New(l, func(limit string) error {
			m.refused(limit + suffix)
			return &lemma.Error{Kind: lemma.Unavailable, Code: audience.CodeOverloaded,
				Message: whose[limit] + doing + " now; try again in a moment"}
		})
	}
	const receiving = "have large answers, or receive them slowly,"
	const rendering = "render, validate or preview"
	return map[cost]*slots.Slots{renders: of(limitsOfCosts, rendering, ""), previews: of(limitsOfCosts, rendering, ""),
		requests:  of(slots.Limits{Workspace: ofWorkspace}, "are in progress", "_requests"),
		bodies:    of(limitsOfBodies, "have large bodies, or send them slowly,", "_bodies"),
		decodings: of(limitsOfDecodings, "have large bodies", "_decodings"),
		imports:   of(limitsOfImports, "import", "_imports"),
		answers:   of(limitsOfReads, "read, or receive their answer slowly,", "_reads"), writes: of(limitsOfWrites, "write", "_writes"),
		answerBytes:  of(limitsOfAnswers, receiving, "_answers"),
		writtenBytes: of(limitsOfWritten, receiving, "_written"),
		slowWrites:   of(limitsOfSlowWrites(connections), "write", "_writes"),
		database:     of(limitsOfDatabase(connections), "work on the database", "_database")}
}

// costOf is the cost of a call.
func (c *call) costOf(kind cost) cost {
	if kind == dryRunPreviews && c.dryRun() {
		return previews
	}
	return kind
}

// enterDatabase takes the slot of a call that works on the database.
func (s *server) enterDatabase(ctx context.Context, kind cost, c *call) (leave func(), err error) {
	if !countsAsDatabase(c.costOf(kind)) {
		return func() {}, nil
	}
	return s.enter(ctx, database, c)
}

// timeout is how long a call may take.
func (s *server) timeout(e endpoint, c *call) time.Duration {
	if !c.writes(e) && countsAsDatabase(c.costOf(e.do.cost)) {
		return min(s.Timeout, readTime)
	}
	return s.Timeout
}

// enter takes the slot that a call of this cost needs.
func (s *server) enter(ctx context.Context, kind cost, c *call) (leave func(), err error) {
	kind = c.costOf(kind)
	taken, limited := s.slots[kind]
	if !limited {
		return func() {}, nil
	}
	return taken.Enter(ctx, slots.Resource{Workspace: c.workspace()})
}

// enterRequest takes the slot of any call. It does not wait, since a request that waits
// holds a connection. serve releases it once the answer has been written.
func (s *server) enterRequest(c *call) error {
	leave, err := s.slots[requests].Try(slots.Resource{Workspace: c.workspace()})
	if err == nil {
		c.hold(leave)
	}
	return err
}

// enterBody takes the memory for the body of a call, before the body is read.
func (s *server) enterBody(c *call) (leave func(), err error) {
	length := c.request.ContentLength
	switch {
	case length == 0:
		return func() {}, nil
	case length < 0 || length > maxBody:
		length = maxBody
	}
	return s.slots[bodies].EnterN(c.request.Context(), slots.Resource{Workspace: c.workspace()}, int(max(length, smallBody)))
}

// enterDecoding takes the slot for decoding the body of a call.
func (s *server) enterDecoding(ctx context.Context, c *call) (leave func(), err error) {
	if len(c.body) <= smallBody {
		return func() {}, nil
	}
	return s.slots[decodings].Enter(ctx, slots.Resource{Workspace: c.workspace()})
}

// enterWork takes a slot of writes, or of answers if the call writes nothing. serve
// releases the latter once the answer has been written.
func (s *server) enterWork(ctx context.Context, e endpoint, c *call) (leave func(), err error) {
	if c.writes(e) {
		switch e.do.cost {
		case gathered:
			return func() {}, nil
		case connects, previews:
			return s.enter(ctx, slowWrites, c)
		}
		return s.enter(ctx, writes, c)
	}
	leave, err = s.enter(ctx, answers, c)
	if err == nil {
		c.hold(leave)
	}
	return func() {}, err
}

// sendable takes the memory for an answer until it has been written. Without it the call has
// another answer. Only what was read waits for memory: other answers would wait without a slot,
// or hold one of writes.
func (s *server) sendable(ctx context.Context, e endpoint, c *call, answer reply) reply {
	if len(answer.body) <= smallAnswer {
		return answer
	}
	of := slots.Resource{Workspace: c.workspace()}
	var leave func()
	var err error
	if c.writes(e) || answer.status >= http.StatusBadRequest {
		leave, err = s.slots[writtenBytes].TryN(of, len(answer.body))
	} else {
		leave, err = s.slots[answerBytes].EnterN(ctx, of, len(answer.body))
	}
	switch {
	case err == nil:
		c.hold(leave)
		answer.body = bytes.Clone(answer.body) // its buffer may be twice as large
		return answer
	case c.writes(e) && answer.status < http.StatusBadRequest:
		err = c.answerNotSent(e)
	}
	return s.fail(c.request, err)
}

const codeNotSent = "answer_not_sent"

// answerNotSent is the answer to a request that was carried out, now or by an earlier try. Only
// under a key is it worth repeating.
func (c *call) answerNotSent(e endpoint) error {
	r := &refusal{status: http.StatusServiceUnavailable, code: codeNotSent,
		detail: "the request was carried out, and its answer was not sent: too many large answers are being received; read what it has changed"}
	if c.keyOf(e) != "" {
		r.detail = "the request was carried out, and its answer was not sent: too many large answers are being received; repeat it for the answer"
		r.header = map[string]string{"Retry-After": "5"}
	}
	return r
}

// hold keeps a slot until the answer has been written.
func (c *call) hold(leave func()) {
	t := infoOf(c.request.Context())
	t.held = append(t.held, leave)
}

// Metrics counts requests that were refused before they were carried out, and answers that were not sent.
type Metrics struct{ overloaded *prometheus.CounterVec }

// NewMetrics returns registered metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{overloaded: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_api_requests_refused_total",
		Help: "Requests that were refused because too many were carried out, or whose answer was not sent, by limit: workspace and process for " +
			"renders and previews; others have a suffix."}, []string{"limit"})}
	r.MustRegister(m.overloaded)
	return m
}

func (m *Metrics) refused(limit string) {
	if m != nil {
		m.overloaded.WithLabelValues(limit).Inc()
	}
}

package webhooks

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/pgtest"
	"lemma/secrets"
)

// bundle is a new database with a workspace, and a customer's system.
type bundle struct {
	*Webhooks
	pgtest.Shop
	box      *secrets.Box
	receiver *receiver
	settled  *outcomes
}

func setup(t testing.TB, change func(*Options)) bundle {
	t.Helper()
	o := Options{AllowPrivate: true, Timeout: 5 * time.Second, Poll: 5 * time.Millisecond}
	if change != nil {
		change(&o)
	}
	b := bundle{Shop: pgtest.NewShop(t), box: pgtest.Box(t), receiver: newReceiver(t), settled: &outcomes{}}
	b.Webhooks = b.another(b.Pool, o)
	return b
}

// another returns Webhooks on the same tables, as of another process.
func (b bundle) another(pool *pgxpool.Pool, o Options) *Webhooks {
	w := New(Deps{Pool: pool, Box: b.box}, o)
	w.OnSettled(b.settled.add)
	return w
}

// outcomes are the outcomes that OnSettled was called with.
type outcomes struct {
	mutex sync.Mutex
	all   []Outcome
	fail  error
}

func (o *outcomes) add(_ context.Context, _ pgx.Tx, all []Outcome) error {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if o.fail != nil {
		return o.fail
	}
	o.all = append(o.all, all...)
	return nil
}

func (o *outcomes) failing(err error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.fail = err
}

func (o *outcomes) list() []Outcome {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return append([]Outcome(nil), o.all...)
}

// received is a request as it arrived.
type received struct {
	path, method, body string
	header             http.Header
}

// receiver is a customer's system. Its default answer is 200.
type receiver struct {
	*httptest.Server
	mutex    sync.Mutex
	requests []received
	answer   func(w http.ResponseWriter, r *http.Request)
}

func newReceiver(t testing.TB) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	r.mutex.Lock()
	r.requests = append(r.requests, received{q.URL.Path, q.Method, string(body), q.Header.Clone()})
	answer := r.answer
	r.mutex.Unlock()
	if answer != nil {
		answer(w, q)
	}
}

// answers sets how the next requests are answered.
func (r *receiver) answers(f func(w http.ResponseWriter, q *http.Request)) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.answer = f
}

func (r *receiver) status(code int) {
	r.answers(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
}

func (r *receiver) all() []received {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return append([]received(nil), r.requests...)
}

// endpoint creates an endpoint at the receiver.
func (b bundle) endpoint(path string) (Endpoint, string) {
	b.T.Helper()
	e, secret, err := b.Create(b.T.Context(), b.Workspace,
		NewEndpoint{ID: lemma.NewID(), Name: "shop " + uuid.NewString(), URL: b.receiver.URL + path})
	b.Must(err)
	return e, secret
}

// message is a message to an endpoint, with an enrollment that waits for its answer.
func (b bundle) message(e Endpoint) Message {
	return Message{WorkspaceID: b.Workspace, ID: uuid.New(), EndpointID: e.ID, Body: []byte(`{"profile": "ann",  "n":1}`),
		EnrollmentID: lemma.NewID(), Step: 3}
}

// write commits messages.
func (b bundle) write(all ...Message) {
	b.T.Helper()
	b.Must(pgx.BeginFunc(b.T.Context(), b.Pool, func(tx pgx.Tx) error { return b.Write(b.T.Context(), tx, all) }))
}

// written creates an endpoint and writes one message to it.
func (b bundle) written() Message {
	b.T.Helper()
	e, _ := b.endpoint("/")
	m := b.message(e)
	b.write(m)
	return m
}

// run calls RunOnce, which must claim n messages.
func (b bundle) run(w *Webhooks, n int) {
	b.T.Helper()
	got, err := w.RunOnce(b.T.Context())
	b.Must(err)
	if got != n {
		b.T.Fatalf("%d messages were claimed, want %d", got, n)
	}
}

// bodies are the bodies of an endpoint's messages, by sequence.
func (b bundle) bodies(e Endpoint) []string {
	b.T.Helper()
	ids := pgtest.Column[uuid.UUID](b.T, b.Pool, `select id from outbox where endpoint_id = $1 order by sequence`, e.ID)
	all := make([]string, len(ids))
	for i, id := range ids {
		m := claimed{WorkspaceID: b.Workspace}
		b.Must(b.Pool.QueryRow(b.T.Context(), `select body, body_of from outbox where id = $1`, id).Scan(&m.Body, &m.BodyOf))
		read := []claimed{m}
		b.Must(b.another(b.Pool, b.options).readBodies(b.T.Context(), read))
		all[i] = string(read[0].body())
	}
	return all
}

// due makes all pending messages due now, and their leases expired.
func (b bundle) due() {
	b.T.Helper()
	b.Exec(`update outbox set due_at = now() - interval '1 second',
		lease_until = case when leased_by is not null then now() - interval '1 second' end where status = 'pending'`)
}

// row reads the only message.
func (b bundle) row() (state, reason string, status, attempts int, wait time.Duration) {
	b.T.Helper()
	b.Must(b.Pool.QueryRow(b.T.Context(), `
		select status, coalesce(last_error, ''), coalesce(status_code, 0), attempts, due_at - now() from outbox`).
		Scan(&state, &reason, &status, &attempts, &wait))
	return state, reason, status, attempts, wait
}

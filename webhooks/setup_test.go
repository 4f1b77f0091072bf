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
	t        testing.TB
	ws       uuid.UUID
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
	box, err := secrets.ParseKeys(secrets.NewKey())
	if err != nil {
		t.Fatal(err)
	}
	pool := pgtest.DB(t)
	b := bundle{t: t, ws: pgtest.Workspace(t, pool), box: box, receiver: newReceiver(t), settled: &outcomes{}}
	b.Webhooks = b.another(pool, o)
	return b
}

// another returns Webhooks on the same tables, as of another node.
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
	b.t.Helper()
	e, secret, err := b.Create(b.t.Context(), b.ws,
		NewEndpoint{ID: lemma.NewID(), Name: "shop " + uuid.NewString(), URL: b.receiver.URL + path})
	b.must(err)
	return e, secret
}

// message is a message to an endpoint, with an enrollment that waits for its answer.
func (b bundle) message(e Endpoint) Message {
	return Message{WorkspaceID: b.ws, ID: uuid.New(), EndpointID: e.ID, Body: []byte(`{"profile": "ann",  "n":1}`),
		EnrollmentID: lemma.NewID(), Step: 3}
}

// write commits messages.
func (b bundle) write(all ...Message) {
	b.t.Helper()
	b.must(pgx.BeginFunc(b.t.Context(), b.pool, func(tx pgx.Tx) error { return b.Write(b.t.Context(), tx, all) }))
}

// written creates an endpoint and writes one message to it.
func (b bundle) written() Message {
	b.t.Helper()
	e, _ := b.endpoint("/")
	m := b.message(e)
	b.write(m)
	return m
}

// run calls RunOnce, which must claim n messages.
func (b bundle) run(w *Webhooks, n int) {
	b.t.Helper()
	got, err := w.RunOnce(b.t.Context())
	b.must(err)
	if got != n {
		b.t.Fatalf("%d messages were claimed, want %d", got, n)
	}
}

// due makes all pending messages due now, and their leases expired.
func (b bundle) due() {
	b.t.Helper()
	b.exec(`update outbox set due_at = now() - interval '1 second',
		lease_until = case when leased_by is not null then now() - interval '1 second' end where status = 'pending'`)
}

func (b bundle) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.pool.Exec(b.t.Context(), sql, args...)
	b.must(err)
}

func (b bundle) count(sql string, args ...any) (n int) {
	b.t.Helper()
	b.must(b.pool.QueryRow(b.t.Context(), sql, args...).Scan(&n))
	return n
}

// row reads the only message.
func (b bundle) row() (state, reason string, status, attempts int, wait time.Duration) {
	b.t.Helper()
	b.must(b.pool.QueryRow(b.t.Context(), `
		select status, coalesce(last_error, ''), coalesce(status_code, 0), attempts, due_at - now() from outbox`).
		Scan(&state, &reason, &status, &attempts, &wait))
	return state, reason, status, attempts, wait
}

func (b bundle) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func ptr[T any](v T) *T { return &v }

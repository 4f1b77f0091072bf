package webhooks

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"lemma"
	"lemma/dial"
	"lemma/pgtest"
)

// verifies verifies a request with the Standard Webhooks library, as a receiver does.
func verifies(t *testing.T, secret string, s received) error {
	t.Helper()
	wh, err := standard.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	return wh.Verify([]byte(s.body), s.header)
}

func TestReceiverVerifies(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e, first := b.endpoint("/hook")
	m := b.message(e)
	b.write(m)
	b.run(b.Webhooks, 1)
	_, second, err := b.Rotate(t.Context(), b.ws, e.ID, lemma.NewID())
	b.must(err)
	b.write(b.message(e))
	b.run(b.Webhooks, 1)

	requests := b.receiver.all()
	if len(requests) != 2 {
		t.Fatalf("%d calls", len(requests))
	}
	one, two := requests[0], requests[1]
	if one.method != "POST" || one.path != "/hook" || one.body != string(m.Body) ||
		one.header.Get("Content-Type") != "application/json" || one.header.Get("webhook-id") != MessageID(m.ID) {
		t.Errorf("%+v", one)
	}
	for _, c := range []struct {
		name, secret string
		request      received
		want         bool
	}{
		{"its secret", first, one, true},
		{"a secret that came later", second, one, false},
		{"rotated: the old secret", first, two, true},
		{"rotated: the new secret", second, two, true},
		{"another body", first, received{body: one.body + " ", header: one.header}, false},
	} {
		if err := verifies(t, c.secret, c.request); (err == nil) != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestRetriesSendTheSame(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e, secret := b.endpoint("/")
	m := b.message(e)
	b.write(m)
	for i, status := range []int{500, 429, 503, 408} {
		b.receiver.status(status)
		b.run(b.Webhooks, 1)
		b.run(b.Webhooks, 0) // it waits
		state, reason, got, attempts, wait := b.row()
		planned := b.options.BackOff[i]
		if state != "pending" || reason != ReasonStatus || got != status || attempts != i+1 || wait < planned*7/10 || wait > planned*13/10 {
			t.Errorf("after %d: %s, %s, %d, attempt %d, due in %s", status, state, reason, got, attempts, wait)
		}
		b.due()
	}
	b.receiver.status(204)
	b.run(b.Webhooks, 1)
	want := Outcome{WorkspaceID: b.ws, ID: m.ID, EnrollmentID: m.EnrollmentID, Step: 3, Delivered: true, Status: 204, Attempts: 5}
	if diff := cmp.Diff([]Outcome{want}, b.settled.list()); diff != "" {
		t.Error(diff)
	}
	read, err := b.Outcomes(t.Context(), b.ws, []uuid.UUID{m.ID, uuid.New()})
	b.must(err)
	if diff := cmp.Diff(map[uuid.UUID]Outcome{m.ID: want}, read); diff != "" {
		t.Error(diff)
	}
	requests := b.receiver.all()
	for _, s := range requests {
		if s.body != string(m.Body) || s.header.Get("webhook-id") != MessageID(m.ID) || verifies(t, secret, s) != nil {
			t.Errorf("%+v", s)
		}
	}
	if len(requests) != 5 {
		t.Errorf("%d calls", len(requests))
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		200: "delivered", 201: "delivered", 204: "delivered", 299: "delivered",
		300: "failed", 301: "failed", 302: "failed", 304: "failed", 307: "failed", 308: "failed",
		400: "failed", 401: "failed", 404: "failed", 410: "failed", 422: "failed",
		408: "pending", 425: "pending", 429: "pending", 500: "pending", 502: "pending", 503: "pending", 599: "pending",
	} {
		v := classify(&http.Response{StatusCode: status})
		if v.state() != want || v.status != status {
			t.Errorf("%d: %s", status, v.state())
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := "Wed, 21 Oct 2026 07:28:00 GMT"
	for text, want := range map[string]time.Duration{
		"": 0, "120": 2 * time.Minute, " 5 ": 5 * time.Second, "86400": time.Hour, "-1": 0, "soon": 0, "99999999999999999999": 0,
		"Wed, 21 Oct 2026 07:30:00 GMT": 2 * time.Minute, "Wed, 21 Oct 2026 07:00:00 GMT": 0, "Wed, 21 Oct 2037 07:00:00 GMT": time.Hour,
	} {
		if got := retryAfter(http.Header{"Retry-After": {text}, "Date": {now}}); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	b := setup(t, nil)
	b.written()
	b.receiver.answers(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "600")
		w.WriteHeader(429)
	})
	b.run(b.Webhooks, 1)
	if _, _, _, _, wait := b.row(); wait < 9*time.Minute {
		t.Errorf("due in %s", wait)
	}
}

// Outbox!NoMessageWithoutChange, Outbox!NoDuplicatedProcessing
func TestWrittenOnceOrNotAtAll(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e, _ := b.endpoint("/")
	m := b.message(e)
	gone := errors.New("the change did not happen")
	err := pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
		return errors.Join(b.Write(t.Context(), tx, []Message{m}), gone)
	})
	if !errors.Is(err, gone) {
		t.Fatal(err)
	}
	b.run(b.Webhooks, 0)
	other := m
	other.Body = []byte(`"another body"`)
	b.write(m, other)
	b.write(other)
	b.run(b.Webhooks, 1)
	b.write(other)
	b.run(b.Webhooks, 0)
	if requests := b.receiver.all(); len(requests) != 1 || requests[0].body != string(m.Body) {
		t.Errorf("%+v", requests)
	}
}

func TestBodiesThatAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for name, body := range map[string][]byte{
		"a NUL": []byte("\"\x00\""), "no UTF-8": {0xff}, "too long": bytes.Repeat([]byte("x"), MaxBody+1),
	} {
		err := pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
			return b.Write(t.Context(), tx, []Message{{WorkspaceID: b.ws, ID: uuid.New(), Body: body}})
		})
		if err == nil {
			t.Errorf("%s was written", name)
		}
	}
	e, _ := b.endpoint("/")
	longest := b.message(e)
	longest.Body = bytes.Repeat([]byte("x"), MaxBody)
	b.write(longest)
	b.run(b.Webhooks, 1)
	if requests := b.receiver.all(); len(requests) != 1 || len(requests[0].body) != MaxBody {
		t.Errorf("%d calls", len(requests))
	}
}

// TestKilledBetweenCallAndSettle shows the case in which a message is sent twice.
func TestKilledBetweenCallAndSettle(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	m := b.written()
	b.hook = func(stage string) {
		if stage == "called" {
			runtime.Goexit() // nothing after this happens, as in a process that is killed
		}
	}
	b.run(b.Webhooks, 1)
	b.hook = nil
	b.run(b.Webhooks, 0) // the dead worker's lease has not expired
	if len(b.settled.list()) != 0 || b.count(`select count(*) from outbox where leased_by is not null`) != 1 {
		t.Fatal("a dead worker has settled")
	}
	b.due()
	b.run(b.Webhooks, 1)
	b.run(b.Webhooks, 0)
	requests := b.receiver.all()
	if len(requests) != 2 {
		t.Fatalf("%d calls", len(requests))
	}
	for _, s := range requests {
		if s.body != string(m.Body) || s.header.Get("webhook-id") != MessageID(m.ID) {
			t.Errorf("%+v", s)
		}
	}
	if settled := b.settled.list(); len(settled) != 1 || !settled[0].Delivered || settled[0].Attempts != 2 {
		t.Errorf("%+v", settled)
	}
}

// TestALateWorkerChangesNothing stops a worker after its call for longer than its
// lease.
func TestALateWorkerChangesNothing(t *testing.T) {
	t.Parallel()
	for name, settled := range map[string]bool{"while another has the lease": false, "after another has settled": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			b.written()
			late, called, goOn := b.another(b.pool, b.options), make(chan struct{}), make(chan struct{})
			late.hook = func(stage string) {
				if stage == "called" {
					close(called)
					<-goOn
				}
			}
			b.receiver.status(404)
			var lateDone sync.WaitGroup
			lateDone.Go(func() { late.RunOnce(t.Context()) })
			<-called
			finish := sync.OnceFunc(func() {
				close(goOn)
				lateDone.Wait()
			})
			b.hook = func(stage string) {
				if stage == "called" && !settled {
					finish()
				}
			}
			b.due()
			b.receiver.status(200)
			b.run(b.Webhooks, 1)
			finish()
			if settled := b.settled.list(); len(settled) != 1 || settled[0].Status != 200 || settled[0].Attempts != 2 {
				t.Errorf("%+v", settled)
			}
			if state, _, status, _, _ := b.row(); state != "delivered" || status != 200 {
				t.Errorf("%s with %d", state, status)
			}
		})
	}
}

// The effects of the outcome fail at first.
func TestEffectsAreSettledWithTheMessage(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{200: "delivered", 410: "failed"} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			m := b.written()
			b.receiver.status(status)
			b.settled.failing(errors.New("the enrollment is locked"))
			b.run(b.Webhooks, 1)
			if state, _, got, _, _ := b.row(); state != "pending" || got != status {
				t.Fatalf("%s with %d although the effects failed", state, got)
			}
			if o, err := b.Outcomes(t.Context(), b.ws, []uuid.UUID{m.ID}); err != nil || len(o) != 0 {
				t.Errorf("%v, %v", o, err)
			}
			b.settled.failing(nil)
			b.receiver.status(500) // it is not called again
			b.due()
			b.run(b.Webhooks, 1)
			if state, _, got, attempts, _ := b.row(); state != want || got != status || attempts != 1 {
				t.Errorf("%s with %d after %d attempts", state, got, attempts)
			}
			if settled := b.settled.list(); len(settled) != 1 || settled[0].Status != status ||
				settled[0].Delivered != (want == "delivered") || len(b.receiver.all()) != 1 {
				t.Errorf("%+v after %d calls", settled, len(b.receiver.all()))
			}
		})
	}
}

func TestWorkersSettleOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	const endpoints, each = 7, 30
	for i := range endpoints {
		e, _ := b.endpoint(fmt.Sprint("/", i))
		for range each {
			b.write(b.message(e))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var nodes sync.WaitGroup
	for range 4 {
		w := b.another(b.pool, b.options)
		nodes.Go(func() { w.Loop(ctx) })
	}
	b.waitFor(func() bool { return b.count(`select count(*) from outbox where status = 'pending'`) == 0 })
	cancel()
	nodes.Wait()
	ids := map[uuid.UUID]int{}
	for _, o := range b.settled.list() {
		ids[o.ID]++
	}
	if len(ids) != endpoints*each || len(b.settled.list()) != endpoints*each || len(b.receiver.all()) != endpoints*each {
		t.Errorf("%d messages settled %d times after %d calls", len(ids), len(b.settled.list()), len(b.receiver.all()))
	}
}

// waitFor polls until the condition holds.
func (b bundle) waitFor(f func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatal("the condition does not hold in time")
		}
	}
}

// loopUntil runs the first node as loop does.
func (b bundle) loopUntil(f func() bool) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	var node sync.WaitGroup
	node.Go(func() { b.Loop(ctx) })
	defer node.Wait()
	defer cancel()
	b.waitFor(f)
}

// Three endpoints that never answer, with more messages than there are workers, do
// not delay one that answers.
func TestUnresponsiveEndpointsDelayNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) {
		o.Workers, o.PerEndpoint, o.Timeout = 4, 2, 500*time.Millisecond
		o.BackOff = []time.Duration{time.Nanosecond}
	})
	b.receiver.answers(func(_ http.ResponseWriter, q *http.Request) {
		if strings.HasPrefix(q.URL.Path, "/dead") {
			<-q.Context().Done()
		}
	})
	var dead []uuid.UUID
	for i := range 3 {
		e, _ := b.endpoint(fmt.Sprint("/dead", i))
		dead = append(dead, e.ID)
		for range 20 {
			b.write(b.message(e))
		}
	}
	most := 0 // calls to the dead at a time
	b.hook = func(stage string) {
		if stage != "claimed" {
			return
		}
		b.limiter.mutex.Lock()
		defer b.limiter.mutex.Unlock()
		n := 0
		for _, id := range dead {
			n += b.limiter.busy[id]
		}
		most = max(most, n)
	}
	b.loopUntil(func() bool { // they are known as unresponsive
		b.limiter.mutex.Lock()
		defer b.limiter.mutex.Unlock()
		return len(b.limiter.unresponsive) == len(dead)
	})
	most = 0 // no call runs, and no claim used the earlier state
	living, _ := b.endpoint("/living")
	for range 20 {
		b.write(b.message(living))
	}
	b.loopUntil(func() bool { return b.count(`select count(*) from outbox where status = 'delivered'`) == 20 })
	if most != 2 {
		t.Errorf("%d calls to dead endpoints at a time, want half of the workers", most)
	}
	if n := b.count(`select count(*) from outbox where status <> 'pending' and endpoint_id <> $1`, living.ID); n != 0 {
		t.Errorf("%d messages to dead endpoints have ended", n)
	}
}

// An endpoint with much older messages gets no more calls than another.
func TestEndpointsGetEqualCalls(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) { o.Workers, o.PerEndpoint = 4, 3 })
	first, _ := b.endpoint("/first")
	second, _ := b.endpoint("/second")
	for range 10 {
		b.write(b.message(first))
	}
	b.exec(`update outbox set due_at = due_at - interval '1 hour'`)
	b.write(b.message(second), b.message(second))
	b.run(b.Webhooks, 4)
	paths := map[string]int{}
	for _, s := range b.receiver.all() {
		paths[s.path]++
	}
	if diff := cmp.Diff(map[string]int{"/first": 2, "/second": 2}, paths); diff != "" {
		t.Error(diff)
	}
	var more atomic.Int64
	var claimed sync.WaitGroup
	claimed.Add(3) // the limit of the endpoint: no call begins before all workers have claimed again
	b.hook = func(stage string) {
		if stage == "claimed" {
			taken, err := b.claim(t.Context())
			more.Add(int64(len(taken)))
			if err != nil {
				t.Error(err)
			}
			claimed.Done()
			claimed.Wait()
		}
	}
	b.run(b.Webhooks, 3)
	if more.Load() != 0 {
		t.Errorf("%d more were claimed", more.Load())
	}
}

// Two endpoints use all calls and have much older messages. The next call is for an
// endpoint with fewer calls.
func TestFreeCallsGoToEndpointsWithFewer(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) { o.Workers, o.PerEndpoint = 4, 2 })
	var slow Endpoint
	for i := range 2 {
		slow, _ = b.endpoint(fmt.Sprint("/slow", i))
		for range 10 {
			b.write(b.message(slow))
		}
	}
	b.exec(`update outbox set due_at = due_at - interval '1 hour'`)
	taken, err := b.claim(t.Context())
	b.must(err)
	if len(taken) != 4 {
		t.Fatalf("%d messages were claimed", len(taken))
	}
	quick, _ := b.endpoint("/quick")
	b.write(b.message(quick), b.message(quick))
	for _, want := range []struct {
		left, next uuid.UUID
	}{{slow.ID, quick.ID}, {quick.ID, quick.ID}} { // the other slow endpoint has two calls, and this one has one left
		b.limiter.release(want.left)
		taken, err := b.claim(t.Context())
		b.must(err)
		if len(taken) != 1 || taken[0].EndpointID != want.next {
			t.Errorf("%d messages were claimed, the first of %s", len(taken), taken[0].EndpointID)
		}
	}
}

// A workspace with many endpoints uses all calls and has much older messages. The
// next calls are for the workspace with fewer calls.
func TestFreeCallsGoToWorkspacesWithFewer(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) { o.Workers, o.PerEndpoint = 4, 2 })
	for i := range 40 {
		many, _ := b.endpoint(fmt.Sprint("/many", i))
		b.write(b.message(many), b.message(many))
	}
	b.exec(`update outbox set due_at = due_at - interval '1 hour'`)
	taken, err := b.claim(t.Context())
	b.must(err)
	if len(taken) != 4 {
		t.Fatalf("%d messages were claimed", len(taken))
	}
	other := b
	other.ws = pgtest.Workspace(t, b.pool)
	for i := range 2 {
		few, _ := other.endpoint(fmt.Sprint("/few", i))
		other.write(other.message(few))
	}
	for _, left := range taken[:2] {
		b.limiter.release(left.EndpointID)
		next, err := b.claim(t.Context())
		b.must(err)
		if len(next) != 1 || next[0].WorkspaceID != other.ws {
			t.Errorf("%d messages were claimed, the first of workspace %s", len(next), next[0].WorkspaceID)
		}
	}
}

// With one call at a time, older messages are not always called first.
func TestEqualEndpointsAreCalledInRandomOrder(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) { o.Workers = 1 })
	slow, _ := b.endpoint("/slow")
	for range 50 {
		b.write(b.message(slow))
	}
	b.exec(`update outbox set due_at = due_at - interval '1 hour'`)
	quick, _ := b.endpoint("/quick")
	b.write(b.message(quick))
	for range 40 { // 40 times the same order has a probability of 10^-12
		b.run(b.Webhooks, 1)
		if requests := b.receiver.all(); requests[len(requests)-1].path == "/quick" {
			return
		}
	}
	t.Error("the quick endpoint was not called")
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	elsewhere := newReceiver(t)
	for _, to := range []string{elsewhere.URL + "/stolen", "http://169.254.169.254/latest/meta-data/", "file:///etc/passwd", "/again"} {
		b.exec(`delete from outbox`)
		b.written()
		b.receiver.answers(func(w http.ResponseWriter, q *http.Request) { http.Redirect(w, q, to, http.StatusTemporaryRedirect) })
		b.run(b.Webhooks, 1)
		if state, _, status, attempts, _ := b.row(); state != "failed" || status != 307 || attempts != 1 {
			t.Errorf("%s: %s with %d after %d", to, state, status, attempts)
		}
	}
	if len(elsewhere.all()) != 0 || len(b.receiver.all()) != 4 {
		t.Errorf("%d and %d calls", len(elsewhere.all()), len(b.receiver.all()))
	}
}

// Endpoints that offer HTTP/2 are called with HTTP/1.1.
func TestEndpointsAreCalledWithHTTP1(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	protocol := make(chan string, 1)
	endpoint := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) { protocol <- q.Proto }))
	endpoint.EnableHTTP2 = true
	endpoint.StartTLS()
	defer endpoint.Close()
	trusted := x509.NewCertPool()
	trusted.AddCert(endpoint.Certificate())
	b.client.Transport.(*http.Transport).TLSClientConfig.RootCAs = trusted
	e, _, err := b.Create(t.Context(), b.ws, NewEndpoint{ID: lemma.NewID(), Name: "modern", URL: endpoint.URL})
	b.must(err)
	b.write(b.message(e))
	b.run(b.Webhooks, 1)
	if state, reason, _, _, _ := b.row(); state != "delivered" {
		t.Fatalf("%s, %s", state, reason)
	}
	if got := <-protocol; got != "HTTP/1.1" {
		t.Errorf("called with %s", got)
	}
}

// The addresses of a name are checked when they are dialled.
func TestNamesOfPrivateAddresses(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) { o.AllowPrivate = false })
	_, port, err := net.SplitHostPort(b.receiver.Listener.Addr().String())
	b.must(err)
	for name, address := range map[string]string{
		"loopback": "127.0.0.1", "mapped": "::ffff:127.0.0.1", "metadata": "169.254.169.254", "private": "10.0.0.1",
		"shared": "100.64.0.1", "local": "fe80::1",
	} {
		b.client = newClient(dial.Dialer{Resolve: func(context.Context, string, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr(address)}, nil
		}}, time.Second)
		e, _, err := b.Create(t.Context(), b.ws, NewEndpoint{ID: uuid.New(), Name: name, URL: "https://" + name + ".example.com:" + port})
		b.must(err)
		b.exec(`delete from outbox`)
		b.write(b.message(e))
		b.run(b.Webhooks, 1)
		if state, reason, status, _, _ := b.row(); state != "failed" || reason != ReasonForbidden || status != 0 {
			t.Errorf("%s: %s, %s, %d", name, state, reason, status)
		}
	}
	if len(b.receiver.all()) != 0 || len(b.settled.list()) != 6 {
		t.Errorf("%d calls, %d ends", len(b.receiver.all()), len(b.settled.list()))
	}
}

// The endpoint was created while private addresses were allowed.
func TestAddressThatIsNoLongerAllowed(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.written()
	b.run(b.another(b.pool, Options{}), 1)
	if state, reason, _, _, _ := b.row(); state != "failed" || reason != ReasonURL || len(b.receiver.all()) != 0 {
		t.Errorf("%s, %s after %d calls", state, reason, len(b.receiver.all()))
	}
}

func TestCallsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		want   string
		answer func(w http.ResponseWriter, q *http.Request)
	}{
		"no answer": {ReasonTimeout, func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }},
		"closes":    {ReasonNetwork, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		"long head": {ReasonNetwork, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("x", strings.Repeat("x", 100<<10)) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, func(o *Options) { o.Timeout = 300 * time.Millisecond })
			b.written()
			b.receiver.answers(c.answer)
			b.run(b.Webhooks, 1)
			if state, reason, status, _, _ := b.row(); state != "pending" || reason != c.want || status != 0 {
				t.Errorf("%s, %s, %d", state, reason, status)
			}
		})
	}
}

// The status of an answer counts, even if its body never ends.
func TestEndlessAnswer(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.written()
	b.receiver.answers(func(w http.ResponseWriter, q *http.Request) {
		for q.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	started := time.Now()
	b.run(b.Webhooks, 1)
	if state, _, _, _, _ := b.row(); state != "delivered" || time.Since(started) > 3*time.Second {
		t.Errorf("%s after %s", state, time.Since(started))
	}
}

func TestGivenUp(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.written()
	b.receiver.status(503)
	b.exec(`update outbox set created_at = now() - interval '2 days 23 hours 58 minutes', attempts = 80`)
	b.run(b.Webhooks, 1)
	if state, reason, status, attempts, _ := b.row(); state != "failed" || reason != ReasonStatus || status != 503 || attempts != 81 {
		t.Errorf("%s, %s, %d, %d", state, reason, status, attempts)
	}
	if settled := b.settled.list(); len(settled) != 1 || settled[0].Delivered || settled[0].Status != 503 {
		t.Errorf("%+v", settled)
	}
}

func TestDeletedEndpoint(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	m := b.written()
	b.must(b.Delete(t.Context(), b.ws, m.EndpointID))
	b.run(b.Webhooks, 1)
	if settled := b.settled.list(); len(settled) != 1 || settled[0].Error != ReasonGone || settled[0].Delivered {
		t.Errorf("%+v", settled)
	}
}

// Outbox!PublishedAndCleaned
func TestCleanDeletesEndedMessages(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	old, unread, fresh, waiting := b.written(), b.written(), b.written(), b.written()
	b.exec(`
		insert into enrollments (workspace_id, id, flow_id, version, shard, uniqueness_key, overlap_key, profile_key, node, step,
			waiting_since, resume_at, source)
		values ($1, $2, $2, 1, 0, $2, $2, 'ann', 'hook', $3, now(), now(), 'direct')`, b.ws, unread.EnrollmentID, unread.Step)
	b.exec(`update outbox set status = 'delivered', finished_at = now() where id <> $1`, waiting.ID)
	b.exec(`update outbox set finished_at = now() - interval '8 days' where id = any($1)`, []uuid.UUID{old.ID, unread.ID})
	b.exec(`update outbox set created_at = now() - interval '30 days' where id = $1`, waiting.ID)
	n, err := b.Clean(t.Context())
	b.must(err)
	if n != 1 || b.count(`select count(*) from outbox where id = any($1)`, []uuid.UUID{unread.ID, fresh.ID, waiting.ID}) != 3 {
		t.Errorf("%d rows were cleaned", n)
	}
	b.exec(`update enrollments set step = step + 1, moved = true`) // moved to another version: it still waits
	if n, err := b.Clean(t.Context()); err != nil || n != 0 {
		t.Errorf("%d rows were cleaned before their answer was read, %v", n, err)
	}
	b.exec(`update enrollments set step = step + 1, waiting_since = null`)
	if n, err := b.Clean(t.Context()); err != nil || n != 1 {
		t.Errorf("%d rows were cleaned once their answer was read, %v", n, err)
	}
}

// An enrollment that has ended does not read its answer.
func TestCleanDeletesMessagesOfEndedEnrollments(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	m := b.written()
	b.exec(`
		insert into enrollments (workspace_id, id, flow_id, version, shard, uniqueness_key, overlap_key, profile_key, node, step,
			waiting_since, status, ended_at, source)
		values ($1, $2, $2, 1, 0, $2, $2, 'ann', 'hook', $3, now(), 'exited', now(), 'direct')`, b.ws, m.EnrollmentID, m.Step)
	b.exec(`update outbox set status = 'delivered', finished_at = now() - interval '8 days'`)
	if n, err := b.Clean(t.Context()); err != nil || n != 1 {
		t.Errorf("%d rows were cleaned, %v", n, err)
	}
}

// Pending reports messages that wait or are called, and not those that ended or are deleted.
func TestPending(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ended := b.written()
	b.run(b.Webhooks, 1)
	called, waits, gone := b.written(), b.written(), b.written()
	b.exec(`update outbox set leased_by = 'x', lease_until = now() + interval '1 minute' where id = $1`, called.ID)
	b.exec(`delete from outbox where id = $1`, gone.ID)
	ids := []uuid.UUID{ended.ID, called.ID, waits.ID, gone.ID}
	pending, err := b.Pending(t.Context(), b.ws, ids)
	b.must(err)
	if diff := cmp.Diff(map[uuid.UUID]bool{called.ID: true, waits.ID: true}, pending); diff != "" {
		t.Error(diff)
	}
	outcomes, err := b.Outcomes(t.Context(), b.ws, ids)
	b.must(err)
	if len(outcomes) != 1 || !outcomes[ended.ID].Delivered {
		t.Errorf("%+v", outcomes)
	}
	if others, err := b.Pending(t.Context(), uuid.New(), ids); err != nil || len(others) != 0 {
		t.Errorf("another workspace sees %v, %v", others, err)
	}
}

func TestErase(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	kept, waits, called := b.written(), b.written(), b.written()
	b.exec(`update outbox set leased_by = 'x', lease_until = now() + interval '1 minute' where id = $1`, called.ID)
	b.must(pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
		erased, inFlight, err := b.Erase(t.Context(), tx, b.ws, []uuid.UUID{waits.EnrollmentID, called.EnrollmentID})
		if erased != 1 || inFlight != 1 {
			t.Errorf("%d erased, %d in flight", erased, inFlight)
		}
		return err
	}))
	if b.count(`select count(*) from outbox where id = any($1)`, []uuid.UUID{kept.ID, called.ID}) != 2 {
		t.Error("too many messages were deleted")
	}
}

// Loop ends in the middle of a call.
func TestShutdownSettlesCalls(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.written()
	ctx, stop := context.WithCancel(t.Context())
	b.receiver.answers(func(http.ResponseWriter, *http.Request) { stop() })
	b.Loop(ctx)
	if state, _, _, attempts, _ := b.row(); state != "delivered" || attempts != 1 {
		t.Errorf("%s after %d attempts", state, attempts)
	}
}

// A connection whose TLS handshake is never answered is closed with its call.
func TestHandshakesEndWithTheirCalls(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) { o.Timeout = 200 * time.Millisecond })
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	b.must(err)
	defer silent.Close()
	e, _, err := b.Create(t.Context(), b.ws, NewEndpoint{ID: uuid.New(), Name: "silent", URL: "https://" + silent.Addr().String()})
	b.must(err)
	b.write(b.message(e))
	closed := make(chan error, 1)
	go func() {
		conn, err := silent.Accept()
		if err == nil {
			_, err = io.Copy(io.Discard, conn)
		}
		closed <- err
	}()
	b.run(b.Webhooks, 1)
	select {
	case err := <-closed:
		b.must(err)
	case <-time.After(20 * time.Second):
		t.Error("the connection is still open")
	}
	if status, reason, _, _, _ := b.row(); status != "pending" || reason != ReasonTimeout {
		t.Errorf("%s, %s", status, reason)
	}
}

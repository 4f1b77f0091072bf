package webhooks

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"lemma"
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
	_, second, err := b.Rotate(t.Context(), b.Workspace, e.ID, lemma.NewID())
	b.Must(err)
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
	want := Outcome{WorkspaceID: b.Workspace, ID: m.ID, EnrollmentID: m.EnrollmentID, Step: 3, Delivered: true, Status: 204, Attempts: 5}
	if diff := cmp.Diff([]Outcome{want}, b.settled.list()); diff != "" {
		t.Error(diff)
	}
	read, err := b.Outcomes(t.Context(), b.Workspace, []uuid.UUID{m.ID, uuid.New()})
	b.Must(err)
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
	b.run(b.Webhooks, 0) // the lease of the crashed worker has not expired
	if len(b.settled.list()) != 0 || b.Count(`select count(*) from outbox where leased_by is not null`) != 1 {
		t.Fatal("a crashed worker has settled")
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
			late, called, goOn := b.another(b.Pool, b.options), make(chan struct{}), make(chan struct{})
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
			if o, err := b.Outcomes(t.Context(), b.Workspace, []uuid.UUID{m.ID}); err != nil || len(o) != 0 {
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
	var processes sync.WaitGroup
	for range 4 {
		w := b.another(b.Pool, b.options)
		processes.Go(func() { w.Loop(ctx) })
	}
	b.Eventually("no message is pending", func() bool { return b.Count(`select count(*) from outbox where status = 'pending'`) == 0 })
	cancel()
	processes.Wait()
	ids := map[uuid.UUID]int{}
	for _, o := range b.settled.list() {
		ids[o.ID]++
	}
	if len(ids) != endpoints*each || len(b.settled.list()) != endpoints*each || len(b.receiver.all()) != endpoints*each {
		t.Errorf("%d messages settled %d times after %d calls", len(ids), len(b.settled.list()), len(b.receiver.all()))
	}
}

func TestGivenUp(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.written()
	b.receiver.status(503)
	b.Exec(`update outbox set created_at = now() - interval '2 days 23 hours 58 minutes', attempts = 80`)
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
	b.Must(b.Delete(t.Context(), b.Workspace, m.EndpointID))
	b.run(b.Webhooks, 1)
	if settled := b.settled.list(); len(settled) != 1 || settled[0].Error != ReasonGone || settled[0].Delivered {
		t.Errorf("%+v", settled)
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

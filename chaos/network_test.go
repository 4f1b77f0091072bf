package chaos

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/campaigns"
	"lemma/dev/catcher"
	"lemma/flows"
)

// faultyEnds is how many connections end in each way.
const faultyEnds = 15

// Connections between two workers and Postgres break at every statement: they are cut,
// answers are lost, and statements arrive after the client has cancelled them. The
// mail server has faults too. Meanwhile two campaigns run, one of which is paused and
// resumed repeatedly, and a flow. Everything completes without a violation.
func TestFaultyConnectionsToPostgres(t *testing.T) {
	t.Parallel()
	const people, enrolled = 2000, 300
	h := setup(t)
	c := h.customer(people)
	random := h.random()
	l := startPostgresProxy(t, h.Pool, random)
	h.mail.setFaults(func(e catcher.Event, again int) catcher.Fault {
		if e.Stage == catcher.Dot && again == 1 && len(e.Recipient)%7 == 0 {
			return catcher.Fault{Reply: "451 4.3.0 try again"}
		}
		return catcher.Fault{}
	})
	h.mail.slow(10 * time.Millisecond)
	flow := h.live(h.flows(), c, shortFlow)
	workers := h.startWorkers(2, append(shortLeases, "DATABASE_URL="+l.dsn(h.Pool))...)
	l.faulty.Store(true)

	ids := []uuid.UUID{h.sendAs(c, "at_least_once"), h.sendAs(c, "at_most_once")}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var clients sync.WaitGroup
	clients.Go(func() { h.pauseAndResume(ctx, l, ids[0]) })
	clients.Go(func() { h.recordSignUpsOver(l, enrolled) })
	h.eventually("enough connections have ended in each way", l.hasEnded)
	stop()
	l.faulty.Store(false)
	h.mail.slow(0)
	t.Logf("%d connections cut, %d answers lost, %d statements late", l.ends[cutEnd].Load(), l.ends[lostEnd].Load(), l.ends[lateEnd].Load())
	clients.Wait()
	h.expireFanoutLease()
	h.Exec(`update flow_shards set lease_until = now() where lease_until > now()`)
	for _, id := range ids {
		h.completedSoon(id)
		h.verify(c, id)
	}
	h.waitForCompletion()
	h.verifyFlow(flow)
	n := h.Count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and status = 'completed'`, h.Workspace, flow)
	if n != enrolled {
		t.Errorf("%d of %d are completed", n, enrolled)
	}
	for _, f := range h.outcomes(ids[1]) {
		if f.copies > 1 {
			t.Errorf("at most once: %v", f)
		}
	}
	for i, w := range workers {
		if w.isGone() {
			t.Errorf("worker %d has exited", i)
		}
	}
}

// sendAs is send with a strategy.
func (h *env) sendAs(c *customer, strategy string) uuid.UUID {
	h.t.Helper()
	id := lemma.NewID()
	_, err := h.campaigns.Create(h.t.Context(), h.Workspace, campaigns.NewCampaign{ID: id, Name: strategy, AudienceID: c.audience,
		TemplateID: h.Template, ProviderID: h.Provider, Strategy: strategy, FromName: "Shop", FromEmail: "news@shop.example"})
	h.Must(err)
	_, err = h.campaigns.Send(h.t.Context(), h.Workspace, id, uuid.Nil)
	h.Must(err)
	return id
}

// pauseAndResume ends with the campaign resumed, or completed before it.
func (h *env) pauseAndResume(ctx context.Context, l *postgresProxy, id uuid.UUID) {
	for ctx.Err() == nil {
		_, _ = h.campaigns.Pause(context.Background(), h.Workspace, id, uuid.Nil) // it may have completed
		time.Sleep(l.random(500 * time.Millisecond))
		_, _ = h.campaigns.Resume(context.Background(), h.Workspace, id, uuid.Nil)
		time.Sleep(l.random(time.Second))
	}
}

// recordSignUpsOver records the events of n profiles through the proxy, each until its
// answer has arrived.
func (h *env) recordSignUpsOver(l *postgresProxy, n int) {
	pool, err := pgxpool.New(context.Background(), l.dsn(h.Pool))
	if err != nil {
		h.t.Error(err)
		return
	}
	defer pool.Close()
	f := h.flowsOver(pool)
	for from := 1; from <= n; from += 10 {
		if err := h.recordInsistently(f, from, from+9); err != nil {
			h.t.Errorf("events of %d to %d: %v", from, from+9, err)
			return
		}
		time.Sleep(l.random(200 * time.Millisecond))
	}
}

// recordInsistently records events until an answer has arrived. It waits longer each time.
func (h *env) recordInsistently(f *flows.Flows, from, to int) (err error) {
	wait := 5 * time.Second
	for begun := time.Now(); time.Since(begun) < longestWait; wait = min(2*wait, time.Minute) {
		ctx, stop := context.WithTimeout(context.Background(), wait)
		err = h.recordSignUpsWith(ctx, f, from, to)
		stop()
		if err == nil {
			return nil
		}
	}
	return err
}

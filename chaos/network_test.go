package chaos

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/campaigns"
	"lemma/dev/catcher"
)

// badFor is how long the link is bad.
const badFor = 8 * time.Second

// Between two workers and Postgres connections break at every statement: they
// are cut, answers are lost, and statements arrive after the client has given
// them up. Two campaigns, of which one is paused and resumed over and over, and
// a flow go on meanwhile, and the mail server has faults of its own. Everything
// arrives, and no promise is broken.
func TestABadLinkToPostgres(t *testing.T) {
	const people, travel = 2000, 300
	h := build(t)
	c := h.customer(people)
	dice := h.dice()
	l := openLink(t, h.pool, dice)
	h.post.misbehave(func(e catcher.Event, again int) catcher.Fault {
		if e.Stage == catcher.Dot && again == 1 && len(e.Recipient)%7 == 0 {
			return catcher.Fault{Reply: "451 4.3.0 try again"}
		}
		return catcher.Fault{}
	})
	h.post.slow(10 * time.Millisecond)
	flow := h.live(h.journeys(), c, shortJourney)
	workers := h.startWorkers(2, "DATABASE_URL="+l.dsn(h.pool))
	l.bad.Store(true)

	ids := []uuid.UUID{h.sendAs(c, "at_least_once"), h.sendAs(c, "at_most_once")}
	ctx, stop := context.WithTimeout(t.Context(), badFor)
	defer stop()
	var asks sync.WaitGroup
	asks.Go(func() { h.pauseAndResume(ctx, l, ids[0]) })
	asks.Go(func() { h.signUpThrough(l, travel) })
	<-ctx.Done()
	l.bad.Store(false)
	h.post.slow(0)
	t.Logf("%d connections were cut, %d answers lost, %d statements late", l.ends[cutEnd].Load(), l.ends[lostEnd].Load(), l.ends[lateEnd].Load())
	asks.Wait()
	for i := range l.ends {
		if l.ends[i].Load() == 0 {
			t.Errorf("no connection ended in way %d: this has shown little", i)
		}
	}
	h.run(h.pool, `update fanouts set lease_until = now() - interval '1 second' where finished_at is null and lease_until is not null`)
	_, err := h.campaigns.Sweep(t.Context())
	h.must(err)
	for _, id := range ids {
		h.completedInNoTime(id, time.Minute)
		h.judge(c, id)
	}
	h.arrived(time.Minute)
	h.judgeJourneys(flow)
	if n := h.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and status = 'completed'`, h.ws, flow); n != travel {
		t.Errorf("%d have arrived, of %d", n, travel)
	}
	for _, f := range h.fates(ids[1]) {
		if f.copies > 1 {
			t.Errorf("at most once: %v", f)
		}
	}
	for i, w := range workers {
		if w.isGone() {
			t.Errorf("worker %d has ended", i)
		}
	}
}

// sendAs is send with a strategy.
func (h *house) sendAs(c *customer, strategy string) uuid.UUID {
	h.t.Helper()
	id := lemma.NewID()
	_, err := h.campaigns.Create(h.t.Context(), h.ws, campaigns.NewCampaign{ID: id, Name: strategy, AudienceID: c.audience, TemplateID: h.template,
		ProviderID: h.provider, Strategy: strategy, FromName: "Shop", FromEmail: "news@shop.example"})
	h.must(err)
	_, err = h.campaigns.Send(h.t.Context(), h.ws, id, uuid.Nil)
	h.must(err)
	return id
}

// pauseAndResume ends with the campaign resumed, or completed before it.
func (h *house) pauseAndResume(ctx context.Context, l *link, id uuid.UUID) {
	for ctx.Err() == nil {
		_, _ = h.campaigns.Pause(context.Background(), h.ws, id, uuid.Nil) // it may have completed
		time.Sleep(l.random(500 * time.Millisecond))
		_, _ = h.campaigns.Resume(context.Background(), h.ws, id, uuid.Nil)
		time.Sleep(l.random(time.Second))
	}
}

// signUpThrough records the events of n people over the link, each until its
// answer has arrived.
func (h *house) signUpThrough(l *link, n int) {
	pool, err := pgxpool.New(context.Background(), l.dsn(h.pool))
	if err != nil {
		h.t.Error(err)
		return
	}
	defer pool.Close()
	f := h.journeysOver(pool)
	for from := 1; from <= n; from += 10 {
		for tries := 0; ; tries++ {
			ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
			err := h.signUpBy(ctx, f, from, from+9)
			stop()
			if err == nil {
				break
			}
			if tries == 50 {
				h.t.Error(fmt.Errorf("events of %d to %d: %w", from, from+9, err))
				return
			}
		}
		time.Sleep(l.random(200 * time.Millisecond))
	}
}

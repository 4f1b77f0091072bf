package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/eventsout"
	"lemma/webhooks"
)

// webhookOut publishes single events and delivers them to four endpoints of a sink in
// another process over kept connections: each event is one message.
func (b *benchmarks) webhookOut(ctx context.Context, e *env, print func(figure) error) error {
	n := b.n(40_000)
	e.cfg.Webhooks.AllowPrivate = true
	process, err := e.fresh(ctx, e.null.kind())
	if err != nil {
		return err
	}
	defer process.drop()
	to, err := startSink(ctx)
	if err != nil {
		return err
	}
	defer to.stop()
	types := []string{eventsout.CampaignStarted, eventsout.CampaignPaused, eventsout.CampaignCompleted, eventsout.CampaignFailed}
	for _, name := range types {
		if err := process.subscribe(ctx, to.hooks, name); err != nil {
			return err
		}
	}
	for from := 0; from < n; from += 1000 {
		all := make([]eventsout.Event, min(1000, n-from))
		for i := range all {
			all[i] = eventsout.Event{WorkspaceID: process.workspace, Type: types[i%len(types)], OriginID: lemma.NewID()}
		}
		if err := pgx.BeginFunc(ctx, process.Pool, func(tx pgx.Tx) error { return eventsout.Record(ctx, tx, all...) }); err != nil {
			return err
		}
	}
	m := startMeter(e.postmaster())
	if err := while(ctx, process.Webhooks.Loop, func() (bool, error) { return process.undelivered(ctx) }); err != nil {
		return err
	}
	f := m.stop("webhook_out", n)
	distinct, duplicates := to.webhooks()
	f.Missing, f.Duplicates = n-distinct, duplicates
	return print(f)
}

// subscribe makes an endpoint that receives types of events.
func (b *instance) subscribe(ctx context.Context, url string, types ...string) error {
	_, _, err := b.Webhooks.Create(ctx, b.workspace, webhooks.NewEndpoint{ID: lemma.NewID(), Name: lemma.NewID().String(), URL: url,
		Subscriptions: []webhooks.Subscription{{Types: types}}})
	return err
}

// undelivered reports whether an event is not published or not delivered.
func (b *instance) undelivered(ctx context.Context) (more bool, err error) {
	err = b.Pool.QueryRow(ctx, `
		select exists (select from events_out where published_at is null)
			or exists (select from outbox where workspace_id = $1 and status = 'pending')`, b.workspace).Scan(&more)
	return more, err
}

// campaignEvents measures what the events of a campaign cost: the same campaign in a
// workspace without subscriptions, and in one with two endpoints that receive all types,
// until all is delivered. The sink is another process, whose CPU time is not counted.
func (b *benchmarks) campaignEvents(ctx context.Context, e *env, print func(figure) error) error {
	e.cfg.Webhooks.AllowPrivate = true
	p, drop, err := e.openPair(ctx, b.n(500_000))
	if err != nil {
		return err
	}
	defer drop()
	p.names = [2]string{"campaign_without_endpoints", "campaign_with_2_endpoints"}
	p.feature, p.rounds = "endpoints", 1
	to, err := startSink(ctx)
	if err != nil {
		return err
	}
	defer to.stop()
	for range 2 {
		if err := p.with.subscribe(ctx, to.hooks, eventsout.Types...); err != nil {
			return err
		}
	}
	return p.measure(ctx, print, func(ctx context.Context, process *instance, m materials) (figure, error) {
		f, err := p.sendWithEvents(ctx, process, m)
		_, duplicates := to.webhooks()
		f.Duplicates += duplicates
		return f, err
	})
}

// sendWithEvents sends one more campaign, and ends when its events are delivered.
func (p *pair) sendWithEvents(ctx context.Context, process *instance, m materials) (figure, error) {
	id, err := process.campaignOf(ctx, m)
	if err != nil {
		return figure{}, err
	}
	p.null.reset(p.n)
	meter := startMeter(p.postmaster())
	if _, err := process.Campaigns.Send(ctx, process.workspace, id, uuid.Nil); err != nil {
		return figure{}, err
	}
	c, err := process.await(ctx, id)
	if err != nil {
		return figure{}, err
	}
	for more := true; more; {
		if more, err = process.undelivered(ctx); err != nil {
			return figure{}, err
		}
		time.Sleep(20 * time.Millisecond)
	}
	f := meter.stop("", p.n)
	if c.Counts.Sent != int64(p.n) {
		return f, fmt.Errorf("campaign is %s: %+v", c.Status, c.Counts)
	}
	var items int
	err = process.Pool.QueryRow(ctx, `select coalesce(sum(count), 0) from events_out where workspace_id = $1 and origin_id = $2`,
		process.workspace, id).Scan(&items)
	f.Missing, f.Duplicates = p.n-p.null.count, p.null.duplicates
	if err == nil && items != 0 && items != p.n {
		err = fmt.Errorf("events have %d notifications", items)
	}
	return f, err
}

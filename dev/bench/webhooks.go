package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	"lemma"
	"lemma/flows"
	"lemma/flows/intake"
	"lemma/webhooks"
)

// benchWebhook sends one webhook and waits for its delivery.
const benchWebhook = `{"triggers":[{"type":"event","event":"signed_up"}],"recurrence":{"policy":"once"},"start":"call","nodes":{
	"call":{"type":"webhook","endpoint_id":"%s","next":"end"},"end":{"type":"exit"}}}`

// webhookDelivery delivers the webhooks of waiting enrollments: claim, sign, request
// over loopback, record, and resume the enrollment. All go to one endpoint, which
// has 8 requests at a time from one process.
func (b *benchmarks) webhookDelivery(ctx context.Context, e *env, print func(figure) error) error {
	n := b.n(30_000)
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
	if err := process.enrollAtWebhook(ctx, to.hooks, n); err != nil {
		return err
	}
	m := startMeter(e.postmaster())
	var f figure
	err = while(ctx, process.Webhooks.Loop, func() (more bool, err error) {
		err = process.Pool.QueryRow(ctx,
			`select exists (select from outbox where workspace_id = $1 and status = 'pending')`, process.workspace).Scan(&more)
		if !more {
			f = m.stop("webhook_delivery", n)
		}
		return more, err
	})
	distinct, duplicates := to.webhooks()
	f.Missing, f.Duplicates = n-distinct, duplicates
	if err != nil {
		return err
	}
	return print(f)
}

// enrollAtWebhook moves n enrollments to a webhook node, without delivering anything.
func (b *instance) enrollAtWebhook(ctx context.Context, url string, n int) error {
	e, _, err := b.Webhooks.Create(ctx, b.workspace, webhooks.NewEndpoint{ID: lemma.NewID(), Name: "bench", URL: url})
	if err != nil {
		return err
	}
	f, err := b.Flows.Create(ctx, b.workspace, flows.NewFlow{ID: lemma.NewID(), Name: "bench",
		Definition: json.RawMessage(fmt.Sprintf(benchWebhook, lemma.FormatID(lemma.PrefixEndpoint, e.ID)))})
	if err != nil {
		return err
	}
	if _, err := b.Flows.Publish(ctx, b.workspace, f.ID, 1, nil, flows.InFlight{Mode: "stay"}, nil); err != nil {
		return err
	}
	const bulk = 1000
	for from := 0; from < n; from += bulk {
		events := make([]intake.Event, min(bulk, n-from))
		for i := range events {
			events[i] = intake.Event{ProfileKey: strconv.Itoa(from + i), Name: "signed_up",
				Properties: json.RawMessage(`{"plan":"pro","source":"landing"}`)}
		}
		if _, err := b.Flows.Intake.RecordAll(ctx, b.workspace, events); err != nil {
			return err
		}
	}
	return while(ctx, b.Flows.Loop, func() (more bool, err error) {
		var written int
		err = b.Pool.QueryRow(ctx, `select count(*) from outbox where workspace_id = $1`, b.workspace).Scan(&written)
		return written < n, err
	})
}

// while runs a loop as long as more returns true, and waits for the end of the loop.
func while(ctx context.Context, loop func(context.Context), more func() (bool, error)) error {
	work, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { loop(work) })
	defer running.Wait()
	defer stop()
	for {
		is, err := more()
		if err != nil || !is {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

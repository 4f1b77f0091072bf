package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"lemma"
	"lemma/flows"
	"lemma/sender"
	"lemma/webhooks"
)

// benchWebhook calls one endpoint and goes on by the answer.
const benchWebhook = `{"triggers":[{"type":"event","event":"signed_up"}],"recurrence":{"policy":"once"},"start":"call","nodes":{
	"call":{"type":"webhook","endpoint_id":"%s","next":"end"},"end":{"type":"exit"}}}`

// receiver is the customer's system of a benchmark, in this process: it answers
// 200 at once, and counts what it gets by webhook-id.
type receiver struct {
	mu   sync.Mutex
	seen map[string]int
}

func (r *receiver) ServeHTTP(_ http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[q.Header.Get("webhook-id")]++
}

// webhookDelivery delivers the messages of enrollments that wait for the answer:
// claim, sign, call over loopback, settle, and wake the enrollment. All go to one
// endpoint, which has 8 calls at a time, from one node.
func (b *benchCommand) webhookDelivery(ctx context.Context, r *rig, print func(figure) error) error {
	n := b.n(30_000)
	r.cfg.AllowPrivateWebhooks = true
	node, err := r.fresh(ctx, []sender.Kind{r.null.kind()})
	if err != nil {
		return err
	}
	defer func() { _ = r.drop(context.WithoutCancel(ctx), node) }()
	to := &receiver{seen: make(map[string]int, n)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: to, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = srv.Serve(l) }()
	defer func() { _ = srv.Close() }()
	if err := node.awaitAnswers(ctx, "http://"+l.Addr().String(), n); err != nil {
		return err
	}
	m := startMeter(r.postmaster())
	var f figure
	err = while(ctx, node.webhooks.Loop, func() (more bool, err error) {
		err = node.pool.QueryRow(ctx, `select exists (select from outbox where workspace_id = $1 and state = 'pending')`, node.workspace).Scan(&more)
		if !more {
			f = m.stop("webhook_delivery", n)
		}
		return more, err
	})
	f.Missing = n - len(to.seen)
	for _, times := range to.seen {
		f.Duplicates += times - 1
	}
	if err != nil {
		return err
	}
	return print(f)
}

// awaitAnswers leads n profiles to a webhook node, without calling anybody.
func (b *benchNode) awaitAnswers(ctx context.Context, url string, n int) error {
	e, _, err := b.webhooks.Create(ctx, b.workspace, webhooks.NewEndpoint{ID: lemma.NewID(), Name: "bench", URL: url})
	if err != nil {
		return err
	}
	f, err := b.flows.Create(ctx, b.workspace, flows.NewFlow{ID: lemma.NewID(), Name: "bench",
		Definition: json.RawMessage(fmt.Sprintf(benchWebhook, lemma.FormatID(lemma.PrefixEndpoint, e.ID)))})
	if err != nil {
		return err
	}
	if _, err := b.flows.Publish(ctx, b.workspace, f.ID, 1, nil, flows.InFlight{Mode: "stay"}, nil); err != nil {
		return err
	}
	const bulk = 1000
	for from := 0; from < n; from += bulk {
		events := make([]flows.Event, min(bulk, n-from))
		for i := range events {
			events[i] = flows.Event{ProfileKey: fmt.Sprint(from + i), Name: "signed_up", Properties: json.RawMessage(`{"plan":"pro","source":"landing"}`)}
		}
		if _, err := b.flows.RecordAll(ctx, b.workspace, events); err != nil {
			return err
		}
	}
	return while(ctx, b.flows.Loop, func() (more bool, err error) {
		var written int
		err = b.pool.QueryRow(ctx, `select count(*) from outbox where workspace_id = $1`, b.workspace).Scan(&written)
		return written < n, err
	})
}

// while runs a loop for as long as there is more for it to do, and until it has ended.
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
		time.Sleep(20 * time.Millisecond)
	}
}

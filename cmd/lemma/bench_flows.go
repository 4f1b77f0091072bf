package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"lemma"
	"lemma/flows"
	"lemma/sender"
	"lemma/workspaces"
)

// benchFlow waits and then sends a letter.
const benchFlow = `{"audience_id":"%s","triggers":[{"type":"event","event":"signed_up","condition":"trigger.properties.plan != 'none'"}],"recurrence":{"policy":"once"},
	"start":"wait","nodes":{"wait":{"type":"delay","for":"%s","next":"letter"},
	"letter":{"type":"send","channel":"email","provider_id":"%s","template_id":"%s","from":{"email":"news@shop.example"},"next":"end"},"end":{"type":"exit"}}}`

// flow makes and publishes a flow over n people.
func (b *benchNode) flow(ctx context.Context, r *rig, n int, wait string) (uuid.UUID, error) {
	m, err := b.materials(ctx, r, n, "null", []byte(`{}`), nil)
	if err != nil {
		return uuid.Nil, err
	}
	definition := fmt.Sprintf(benchFlow, lemma.FormatID(lemma.PrefixAudience, m.audience), wait, lemma.FormatID(lemma.PrefixProvider, m.provider), lemma.FormatID(lemma.PrefixTemplate, m.template))
	f, err := b.flows.Create(ctx, b.workspace, flows.NewFlow{ID: lemma.NewID(), Name: "bench", Definition: json.RawMessage(definition)})
	if err != nil {
		return uuid.Nil, err
	}
	_, err = b.flows.Publish(ctx, b.workspace, f.ID, 1, nil, flows.InFlight{Mode: "stay"}, nil)
	return f.ID, err
}

// door is the node's API on a port of its own.
type door struct {
	url, key string
	client   *http.Client
	stop     func()
}

func (b *benchNode) open(ctx context.Context, clients int) (*door, error) {
	_, key, err := b.workspaces.CreateKey(ctx, b.workspace, workspaces.NewKey{ID: lemma.NewID(), Name: "bench", Scopes: []string{"events:write"}})
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	srv := &http.Server{Handler: b.api, ReadHeaderTimeout: headerTime, ReadTimeout: requestTime, WriteTimeout: totalTime, IdleTimeout: idleTime}
	go func() { _ = srv.Serve(l) }()
	transport := &http.Transport{MaxIdleConnsPerHost: clients}
	return &door{url: "http://" + l.Addr().String(), key: key, client: &http.Client{Transport: transport}, stop: func() { _ = srv.Close() }}, nil
}

// post sends a body and reads the whole answer.
func (d *door) post(ctx context.Context, path string, body []byte, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+d.key)
	req.Header.Set("Content-Type", "application/json")
	res, err := d.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode >= 300 {
		return fmt.Errorf("%s: %d %s", path, res.StatusCode, text)
	}
	return json.Unmarshal(text, into)
}

// eventOf is the i-th event of a benchmark.
func eventOf(i int) string {
	return fmt.Sprintf(`{"id":"e%d","profile_key":"%d","event":"signed_up","properties":{"plan":"pro","source":"landing","value":%d}}`, i, i, i%1000)
}

// eventsSingle posts events one by one over HTTP, each of which enrolls
// somebody: client and server are both in this process.
func (b *benchCommand) eventsSingle(ctx context.Context, r *rig, print func(figure) error) error {
	const clients = 64
	n := b.n(60_000)
	return r.withFlow(ctx, clients, func(node *benchNode, d *door) error {
		var mu sync.Mutex
		took := make([]time.Duration, 0, n)
		m := startMeter(r.postmaster())
		err := spread(ctx, n, clients, func(i int) error {
			begun := time.Now()
			var out struct{ Results []struct{ Result string } }
			if err := d.post(ctx, "/v1/events", []byte(eventOf(i)), &out); err != nil {
				return err
			}
			mu.Lock()
			took = append(took, time.Since(begun))
			mu.Unlock()
			return nil
		})
		if err != nil {
			return err
		}
		f := m.stop("events_single", n)
		slices.Sort(took)
		f.P50Ms, f.P99Ms = round(took[len(took)/2].Seconds()*1000), round(took[len(took)*99/100].Seconds()*1000)
		f.Missing, err = node.missing(ctx, n)
		if err != nil {
			return err
		}
		return print(f)
	})
}

// eventsBulk posts events by the thousand.
func (b *benchCommand) eventsBulk(ctx context.Context, r *rig, print func(figure) error) error {
	const clients, bulk = 3, 1000
	n := b.n(300_000) / bulk * bulk
	return r.withFlow(ctx, clients, func(node *benchNode, d *door) error {
		m := startMeter(r.postmaster())
		err := spread(ctx, n/bulk, clients, func(i int) error {
			events := make([]string, bulk)
			for j := range events {
				events[j] = eventOf(i*bulk + j)
			}
			var out struct{ Results []struct{ Status string } }
			return d.post(ctx, "/v1/events/bulk", []byte(`{"events":[`+strings.Join(events, ",")+`]}`), &out)
		})
		if err != nil {
			return err
		}
		f := m.stop("events_bulk", n)
		if f.Missing, err = node.missing(ctx, n); err != nil {
			return err
		}
		return print(f)
	})
}

// withFlow gives work a fresh node with a live flow and its API.
func (r *rig) withFlow(ctx context.Context, clients int, work func(*benchNode, *door) error) error {
	node, err := r.fresh(ctx, []sender.Kind{r.null.kind()})
	if err != nil {
		return err
	}
	defer func() { _ = r.drop(context.WithoutCancel(ctx), node) }()
	if _, err := node.flow(ctx, r, 1000, "P30D"); err != nil {
		return err
	}
	d, err := node.open(ctx, clients)
	if err != nil {
		return err
	}
	defer d.stop()
	return work(node, d)
}

// missing is how many of n people were not enrolled.
func (b *benchNode) missing(ctx context.Context, n int) (int, error) {
	var enrolled int
	err := b.pool.QueryRow(ctx, `select count(*) from enrollments where workspace_id = $1`, b.workspace).Scan(&enrolled)
	return n - enrolled, err
}

// spread lets so many clients do the numbers from 0 to n, each once.
func spread(ctx context.Context, n, clients int, do func(int) error) error {
	work, ctx := errgroup.WithContext(ctx)
	next := make(chan int)
	work.Go(func() error {
		defer close(next)
		for i := range n {
			select {
			case next <- i:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range clients {
		work.Go(func() error {
			for i := range next {
				if err := do(i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return work.Wait()
}

// flowAdvance wakes people whose wait is over and leads them through a send
// node to their end: profile read live, notification written, enrollment moved.
// It is done beside few people who wait, and beside a million, in a database
// without statistics, as a new installation is; and beside few in one with them.
func (b *benchCommand) flowAdvance(ctx context.Context, r *rig, print func(figure) error) error {
	n, few, many := b.n(100_000), b.n(10_000), b.n(1_000_000)
	var first figure
	for _, c := range []struct {
		name     string
		waiting  int
		analyzed bool
	}{{fmt.Sprintf("flow_advance_beside_%d", few), few, false}, {fmt.Sprintf("flow_advance_beside_%d", many), many, false}, {"flow_advance_analyzed", few, true}} {
		f, err := r.advance(ctx, c.name, n, c.waiting, c.analyzed)
		if err != nil {
			return err
		}
		if first.N == 0 {
			first = f
		} else {
			f.Ratio, f.Against = round((f.CPUUsLemma+f.CPUUsPostgres)/(first.CPUUsLemma+first.CPUUsPostgres)), "cpu per enrollment of "+first.Name
		}
		if err := print(f); err != nil {
			return err
		}
	}
	return nil
}

func (r *rig) advance(ctx context.Context, name string, n, waiting int, analyzed bool) (figure, error) {
	node, err := r.fresh(ctx, []sender.Kind{r.null.kind()})
	if err != nil {
		return figure{}, err
	}
	defer func() { _ = r.drop(context.WithoutCancel(ctx), node) }()
	flow, err := node.flow(ctx, r, n, "P30D")
	if err != nil {
		return figure{}, err
	}
	if err := node.fillWaiting(ctx, flow, 0, waiting, "30 days"); err != nil {
		return figure{}, err
	}
	if err := node.fillWaiting(ctx, flow, waiting, n, "0 s"); err != nil {
		return figure{}, err
	}
	for _, sql := range map[bool][]string{false: {`checkpoint`}, true: {`vacuum analyze`, `checkpoint`}}[analyzed] {
		if _, err := node.pool.Exec(ctx, sql); err != nil {
			return figure{}, err
		}
	}
	m := startMeter(r.postmaster())
	var f figure
	err = while(ctx, node.flows.Loop, func() (left bool, err error) {
		if left, err = node.due(ctx, flow); err == nil && !left {
			f = m.stop(name, n)
		}
		return left, err
	})
	if err != nil {
		return f, err
	}
	var sent int
	err = node.pool.QueryRow(ctx, `select count(*) from notifications where workspace_id = $1`, node.workspace).Scan(&sent)
	f.Missing = n - sent
	return f, err
}

// due says whether somebody of a flow is due, turn by turn as the workers look:
// the question must not cost more than what is measured.
func (b *benchNode) due(ctx context.Context, flow uuid.UUID) (is bool, err error) {
	err = b.pool.QueryRow(ctx, `
		select coalesce(bool_or((select e.resume_at from enrollments e where e.workspace_id = $1 and e.flow_id = $2 and e.turn = t.turn and e.status = 'active'
			order by e.resume_at limit 1) <= now()), false)
		from flow_turns t where t.workspace_id = $1 and t.flow_id = $2`, b.workspace, flow).Scan(&is)
	return is, err
}

// fillWaiting writes people who stand in the wait, by SQL. Those who are due
// are people of the source; the others need not be.
func (b *benchNode) fillWaiting(ctx context.Context, flow uuid.UUID, from, n int, due string) error {
	const lot = 250_000
	for done := 0; done < n; done += lot {
		_, err := b.pool.Exec(ctx, `
			insert into enrollments (workspace_id, id, flow_id, version, turn, uniqueness_key, slot, profile_key, node, step, waiting_since, resume_at, source)
			select $1, id, $2, 1, get_byte(uuid_send(id), 15) & 3, gen_random_uuid(), '00000000-0000-0000-0000-000000000000',
				case when $5 = '0 s' then (i + 1)::text else 'w' || ($3 + i) end, 'wait', 1, now() - interval '1 hour', now() + $5::interval, 'event'
			from (select i, overlay(gen_random_uuid()::text placing substr($6::uuid::text, 1, 15) from 1 for 15)::uuid as id from generate_series($4::int, $4 + $7 - 1) i) made`,
			b.workspace, flow, from, done, due, lemma.NewID(), min(lot, n-done))
		if err != nil {
			return fmt.Errorf("fill: %w", err)
		}
	}
	return nil
}

// flowJourney leads people through a whole journey, with everything that works
// in one process: an event, a wait of a second, a letter that is sent, the end.
func (b *benchCommand) flowJourney(ctx context.Context, r *rig, print func(figure) error) error {
	const bulk = 1000
	n := b.n(50_000) / bulk * bulk
	node, err := r.fresh(ctx, []sender.Kind{r.null.kind()})
	if err != nil {
		return err
	}
	defer func() { _ = r.drop(context.WithoutCancel(ctx), node) }()
	if _, err := node.flow(ctx, r, n, "PT1S"); err != nil {
		return err
	}
	d, err := node.open(ctx, 2)
	if err != nil {
		return err
	}
	defer d.stop()
	if err := node.work(ctx); err != nil {
		return err
	}
	r.null.reset(n)
	m := startMeter(r.postmaster())
	err = spread(ctx, n/bulk, 2, func(i int) error {
		events := make([]string, bulk)
		for j := range events {
			events[j] = eventOf(i*bulk + j + 1)
		}
		var out struct{ Results []struct{ Status string } }
		return d.post(ctx, "/v1/events/bulk", []byte(`{"events":[`+strings.Join(events, ",")+`]}`), &out)
	})
	for sent := 0; sent < n && err == nil; {
		time.Sleep(50 * time.Millisecond)
		err = node.pool.QueryRow(ctx, `select coalesce(sum(sent), 0) from batches where workspace_id = $1`, node.workspace).Scan(&sent)
	}
	if err != nil {
		return err
	}
	f := m.stop("flow_journey", n)
	f.Missing, f.Duplicates = n-r.null.count, r.null.duplicates
	return print(f)
}

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"lemma"
	"lemma/flows"
	"lemma/workspaces"
)

// benchFlow waits and then sends a message.
const benchFlow = `{"audience_id":"%s","triggers":[{"type":"event","event":"signed_up","condition":"trigger.properties.plan != 'none'"}],
	"recurrence":{"policy":"once"},
	"start":"wait","nodes":{"wait":{"type":"delay","for":"%s","next":"message"},
	"message":{"type":"send","channel":"email","provider_id":"%s","template_id":"%s","from":{"email":"news@shop.example"},"next":"end"},
	"end":{"type":"exit"}}}`

// flow creates and publishes a flow for n profiles.
func (b *instance) flow(ctx context.Context, e *env, n int, wait string) (uuid.UUID, error) {
	m, err := b.materials(ctx, e, n, "null", []byte(`{}`), nil)
	if err != nil {
		return uuid.Nil, err
	}
	definition := fmt.Sprintf(benchFlow, lemma.FormatID(lemma.PrefixAudience, m.audience), wait,
		lemma.FormatID(lemma.PrefixProvider, m.provider), lemma.FormatID(lemma.PrefixTemplate, m.template))
	f, err := b.Flows.Create(ctx, b.workspace, flows.NewFlow{ID: lemma.NewID(), Name: "bench", Definition: json.RawMessage(definition)})
	if err != nil {
		return uuid.Nil, err
	}
	_, err = b.Flows.Publish(ctx, b.workspace, f.ID, 1, nil, flows.InFlight{Mode: "stay"}, nil)
	return f.ID, err
}

// apiServer is the API on a port of its own.
type apiServer struct {
	url, key string
	client   *http.Client
	stop     func()
}

func (b *instance) open(ctx context.Context, clients int) (*apiServer, error) {
	_, key, err := b.Workspaces.CreateKey(ctx, b.workspace,
		workspaces.NewKey{ID: lemma.NewID(), Name: "bench", Scopes: []string{"events:write", "notifications:send"}})
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	srv := &http.Server{Handler: b.API, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = srv.Serve(l) }()
	transport := &http.Transport{MaxIdleConnsPerHost: clients}
	return &apiServer{url: "http://" + l.Addr().String(), key: key, client: &http.Client{Transport: transport},
		stop: func() { _ = srv.Close() }}, nil
}

// post sends a body and reads the whole response.
func (d *apiServer) post(ctx context.Context, path string, body []byte, into any) error {
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
	return fmt.Sprintf(`{"source_id":"e%d","profile_key":"%d","event":"signed_up",`+
		`"properties":{"plan":"pro","source":"landing","value":%d}}`, i, i, i%1000)
}

// eventsSingle posts events one by one over HTTP. Each one enrolls a profile.
// Client and server are both in this process.
func (b *benchmarks) eventsSingle(ctx context.Context, e *env, print func(figure) error) error {
	const clients = 64
	n := b.n(60_000)
	return e.withFlow(ctx, clients, func(process *instance, d *apiServer) error {
		f, err := e.timed(ctx, "events_single", n, clients, func(i int) error {
			var out struct{ Results []struct{ Status string } }
			return d.post(ctx, "/v1/events", []byte(eventOf(i)), &out)
		})
		if err != nil {
			return err
		}
		f.Missing, err = process.missing(ctx, n)
		if err != nil {
			return err
		}
		return print(f)
	})
}

// eventsBulk posts 1,000 events per request.
func (b *benchmarks) eventsBulk(ctx context.Context, e *env, print func(figure) error) error {
	const clients, bulk = 3, 1000
	n := b.n(300_000) / bulk * bulk
	return e.withFlow(ctx, clients, func(process *instance, d *apiServer) error {
		m := startMeter(e.postmaster())
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
		if f.Missing, err = process.missing(ctx, n); err != nil {
			return err
		}
		return print(f)
	})
}

// withFlow calls work with a new instance that has a live flow, and its API.
func (e *env) withFlow(ctx context.Context, clients int, work func(*instance, *apiServer) error) error {
	process, err := e.fresh(ctx, e.null.kind())
	if err != nil {
		return err
	}
	defer process.drop()
	if _, err := process.flow(ctx, e, 1000, "P30D"); err != nil {
		return err
	}
	d, err := process.open(ctx, clients)
	if err != nil {
		return err
	}
	defer d.stop()
	return work(process, d)
}

// missing returns how many of n profiles were not enrolled.
func (b *instance) missing(ctx context.Context, n int) (int, error) {
	var enrolled int
	err := b.Pool.QueryRow(ctx, `select count(*) from enrollments where workspace_id = $1`, b.workspace).Scan(&enrolled)
	return n - enrolled, err
}

// spread calls do with each number from 0 to n, in as many goroutines as clients.
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

// flowAdvance advances due enrollments through a send node to their end: profiles
// are read from the source, notifications inserted, enrollments completed. It is
// measured beside few enrollments that wait and beside a million, in a database
// without statistics, as in a new installation; and beside few with statistics.
func (b *benchmarks) flowAdvance(ctx context.Context, e *env, print func(figure) error) error {
	n, few, many := b.n(100_000), b.n(10_000), b.n(1_000_000)
	var first figure
	for _, c := range []struct {
		name     string
		waiting  int
		analyzed bool
	}{{fmt.Sprintf("flow_advance_beside_%d", few), few, false}, {fmt.Sprintf("flow_advance_beside_%d", many), many, false},
		{"flow_advance_analyzed", few, true}} {
		f, err := e.advance(ctx, c.name, n, c.waiting, c.analyzed)
		if err != nil {
			return err
		}
		if first.N == 0 {
			first = f
		} else {
			f.Ratio = round((f.CPUUsLemma + f.CPUUsPostgres) / (first.CPUUsLemma + first.CPUUsPostgres))
			f.Against = "cpu per enrollment of " + first.Name
		}
		if err := print(f); err != nil {
			return err
		}
	}
	return nil
}

func (e *env) advance(ctx context.Context, name string, n, waiting int, analyzed bool) (figure, error) {
	process, err := e.fresh(ctx, e.null.kind())
	if err != nil {
		return figure{}, err
	}
	defer process.drop()
	flow, err := process.flow(ctx, e, n, "P30D")
	if err != nil {
		return figure{}, err
	}
	if err := process.Flows.SeedWaiting(ctx, process.workspace, flow, "wait", "w", waiting, 30*24*time.Hour); err != nil {
		return figure{}, err
	}
	if err := process.Flows.SeedWaiting(ctx, process.workspace, flow, "wait", "", n, 0); err != nil {
		return figure{}, err
	}
	for _, sql := range map[bool][]string{false: {`checkpoint`}, true: {`vacuum analyze`, `checkpoint`}}[analyzed] {
		if _, err := process.Pool.Exec(ctx, sql); err != nil {
			return figure{}, err
		}
	}
	m := startMeter(e.postmaster())
	var f figure
	err = while(ctx, process.Flows.Loop, func() (left bool, err error) {
		if left, err = process.due(ctx, flow); err == nil && !left {
			f = m.stop(name, n)
		}
		return left, err
	})
	if err != nil {
		return f, err
	}
	var sent int
	err = process.Pool.QueryRow(ctx, `select count(*) from notifications where workspace_id = $1`, process.workspace).Scan(&sent)
	f.Missing = n - sent
	return f, err
}

// due reports whether an enrollment of a flow is due, shard by shard as the workers
// do: the query must not cost more than what is measured.
func (b *instance) due(ctx context.Context, flow uuid.UUID) (is bool, err error) {
	err = b.Pool.QueryRow(ctx, `
		select coalesce(bool_or((select e.resume_at from enrollments e where e.workspace_id = $1 and e.flow_id = $2
			and e.shard = t.shard and e.resume_at is not null
			order by e.resume_at limit 1) <= now()), false)
		from flow_shards t where t.workspace_id = $1 and t.flow_id = $2`, b.workspace, flow).Scan(&is)
	return is, err
}

// flowExecution measures whole enrollments, with everything in one process: an event,
// a wait of a second, a message that is sent, the end.
func (b *benchmarks) flowExecution(ctx context.Context, e *env, print func(figure) error) error {
	const bulk = 1000
	n := b.n(50_000) / bulk * bulk
	process, err := e.fresh(ctx, e.null.kind())
	if err != nil {
		return err
	}
	defer process.drop()
	if _, err := process.flow(ctx, e, n, "PT1S"); err != nil {
		return err
	}
	d, err := process.open(ctx, 2)
	if err != nil {
		return err
	}
	defer d.stop()
	if err := process.StartWorkers(ctx); err != nil {
		return err
	}
	e.null.reset(n)
	m := startMeter(e.postmaster())
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
		err = process.Pool.QueryRow(ctx, `select coalesce(sum(sent), 0) from batches where workspace_id = $1`, process.workspace).Scan(&sent)
	}
	if err != nil {
		return err
	}
	f := m.stop("flow_execution", n)
	f.Missing, f.Duplicates = n-e.null.count, e.null.duplicates
	return print(f)
}

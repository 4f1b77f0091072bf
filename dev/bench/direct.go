package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"lemma"
	"lemma/sender/smtp"
)

// directTarget is a process that accepts direct notifications and sends them to the sink.
type directTarget struct {
	*instance
	materials
	api  *apiServer
	sink *sinkProcess
	stop func()
}

// directTo opens a process that sends to the sink, or accepts only.
func (e *env) directTo(ctx context.Context, clients int, send bool) (d *directTarget, err error) {
	d = &directTarget{}
	if d.sink, err = startSink(ctx); err != nil {
		return nil, err
	}
	kind, config := smtp.Kind(smtp.Options{AllowPrivate: true}), fmt.Sprintf(`{"host": "127.0.0.1", "port": %d, "tls": "none"}`, d.sink.port)
	if d.instance, err = e.fresh(ctx, kind); err != nil {
		return nil, err
	}
	if d.materials, err = d.instance.materials(ctx, e, 1000, "smtp", []byte(config), nil); err != nil {
		return nil, err
	}
	if d.api, err = d.open(ctx, clients); err != nil {
		return nil, err
	}
	if send {
		if err := d.StartWorkers(ctx); err != nil {
			return nil, err
		}
	}
	d.stop = func() {
		d.api.stop()
		_ = d.Stop()
		d.drop()
		d.sink.stop()
	}
	return d, d.Direct.BeginPeriod(ctx)
}

// notification is the i-th request. The sink finds the number in the address.
func (d *directTarget) notification(i int, key string) string {
	if key != "" {
		key = fmt.Sprintf(`,"key":%q`, key)
	}
	return fmt.Sprintf(`{"to":{"address":"p%d@shop.example"},"template_id":%q,"template_version":1,"provider_id":%q,`+
		`"from":{"email":"shop@shop.example"},"data":{"name":"Ada","points":%d,"city":"Ghent","last_order":"2026-11-01"}%s}`,
		i, lemma.FormatID(lemma.PrefixTemplate, d.template), lemma.FormatID(lemma.PrefixProvider, d.provider), i, key)
}

// requests are n requests, each under a key of its own if there is a prefix of keys.
func (d *directTarget) requests(n int, prefix string) [][]byte {
	all := make([][]byte, n)
	for i := range all {
		key := ""
		if prefix != "" {
			key = prefix + strconv.Itoa(i)
		}
		body := d.notification(i+1, key)
		all[i] = fmt.Appendf(nil, "POST /v1/notifications HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer %s\r\n"+
			"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", d.api.key, len(body), body)
	}
	return all
}

func (f *figure) took(all []time.Duration) {
	f.P50Ms, f.P99Ms = round(all[len(all)/2].Seconds()*1000), round(all[len(all)*99/100].Seconds()*1000)
}

// sent waits until n notifications have ended, and counts the missing and the duplicate
// messages at the sink.
func (d *directTarget) sent(ctx context.Context, f *figure, n int) error {
	for left := 1; left > 0; {
		if err := d.Pool.QueryRow(ctx, `select count(*)::int from batches where status in ('ready', 'leased')`).Scan(&left); err != nil {
			return err
		}
		if left > 0 {
			time.Sleep(20 * time.Millisecond)
		}
	}
	f.Missing, f.Duplicates = d.sink.seen(n)
	return nil
}

// directSingle posts direct notifications one by one: as fast as they are accepted, under
// keys, under the same keys again, and 500 a second while a campaign's batches fill the
// queue, for the time until the sink has accepted each. The clients are another process,
// whose CPU time is not counted.
func (b *benchmarks) directSingle(ctx context.Context, e *env, print func(figure) error) error {
	const clients = 64
	n := b.n(30_000)
	d, err := e.directTo(ctx, clients, true)
	if err != nil {
		return err
	}
	defer d.stop()
	of := func(name, key string) (figure, error) {
		client, err := startClient(ctx, posts{d.api.url, clients, 0, d.requests(n, key)})
		if err != nil {
			return figure{}, err
		}
		m := startMeter(e.postmaster())
		took, err := client.run()
		if err != nil {
			return figure{}, err
		}
		f := m.stop(name, n)
		f.took(took)
		return f, nil
	}
	f, err := of("direct_single", "")
	if err == nil {
		err = d.sent(ctx, &f, n)
	}
	if err == nil {
		err = print(f)
	}
	if err != nil {
		return err
	}
	if err := d.repeated(ctx, of, print); err != nil {
		return err
	}
	return d.latency(ctx, e, b.n(10_000), print)
}

// repeated measures requests under keys without workers that send, and the same again.
func (d *directTarget) repeated(ctx context.Context, of func(name, key string) (figure, error), print func(figure) error) error {
	first, err := of("direct_key_first", "k")
	if err != nil {
		return err
	}
	if err := d.sent(ctx, &figure{}, 1); err != nil {
		return err
	}
	again, err := of("direct_key_repeated", "k")
	if err != nil {
		return err
	}
	again.Ratio = round((again.CPUUsLemma + again.CPUUsPostgres) / (first.CPUUsLemma + first.CPUUsPostgres))
	again.Against = "CPU of direct_key_first"
	if err := print(first); err != nil {
		return err
	}
	return print(again)
}

// latency posts 500 requests a second, and measures the time from the acceptance of each
// until its outcome is stored.
func (d *directTarget) latency(ctx context.Context, e *env, n int, print func(figure) error) error {
	if err := d.sink.reset(); err != nil {
		return err
	}
	var from time.Time
	if err := d.Pool.QueryRow(ctx, `select clock_timestamp()`).Scan(&from); err != nil {
		return err
	}
	client, err := startClient(ctx, posts{d.api.url, 64, 2 * time.Millisecond, d.requests(n, "")})
	if err != nil {
		return err
	}
	m := startMeter(e.postmaster())
	took, err := client.run()
	if err != nil {
		return err
	}
	f := m.stop("direct_latency", n)
	f.took(took)
	if err := d.sent(ctx, &f, n); err != nil {
		return err
	}
	err = d.Pool.QueryRow(ctx, `
		select percentile_disc(0.99) within group (order by extract(epoch from a.at - n.created_at) * 1000)::float8
		from notifications n join attempts a on a.workspace_id = n.workspace_id and a.batch_id = n.batch_id and a.ordinal = n.ordinal
		where n.created_at > $1`, from).Scan(&f.SentP99Ms)
	if err != nil {
		return err
	}
	f.SentP99Ms = round(f.SentP99Ms)
	return print(f)
}

// directBulk posts 1,000 direct notifications per request. Nothing is sent meanwhile.
func (b *benchmarks) directBulk(ctx context.Context, e *env, print func(figure) error) error {
	const clients, bulk = 3, 1000
	n := b.n(150_000) / bulk * bulk
	d, err := e.directTo(ctx, clients, false)
	if err != nil {
		return err
	}
	defer d.stop()
	m := startMeter(e.postmaster())
	err = spread(ctx, n/bulk, clients, func(i int) error {
		all := make([]string, bulk)
		for j := range all {
			all[j] = d.notification(i*bulk+j+1, "")
		}
		var out json.RawMessage
		return d.api.post(ctx, "/v1/notifications/bulk", []byte(`{"notifications":[`+strings.Join(all, ",")+`]}`), &out)
	})
	if err != nil {
		return err
	}
	f := m.stop("direct_bulk", n)
	if err := d.Pool.QueryRow(ctx, `select $1 - count(*)::int from notifications`, n).Scan(&f.Missing); err != nil {
		return err
	}
	return print(f)
}

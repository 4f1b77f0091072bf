package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/notifications"
	"lemma/providers"
)

// hookTarget is a provider that receives webhooks, and notifications that they are about.
type hookTarget struct {
	path   string
	origin uuid.UUID
	key    []byte // of the signatures in the generic format
}

// hooks posts events of a carrier through the public route, each in a request of its
// own with a signature, then the same again, then applies them: in the generic format,
// as Twilio, and as Amazon SNS with a certificate in memory.
func (b *benchmarks) hooks(ctx context.Context, e *env, print func(figure) error) error {
	topic, err := newSNSTopic()
	if err != nil {
		return err
	}
	for _, f := range []hookFormat{genericFormat, twilioFormat, topic.format()} {
		if err := b.hooksAs(ctx, e, f, print); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

// hooksAs measures one format. The clients are in this process, but their requests are
// made before.
func (b *benchmarks) hooksAs(ctx context.Context, e *env, format hookFormat, print func(figure) error) error {
	const clients = 64
	n := b.n(60_000)
	process, err := e.fresh(ctx, format.kind)
	if err != nil {
		return err
	}
	defer process.drop()
	target, err := process.hookTarget(ctx, n, format)
	if err != nil {
		return err
	}
	d, err := process.open(ctx, clients)
	if err != nil {
		return err
	}
	defer d.stop()
	requests := make([][]byte, n)
	for i := range requests {
		requests[i] = format.request(target, i).bytes()
	}
	first, err := d.replay(ctx, e, format.name, requests, clients)
	if err != nil {
		return err
	}
	if err := process.Pool.QueryRow(ctx, `select $2 - count(*) from provider_events where workspace_id = $1 and batch_id is not null`,
		process.workspace, n).Scan(&first.Missing); err != nil {
		return err
	}
	again, err := d.replay(ctx, e, format.name+"_duplicate", requests, clients)
	if err != nil {
		return err
	}
	again.Ratio, again.Against = round((again.CPUUsLemma+again.CPUUsPostgres)/(first.CPUUsLemma+first.CPUUsPostgres)), "CPU of "+format.name
	if err := process.Pool.QueryRow(ctx, `select count(*) - $2 from provider_events where workspace_id = $1`,
		process.workspace, n).Scan(&again.Duplicates); err != nil {
		return err
	}
	applied, err := process.applied(ctx, e, format.name+"_apply", n)
	if err != nil {
		return err
	}
	for _, f := range []figure{first, again, applied} {
		if err := print(f); err != nil {
			return err
		}
	}
	return nil
}

// applied measures how n events are applied.
func (b *instance) applied(ctx context.Context, e *env, name string, n int) (figure, error) {
	m := startMeter(e.postmaster())
	for {
		applied, err := b.Deliveries.Apply(ctx)
		if err != nil {
			return figure{}, err
		}
		if applied == 0 {
			break
		}
	}
	f := m.stop(name, n)
	err := b.Pool.QueryRow(ctx, `select $2 - coalesce(sum(count), 0)::int from delivery_counts where workspace_id = $1`,
		b.workspace, n).Scan(&f.Missing)
	return f, err
}

// hookTarget inserts n notifications of a campaign without sending them.
func (b *instance) hookTarget(ctx context.Context, n int, format hookFormat) (hookTarget, error) {
	t := hookTarget{key: bytes.Repeat([]byte{7}, 32), origin: lemma.NewID()}
	p, err := b.Providers.Create(ctx, b.workspace, providers.NewProvider{ID: lemma.NewID(), Name: "hooks", Kind: format.kind.Name,
		Config: json.RawMessage(format.config), Secrets: json.RawMessage(format.secrets(t))})
	if err != nil {
		return t, err
	}
	t.path = "/hooks/" + format.kind.Name + "/" + lemma.FormatID(lemma.PrefixProvider, p.ID)
	for from := 0; from < n; from += 5000 {
		all := make([]notifications.Recipient, min(5000, n-from))
		for i := range all {
			all[i] = notifications.Recipient{Key: t.keyOf(from + i), ProfileKey: fmt.Sprint(from + i),
				Address: fmt.Sprintf("p%d@shop.example", from+i)}
		}
		err := pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error {
			_, err := b.Ledger.Insert(ctx, tx, notifications.Chunk{WorkspaceID: b.workspace, OriginID: t.origin, ProviderID: p.ID,
				ContentID: t.origin, Run: from + 1, MaxAttempts: 2, BatchSize: 500, Recipients: all})
			return err
		})
		if err != nil {
			return t, err
		}
	}
	return t, nil
}

func (t hookTarget) keyOf(i int) uuid.UUID { return lemma.Key("bench/1", fmt.Sprint(i)) }

// replay sends requests and measures the answers, which must be 200.
func (d *apiServer) replay(ctx context.Context, e *env, name string, requests [][]byte, clients int) (figure, error) {
	free, err := newReplayers(ctx, d.url, clients)
	if err != nil {
		return figure{}, err
	}
	defer free.close()
	return e.timed(ctx, name, len(requests), clients, func(i int) error {
		return free.use(func(r *replayer) error { return r.send(requests[i]) })
	})
}

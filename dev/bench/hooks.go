package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/notifications"
	"lemma/providers"
	"lemma/sender"
	"lemma/sender/gateway"
	"lemma/sender/wire"
	"lemma/signing"
)

// hookTarget is a provider that receives webhooks, and notifications that they are about.
type hookTarget struct {
	path   string
	key    []byte
	origin uuid.UUID
}

// hooks posts events of a carrier through the public route, each in a request of its
// own with a signature, then the same again, then applies them. The clients are in this
// process, so its CPU time contains theirs.
func (b *benchmarks) hooks(ctx context.Context, e *env, print func(figure) error) error {
	const clients = 64
	n := b.n(60_000)
	process, err := e.fresh(ctx, []sender.Kind{gateway.Kind(wire.Operator{})})
	if err != nil {
		return err
	}
	defer func() { _ = e.drop(context.WithoutCancel(ctx), process) }()
	target, err := process.hookTarget(ctx, n)
	if err != nil {
		return err
	}
	d, err := process.open(ctx, clients)
	if err != nil {
		return err
	}
	defer d.stop()
	first, err := target.post(ctx, e, d, "hooks", n, clients)
	if err != nil {
		return err
	}
	if err := process.Pool.QueryRow(ctx, `select $2 - count(*) from provider_events where workspace_id = $1 and batch_id is not null`,
		process.workspace, n).Scan(&first.Missing); err != nil {
		return err
	}
	again, err := target.post(ctx, e, d, "hooks_duplicate", n, clients)
	if err != nil {
		return err
	}
	again.Ratio, again.Against = round((again.CPUUsLemma+again.CPUUsPostgres)/(first.CPUUsLemma+first.CPUUsPostgres)), "CPU of hooks"
	if err := process.Pool.QueryRow(ctx, `select count(*) - $2 from provider_events where workspace_id = $1`,
		process.workspace, n).Scan(&again.Duplicates); err != nil {
		return err
	}
	m := startMeter(e.postmaster())
	for {
		applied, err := process.Deliveries.Apply(ctx)
		if err != nil {
			return err
		}
		if applied == 0 {
			break
		}
	}
	applied := m.stop("hooks_apply", n)
	if err := process.Pool.QueryRow(ctx, `select $2 - coalesce(sum(count), 0)::int from delivery_counts where workspace_id = $1`,
		process.workspace, n).Scan(&applied.Missing); err != nil {
		return err
	}
	for _, f := range []figure{first, again, applied} {
		if err := print(f); err != nil {
			return err
		}
	}
	return nil
}

// hookTarget inserts n notifications of a campaign without sending them.
func (b *instance) hookTarget(ctx context.Context, n int) (hookTarget, error) {
	t := hookTarget{key: bytes.Repeat([]byte{7}, 32), origin: lemma.NewID()}
	secret := signing.Secret(t.key)
	p, err := b.Providers.Create(ctx, b.workspace, providers.NewProvider{ID: lemma.NewID(), Name: "gateway", Kind: "http",
		Channel: lemma.Email,
		Config:  json.RawMessage(`{"url":"https://gw.example/send"}`),
		Secrets: json.RawMessage(fmt.Sprintf(`{"signing_secret":%q,"webhook_secret":%[1]q}`, secret))})
	if err != nil {
		return t, err
	}
	t.path = "/hooks/http/" + lemma.FormatID(lemma.PrefixProvider, p.ID)
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

// post posts n events and measures the answers.
func (t hookTarget) post(ctx context.Context, e *env, d *apiServer, name string, n, clients int) (figure, error) {
	var mu sync.Mutex
	took := make([]time.Duration, 0, n)
	at := time.Now().UTC().Format(time.RFC3339Nano)
	m := startMeter(e.postmaster())
	err := spread(ctx, n, clients, func(i int) error {
		body := fmt.Appendf(nil, `{"type":"delivered","notification_id":%q,"attempt":1,"carrier_id":"m-%d","occurred_at":%q}`,
			lemma.FormatNotificationID(t.origin, t.keyOf(i)), i, at)
		begun := time.Now()
		if err := d.postSigned(ctx, t.path, t.key, fmt.Sprint("e", i), body); err != nil {
			return err
		}
		mu.Lock()
		took = append(took, time.Since(begun))
		mu.Unlock()
		return nil
	})
	if err != nil {
		return figure{}, err
	}
	f := m.stop(name, n)
	slices.Sort(took)
	f.P50Ms, f.P99Ms = round(took[len(took)/2].Seconds()*1000), round(took[len(took)*99/100].Seconds()*1000)
	return f, nil
}

// postSigned posts a webhook of a carrier.
func (d *apiServer) postSigned(ctx context.Context, path string, key []byte, id string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	signing.Set(req.Header, [][]byte{key}, id, time.Now(), body)
	answer, err := d.client.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the webhook was answered %s", answer.Status)
	}
	return nil
}

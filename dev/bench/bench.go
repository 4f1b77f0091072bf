// Package bench measures the hot paths of Lemma: campaigns, fan-out, claims, events,
// flows, webhooks and direct notifications. Each figure has a new database, in a Postgres cluster of its
// own with fsync on, so that figures do not influence each other. Every figure also
// counts missing and duplicate messages, which must be 0.
package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/campaigns"
	"lemma/notifications"
	"lemma/sender"
	"lemma/sender/ses"
	"lemma/sender/smtp"
	"lemma/sender/wire"
	"lemma/server"
)

// Options are the options of a run.
type Options struct {
	Figures []string      // names; all when empty
	Scale   float64       // factor for all numbers of recipients
	Server  server.Config // with DatabaseURL: that Postgres is used, whose role must be able to create databases
	PGBin   string        // folder of initdb and postgres
}

// Run measures the figures and prints each as a line of JSON.
func Run(ctx context.Context, o Options, out io.Writer) error {
	e, closeEnv, err := openEnv(ctx, o)
	if err != nil {
		return err
	}
	defer closeEnv()
	line := json.NewEncoder(out)
	b := &benchmarks{scale: o.Scale}
	for _, f := range []struct {
		name string
		run  func(context.Context, *env, func(figure) error) error
	}{
		{"campaign_null", b.campaignNull}, {"campaign_smtp", b.campaignSMTP}, {"campaign_ses", b.campaignSES},
		{"campaign_suppressed", b.campaignSuppressed}, {"campaign_links", b.campaignLinks},
		{"fanout", b.fanout}, {"fanout_variants", b.fanoutVariants}, {"claim", b.claim},
		{"events_single", b.eventsSingle}, {"events_bulk", b.eventsBulk}, {"flow_advance", b.flowAdvance}, {"flow_execution", b.flowExecution},
		{"webhook_delivery", b.webhookDelivery}, {"webhook_out", b.webhookOut}, {"campaign_events", b.campaignEvents},
		{"assign", b.assign}, {"evaluate", b.evaluate}, {"hooks", b.hooks}, {"clicks", b.clicks},
		{"direct_single", b.directSingle}, {"direct_bulk", b.directBulk},
		{"export", b.export},
	} {
		if len(o.Figures) > 0 && !slices.Contains(o.Figures, f.name) {
			continue
		}
		if err := f.run(ctx, e, func(x figure) error { return line.Encode(x) }); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

// benchmarks are the measurements, one method for each.
type benchmarks struct{ scale float64 }

func (b *benchmarks) n(n int) int { return max(1000, int(float64(n)*b.scale)) }

// campaignNull sends with a carrier that accepts at once: source, cursor,
// fan-out, claim, render and commit, all in this process. The largest campaign is
// compared with the smallest by its cost per recipient.
func (b *benchmarks) campaignNull(ctx context.Context, e *env, print func(figure) error) error {
	cost := map[int]float64{}
	for _, n := range []int{b.n(100_000), b.n(500_000), b.n(1_000_000)} {
		f, err := e.oneCampaign(ctx, "campaign_null", n, e.null.kind(), []byte(`{}`), nil, func() (int, int) {
			return n - e.null.count, e.null.duplicates
		}, func() error { e.null.reset(n); return nil })
		if err != nil {
			return err
		}
		cost[n] = f.CPUUsLemma + f.CPUUsPostgres
		if n == b.n(1_000_000) {
			f.Ratio, f.Against = round(cost[n]/cost[b.n(100_000)]), fmt.Sprintf("cpu per recipient of %d", b.n(100_000))
		}
		if err := print(f); err != nil {
			return err
		}
	}
	return nil
}

// oneCampaign measures a campaign from send to its end. seen returns what the
// receiver got, and reset clears it before.
func (e *env) oneCampaign(ctx context.Context, name string, n int, kind sender.Kind, config, secret []byte,
	seen func() (missing, duplicates int), reset func() error) (figure, error) {
	process, err := e.fresh(ctx, kind)
	if err != nil {
		return figure{}, err
	}
	defer process.drop()
	id, err := process.campaign(ctx, e, n, kind.Name, config, secret)
	if err != nil {
		return figure{}, err
	}
	if err := reset(); err != nil {
		return figure{}, err
	}
	if err := process.StartWorkers(ctx); err != nil {
		return figure{}, err
	}
	return e.sendCampaign(ctx, process, name, id, n, seen)
}

// sendCampaign sends a campaign, and measures it from send to its end.
func (e *env) sendCampaign(ctx context.Context, process *instance, name string, id uuid.UUID, n int,
	seen func() (missing, duplicates int)) (figure, error) {
	m := startMeter(e.postmaster())
	if _, err := process.Campaigns.Send(ctx, process.workspace, id, uuid.Nil); err != nil {
		return figure{}, err
	}
	c, err := process.await(ctx, id)
	if err != nil {
		return figure{}, err
	}
	f := m.stop(name, n)
	if c.Status != campaigns.Completed || !c.Counts.Balanced || c.Counts.Sent != int64(n) {
		return f, fmt.Errorf("campaign is %s (%s): %+v", c.Status, c.StatusDetail, c.Counts)
	}
	took := c.FinishedAt.Sub(*c.StartedAt).Seconds() // the campaign's own times: the poll for its end is not counted
	f.Seconds, f.PerSecond = round(took), round(float64(n)/took)
	f.Missing, f.Duplicates = seen()
	var first float64
	err = process.Pool.QueryRow(ctx,
		`select extract(epoch from min(at) - $2)::float8 from attempts where workspace_id = $1 and at >= $2`,
		process.workspace, c.StartedAt).Scan(&first)
	f.FirstSeconds = round(first)
	return f, err
}

func (e *env) postmaster() int {
	if e.cluster == nil {
		return 0
	}
	return e.cluster.PID()
}

// campaignSMTP sends personalized HTML messages to a sink in another process, whose
// CPU time is not counted, without and with DKIM.
func (b *benchmarks) campaignSMTP(ctx context.Context, e *env, print func(figure) error) error {
	n := b.n(100_000)
	s, err := startSink(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	plain := fmt.Sprintf(`{"host": "127.0.0.1", "port": %d, "tls": "none"}`, s.port)
	signed := fmt.Sprintf(`{"host": "127.0.0.1", "port": %d, "tls": "none", "dkim": {"domain": "shop.example", "selector": "s1"}}`, s.port)
	for _, c := range []struct {
		name   string
		n      int
		config string
		secret []byte
	}{
		{"campaign_smtp", n, plain, nil},
		{"campaign_smtp_dkim", n / 5, signed, benchKey()}, // an RSA signature costs as much as fifty messages
	} {
		f, err := e.oneCampaign(ctx, c.name, c.n, smtp.Kind(smtp.Options{AllowPrivate: true}), []byte(c.config), c.secret,
			func() (int, int) { return s.seen(c.n) }, s.reset)
		if err != nil {
			return err
		}
		if err := print(f); err != nil {
			return err
		}
	}
	return nil
}

// campaignSES sends the same messages to a server for Amazon SES in another process,
// over HTTP/2 and TLS.
func (b *benchmarks) campaignSES(ctx context.Context, e *env, print func(figure) error) error {
	n := b.n(100_000)
	s, err := startSink(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	config := fmt.Sprintf(`{"region": "eu-central-1", "endpoint": %q, "configuration_set": "lemma", "max_requests": 256}`, s.web)
	f, err := e.oneCampaign(ctx, "campaign_ses", n, ses.Kind(wire.Operator{AllowPrivate: true, Roots: s.roots}), []byte(config),
		[]byte(`{"access_key_id": "AKIDEXAMPLE123456789", "secret_access_key": "secret"}`),
		func() (int, int) { return s.seen(n) }, s.reset)
	if err != nil {
		return err
	}
	return print(f)
}

// claim measures how long a claim takes in an empty table, and with five
// million finished notifications in it.
func (b *benchmarks) claim(ctx context.Context, e *env, print func(figure) error) error {
	process, err := e.fresh(ctx, e.null.kind())
	if err != nil {
		return err
	}
	defer process.drop()
	e.null.reset(10_000_000)
	var empty figure
	for _, finished := range []int{0, b.n(5_000_000)} {
		if err := e.fillFinished(ctx, process, finished); err != nil {
			return err
		}
		f, err := e.claims(ctx, process, fmt.Sprintf("claim_with_%d_finished", finished))
		if err != nil {
			return err
		}
		if finished == 0 {
			empty = f
		} else {
			f.Ratio, f.Against = round(f.P50Ms/empty.P50Ms), "claim_with_0_finished, p50"
		}
		if err := print(f); err != nil {
			return err
		}
	}
	return nil
}

// fillFinished inserts notifications that were sent.
func (e *env) fillFinished(ctx context.Context, b *instance, n int) error {
	const perStatement = 250_000
	for from := 0; from < n; from += perStatement {
		batches, err := b.Ledger.SeedSent(ctx, b.workspace, benchOrigin, min(perStatement, n-from))
		if err != nil {
			return err
		}
		if err := b.Sender.SeedAttempts(ctx, b.workspace, batches); err != nil {
			return err
		}
	}
	// Otherwise autovacuum runs during the measurement. There are no statistics, as in a new installation.
	if _, err := b.Pool.Exec(ctx, `vacuum`); err != nil {
		return err
	}
	_, err := b.Pool.Exec(ctx, `checkpoint`) // the same
	return err
}

// claims writes 200 batches and times the claim of each, one after the other.
func (e *env) claims(ctx context.Context, b *instance, name string) (figure, error) {
	const batches, size = 200, 500
	origin := lemma.NewID()
	id, err := b.campaign(ctx, e, 1000, "null", []byte(`{}`), nil)
	if err != nil && lemma.KindOf(err) != lemma.Conflict {
		return figure{}, err
	}
	var provider uuid.UUID
	if err := b.Pool.QueryRow(ctx, `select provider_id from campaigns where workspace_id = $1`, b.workspace).Scan(&provider); err != nil {
		return figure{}, fmt.Errorf("campaign %s: %w", id, err)
	}
	err = inChunks(ctx, batches*size, 1, func(from, to int) error {
		return pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error {
			_, err := b.Ledger.Insert(ctx, tx, notifications.Chunk{WorkspaceID: b.workspace, OriginID: origin,
				ProviderID: provider, ContentID: origin,
				Run: 1, MaxAttempts: 2, BatchSize: size, Recipients: benchRecipients(origin, from, to)})
			return err
		})
	})
	if err != nil {
		return figure{}, err
	}
	rows, _ := b.Pool.Query(ctx,
		`select workspace_id, origin_id, id from batches where workspace_id = $1 and origin_id = $2`, b.workspace, origin)
	refs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[notifications.Ref])
	if err != nil {
		return figure{}, err
	}
	var took []time.Duration
	m := startMeter(e.postmaster())
	for _, ref := range refs {
		begun := time.Now()
		if _, err := b.Sender.Claim(ctx, ref); err != nil {
			return figure{}, err
		}
		took = append(took, time.Since(begun))
	}
	f := m.stop(name, batches*size)
	f.latencies(took)
	return f, nil
}

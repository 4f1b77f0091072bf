package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"lemma"
	"lemma/campaigns"
	"lemma/notifications"
	"lemma/sender"
	"lemma/sender/smtp"
)

// benchCommand measures the hot paths and prints one JSON line per figure.
type benchCommand struct {
	Figures []string      `arg:"" optional:"" help:"Which figures: campaign_null, campaign_smtp, fanout, claim, events_single, events_bulk, flow_advance, flow_journey, webhook_delivery. All when none is named."`
	Scale   float64       `default:"1" help:"Multiplies every number of recipients: 0.01 for a quick look."`
	Limit   time.Duration `default:"15m" help:"Stop after this time, finished or not."`
	Profile string        `type:"path" placeholder:"FILE" help:"Write a CPU profile of this process, for go tool pprof."`
}

func (b *benchCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, b.Limit)
	defer cancel()
	if b.Profile != "" {
		f, err := os.Create(b.Profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	r, end, err := openRig(ctx, cfg)
	if err != nil {
		return err
	}
	defer end()
	line := json.NewEncoder(out)
	for _, f := range []struct {
		name string
		run  func(context.Context, *rig, func(figure) error) error
	}{
		{"campaign_null", b.campaignNull}, {"campaign_smtp", b.campaignSMTP}, {"fanout", b.fanout}, {"claim", b.claim},
		{"events_single", b.eventsSingle}, {"events_bulk", b.eventsBulk}, {"flow_advance", b.flowAdvance}, {"flow_journey", b.flowJourney},
		{"webhook_delivery", b.webhookDelivery},
	} {
		if len(b.Figures) > 0 && !slices.Contains(b.Figures, f.name) {
			continue
		}
		if err := f.run(ctx, r, func(x figure) error { return line.Encode(x) }); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

func (b *benchCommand) n(n int) int { return max(1000, int(float64(n)*b.Scale)) }

// campaignNull sends to a carrier that accepts at once: source, cursor,
// fan-out, claim, render, commit, all in this process. The largest is compared
// with the smallest by its cost per recipient.
func (b *benchCommand) campaignNull(ctx context.Context, r *rig, print func(figure) error) error {
	cost := map[int]float64{}
	for _, n := range []int{b.n(100_000), b.n(500_000), b.n(1_000_000)} {
		f, err := r.oneCampaign(ctx, "campaign_null", n, r.null.kind(), []byte(`{}`), nil, func() (int, int) {
			return n - r.null.count, r.null.duplicates
		}, func() error { r.null.reset(n); return nil })
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

// oneCampaign measures a campaign from send to its end. seen tells what arrived
// at the far end, and reset makes that forget what came before.
func (r *rig) oneCampaign(ctx context.Context, name string, n int, kind sender.Kind, config, secret []byte,
	seen func() (missing, duplicates int), reset func() error) (figure, error) {
	node, err := r.fresh(ctx, []sender.Kind{kind})
	if err != nil {
		return figure{}, err
	}
	defer func() { _ = r.drop(context.WithoutCancel(ctx), node) }()
	id, err := node.campaign(ctx, r, n, kind.Name, config, secret)
	if err != nil {
		return figure{}, err
	}
	if err := reset(); err != nil {
		return figure{}, err
	}
	if err := node.work(ctx); err != nil {
		return figure{}, err
	}
	m := startMeter(r.postmaster())
	if _, err := node.campaigns.Send(ctx, node.workspace, id, uuid.Nil); err != nil {
		return figure{}, err
	}
	c, err := node.await(ctx, id)
	if err != nil {
		return figure{}, err
	}
	f := m.stop(name, n)
	if c.Status != campaigns.Completed || !c.Books.Balanced || c.Books.Sent != int64(n) {
		return f, fmt.Errorf("campaign is %s (%s): %+v", c.Status, c.StatusDetail, c.Books)
	}
	took := c.FinishedAt.Sub(*c.StartedAt).Seconds() // the campaign's own, not that of looking for its end
	f.Seconds, f.PerSecond = round(took), round(float64(n)/took)
	f.Missing, f.Duplicates = seen()
	var first float64
	err = node.pool.QueryRow(ctx, `select extract(epoch from min(at) - $2)::float8 from attempts where workspace_id = $1`, node.workspace, c.StartedAt).Scan(&first)
	f.FirstSeconds = round(first)
	return f, err
}

func (r *rig) postmaster() int {
	if r.cluster == nil {
		return 0
	}
	return r.cluster.PID()
}

// campaignSMTP sends personalised HTML mails to a sink in a process of its
// own, whose CPU is not counted, without DKIM and with it.
func (b *benchCommand) campaignSMTP(ctx context.Context, r *rig, print func(figure) error) error {
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
		{"campaign_smtp_dkim", n / 5, signed, benchKey()}, // an RSA signature costs as much as fifty mails
	} {
		f, err := r.oneCampaign(ctx, c.name, c.n, smtp.Kind(smtp.Options{AllowPrivate: true}), []byte(c.config), c.secret, func() (int, int) { return s.seen(c.n) }, s.reset)
		if err != nil {
			return err
		}
		if err := print(f); err != nil {
			return err
		}
	}
	return nil
}

// fanout measures the writing of notifications alone, against a plain COPY
// into the same tables with the same indexes and as many writers, and then the
// same fan-out again, which adds nothing.
func (b *benchCommand) fanout(ctx context.Context, r *rig, print func(figure) error) error {
	n, writers := b.n(500_000), 2
	node, err := r.fresh(ctx, []sender.Kind{r.null.kind()})
	if err != nil {
		return err
	}
	defer func() { _ = r.drop(context.WithoutCancel(ctx), node) }()
	copied, err := r.copyReference(ctx, node, n, writers)
	if err != nil {
		return err
	}
	if err := print(copied); err != nil {
		return err
	}
	first, err := r.writeAll(ctx, node, 1, n, writers)
	if err != nil {
		return err
	}
	first.Ratio, first.Against = round(first.PerSecond/copied.PerSecond), "copy, per second"
	if err := print(first); err != nil {
		return err
	}
	again, err := r.writeAll(ctx, node, 2, n, writers)
	if err != nil {
		return err
	}
	again.Ratio, again.Against = round(again.Seconds/first.Seconds), "fanout, seconds"
	return print(again)
}

// benchOrigin is the same for every run of the fan-out figure, so that the
// second one repeats the first.
var benchOrigin = lemma.NewID()

func benchRecipients(origin uuid.UUID, from, to int) []notifications.Recipient {
	out := make([]notifications.Recipient, 0, to-from)
	for i := from; i < to; i++ {
		address := fmt.Sprintf("user%d@bench.example", i)
		out = append(out, notifications.Recipient{Key: campaigns.Key(origin, lemma.Email, address), ProfileKey: fmt.Sprint(i), Address: address,
			Payload: fmt.Sprintf(`{"name":"Name %d","city":"City %d","points":%d,"last_order":"2026-01-%02d"}`, i, i%1000, i%97, i%28+1)})
	}
	return out
}

// writeAll writes n recipients by chunks of 5,000, as the first or a later run
// of a fan-out does.
func (r *rig) writeAll(ctx context.Context, b *benchNode, run, n, writers int) (figure, error) {
	name := map[bool]string{true: "fanout", false: "rerun"}[run == 1]
	before := r.count(ctx, b)
	m := startMeter(r.postmaster())
	err := inChunks(ctx, n, writers, func(from, to int) error {
		return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
			_, err := b.ledger.Insert(ctx, tx, notifications.Chunk{WorkspaceID: b.workspace, OriginID: benchOrigin, ProviderID: benchOrigin, ContentID: benchOrigin,
				Run: run, Copy: run == 1, MaxAttempts: 2, BatchSize: 500, Recipients: benchRecipients(benchOrigin, from, to)})
			return err
		})
	})
	f := m.stop(name, n)
	added := r.count(ctx, b) - before
	if run > 1 {
		f.Duplicates = added
	} else {
		f.Missing = n - added
	}
	return f, err
}

func (r *rig) count(ctx context.Context, b *benchNode) (n int) {
	_ = b.pool.QueryRow(ctx, `select count(*) from notifications where workspace_id = $1 and origin_id = $2`, b.workspace, benchOrigin).Scan(&n)
	return n
}

func inChunks(ctx context.Context, n, writers int, write func(from, to int) error) error {
	const chunk = 5000
	next := make(chan int)
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error {
		defer close(next)
		for from := 0; from < n; from += chunk {
			select {
			case next <- from:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range writers {
		work.Go(func() error {
			for from := range next {
				if err := write(from, min(from+chunk, n)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return work.Wait()
}

// copyReference is what Postgres can do at best: the same rows by COPY, under
// an origin of their own.
func (r *rig) copyReference(ctx context.Context, b *benchNode, n, writers int) (figure, error) {
	origin := lemma.NewID()
	m := startMeter(r.postmaster())
	err := inChunks(ctx, n, writers, func(from, to int) error {
		rows, batch := benchRecipients(origin, from, to), lemma.NewID()
		slices.SortFunc(rows, func(a, b notifications.Recipient) int { return bytes.Compare(a.Key[:], b.Key[:]) })
		_, err := b.pool.CopyFrom(ctx, pgx.Identifier{"notifications"},
			[]string{"workspace_id", "origin_id", "key", "batch_id", "ordinal", "profile_key", "address", "payload"},
			pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) {
				x := rows[i]
				return []any{b.workspace, origin, x.Key, batch, int16(i), x.ProfileKey, x.Address, x.Payload}, nil
			}))
		return err
	})
	return m.stop("copy", n), err
}

// claim measures how long a claim takes in an empty table, and with five
// million finished notifications in it.
func (b *benchCommand) claim(ctx context.Context, r *rig, print func(figure) error) error {
	node, err := r.fresh(ctx, []sender.Kind{r.null.kind()})
	if err != nil {
		return err
	}
	defer func() { _ = r.drop(context.WithoutCancel(ctx), node) }()
	r.null.reset(10_000_000)
	var empty figure
	for _, finished := range []int{0, b.n(5_000_000)} {
		if err := r.fillFinished(ctx, node, finished); err != nil {
			return err
		}
		f, err := r.claims(ctx, node, fmt.Sprintf("claim_with_%d_finished", finished))
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

// fillFinished writes notifications that have been sent, by SQL.
func (r *rig) fillFinished(ctx context.Context, b *benchNode, n int) error {
	const lot = 250_000
	for from := 0; from < n; from += lot {
		_, err := b.pool.Exec(ctx, `
			with made as (
				select gen_random_uuid() as id from generate_series(1, $3::int / 500)
			), numbered as (
				select id, row_number() over () - 1 as i from made
			), batch as (
				insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, max_attempts, state, sent, finished_at)
				select $1, $2, id, id, $2, $2, 500, 2, 'done', 500, now() from made
			), intents as (
				insert into notifications (workspace_id, origin_id, key, batch_id, ordinal, profile_key, address, payload)
				select $1, $2, gen_random_uuid(), m.id, o, (m.i * 500 + o)::text, 'user' || (m.i * 500 + o) || '@bench.example', '{"name":"Name"}'
				from numbered m, generate_series(0, 499) o
			)
			insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis, code)
			select $1, id, o, 1, 'accepted', true, 'response', 250 from made, generate_series(0, 499) o`,
			b.workspace, benchOrigin, lot)
		if err != nil {
			return fmt.Errorf("fill: %w", err)
		}
	}
	if _, err := b.pool.Exec(ctx, `vacuum`); err != nil { // or it would run beside what is measured; without statistics, as they are in a new installation
		return err
	}
	_, err := b.pool.Exec(ctx, `checkpoint`) // the same
	return err
}

// claims writes 200 batches and times the claim of each, one after the other.
func (r *rig) claims(ctx context.Context, b *benchNode, name string) (figure, error) {
	const batches, size = 200, 500
	origin := lemma.NewID()
	id, err := b.campaign(ctx, r, 1000, "null", []byte(`{}`), nil)
	if err != nil && lemma.KindOf(err) != lemma.Conflict {
		return figure{}, err
	}
	var provider uuid.UUID
	if err := b.pool.QueryRow(ctx, `select provider_id from campaigns where workspace_id = $1`, b.workspace).Scan(&provider); err != nil {
		return figure{}, fmt.Errorf("campaign %s: %w", id, err)
	}
	err = inChunks(ctx, batches*size, 1, func(from, to int) error {
		return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
			_, err := b.ledger.Insert(ctx, tx, notifications.Chunk{WorkspaceID: b.workspace, OriginID: origin, ProviderID: provider, ContentID: origin,
				Run: 1, MaxAttempts: 2, BatchSize: size, Recipients: benchRecipients(origin, from, to)})
			return err
		})
	})
	if err != nil {
		return figure{}, err
	}
	rows, err := b.pool.Query(ctx, `select workspace_id, origin_id, id from batches where workspace_id = $1 and origin_id = $2`, b.workspace, origin)
	if err != nil {
		return figure{}, err
	}
	refs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[notifications.Ref])
	if err != nil {
		return figure{}, err
	}
	var took []time.Duration
	m := startMeter(r.postmaster())
	for _, ref := range refs {
		begun := time.Now()
		if _, err := b.sender.Claim(ctx, ref); err != nil {
			return figure{}, err
		}
		took = append(took, time.Since(begun))
	}
	f := m.stop(name, batches*size)
	slices.Sort(took)
	f.P50Ms, f.P99Ms = round(took[len(took)/2].Seconds()*1000), round(took[len(took)*99/100].Seconds()*1000)
	return f, nil
}

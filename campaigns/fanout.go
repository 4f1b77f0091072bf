package campaigns

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"lemma"
	"lemma/audience"
	"lemma/notifications"
)

// errStopped: the campaign was paused, cancelled or failed meanwhile. It ends
// a fan-out quietly.
var errStopped = errors.New("campaign is not being sent any more")

// Key is the uniqueness key of one recipient within a campaign: channel and
// canonical address. The iteration is not in it, so that a rollout which meets
// somebody from the sample does nothing.
func Key(campaign uuid.UUID, channel lemma.Channel, canonical string) uuid.UUID {
	return lemma.Key("campaign/1", string(campaign[:]), string(channel), canonical)
}

// Fanout reads a campaign's audience and writes one notification for each
// recipient, chunk by chunk, each chunk one transaction. It may be run any
// number of times, at once or after a crash: the unique key makes every
// repetition add nothing. It answers with how long to wait before it should be
// tried again, 0 when there is nothing more to do.
func (c *Campaigns) Fanout(ctx context.Context, workspaceID, id uuid.UUID) (again time.Duration, err error) {
	if parked, err := c.parkCrashed(ctx, workspaceID, id); parked || err != nil {
		return 0, err
	}
	token := lemma.NewID().String()
	run, ok, err := c.claimFanout(ctx, workspaceID, id, token)
	if err != nil {
		return 0, err
	}
	if !ok {
		return c.untilRetry(ctx, workspaceID, id)
	}
	renewing, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(c.draining, stop)()
	go c.renewFanout(renewing, stop, workspaceID, id, token)
	read, err := c.stream(renewing, workspaceID, id, run)
	if errors.Is(err, errStopped) || (err != nil && renewing.Err() != nil) {
		return 0, c.releaseFanout(workspaceID, id, token, 0, false)
	}
	if err != nil {
		return c.sourceFailed(ctx, workspaceID, id, token, err)
	}
	return 0, c.finishFanout(ctx, workspaceID, id, token, read)
}

func (c *Campaigns) claimFanout(ctx context.Context, workspaceID, id uuid.UUID, token string) (run int, ok bool, err error) {
	err = c.pool.QueryRow(ctx, `
		update fanouts set leased_by = $3, lease_until = now() + $4, runs = runs + 1
		where workspace_id = $1 and campaign_id = $2 and finished_at is null and retry_at <= now()
		  and (lease_until is null or lease_until < now())
		returning runs`, workspaceID, id, token, c.cfg.Lease).Scan(&run)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("claim fan-out of %s: %w", id, err)
	}
	return run, true, nil
}

// renewFanout keeps the lease while the stream goes on, and stops the stream
// when the lease has gone to somebody else.
func (c *Campaigns) renewFanout(ctx context.Context, stop context.CancelFunc, workspaceID, id uuid.UUID, token string) {
	t := time.NewTicker(c.cfg.Lease / 3)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		tag, err := c.pool.Exec(ctx, `
			update fanouts set lease_until = now() + $4 where workspace_id = $1 and campaign_id = $2 and leased_by = $3`,
			workspaceID, id, token, c.cfg.Lease)
		if err == nil && tag.RowsAffected() == 0 {
			stop()
			return
		}
	}
}

// releaseFanout gives the lease back, also while the program shuts down.
func (c *Campaigns) releaseFanout(workspaceID, id uuid.UUID, token string, after time.Duration, failed bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := c.pool.Exec(ctx, `
		update fanouts set leased_by = null, lease_until = null, retry_at = now() + $4, failures = failures + case when $5 then 1 else 0 end
		where workspace_id = $1 and campaign_id = $2 and leased_by = $3`, workspaceID, id, token, after, failed)
	if err != nil {
		return fmt.Errorf("release fan-out of %s: %w", id, err)
	}
	return nil
}

// sourceFailed decides what a failed run means. A source that does not answer
// is tried again a few times; everything else, and one that still does not
// answer, fails the campaign closed, with the reason.
func (c *Campaigns) sourceFailed(ctx context.Context, workspaceID, id uuid.UUID, token string, cause error) (time.Duration, error) {
	kind := lemma.KindOf(cause)
	var failures int
	err := c.pool.QueryRow(ctx, `select failures from fanouts where workspace_id = $1 and campaign_id = $2`, workspaceID, id).Scan(&failures)
	if err != nil {
		return 0, fmt.Errorf("count failures of fan-out %s: %w", id, err)
	}
	if kind == lemma.Unavailable && failures < c.cfg.Retries {
		after := c.cfg.RetryFor << failures
		c.log.Warn("data source failed, fan-out will be tried again", "campaign_id", id, "failures", failures+1, "after", after, "error", cause)
		return after, c.releaseFanout(workspaceID, id, token, after, true)
	}
	if kind == lemma.Internal && failures < internalRetries {
		c.log.Error("fan-out failed, it will be tried again", "campaign_id", id, "failures", failures+1, "error", cause)
		return c.cfg.RetryFor, c.releaseFanout(workspaceID, id, token, c.cfg.RetryFor, true)
	}
	reason := reasonOf(cause)
	c.log.Error("campaign failed", "campaign_id", id, "reason", reason, "error", cause)
	return 0, c.fail(ctx, workspaceID, id, reason, lemma.Public(cause))
}

// internalRetries: a fault of our own, such as a database that restarts, gets
// many more tries than a source, and not endless ones.
const internalRetries = 20

func reasonOf(err error) string {
	var e *lemma.Error
	switch {
	case !errors.As(err, &e):
		return string(lemma.Internal)
	case e.Code != "":
		return e.Code
	}
	return string(e.Kind)
}

// untilRetry: a bell that came before a failed source is to be tried again
// waits for that, instead of leaving it to the sweep.
func (c *Campaigns) untilRetry(ctx context.Context, workspaceID, id uuid.UUID) (time.Duration, error) {
	var wait float64
	err := c.pool.QueryRow(ctx, `
		select greatest(coalesce(extract(epoch from max(retry_at) - now()), 0), 0)::float8 from fanouts
		where workspace_id = $1 and campaign_id = $2 and finished_at is null and retry_at > now()`, workspaceID, id).Scan(&wait)
	if err != nil {
		return 0, fmt.Errorf("look at fan-out of %s: %w", id, err)
	}
	return time.Duration(wait * float64(time.Second)), nil
}

func (c *Campaigns) finishFanout(ctx context.Context, workspaceID, id uuid.UUID, token string, read int64) error {
	_, err := c.pool.Exec(ctx, `
		update fanouts set finished_at = now(), rows_read = $4, leased_by = null, lease_until = null
		where workspace_id = $1 and campaign_id = $2 and leased_by = $3`, workspaceID, id, token, read)
	if err != nil {
		return fmt.Errorf("finish fan-out of %s: %w", id, err)
	}
	return nil
}

// stream reads the audience to its end. Reading and writing overlap; what is
// between them is bounded, so memory does not grow with the audience.
func (c *Campaigns) stream(ctx context.Context, workspaceID, id uuid.UUID, run int) (read int64, err error) {
	now, err := c.Get(ctx, workspaceID, id)
	if err != nil {
		return 0, err
	}
	plan, err := c.plan(ctx, now, run)
	if err != nil {
		return 0, err
	}
	work, ctx := errgroup.WithContext(ctx)
	chunks := make(chan []notifications.Recipient)
	work.Go(func() error {
		defer close(chunks)
		return lemma.Recovered(func() (err error) { read, err = c.readAudience(ctx, now, plan, chunks); return err })
	})
	for range c.cfg.Writers {
		work.Go(func() error {
			for recipients := range chunks {
				if err := lemma.Recovered(func() error { return c.WriteChunk(ctx, plan, recipients) }); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = work.Wait()
	return read, err
}

// plan is what every chunk of a run shares.
type plan struct {
	notifications.Chunk
	columns []string
	batches atomic.Int64 // made so far, to spread what is due
}

// plan checks the campaign against the audience as it is now, writes down its
// content and begins to send.
func (c *Campaigns) plan(ctx context.Context, now Campaign, run int) (*plan, error) {
	columns, err := c.variables(ctx, now)
	if err != nil {
		return nil, err
	}
	account, err := c.accounts.Get(ctx, now.WorkspaceID, now.ProviderID)
	if err != nil {
		return nil, err
	}
	p := &plan{columns: columns, Chunk: notifications.Chunk{
		WorkspaceID: now.WorkspaceID, OriginID: now.ID, ProviderID: now.ProviderID, ContentID: now.ID,
		Run: run, MaxAttempts: maxAttempts(now.Strategy), ExpiresAt: now.SendDeadline, BatchSize: c.cfg.BatchSize,
	}}
	if rate := account.RatePerSecond; rate != nil {
		p.BatchSize = max(1, min(c.cfg.BatchSize, int(*rate*batchLasts.Seconds())))
		p.DueStep = time.Duration(float64(p.BatchSize) / *rate * float64(time.Second))
	}
	return p, pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error { return c.begin(ctx, tx, now) })
}

// batchLasts: a batch is sized so that the provider's rate empties it in well
// under a lease.
const batchLasts = 30 * time.Second

func maxAttempts(strategy string) int {
	if strategy == "at_most_once" {
		return 1
	}
	return 2
}

// begin writes the content that all notifications of the campaign share, under
// the campaign's own id so that a second run finds it there, and moves the
// campaign from preparing to sending.
func (c *Campaigns) begin(ctx context.Context, tx pgx.Tx, now Campaign) error {
	_, err := tx.Exec(ctx, `
		insert into contents (workspace_id, id, channel, template_id, template_version, from_name, from_email, reply_to, headers)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict (workspace_id, id) do nothing`,
		now.WorkspaceID, now.ID, lemma.Email, now.TemplateID, now.TemplateVersion, now.FromName, now.FromEmail, now.ReplyTo, orEmpty(now.Headers))
	if err != nil {
		return fmt.Errorf("write content of %s: %w", now.ID, err)
	}
	if now.Status != Preparing {
		return nil // an earlier run has begun it
	}
	err = move(ctx, tx, now.WorkspaceID, now.ID, begin, `status = 'sending', sending_at = now()`)
	var e *lemma.Error
	if errors.As(err, &e) && e.Kind == lemma.WrongState {
		if e.Status == string(Sending) {
			return nil // a run beside this one has begun it
		}
		return errStopped
	}
	return err
}

func (c *Campaigns) readAudience(ctx context.Context, now Campaign, p *plan, chunks chan<- []notifications.Recipient) (int64, error) {
	chunk := make([]notifications.Recipient, 0, firstChunk)
	size := firstChunk
	flush := func() error {
		select {
		case chunks <- chunk:
			size = c.cfg.Chunk
			chunk = make([]notifications.Recipient, 0, size)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	read, err := c.audiences.Stream(ctx, now.WorkspaceID, now.AudienceID, p.columns, func(r audience.Row) error {
		chunk = append(chunk, recipient(now.ID, r))
		if len(chunk) < min(size, c.cfg.Chunk) {
			return nil
		}
		return flush()
	})
	if err == nil && len(chunk) > 0 {
		err = flush()
	}
	return read, err
}

// firstChunk is small, so that the first letters leave while the audience is
// still being read.
const firstChunk = 500

// recipient decides what one row of the audience becomes.
func recipient(campaign uuid.UUID, r audience.Row) notifications.Recipient {
	out := notifications.Recipient{ProfileKey: r.Key, Address: r.Email, Payload: r.Payload}
	address, canonical, ok := lemma.CanonicalEmail(r.Email)
	switch {
	case r.Key == "" || len(r.Key) > 255 || strings.ContainsRune(r.Key, 0):
		out.Skip = notifications.InvalidKey
		out.ProfileKey = lemma.Key("profile/1", r.Key).String()
	case r.OptedOut:
		out.Skip = notifications.Unsubscribed
	case !r.HasEmail || strings.TrimSpace(r.Email) == "":
		out.Skip, out.Address = notifications.MissingAddress, ""
	case !ok:
		out.Skip = notifications.InvalidAddress
		out.Address = lemma.ShownAddress(r.Email)
	default:
		out.Key, out.Address = Key(campaign, lemma.Email, canonical), address
	}
	return out
}

// WriteChunk writes some thousands of recipients in one transaction. The share
// lock on the campaign is what cancel and pause wait for: a chunk is written
// wholly before them or not at all.
func (c *Campaigns) WriteChunk(ctx context.Context, p *plan, recipients []notifications.Recipient) error {
	chunk := p.Chunk
	chunk.Recipients = recipients
	batches := int64(len(recipients)/chunk.BatchSize + 1)
	chunk.DueAfter = time.Duration(p.batches.Add(batches)-batches)*chunk.DueStep - dueEarly
	begun := time.Now()
	var w notifications.Written
	err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) (err error) {
		if err = lockForChunk(ctx, tx, chunk.OriginID); err != nil {
			return err
		}
		var now Status
		err = tx.QueryRow(ctx, `select status from campaigns where workspace_id = $1 and id = $2 for share`, chunk.WorkspaceID, chunk.OriginID).Scan(&now)
		if err != nil {
			return fmt.Errorf("lock campaign %s: %w", chunk.OriginID, err)
		}
		if !slices.Contains([]Status{Preparing, Sending}, now) {
			return errStopped
		}
		w, err = c.ledger.Insert(ctx, tx, chunk)
		return err
	})
	if err == nil {
		c.metrics.wrote(w, time.Since(begun))
	}
	return err
}

// dueEarly: River wakes what is scheduled every few seconds only, so a batch
// is due a little before the rate could reach it; the meter holds it back.
const dueEarly = 10 * time.Second

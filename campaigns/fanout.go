package campaigns

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"lemma"
	"lemma/address"
	"lemma/audience"
	"lemma/message"
	"lemma/notifications"
)

// errStopped ends a fan-out without a failure: the campaign was paused, resumed,
// cancelled or failed meanwhile.
var errStopped = errors.New("campaign is not being sent any more")

// Key is the uniqueness key of one recipient within a campaign: channel and
// canonical address. The iteration is not part of it, so a rollout does not write
// recipients of the sample again.
func Key(campaign uuid.UUID, channel lemma.Channel, canonical string) uuid.UUID {
	return lemma.Key("campaign/1", string(campaign[:]), string(channel), canonical)
}

// Fanout reads the audience of a campaign and writes one notification for each
// recipient, in chunks of one transaction each. It may run any number of times, at
// once or after a crash: the uniqueness key makes repetitions add nothing. again
// is the time until it must run again, or 0.
func (c *Campaigns) Fanout(ctx context.Context, workspaceID, id uuid.UUID) (again time.Duration, err error) {
	if c.draining.Err() != nil {
		return time.Second, nil // another process takes the job
	}
	if paused, err := c.endExpired(ctx, workspaceID, id); paused || err != nil {
		return 0, err
	}
	l := lease{workspaceID, id, lemma.NewID().String()}
	run, again, err := c.claimFanout(ctx, l)
	if err != nil || run == 0 {
		return again, err
	}
	c.at(ctx, "claimed", id)
	running, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(c.draining, stop)()
	go c.holdLease(running, stop, l)
	go c.watchCampaign(running, stop, l)
	read, err := c.stream(running, l, run)
	c.at(ctx, "streamed", id)
	if errors.Is(err, errStopped) || (err != nil && running.Err() != nil) {
		return c.releaseUnfinished(l)
	}
	if err != nil {
		return c.sourceFailed(ctx, l, err)
	}
	profiles, err := c.countProfiles(running, l)
	if err != nil && running.Err() != nil {
		return c.releaseUnfinished(l)
	}
	if err != nil { // all notifications are written: a number that is missing is no reason to read the audience again
		c.log.Error("profiles are not counted", "campaign_id", id, "error", err)
	}
	if err := c.finishFanout(ctx, l, read, profiles); err != nil {
		return c.sourceFailed(ctx, l, err)
	}
	return 0, nil
}

// stream reads the audience to its end. Reading and writing overlap. The rows in
// between are bounded, so memory does not grow with the audience.
func (c *Campaigns) stream(ctx context.Context, l lease, run int) (read int64, err error) {
	now, err := c.Get(ctx, l.workspaceID, l.campaignID)
	if err != nil {
		return 0, err
	}
	c.at(ctx, "loaded", l.campaignID)
	plan, err := c.plan(ctx, now, l, run)
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
				if err := lemma.Recovered(func() error { return c.writeWhenFree(ctx, plan, recipients) }); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = work.Wait()
	return read, err
}

// plan has the state that the chunks of a run share.
type plan struct {
	notifications.Chunk
	lease
	channel lemma.Channel
	columns []string
	resumed *time.Time   // the last resume of the campaign before the audience was read; nil: none
	batches atomic.Int64 // made so far; determines when the next ones are due
	copies  copyPolicy
	optOuts atomic.Bool // the audience has rows that are opted out

	deal      *deal // of an experiment; nil: all get the campaign's content
	iteration *Iteration
}

// plan checks the campaign against the current audience, writes its content and
// moves it to sending.
func (c *Campaigns) plan(ctx context.Context, now Campaign, l lease, run int) (*plan, error) {
	content, err := c.content(ctx, now)
	if err != nil {
		return nil, err
	}
	account, err := c.accounts.Get(ctx, now.WorkspaceID, now.ProviderID)
	if err != nil {
		return nil, err
	}
	p := &plan{lease: l, channel: now.Channel, columns: content.Variables(), Chunk: notifications.Chunk{
		WorkspaceID: now.WorkspaceID, OriginID: now.ID, ProviderID: now.ProviderID, ContentID: now.ID,
		Run: run, MaxAttempts: maxAttempts(now.Strategy), ExpiresAt: now.SendDeadline, BatchSize: c.cfg.BatchSize,
		Converts: now.Conversion != Conversion{},
	}}
	if rate := account.RatePerSecond; rate != nil {
		p.BatchSize = max(1, min(c.cfg.BatchSize, int(*rate*batchLasts.Seconds())))
		p.DueStep = time.Duration(float64(p.BatchSize) / *rate * float64(time.Second))
	}
	if err := c.dealOf(ctx, now, p); err != nil {
		return nil, err
	}
	return p, pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if err := c.begin(ctx, tx, now, p); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `select now(), resumed_at from campaigns where workspace_id = $1 and id = $2`, now.WorkspaceID, now.ID).
			Scan(&p.ReadAt, &p.resumed)
	})
}

// batchLasts is how long a batch takes at the rate of its provider, at most: less
// than its lease.
const batchLasts = 30 * time.Second

func maxAttempts(strategy string) int {
	if strategy == "at_most_once" {
		return 1
	}
	return 2
}

// begin writes the content of the campaign's notifications, under the id of the
// campaign so that each run writes the same row, and moves the campaign from
// preparing to sending. now may be outdated: the campaign may have been paused and
// resumed since it was read.
func (c *Campaigns) begin(ctx context.Context, tx pgx.Tx, now Campaign, p *plan) error {
	if err := writeContent(ctx, tx, now, now.ID, nil); err != nil {
		return err
	}
	err := beginDeal(ctx, tx, now, p)
	if err != nil {
		return err
	}
	err = move(ctx, tx, now.WorkspaceID, now.ID, begin, `status = 'sending', sending_at = now()`)
	var e *lemma.Error
	if errors.As(err, &e) && e.Kind == lemma.WrongStatus {
		if e.Status == string(Sending) {
			return nil // another run has begun it
		}
		return errStopped
	}
	return err
}

// readAudience passes the rows of the audience to the writers. Rows that are opted
// out come first, and readAudience writes them itself: they are committed before a
// writer gets the first row that may be sent to. A row that becomes opted out while
// the audience is read comes late, among the others.
func (c *Campaigns) readAudience(ctx context.Context, now Campaign, p *plan, chunks chan<- []notifications.Recipient) (int64, error) {
	chunk := make([]notifications.Recipient, 0, firstChunk)
	size, bytes, sending := firstChunk, 0, false
	flush := func() error {
		full := chunk
		bytes = 0
		chunk = make([]notifications.Recipient, 0, c.cfg.Chunk)
		if !sending {
			return c.writeWhenFree(ctx, p, full)
		}
		select {
		case chunks <- full:
			size = c.cfg.Chunk
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	read, err := c.audiences.Stream(ctx, now.WorkspaceID, now.AudienceID, p.columns, func(r audience.Row) error {
		if !r.OptedOut && !sending && len(chunk) > 0 {
			if err := flush(); err != nil {
				return err
			}
		}
		sending = sending || !r.OptedOut
		if r.OptedOut {
			p.optOuts.Store(true)
		}
		from := len(chunk)
		chunk = p.deals(appendRecipients(chunk, now.ID, p.channel, r), from, r.Key)
		if len(chunk) == from { // it is not in the sample
			return nil
		}
		for i := range chunk[from:] {
			chunk[from+i].Late = r.OptedOut && sending
		}
		bytes += r.Bytes() * max(1, len(chunk)-from) // also of data that is not stored: other rows share its memory
		if len(chunk) < min(size, c.cfg.Chunk) && bytes < c.cfg.ChunkBytes {
			return nil
		}
		return flush()
	})
	if err == nil && len(chunk) > 0 {
		err = flush()
	}
	return read, err
}

// firstChunk is small, so that the first messages are sent while the audience is
// being read.
const firstChunk = 500

// appendRecipients appends the recipients of a row of the audience: one for each of its
// addresses in a channel.
func appendRecipients(to []notifications.Recipient, campaign uuid.UUID, channel lemma.Channel, r audience.Row) []notifications.Recipient {
	var one [1]address.Address
	for _, a := range r.Addresses(one[:0], channel) {
		to = append(to, recipient(campaign, channel, r, a))
	}
	return to
}

// recipient makes a recipient of a row and an address, with the reason if it is skipped.
func recipient(campaign uuid.UUID, channel lemma.Channel, r audience.Row, a address.Address) notifications.Recipient {
	valid := a.Canonical != ""
	out := notifications.Recipient{ProfileKey: r.Key, Payload: message.Stored(r.Payload), Address: a.Text,
		Holds: valid && r.OptedOut} // so that no other row is written to at the address
	if valid {
		out.Key = Key(campaign, channel, a.Canonical)
	}
	switch {
	case !audience.IsKey(r.Key):
		out.Skip = notifications.InvalidKey
		out.ProfileKey = lemma.Key("profile/1", r.Key).String()
	case r.OptedOut:
		out.Skip = notifications.Unsubscribed
	case r.TooLarge:
		out.Skip = notifications.RowTooLarge
	default:
		out.Skip = a.Fault
	}
	return out
}

// writeWhenFree bounds how many chunks this process writes at a time, however many
// audiences it reads: each uses a connection.
func (c *Campaigns) writeWhenFree(ctx context.Context, p *plan, recipients []notifications.Recipient) error {
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
		return c.WriteChunk(ctx, p, recipients)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// WriteChunk writes some thousands of recipients in one transaction. Its shared
// lock on the campaign makes cancel, pause and endExpired wait: a chunk is committed
// before them or not written. A run that has lost its lease, or let it expire, writes
// nothing, since profiles may have opted out after it read them. Nor does one that was
// paused and resumed in between: the next run reads the audience again. Resumes are
// compared for equality, so that it does not matter whether the clock was set back.
func (c *Campaigns) WriteChunk(ctx context.Context, p *plan, recipients []notifications.Recipient) error {
	chunk := p.Chunk
	chunk.Recipients, chunk.OptOuts = recipients, p.optOuts.Load()
	batches := int64((sendable(recipients) + chunk.BatchSize - 1) / chunk.BatchSize)
	chunk.DueAfter = time.Duration(p.batches.Add(batches)-batches)*chunk.DueStep - dueEarly
	c.at(ctx, "writing", chunk.OriginID)
	begun := time.Now()
	var w notifications.Written
	once := func(tx pgx.Tx) (err error) {
		if err = lockForChunk(ctx, tx, chunk.OriginID); err != nil {
			return err
		}
		var now Status
		var held, resumed bool
		err = tx.QueryRow(ctx, `
			select c.status, coalesce(f.leased_by = $3 and f.lease_until >= now(), false), c.resumed_at is distinct from $4
			from campaigns c join fanouts f on f.workspace_id = c.workspace_id and f.campaign_id = c.id
			where c.workspace_id = $1 and c.id = $2 for share of c`,
			chunk.WorkspaceID, chunk.OriginID, p.token, p.resumed).Scan(&now, &held, &resumed)
		if err != nil {
			return fmt.Errorf("lock campaign %s: %w", chunk.OriginID, err)
		}
		if now != Sending || !held || resumed {
			return errStopped
		}
		c.at(ctx, "held", chunk.OriginID)
		w, err = c.ledger.Insert(ctx, tx, chunk)
		return err
	}
	err := p.copies.write(&chunk, c.metrics, func() error { return pgx.BeginFunc(ctx, c.pool, once) })
	if err == nil {
		c.metrics.wrote(w, time.Since(begun))
	}
	return err
}

func sendable(recipients []notifications.Recipient) (n int) {
	for _, r := range recipients {
		if r.Skip == "" {
			n++
		}
	}
	return n
}

// dueEarly is how long before the time by the provider's rate a batch is due, since
// River starts scheduled jobs only every few seconds. The meter enforces the rate.
const dueEarly = 10 * time.Second

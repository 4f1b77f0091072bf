package campaigns

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"lemma"
	"lemma/audience"
	"lemma/mail"
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
	if c.draining.Err() != nil {
		return time.Second, nil // another node is to take the job
	}
	if parked, err := c.parkCrashed(ctx, workspaceID, id); parked || err != nil {
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
		return c.handBack(l)
	}
	if err != nil {
		return c.sourceFailed(ctx, l, err)
	}
	return 0, c.finishFanout(ctx, l, read)
}

// stream reads the audience to its end. Reading and writing overlap; what is
// between them is bounded, so memory does not grow with the audience.
func (c *Campaigns) stream(ctx context.Context, l lease, run int) (read int64, err error) {
	now, err := c.Get(ctx, l.workspaceID, l.campaignID)
	if err != nil {
		return 0, err
	}
	c.at(ctx, "looked", l.campaignID)
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
				if err := lemma.Recovered(func() error { return c.writeInTurn(ctx, plan, recipients) }); err != nil {
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
	lease
	columns []string
	batches atomic.Int64 // made so far, to spread what is due
	copies  copies
	optOuts atomic.Bool // the audience has rows that are opted out
}

// plan checks the campaign against the audience as it is now, writes down its
// content and begins to send.
func (c *Campaigns) plan(ctx context.Context, now Campaign, l lease, run int) (*plan, error) {
	content, err := c.content(ctx, now)
	if err != nil {
		return nil, err
	}
	account, err := c.accounts.Get(ctx, now.WorkspaceID, now.ProviderID)
	if err != nil {
		return nil, err
	}
	p := &plan{lease: l, columns: content.Variables(), Chunk: notifications.Chunk{
		WorkspaceID: now.WorkspaceID, OriginID: now.ID, ProviderID: now.ProviderID, ContentID: now.ID,
		Run: run, MaxAttempts: maxAttempts(now.Strategy), ExpiresAt: now.SendDeadline, BatchSize: c.cfg.BatchSize,
	}}
	if rate := account.RatePerSecond; rate != nil {
		p.BatchSize = max(1, min(c.cfg.BatchSize, int(*rate*batchLasts.Seconds())))
		p.DueStep = time.Duration(float64(p.BatchSize) / *rate * float64(time.Second))
	}
	return p, pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if err := c.begin(ctx, tx, now); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `select now()`).Scan(&p.ReadAt)
	})
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
// campaign from preparing to sending. What the campaign was when the run looked
// does not count: it may have been paused then and resumed since.
func (c *Campaigns) begin(ctx context.Context, tx pgx.Tx, now Campaign) error {
	_, err := tx.Exec(ctx, `
		insert into contents (workspace_id, id, channel, template_id, template_version, from_name, from_email, reply_to, headers)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict (workspace_id, id) do nothing`,
		now.WorkspaceID, now.ID, lemma.Email, now.TemplateID, now.TemplateVersion, now.FromName, now.FromEmail, now.ReplyTo, orEmpty(now.Headers))
	if err != nil {
		return fmt.Errorf("write content of %s: %w", now.ID, err)
	}
	err = move(ctx, tx, now.WorkspaceID, now.ID, begin, `status = 'sending', sending_at = now()`)
	var e *lemma.Error
	if errors.As(err, &e) && e.Kind == lemma.WrongStatus {
		if e.Status == string(Sending) {
			return nil // an earlier run has begun it, or one beside this
		}
		return errStopped
	}
	return err
}

// readAudience passes the audience on to the writers. The rows that are opted
// out come first, and it writes them itself: they are committed before a
// writer is given the first row that could be written to.
func (c *Campaigns) readAudience(ctx context.Context, now Campaign, p *plan, chunks chan<- []notifications.Recipient) (int64, error) {
	chunk := make([]notifications.Recipient, 0, firstChunk)
	size, optedOut := firstChunk, false
	flush := func() error {
		full := chunk
		chunk = make([]notifications.Recipient, 0, c.cfg.Chunk)
		if optedOut {
			return c.writeInTurn(ctx, p, full)
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
		if r.OptedOut != optedOut && len(chunk) > 0 {
			if err := flush(); err != nil {
				return err
			}
		}
		if optedOut = r.OptedOut; optedOut {
			p.optOuts.Store(true)
		}
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
	address, ok := mail.ParseAddress(r.Email)
	out := notifications.Recipient{ProfileKey: r.Key, Payload: r.Payload,
		Holds: ok && r.OptedOut} // so that no other row is written to at the address
	switch {
	case ok:
		out.Address, out.Key = address.Text, Key(campaign, lemma.Email, address.Canonical)
	case strings.TrimSpace(r.Email) != "":
		out.Address = mail.Displayable(r.Email)
	}
	switch {
	case !audience.IsKey(r.Key):
		out.Skip = notifications.InvalidKey
		out.ProfileKey = lemma.Key("profile/1", r.Key).String()
	case r.OptedOut:
		out.Skip = notifications.Unsubscribed
	case out.Address == "":
		out.Skip = notifications.MissingAddress
	case !ok:
		out.Skip = notifications.InvalidAddress
	}
	return out
}

// writeInTurn bounds how many chunks this node writes at a time, however many
// audiences it reads: each takes a connection and a share of the database.
func (c *Campaigns) writeInTurn(ctx context.Context, p *plan, recipients []notifications.Recipient) error {
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
		return c.WriteChunk(ctx, p, recipients)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// WriteChunk writes some thousands of recipients in one transaction. The share
// lock on the campaign is what cancel and pause wait for: a chunk is written
// wholly before them or not at all. So does a run that takes the lease over: a run
// that has lost it, or let it lapse, writes nothing, since what it read may be long
// ago, and people have opted out since.
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
		var held bool
		err = tx.QueryRow(ctx, `
			select c.status, coalesce(f.leased_by = $3 and f.lease_until >= now(), false)
			from campaigns c join fanouts f on f.workspace_id = c.workspace_id and f.campaign_id = c.id
			where c.workspace_id = $1 and c.id = $2 for share of c`, chunk.WorkspaceID, chunk.OriginID, p.token).Scan(&now, &held)
		if err != nil {
			return fmt.Errorf("lock campaign %s: %w", chunk.OriginID, err)
		}
		if now != Sending || !held {
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

// dueEarly: River wakes what is scheduled every few seconds only, so a batch
// is due a little before the rate could reach it; the meter holds it back.
const dueEarly = 10 * time.Second

package sender

import (
	"cmp"
	"context"
	"errors"
	"time"

	"lemma"

	"github.com/jackc/pgx/v5"

	"lemma/events"
	"lemma/notifications"
	"lemma/pgerr"
)

// gate is the gate of a batch as a commit found it.
type gate string

const (
	open      gate = "open"
	held      gate = "held"
	cancelled gate = "cancelled"
	lost      gate = "lost" // the lease was lost; nothing was written
)

// ending is what a commit does besides inserting outcomes.
type ending struct {
	state   string
	from    int16         // stateGo: called_through before it
	first   int16         // stateGo: first row of the next window
	through int16         // stateGo: called_through after it
	rows    int           // stateGo: rows of the window
	date    *time.Time    // stateGo in attempt 1: of its messages
	open    []int16       // stateReady: rows given back
	split   *split        // stateReady: rows for a batch of their own
	after   time.Duration // stateReady: until they are due ...
	until   *time.Time    // ... and not before this time, if each of them was refused
	detail  string        // for the log: why the claim ended early
}

const (
	stateGo      = "go"      // open the next window and renew the lease
	stateKeep    = "keep"    // renew the lease
	stateDone    = "done"    // every row has ended
	stateReady   = "ready"   // rows are given back
	stateUnknown = "unknown" // all other rows have ended: the lease is left to expire
)

func opening(c *claim, w *window) ending {
	if len(w.rows) == 0 {
		return ending{state: stateKeep}
	}
	e := ending{state: stateGo, from: c.through, first: w.rows[0], through: w.rows[len(w.rows)-1], rows: len(w.rows)}
	if c.attempt == 1 {
		e.date = &w.date
	}
	return e
}

// commit inserts outcomes, raises counters, and opens the next window or ends the
// claim, in one statement that is fenced by the token. If the lease was lost it writes
// nothing and returns lost; known outcomes are then stored as evidence, for the reaper
// and the next claim.
//
// If the connection breaks, the statement may have been applied, may still run, or may
// arrive later. So the batch is read before the statement is repeated, and again when
// the repetition conflicts. Only one of them has an effect: a window opens only from
// the end of the one before, an outcome is inserted once, and an ended claim has no
// token (Batch: a statement in flight).
func (s *Sender) commit(ctx context.Context, c *claim, done []outcome, e ending) (gate, error) {
	ctx = context.WithoutCancel(ctx) // outcomes are stored even if the job is cancelled
	s.at(ctx, "committing", c.Ref)
	begun := time.Now()
	var g gate
	write := s.commitOnce
	err := s.persist(c, func() (err error) {
		g, err = write(ctx, c, done, e)
		write = s.commitAgain
		return err
	})
	if err != nil || g == lost {
		c.over = true
		return lost, alongside(err, s.keepEvidence(ctx, c, done))
	}
	if e.state == stateGo && g == open {
		c.through = e.through
	}
	if e.state == stateGo || e.state == stateKeep {
		s.renewed(c, begun) // from before the first attempt, which may have set the lease
	}
	if e.state == stateDone || e.state == stateReady && g == cancelled {
		s.ended(c.WorkspaceID, c.OriginID)
	}
	s.metrics.committed(done)
	s.checkErrors(ctx, c, done)
	s.suppressRejected(ctx, c, done)
	if w := c.unrecorded; w != nil {
		c.unrecorded = nil
		s.recordReceipts(ctx, c, w)
	}
	return g, nil
}

// persist repeats a write until it is answered or mayYetCommit is false.
func (s *Sender) persist(c *claim, write func() error) error {
	err := write()
	// A known outcome that is given up may become a second delivery.
	for err != nil && retryable(err) && s.mayYetCommit(c) {
		s.metrics.commitRetried()
		time.Sleep(commitRetry)
		err = write()
	}
	return lemma.Wrap(err, "commit batch %s", c.BatchID)
}

// mayYetCommit reports that a write may still succeed. The token is the fence, not the
// time: a known outcome may be written long after the lease, until the reaper decides.
// A process that shuts down stops with its lease.
func (s *Sender) mayYetCommit(c *claim) bool {
	if s.isDraining() {
		return time.Now().Before(c.until)
	}
	return time.Since(c.started) < JobTimeout(s.cfg)
}

const commitRetry = 100 * time.Millisecond

// commitAgain repeats a commit whose answer was lost. The earlier attempt may be
// applied before the check, after it, or never.
func (s *Sender) commitAgain(ctx context.Context, c *claim, done []outcome, e ending) (gate, error) {
	if g, err := s.applied(ctx, c, done, e); err != nil || g != "" {
		return g, err
	}
	g, err := s.commitOnce(ctx, c, done, e)
	if (err == nil && g != lost) || (err != nil && !pgerr.Is(err, "23")) {
		return g, err
	}
	if was, failed := s.applied(ctx, c, done, e); failed != nil || was != "" {
		return was, failed
	}
	return g, err
}

func (s *Sender) commitOnce(ctx context.Context, c *claim, done []outcome, e ending) (g gate, err error) {
	if c.attempt == 1 {
		return s.writeCommit(ctx, s.pool.QueryRow, c, done, e)
	}
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if g, err = s.writeCommit(ctx, tx.QueryRow, c, done, e); err != nil || g == lost {
			return err
		}
		return settleSecond(ctx, tx, c, done, e, g)
	})
	return g, err
}

// settleSecond reads the evidence about second attempts that a commit behind the gate g
// has ended without a call, and queues what the commit has orphaned.
func settleSecond(ctx context.Context, tx pgx.Tx, c *claim, done []outcome, e ending, g gate) error {
	if g == cancelled && e.state == stateReady {
		_, err := notifications.SettleEnded(ctx, tx,
			notifications.Ended{Ref: c.Ref, RootID: c.root, ProviderID: c.providerID, Open: e.open})
		if err != nil {
			return err
		}
	}
	return events.QueueOrphaned(ctx, tx, c.WorkspaceID, c.providerID, c.OriginID, c.root, orphaned(c.attempt, done))
}

func (s *Sender) writeCommit(ctx context.Context, query func(context.Context, string, ...any) pgx.Row,
	c *claim, done []outcome, e ending) (gate, error) {
	sql := commitWindow
	if e.split != nil {
		sql = commitSplit
	}
	var g gate
	var now time.Time
	err := query(ctx, sql.text, sql.args(s.commitValues(c, done, e))...).Scan(&g, &c.failing, &c.changed, &now)
	if errors.Is(err, pgx.ErrNoRows) {
		return lost, nil
	}
	if err == nil && e.state == stateGo {
		c.opened, c.openedAt = now, time.Now()
	}
	return g, err
}

// commitValues are the parameters of commitWindow and commitSplit.
func (s *Sender) commitValues(c *claim, done []outcome, e ending) map[string]any {
	var t tally
	for i := range done {
		t.add(c.attempt, &done[i])
	}
	col := outcomeColumns(done)
	apart := cmp.Or(e.split, &split{})
	of := columnsOf(endedOf(c, done))
	counts, times := c.refusals.changed()
	return map[string]any{
		"workspace": c.WorkspaceID, "origin": c.OriginID, "batch": c.BatchID, "token": c.token, "lease": s.cfg.Lease,
		"resumed": c.resumed, "step": e.state, "from": e.from, "first": e.first, "through": e.through, "rows": e.rows, "date": e.date,
		"rest": e.open, "after": e.after, "until": e.until, "detail": clip(e.detail), "version": c.version,
		"refused": c.refusals.added, "refusals": counts, "retry_at": times,
		"sent": t.sent, "failed": t.failed, "orphaned": t.orphaned, "skipped": t.skipped,
		"unknown": len(c.unknown), "deferred": append([]int16{}, c.free...),
		"ordinals": col.ordinals, "kinds": col.kinds, "bases": col.bases, "reasons": col.reasons,
		"codes": col.codes, "carrier_ids": col.carrierIDs, "details": col.details, "times": col.times,
		"event_ids": of.ids, "event_types": of.types, "event_keys": of.keys, "event_details": of.details,
		"split_id": apart.id, "split_rows": apart.rows, "split_size": len(apart.rows),
	}
}

// notResumed is false when the campaign was paused and resumed since the claim: no window
// opens, and the next claim reads the audience again. Resumes are compared for equality, so
// that it does not matter whether the clock was set back.
const notResumed = `(resumed_at is not distinct from @resumed)`

// commitText ends a window. The update is the fence: everything else reads from it,
// so that a lost lease writes nothing.
const commitText = `
	with b as (
		update batches set
			sent = sent + @sent, failed = failed + @failed, skipped = skipped + @skipped,
			skips = case when @skipped = 0 then skips else skips || (
				select jsonb_object_agg(r.reason, r.n + coalesce((skips->>r.reason)::int, 0)) from (
					select reason, count(*) as n from ` + outcomeRows + ` where kind = 'skipped' group by reason) r) end,
			cancelled = cancelled + case when @step = 'ready' and gate = 'cancelled' and attempt = 1
				then cardinality(@rest::smallint[]) else 0 end,
			orphaned = orphaned + @orphaned + case when @step = 'ready' and gate = 'cancelled' and attempt = 2
				then cardinality(@rest::smallint[]) else 0 end,
			status = case when @step = 'done' then 'done' when @step <> 'ready' then status
				when gate = 'cancelled' then 'cancelled' else 'ready' end,
			finished_at = case when @step = 'done' or (@step = 'ready' and gate = 'cancelled') then now() end,
			leased_by = case when @step in ('done', 'ready') then null else leased_by end,
			lease_until = case when @step in ('go', 'keep') then now() + @lease when @step = 'unknown' then lease_until end,
			called_through = case when @step = 'go' and gate = 'open' and ` + notResumed + ` then @through
				when @step = 'ready' then -1 else called_through end,
			calling = case when @step in ('done', 'ready') then 0
				when @step = 'go' and gate = 'open' and ` + notResumed + ` then @unknown::smallint + @rows::smallint else @unknown end,
			deferred = case when @step = 'ready' then '{}' else @deferred::smallint[] end,
			open = case when @step = 'ready' then @rest else open end,
			due_at = case when @step = 'ready' then greatest(now() + @after, @until::timestamptz) else due_at end,
			refusals = coalesce(@refusals, refusals), retry_at = coalesce(@retry_at, retry_at), size = size - @split_size
		where workspace_id = @workspace and origin_id = @origin and id = @batch and status = 'leased' and leased_by = @token
		  and (@step <> 'go' or called_through = @from)
		returning workspace_id, origin_id, id, root_id, provider_id, content_id, attempt, max_attempts,
			case when @step = 'go' and gate = 'open' and not ` + notResumed + ` then 'held' else gate end as gate, status,
			due_at, lease_until, expires_at, batches.refusals, resumed_at
	), outcomes as (
		insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis, reason, code, carrier_id, detail, at)
		select b.workspace_id, b.root_id, o.ordinal, b.attempt, o.kind, true, o.basis, nullif(o.reason, ''),
			nullif(o.code, 0), nullif(o.carrier_id, ''), nullif(o.detail, ''), coalesce(nullif(o.at, 'infinity'), now())
		from b, ` + outcomeRows + `
	), events as (` + recordOutcomes + `
	), log as (
		insert into batch_log (workspace_id, batch_id, event, token, first, last, until, message_date, detail)
		select b.workspace_id, b.id,
			case @step when 'go' then 'window' when 'done' then 'finished' when 'unknown' then 'unresolved'
				else case when b.status = 'cancelled' then 'cancelled' when @refused then 'deferred' else 'released' end end,
			@token, case when @step = 'go' then @first::smallint end, case when @step = 'go' then @through::smallint end,
			case b.status when 'ready' then b.due_at when 'leased' then b.lease_until end, @date::timestamptz, nullif(@detail, '')
		from b where @step <> 'keep' and (@step <> 'go' or b.gate = 'open')
	)`

var commitWindow = named(commitText + commitResult)

// commitResult also reads whether the provider has failed since its last acceptance,
// also in another process, so that an acceptance ends failures that began after the
// claim, and whether the provider was changed. The time of the database dates the
// answers of the window that the commit opens. It is that after the update, which may
// have waited for a lock.
const commitResult = `
	select b.gate, coalesce((select m.failures > 0 from provider_meters m
		where m.workspace_id = b.workspace_id and m.provider_id = b.provider_id), false),
		(select p.version from providers p where p.workspace_id = b.workspace_id and p.id = b.provider_id) is distinct from @version,
		greatest(clock_timestamp(), now())
	from b`

// applied checks a commit whose answer was lost. It returns the batch's gate if the
// commit was applied, "" if not, and lost if the claim has no lease any more. While it has
// it, an outcome with the commit's basis is of this claim: the reaper writes others. An ended
// claim has ended by this commit if the log has its token; another claim may have written
// outcomes of every basis since.
func (s *Sender) applied(ctx context.Context, c *claim, done []outcome, e ending) (gate, error) {
	var g gate
	var ours, moved, written, logged bool
	var now time.Time
	first, basis := int16(-1), ""
	if len(done) > 0 {
		first, basis = done[0].ordinal, done[0].basis
	}
	err := s.pool.QueryRow(ctx, `
		select b.gate, b.leased_by is not distinct from $4, b.called_through >= $5,
			exists (select from attempts a where a.workspace_id = b.workspace_id and a.batch_id = b.root_id and a.ordinal = $6
				and a.attempt = b.attempt and a.basis = $7),
			exists (select from batch_log l where l.workspace_id = b.workspace_id and l.batch_id = b.id and l.token = $4
				and l.event in ('finished', 'released', 'deferred', 'cancelled')), now()
		from batches b where b.workspace_id = $1 and b.origin_id = $2 and b.id = $3`,
		c.WorkspaceID, c.OriginID, c.BatchID, c.token, e.through, first, basis).Scan(&g, &ours, &moved, &written, &logged, &now)
	ended := e.state == stateDone || e.state == stateReady
	switch {
	case err != nil:
		return "", err
	case ours && e.state == stateGo && (written || len(done) == 0 && moved):
		if !moved {
			return held, nil // applied behind a closed gate: no window is open
		}
		c.opened, c.openedAt = now, time.Now()
		return g, nil
	case ours && written, !ours && ended && logged:
		return g, nil
	case !ours:
		return lost, nil
	}
	return "", nil
}

// retryable excludes errors of data, constraints and syntax, which last.
func retryable(err error) bool { return !pgerr.Is(err, "22", "23", "42") }

// rest is every row that can be called again: rows that no window contained, and rows
// that were called and not accepted.
func (c *claim) rest() []int16 {
	rest := append([]int16{}, c.free...)
	for _, r := range c.rows[c.next:] {
		rest = append(rest, r.Ordinal)
	}
	return rest
}

package sender

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lemma/events"
)

// Kinds of outcome that attempts may hold besides accepted and rejected.
const (
	refused = "refused" // not accepted so often that the rows' own cap was reached
	unknown = "unknown" // the reaper found no evidence
	skipped = "skipped" // a gate ended the row before any call
)

// outcome is one line of the attempts ledger.
type outcome struct {
	ordinal   int16
	kind      string
	open      bool // not final: a second attempt follows
	basis     string
	reason    string
	code      int
	carrierID string
	detail    string
	at        time.Time
}

// Evidence about the first attempt ends a row of the second. firstAccepted: the
// second was never called, and the view does not count it as an attempt.
// firstRejected: the second was not called either, or was surely rejected too.
const (
	firstAccepted = "first_attempt_accepted"
	firstRejected = "first_attempt_rejected"
)

// tally is what outcomes add to a batch's counters. The view
// notification_status derives the same from the same rows; a test holds the
// two against each other.
type tally struct {
	sent, failed, orphaned, skipped, retried int
}

func (t *tally) add(attempt int16, o outcome) {
	switch {
	case o.open:
		t.retried++
	case o.kind == string(Accepted):
		t.sent++
	case o.reason == firstRejected:
		t.failed++
	case o.kind == unknown || attempt == 2:
		t.orphaned++
	case o.kind == skipped:
		t.skipped++
	default:
		t.failed++
	}
}

// gate is what a commit found on its batch.
type gate string

const (
	open gate = "open"
	held gate = "held" // cancelled is the third word of the schema
	lost gate = "lost" // the lease is another's; nothing was written
)

// ending is what a commit does besides writing outcomes.
type ending struct {
	state   string
	from    int16         // stateGo: called_through before it
	first   int16         // stateGo: the next window
	through int16         // stateGo: called_through after it
	rows    int           // stateGo: that the window holds
	date    *time.Time    // stateGo under attempt 1: of its messages
	open    []int16       // stateReady: rows given back
	split   *split        // stateReady: rows that are not
	after   time.Duration // stateReady: until they are due
	detail  string        // for the log: what the provider said
}

const (
	stateGo      = "go"      // open the next window and renew the lease
	stateKeep    = "keep"    // renew the lease
	stateDone    = "done"    // every row has its end
	stateReady   = "ready"   // rows are given back
	stateUnknown = "unknown" // every other row has its end: leave the lease to run out
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

// commit appends outcomes, raises counters, and opens the next window or ends
// the claim: one statement, gated on the token. When the lease was lost nothing
// of it happens (lost), and what is known is kept as evidence instead, for the
// reaper and for the next claim.
//
// When the connection breaks it cannot be known whether the statement was
// applied, or will be: it may still run at the server, or arrive there later.
// The ledger is asked before the statement is tried again, and once more when
// the second try finds that the first has come before it. Whichever of them
// comes first, the other changes nothing: a window opens only from where the
// one before it ended, an outcome is written once, and an ended claim has no
// token (Batch: a statement in flight).
func (s *Sender) commit(ctx context.Context, c *claim, done []outcome, e ending) (gate, error) {
	ctx = context.WithoutCancel(ctx) // what came of a call is written, whoever has stopped waiting
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
		return lost, errors.Join(err, s.keepEvidence(ctx, c, done))
	}
	if e.state == stateGo && g == open {
		c.through = e.through
	}
	if e.state == stateGo || e.state == stateKeep {
		s.renewed(c, begun) // from before the first try: the lease may date from that
	}
	s.metrics.committed(done)
	s.checkErrors(ctx, c, done)
	if w := c.unrecorded; w != nil {
		c.unrecorded = nil
		s.recordReceipts(ctx, c, w)
	}
	return g, nil
}

// persist repeats a write until it is answered, for as long as it may help.
func (s *Sender) persist(c *claim, write func() error) error {
	err := write()
	for err != nil && retryable(err) && s.mayYetCommit(c) {
		s.metrics.commitRetried()
		time.Sleep(commitRetry)
		err = write()
	}
	if err != nil {
		return fmt.Errorf("commit batch %s: %w", c.BatchID, err)
	}
	return nil
}

// mayYetCommit: the token is the fence and not the clock, so a known answer may
// be written long after the lease ran out, as long as no reaper has decided.
// Only a node that shuts down gives up with its lease.
func (s *Sender) mayYetCommit(c *claim) bool {
	if s.isDraining() {
		return time.Now().Before(c.until)
	}
	return time.Since(c.started) < JobTimeout(s.cfg)
}

const commitRetry = 100 * time.Millisecond

// commitAgain is a further try of a commit whose answer was lost. An earlier
// try may be applied before the look, after it, or never.
func (s *Sender) commitAgain(ctx context.Context, c *claim, done []outcome, e ending) (gate, error) {
	if g, err := s.applied(ctx, c, done, e); err != nil || g != "" {
		return g, err
	}
	g, err := s.commitOnce(ctx, c, done, e)
	if (err == nil && g != lost) || (err != nil && !conflicting(err)) {
		return g, err
	}
	if was, failed := s.applied(ctx, c, done, e); failed != nil || was != "" {
		return was, failed
	}
	return g, err
}

// conflicting: a constraint stands in the way, as it does when an earlier try
// has written the same outcomes and counted them.
func conflicting(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code[:2] == "23"
}

func (s *Sender) commitOnce(ctx context.Context, c *claim, done []outcome, e ending) (gate, error) {
	var t tally
	col := outcomeColumns(done)
	for _, o := range done {
		t.add(c.attempt, o)
	}
	sql, apart := commitPlain, e.split
	args := []any{c.WorkspaceID, c.OriginID, c.BatchID, c.token, e.state, e.through, s.cfg.Lease,
		t.sent, t.failed, t.orphaned, t.skipped, append([]int16{}, c.free...), e.open, e.after, c.refusals.most > 0,
		col.ordinals, col.kinds, col.bases, col.reasons, col.codes, col.carrierIDs, col.details,
		e.first, clip(e.detail), len(c.unknown), e.rows, c.refusals.changed(), e.from, e.date, 0}
	if apart != nil {
		sql, args[29] = commitSplit, len(apart.rows)
		args = append(args, apart.rows, apart.id)
	}
	var g gate
	err := s.pool.QueryRow(ctx, sql, args...).Scan(&g)
	if errors.Is(err, pgx.ErrNoRows) {
		return lost, nil
	}
	return g, err
}

// commitWindow: the update is the fence; everything else reads from it, so that
// a lost lease writes nothing at all.
const commitWindow = `
	with b as (
		update batches set
			sent = sent + $8, failed = failed + $9, skipped = skipped + $11,
			skips = case when $11 = 0 then skips else skips || (select jsonb_object_agg(r.reason, r.n + coalesce((skips->>r.reason)::int, 0)) from (
				select reason, count(*) as n from unnest($17::text[], $19::text[]) as o (kind, reason) where kind = 'skipped' group by reason) r) end,
			cancelled = cancelled + case when $5 = 'ready' and gate = 'cancelled' and attempt = 1 then cardinality($13::smallint[]) else 0 end,
			orphaned = orphaned + $10 + case when $5 = 'ready' and gate = 'cancelled' and attempt = 2 then cardinality($13::smallint[]) else 0 end,
			status = case when $5 = 'done' then 'done' when $5 <> 'ready' then status when gate = 'cancelled' then 'cancelled' else 'ready' end,
			finished_at = case when $5 = 'done' or ($5 = 'ready' and gate = 'cancelled') then now() end,
			leased_by = case when $5 in ('done', 'ready') then null else leased_by end,
			lease_until = case when $5 in ('go', 'keep') then now() + $7 when $5 = 'unknown' then lease_until end,
			called_through = case when $5 = 'go' and gate = 'open' then $6 when $5 = 'ready' then -1 else called_through end,
			calling = case when $5 in ('done', 'ready') then 0 when $5 = 'go' and gate = 'open' then $25::smallint + $26::smallint else $25 end,
			deferred = case when $5 = 'ready' then '{}' else $12::smallint[] end,
			open = case when $5 = 'ready' then $13 else open end,
			due_at = case when $5 = 'ready' then now() + $14 else due_at end,
			refusals = coalesce($27, refusals), size = size - $30
		where workspace_id = $1 and origin_id = $2 and id = $3 and status = 'leased' and leased_by = $4
		  and ($5 <> 'go' or called_through = $28)
		returning workspace_id, origin_id, id, root_id, provider_id, content_id, attempt, max_attempts, gate, status,
			due_at, lease_until, expires_at, batches.refusals
	), outcomes as (
		insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis, reason, code, carrier_id, detail)
		select b.workspace_id, b.root_id, o.ordinal, b.attempt, o.kind, true, o.basis, nullif(o.reason, ''),
			nullif(o.code, 0), nullif(o.carrier_id, ''), nullif(o.detail, '')
		from b, unnest($16::smallint[], $17::text[], $18::text[], $19::text[], $20::smallint[], $21::text[], $22::text[])
			as o (ordinal, kind, basis, reason, code, carrier_id, detail)
	), log as (
		insert into batch_log (workspace_id, batch_id, event, token, first, last, until, message_date, detail)
		select b.workspace_id, b.id,
			case $5 when 'go' then 'window' when 'done' then 'finished' when 'unknown' then 'unresolved'
				else case when b.status = 'cancelled' then 'cancelled' when $15 then 'deferred' else 'released' end end,
			$4, case when $5 = 'go' then $23::smallint end, case when $5 = 'go' then $6::smallint end,
			case b.status when 'ready' then b.due_at when 'leased' then b.lease_until end, $29::timestamptz, nullif($24, '')
		from b where $5 <> 'keep' and ($5 <> 'go' or b.gate = 'open')
	)`

const commitPlain = commitWindow + ` select gate from b`

// applied finds out what became of a commit whose answer never came: the
// batch's gate when it was applied, nothing when it was not, lost when the
// batch has gone to somebody else meanwhile. An outcome counts as ours only by
// its basis: the reaper may have written about the same row.
func (s *Sender) applied(ctx context.Context, c *claim, done []outcome, e ending) (gate, error) {
	var g gate
	var ours, moved, written bool
	first, basis := int16(-1), ""
	if len(done) > 0 {
		first, basis = done[0].ordinal, done[0].basis
	}
	err := s.pool.QueryRow(ctx, `
		select b.gate, b.leased_by is not distinct from $4, b.called_through >= $5,
			exists (select from attempts a where a.workspace_id = b.workspace_id and a.batch_id = b.root_id and a.ordinal = $6
				and a.attempt = b.attempt and a.basis = $7)
		from batches b where b.workspace_id = $1 and b.origin_id = $2 and b.id = $3`,
		c.WorkspaceID, c.OriginID, c.BatchID, c.token, e.through, first, basis).Scan(&g, &ours, &moved, &written)
	ended := e.state == stateDone || e.state == stateReady
	switch {
	case err != nil:
		return "", err
	case ours && e.state == stateGo && (written || len(done) == 0 && moved):
		if !moved {
			return held, nil // applied behind a shut gate: no window is open
		}
		return g, nil
	case ours && written, !ours && ended && (written || len(done) == 0):
		return g, nil
	case !ours:
		return lost, nil
	}
	return "", nil
}

// retryable: only what can never succeed is given up at once (wrong data, a
// constraint, a wrong statement), since a known answer that is given up may
// become a second message.
func retryable(err error) bool {
	var pg *pgconn.PgError
	return !errors.As(err, &pg) || !slices.Contains([]string{"22", "23", "42"}, pg.Code[:2])
}

// keepEvidence writes down what a worker knows that has lost its lease.
func (s *Sender) keepEvidence(ctx context.Context, c *claim, done []outcome) error {
	s.metrics.leaseLost()
	s.log.Warn("lease lost; outcomes are kept as evidence", "batch_id", c.BatchID, "token", c.token, "known", len(done))
	var known []events.Event
	for _, o := range done {
		if o.basis != "response" || (o.kind != string(Accepted) && o.kind != string(Rejected)) {
			continue
		}
		known = append(known, events.Event{ProviderID: c.providerID, Source: events.SourceResponse, SourceID: fmt.Sprintf("%s/%d/%d", c.root, o.ordinal, c.attempt),
			BatchID: c.root, Ordinal: o.ordinal, Attempt: c.attempt, Kind: events.Kind(o.kind), Code: o.code,
			CarrierID: clip(o.carrierID), Detail: clip(o.detail), OccurredAt: o.at})
	}
	err := s.persist(c, func() error { _, err := events.Record(ctx, s.pool, c.WorkspaceID, known); return err })
	if err != nil {
		return err
	}
	_, err = s.pool.Exec(ctx, `insert into batch_log (workspace_id, batch_id, event, token) values ($1, $2, 'lost', $3)`, c.WorkspaceID, c.BatchID, c.token)
	return err
}

// rest is every row that has neither an end nor an unknown outcome: those that no window
// has covered, and those that were called and surely not accepted.
func (c *claim) rest() []int16 {
	rest := append([]int16{}, c.free...)
	for _, r := range c.rows[c.next:] {
		rest = append(rest, r.Ordinal)
	}
	return rest
}

// columns are outcomes turned on their side, as unnest takes them.
type columns struct {
	ordinals, codes                            []int16
	kinds, bases, reasons, carrierIDs, details []string
}

func outcomeColumns(done []outcome) columns {
	n := len(done)
	c := columns{ordinals: make([]int16, n), codes: make([]int16, n), kinds: make([]string, n), bases: make([]string, n),
		reasons: make([]string, n), carrierIDs: make([]string, n), details: make([]string, n)}
	for i, o := range done {
		c.ordinals[i], c.codes[i], c.kinds[i], c.bases[i] = o.ordinal, int16(o.code), o.kind, o.basis
		c.reasons[i], c.carrierIDs[i], c.details[i] = clip(o.reason), clip(o.carrierID), clip(o.detail)
	}
	return c
}

// clip keeps a carrier's words short and fit for a text column.
func clip(s string) string {
	if len(s) > 300 {
		s = s[:300]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
}

// settled is the outcome that a proof gives a row.
func settled(ordinal int16, p events.Proof) outcome {
	return outcome{ordinal: ordinal, kind: string(p.Kind), basis: "evidence", code: p.Code, carrierID: p.CarrierID, detail: p.Detail, at: time.Now()}
}

// settleByEvidence closes rows of a second attempt about whose first something
// has become known since: accepted, and it was sent; rejected, and it failed.
// It is read after the claim, so nothing that the reaper missed is missed again.
func (s *Sender) settleByEvidence(ctx context.Context, c *claim) ([]outcome, error) {
	if c.attempt == 1 {
		return nil, nil
	}
	ordinals := make([]int16, len(c.rows))
	for i, r := range c.rows {
		ordinals[i] = r.Ordinal
	}
	evidence, err := events.Proofs(ctx, s.pool, c.WorkspaceID, c.root, ordinals)
	if err != nil || len(evidence) == 0 {
		return nil, err
	}
	var done []outcome
	var left []row
	for _, r := range c.rows {
		p := evidence[r.Ordinal].Of(1)
		if p == nil {
			left = append(left, r)
			continue
		}
		o := settled(r.Ordinal, *p)
		switch {
		case p.Kind == events.Rejected:
			o.reason = firstRejected
		case p.Attempt != 2:
			o.reason = firstAccepted
		}
		done = append(done, o)
	}
	c.rows = left
	return done, nil
}

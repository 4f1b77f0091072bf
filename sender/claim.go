package sender

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma/eventsout"
	"lemma/notifications"
)

// claim is a leased batch, and what was read with it.
type claim struct {
	notifications.Ref
	token        string
	until        time.Time // monotonic: every call has ended before
	started      time.Time
	renderWithin time.Duration // of one message
	clock        time.Time     // the database's, at started
	opened       time.Time     // the database's, when the last window was opened
	openedAt     time.Time     // of this process, when it was opened; not before opened
	age          time.Duration // since its rows were read from their audience
	resumed      *time.Time    // when its campaign or flow was last resumed, by the database's clock; nil: it was not
	optOuts      bool          // its origin has notifications that were written before their opt-out
	crashes      int           // claims before it, in a row, that crashed
	suppressions bool          // its workspace has suppressions, or recipients that have unsubscribed from a topic
	expires      time.Time     // the send deadline; no call begins after it
	checked      time.Time     // when its addresses were last checked for suppressions
	trackingURL  string        // where the links of its messages lead; empty: nothing is tracked

	root       uuid.UUID
	providerID uuid.UUID
	contentID  uuid.UUID
	attempt    int16
	bulk       bool // of direct notifications: it makes room for single requests
	refusals   refusals
	failing    bool // the provider has failed since its last acceptance, as the claim or its last commit found it
	changed    bool // the provider was changed since the claim, as its last commit found it
	kind       string
	version    int      // the provider's
	rate       *float64 // the provider's, per second

	rows        []row               // open rows in the order of their ordinals, without those that were skipped
	ordinals    []int16             // of all rows, in order
	keys        []uuid.UUID         // of all rows
	memory      *memory             // of the current window's messages; nil: unlimited
	dates       map[int16]time.Time // under attempt 2: the Date that each row's first message had
	next        int                 // the first row that no window contains
	through     int16               // called_through, as the last commit set it
	unknown     []int16             // called, with an unknown outcome
	free        []int16             // not accepted, or left to a later claim
	detail      string              // why the claim ended early: for the log of the batch
	probing     bool                // the circuit is open, and only this claim may call
	circuitOpen bool                // the circuit has opened: no further window
	over        bool                // a commit failed or found the lease lost: nothing more is written, and the reaper decides

	slot       *slot
	unrecorded *window // called, and its receipts are not recorded yet
}

type row struct {
	Ordinal int16
	Key     uuid.UUID
	Address string
	Payload string // "": not read yet, or rendered
}

// Claim leases a batch that is ready, due, and not held back by its gate or its provider's
// circuit, for Config.Lease by the database's clock. The claim is nil if there is none, as
// for a job that runs twice.
func (s *Sender) Claim(ctx context.Context, ref notifications.Ref) (*claim, error) {
	return s.claimAs(ctx, ref, s.token())
}

func (s *Sender) claimAs(ctx context.Context, ref notifications.Ref, token string) (*claim, error) {
	begun := time.Now() // before the statement, so that this deadline is not later than the database's
	c := &claim{Ref: ref, token: token, started: begun, through: -1, renderWithin: s.cfg.renderWithin()}
	var lasts *float64 // seconds until the send deadline
	var age float64
	var most int // open rows
	claimed := true
	batch := &pgx.Batch{}
	batch.Queue(claimBatch, ref.WorkspaceID, ref.OriginID, ref.BatchID, c.token, s.cfg.Lease).QueryRow(func(r pgx.Row) error {
		err := r.Scan(&c.root, &c.providerID, &c.contentID, &c.attempt, &c.refusals.counts, &c.refusals.times, &c.kind, &c.version, &c.rate,
			&c.failing, &lasts, &age, &c.resumed, &c.optOuts, &c.suppressions, &c.clock, &most, &c.bulk)
		if errors.Is(err, pgx.ErrNoRows) { // after an error pgx would prepare and plan all three statements again
			claimed, err = false, nil
		}
		return err
	})
	batch.Queue(readRows, ref.WorkspaceID, ref.OriginID, ref.BatchID, c.token).Query(func(rows pgx.Rows) (err error) {
		var r row
		var payload pgtype.DriverBytes
		left := s.cfg.ClaimBytes
		c.rows, c.ordinals, c.keys = make([]row, 0, most), make([]int16, 0, most), make([]uuid.UUID, 0, most)
		_, err = pgx.ForEachRow(rows, []any{&r.Ordinal, (*[16]byte)(&r.Key), &r.Address, &payload}, func() error {
			if n := len(c.rows); n > 0 && r.Ordinal <= c.rows[n-1].Ordinal {
				return fmt.Errorf("two rows have the ordinal %d", r.Ordinal) // Batch!OneRowPerOrdinal, before any call
			}
			r.Payload = ""
			if left -= len(payload); left >= 0 {
				r.Payload = string(payload)
			}
			c.rows, c.ordinals, c.keys = append(c.rows, r), append(c.ordinals, r.Ordinal), append(c.keys, r.Key)
			return nil
		})
		return err
	})
	batch.Queue(countCrashes, ref.WorkspaceID, ref.BatchID).QueryRow(func(r pgx.Row) error {
		err := r.Scan(&c.crashes)
		c.crashes-- // this claim
		return err
	})
	if err := s.pool.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("claim batch %s: %w", ref.BatchID, err)
	}
	if !claimed {
		return nil, nil
	}
	s.renewed(c, begun)
	c.age = time.Duration(age * float64(time.Second))
	c.expires = begun.AddDate(100, 0, 0)
	if lasts != nil {
		c.expires = begun.Add(time.Duration(*lasts * float64(time.Second)))
	}
	s.metrics.claimed(time.Since(begun))
	return c, nil
}

// isReady is true of a ready batch. The concatenation keeps a planner from the index
// of ready batches, which it would read completely, where the whole key of a batch is
// known.
const isReady = `status || '' = 'ready'`

// claimBatch checks, leases and logs a batch in one statement.
const claimBatch = `
	with claimed as (
		update batches set status = 'leased', leased_by = $4, lease_until = now() + $5, called_through = -1, calling = 0, deferred = '{}'
		where workspace_id = $1 and origin_id = $2 and id = $3
		  and ` + isReady + ` and gate = 'open' and due_at <= now() and (expires_at is null or expires_at > now())
		  and not exists (select from provider_meters m where m.workspace_id = $1 and m.provider_id = batches.provider_id
			and m.open_until is not null and m.probe_token is distinct from $4)
		returning workspace_id, id, root_id, provider_id, content_id, attempt, refusals, retry_at, leased_by, lease_until, expires_at,
			created_at, resumed_at, coalesce(cardinality(open), size) as most, bulk
	), log as (
		insert into batch_log (workspace_id, batch_id, event, token, until)
		select workspace_id, id, 'claimed', leased_by, lease_until from claimed
	)
	select c.root_id, c.provider_id, c.content_id, c.attempt, c.refusals, c.retry_at, p.kind, p.version, p.rate_per_second,
		coalesce(m.failures > 0, false), extract(epoch from least(c.expires_at - now(), interval '100 years'))::float8,
		extract(epoch from now() - case c.attempt when 1 then c.created_at else
			(select r.created_at from batches r where r.workspace_id = $1 and r.origin_id = $2 and r.id = c.root_id) end)::float8,
		c.resumed_at,
		exists (select from opt_outs o where o.workspace_id = $1 and o.origin_id = $2),
		exists (select from suppressions s where s.workspace_id = $1) or exists (select from topic_unsubscribes t where t.workspace_id = $1),
		now(), c.most, c.bulk
	from claimed c
	join providers p on p.workspace_id = c.workspace_id and p.id = c.provider_id
	left join provider_meters m on m.workspace_id = c.workspace_id and m.provider_id = c.provider_id`

// readRows reads the open rows of the batch that was just claimed. The batch is read
// in subqueries instead of a join, so that the index on all three columns is the only
// plan, also without statistics.
const readRows = `
	select n.ordinal, n.key, n.address, coalesce(n.payload, '{}')
	from notifications n
	where n.workspace_id = $1 and n.origin_id = $2
	  and n.batch_id = (select root_id from batches where workspace_id = $1 and origin_id = $2 and id = $3 and leased_by = $4)
	  and n.ordinal = any(coalesce((select open from batches where workspace_id = $1 and origin_id = $2 and id = $3), array[n.ordinal]))
	order by n.ordinal`

// renewed sets the deadline for calls, on the monotonic clock: from before the
// statement that renewed the lease, less the margin.
func (s *Sender) renewed(c *claim, begun time.Time) {
	c.until = begun.Add(s.cfg.Lease - s.cfg.margin())
}

// claimability returns how long until a batch may be claimed, or 0 when its job has
// nothing more to do. A ready batch keeps its job, since it has no other. With probe
// the batch waits only for its provider's circuit, which may be probed now.
func (s *Sender) claimability(ctx context.Context, ref notifications.Ref) (again time.Duration, probe bool, err error) {
	var ready, expired, open, probing bool
	var wait, shutFor float64
	err = s.pool.QueryRow(ctx, `
		select b.status = 'ready' and b.gate = 'open', b.expires_at is not null and b.expires_at <= now(),
			greatest(extract(epoch from b.due_at - now()), 0)::float8,
			m.open_until is not null, coalesce(m.probe_until > now(), false),
			greatest(coalesce(extract(epoch from m.open_until - now()), 0), 0)::float8
		from batches b left join provider_meters m on m.workspace_id = b.workspace_id and m.provider_id = b.provider_id
		where b.workspace_id = $1 and b.origin_id = $2 and b.id = $3`, ref.WorkspaceID, ref.OriginID, ref.BatchID).
		Scan(&ready, &expired, &wait, &open, &probing, &shutFor)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("check batch %s: %w", ref.BatchID, err)
	}
	switch {
	case ready && expired:
		return 0, false, s.Expire(ctx, ref)
	case !ready:
		return 0, false, nil
	case !open || wait > shutFor: // it may have become claimable since
		return max(time.Duration(wait*float64(time.Second)), time.Millisecond), false, nil
	}
	return s.untilProbe(time.Duration(shutFor*float64(time.Second)), probing), wait == 0 && shutFor == 0 && !probing, nil
}

// Expire ends a batch whose send deadline has passed before its claim. First attempts
// are skipped as expired. Second attempts are settled by evidence about the first, or
// else orphaned, since the first is unknown.
func (s *Sender) Expire(ctx context.Context, ref notifications.Ref) error {
	var n int
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) (err error) {
		n, err = expire(ctx, tx, ref)
		return err
	})
	if err != nil {
		return fmt.Errorf("expire batch %s: %w", ref.BatchID, err)
	}
	s.ended(ref.WorkspaceID, ref.OriginID)
	s.metrics.missed(n)
	return nil
}

// expire returns how many rows were not called because of the deadline.
func expire(ctx context.Context, tx pgx.Tx, ref notifications.Ref) (rows int, err error) {
	second := notifications.Ended{Ref: ref}
	var open []int16
	err = tx.QueryRow(ctx, `
		with ended as (
			update batches set status = 'expired', finished_at = now(),
				skipped = skipped + case when attempt = 1 then coalesce(cardinality(open), size) else 0 end,
				orphaned = orphaned + case when attempt = 2 then coalesce(cardinality(open), size) else 0 end,
				skips = case when attempt = 1 then skips || jsonb_build_object('expired', coalesce(cardinality(open), size)) else skips end
			where workspace_id = $1 and origin_id = $2 and id = $3 and `+isReady+` and expires_at <= now()
			returning workspace_id, id, root_id, provider_id, coalesce(cardinality(open), size) as rows,
				case when attempt = 2 then open end as second, open
		), log as (
			insert into batch_log (workspace_id, batch_id, event) select workspace_id, id, 'expired' from ended
		)
		select root_id, provider_id, rows, second, open from ended`,
		ref.WorkspaceID, ref.OriginID, ref.BatchID).Scan(&second.RootID, &second.ProviderID, &rows, &second.Open, &open)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if len(second.Open) == 0 {
		return rows, eventsout.Record(ctx, tx, eventsout.Event{WorkspaceID: ref.WorkspaceID, Type: eventsout.NotificationSkipped,
			OriginID: ref.OriginID, BatchID: second.RootID, Ordinals: open, Items: rows, Data: map[string]any{"reason": notifications.Expired}})
	}
	second.Cause = "unknown_then_expired"
	settled, err := notifications.SettleEnded(ctx, tx, second)
	return rows - settled, err
}

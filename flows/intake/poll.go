package intake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/audience"
	"lemma/fence"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/flows/graph"
)

const (
	pollAtOnce = 8     // audiences that one process reads at a time, of as many workspaces
	pollChunk  = 1_000 // profiles that are enrolled in one transaction
)

// polls are the audiences that this process is reading: at most one per workspace, so that
// the slow sources of one workspace do not use all slots.
type polls struct {
	mu      sync.Mutex
	of      map[uuid.UUID]bool // workspaces
	running sync.WaitGroup
}

// full reports whether no slot is free.
func (p *polls) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.of) >= pollAtOnce
}

// enter takes a slot, unless none is free or the workspace has one.
func (p *polls) enter(ws uuid.UUID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.of) >= pollAtOnce || p.of[ws] {
		return false
	}
	if p.of == nil {
		p.of = map[uuid.UUID]bool{}
	}
	p.of[ws] = true
	return true
}

func (p *polls) leave(ws uuid.UUID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.of, ws)
}

// workspaces are those with a slot.
func (p *polls) workspaces() []pgtype.UUID {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := make([]pgtype.UUID, 0, len(p.of))
	for ws := range p.of {
		ids = append(ids, enrollment.PgUUID(ws))
	}
	return ids
}

// poll is the lease of one poll of a flow's audience.
type poll struct {
	ws, flow uuid.UUID
	token    string
	version  int       // the live one at its start
	due      time.Time // when it was due
	start    time.Time // its start: its profiles enroll as of then
	failures int       // consecutive failures before it
}

// errPolledNoMore ends a poll without an error: the flow was paused, ended or published
// since.
var errPolledNoMore = errors.New("the audience is no longer polled")

// PollOnce reads one audience that is due; false if none is.
func (in *Intake) PollOnce(ctx context.Context) (bool, error) {
	p, err := in.claimPoll(ctx)
	if err != nil || p == nil {
		return false, err
	}
	return true, in.poll(ctx, *p)
}

// PollDue starts the polls that are due, and does not wait: an audience may be large, or
// its source slow.
func (in *Intake) PollDue(ctx context.Context) error {
	for ctx.Err() == nil && !in.polls.full() {
		p, err := in.claimPoll(ctx)
		if err != nil || p == nil {
			return err
		}
		if !in.polls.enter(p.ws) { // another tick was faster
			return in.releasePoll(*p)
		}
		in.polls.running.Go(func() {
			in.pollOne(ctx, *p)
			if err := in.PollDue(ctx); err != nil && ctx.Err() == nil { // the next of the workspace
				in.log.Error("poll audiences", "error", err)
			}
		})
	}
	return nil
}

func (in *Intake) pollOne(ctx context.Context, p poll) {
	defer in.polls.leave(p.ws)
	if err := lemma.Recovered(func() error { return in.poll(ctx, p) }); err != nil && ctx.Err() == nil {
		in.metrics.Failed("poll audiences")
		in.log.Error("poll audience", "flow_id", p.flow, "error", err)
	}
}

// claimPoll is one statement: a poll of a live flow, due, not leased, and of a workspace
// of which this process is reading no audience.
func (in *Intake) claimPoll(ctx context.Context) (*poll, error) {
	p := poll{token: lemma.NewID().String()}
	err := in.pool.QueryRow(ctx, `
		update flow_polls p set leased_by = $1, lease_until = now() + $2::interval
		from flows f
		where f.workspace_id = p.workspace_id and f.id = p.flow_id and f.status = 'live'
		  and (p.workspace_id, p.flow_id) = (
			select p.workspace_id, p.flow_id from flow_polls p
			join flows f on f.workspace_id = p.workspace_id and f.id = p.flow_id
			where f.status = 'live' and p.next_at <= now() and (p.lease_until is null or p.lease_until < now()) and p.workspace_id <> all($3)
			order by p.next_at limit 1 for update of p skip locked)
		returning p.workspace_id, p.flow_id, f.live_version, p.next_at, now(), p.failures`, p.token, in.cfg.Lease, in.polls.workspaces()).
		Scan(&p.ws, &p.flow, &p.version, &p.due, &p.start, &p.failures)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("claim a poll: %w", err)
	}
	return &p, nil
}

// poll reads the audience and records the result. A source that fails delays only this
// flow's next poll.
func (in *Intake) poll(ctx context.Context, p poll) error {
	renewing, stop := context.WithCancel(ctx)
	defer stop()
	go in.renewPoll(renewing, stop, p)
	read, err := in.pollAudience(renewing, p)
	switch {
	case err == nil:
		return in.finishPoll(ctx, p, read)
	case errors.Is(err, errPolledNoMore) || renewing.Err() != nil:
		return in.releasePoll(p)
	}
	return in.failPoll(ctx, p, err)
}

// renewPoll keeps the lease while the audience is read, and stops the reading when the
// lease has expired or is another's.
func (in *Intake) renewPoll(ctx context.Context, stop context.CancelFunc, p poll) {
	fence.Renew(ctx, in.pool, in.cfg.Lease, stop, func(err error) { in.log.Error("renew poll", "flow_id", p.flow, "error", err) }, `
		update flow_polls set lease_until = now() + $4::interval
		where workspace_id = $1 and flow_id = $2 and leased_by = $3 and lease_until >= now()`, p.ws, p.flow, p.token, in.cfg.Lease)
}

// polled is the result of a poll.
type polled struct {
	every    time.Duration
	rows     int64
	enrolled int64
	refused  map[string]int64
}

// pollAudience streams the audience outside of any transaction and enrolls its profiles
// chunk by chunk.
func (in *Intake) pollAudience(ctx context.Context, p poll) (polled, error) {
	done := polled{refused: map[string]int64{}}
	g, err := in.exec.Versions.Current(ctx, in.pool, p.ws, p.flow, p.version)
	if err != nil {
		return done, err
	}
	triggers := g.Triggers()
	i := slices.IndexFunc(triggers, func(t graph.CompiledTrigger) bool { return t.Type == enrollment.FromAudience })
	from, named := lemma.ParseID(lemma.PrefixAudience, g.Definition().AudienceID)
	if i < 0 || !named {
		return done, errPolledNoMore // the previous version had the trigger; publishing deletes the row
	}
	c := &chunk{Intake: in, poll: p, graph: g, condition: triggers[i].Condition, done: &done, firsts: newFirsts()}
	done.every = triggers[i].Every
	var columns []string
	if c.condition != nil && c.condition.Uses().Profile {
		a, err := in.audiences.Get(ctx, p.ws, from)
		if err != nil {
			return done, err
		}
		columns = execution.ColumnsOf(g, &a)
	}
	done.rows, err = in.audiences.Stream(ctx, p.ws, from, columns, func(row audience.Row) error {
		c.add(row)
		if len(c.pending)+len(c.refused) < pollChunk {
			return nil
		}
		return c.write(ctx)
	})
	if err != nil {
		return done, err
	}
	return done, c.write(ctx)
}

// checkLease locks the lease: no other poll begins until the chunk is committed.
func (p poll) checkLease(ctx context.Context, tx pgx.Tx) error {
	held, err := tx.Exec(ctx, `
		select from flow_polls where workspace_id = $1 and flow_id = $2 and leased_by = $3 and lease_until >= now() for update`, p.ws, p.flow,
		p.token)
	if err == nil && held.RowsAffected() == 0 {
		return errPolledNoMore
	}
	return err
}

// finishPoll schedules the next poll: one period after the start of this one, or when it
// was rescheduled meanwhile, as by a publish.
func (in *Intake) finishPoll(ctx context.Context, p poll, d polled) error {
	_, err := in.pool.Exec(ctx, `
		update flow_polls set leased_by = null, lease_until = null, failures = 0, last_error = null,
			last_at = $4, rows_read = $5, enrolled = $6, refused = $7,
			next_at = case when next_at = $8 then $4::timestamptz + $9::interval else next_at end
		where workspace_id = $1 and flow_id = $2 and leased_by = $3`,
		p.ws, p.flow, p.token, p.start, d.rows, d.enrolled, d.refused, p.due, d.every)
	return lemma.Wrap(err, "finish poll of flow %s", p.flow)
}

func (in *Intake) failPoll(ctx context.Context, p poll, cause error) error {
	in.log.Warn("an audience cannot be read, it will be tried again", "flow_id", p.flow, "failures", p.failures+1, "error", cause)
	_, err := in.pool.Exec(ctx, `
		update flow_polls set leased_by = null, lease_until = null, failures = failures + 1, last_error = $4,
			next_at = case when next_at = $5 then now() + $6::interval else next_at end
		where workspace_id = $1 and flow_id = $2 and leased_by = $3`,
		p.ws, p.flow, p.token, execution.BlockedReason(cause)+": "+lemma.Public(cause), p.due, in.exec.BackOff(p.failures))
	return lemma.Wrap(err, "postpone poll of flow %s", p.flow)
}

// releasePoll releases the lease, also during a shutdown. The poll stays due.
func (in *Intake) releasePoll(p poll) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := in.pool.Exec(ctx, `
		update flow_polls set leased_by = null, lease_until = null
		where workspace_id = $1 and flow_id = $2 and leased_by = $3`, p.ws, p.flow, p.token)
	return lemma.Wrap(err, "release poll of flow %s", p.flow)
}

// Wait returns when no audience is being read.
func (in *Intake) Wait() { in.polls.running.Wait() }

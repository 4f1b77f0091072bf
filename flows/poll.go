package flows

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
	"lemma/flows/graph"
)

const (
	pollAtOnce = 8     // audiences that one node reads at a time, of as many workspaces
	pollChunk  = 1_000 // people who are enrolled in one transaction
)

// polls are the audiences that this node is reading: one of a workspace, so
// that nobody's slow sources take the places of all.
type polls struct {
	mu      sync.Mutex
	of      map[uuid.UUID]bool // workspaces
	running sync.WaitGroup
}

// full tells whether no place is free.
func (p *polls) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.of) >= pollAtOnce
}

// enter takes a place, unless there is none or the workspace has one.
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

// workspaces are those that have a place.
func (p *polls) workspaces() []pgtype.UUID {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := make([]pgtype.UUID, 0, len(p.of))
	for ws := range p.of {
		ids = append(ids, wire(ws))
	}
	return ids
}

// poll is one look at the audience of a flow, and the right to take it.
type poll struct {
	ws, flow uuid.UUID
	token    string
	version  int       // the live one, when it began
	due      time.Time // when it was to begin
	start    time.Time // when it did: its people enroll as of then
	failures int       // in a row, before
}

// errPolledNoMore: the flow was paused, ended or published anew meanwhile. It
// ends a poll quietly.
var errPolledNoMore = errors.New("the audience is not to be looked at any more")

// pollDue begins to look at audiences whose time has come, and does not wait:
// an audience may be long, or its source slow.
func (f *Flows) pollDue(ctx context.Context) error {
	for !f.polls.full() {
		p, err := f.claimPoll(ctx)
		if err != nil || p == nil {
			return err
		}
		if !f.polls.enter(p.ws) { // another tick was faster
			return f.releasePoll(*p)
		}
		f.polls.running.Go(func() {
			defer f.polls.leave(p.ws)
			if err := lemma.Recovered(func() error { return f.poll(ctx, *p) }); err != nil && ctx.Err() == nil {
				f.metrics.failed("poll audiences")
				f.log.Error("poll audience", "flow_id", p.flow, "error", err)
			}
		})
	}
	return nil
}

// claimPoll is one statement: of a live flow, due, held by nobody, and of a
// workspace of which this node is reading none.
func (f *Flows) claimPoll(ctx context.Context) (*poll, error) {
	p := poll{token: lemma.NewID().String()}
	err := f.pool.QueryRow(ctx, `
		update flow_polls p set leased_by = $1, lease_until = now() + $2::interval
		from flows f
		where f.workspace_id = p.workspace_id and f.id = p.flow_id and f.status = 'live'
		  and (p.workspace_id, p.flow_id) = (
			select p.workspace_id, p.flow_id from flow_polls p
			join flows f on f.workspace_id = p.workspace_id and f.id = p.flow_id
			where f.status = 'live' and p.next_at <= now() and (p.lease_until is null or p.lease_until < now()) and p.workspace_id <> all($3)
			order by p.next_at limit 1 for update of p skip locked)
		returning p.workspace_id, p.flow_id, f.live_version, p.next_at, now(), p.failures`, p.token, f.cfg.Lease, f.polls.workspaces()).
		Scan(&p.ws, &p.flow, &p.version, &p.due, &p.start, &p.failures)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("claim an audience to look at: %w", err)
	}
	return &p, nil
}

// poll reads the audience and writes down how it went. A source that fails puts
// off this flow's next look, and nobody else's.
func (f *Flows) poll(ctx context.Context, p poll) error {
	renewing, stop := context.WithCancel(ctx)
	defer stop()
	go f.renewPoll(renewing, stop, p)
	read, err := f.pollAudience(renewing, p)
	switch {
	case err == nil:
		return f.finishPoll(ctx, p, read)
	case errors.Is(err, errPolledNoMore) || renewing.Err() != nil:
		return f.releasePoll(p)
	}
	return f.failPoll(ctx, p, err)
}

// renewPoll keeps the lease while the audience is read, and stops the reading
// when the lease has gone to somebody else.
func (f *Flows) renewPoll(ctx context.Context, stop context.CancelFunc, p poll) {
	t := time.NewTicker(f.cfg.Lease / 3)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		tag, err := f.pool.Exec(ctx, `
			update flow_polls set lease_until = now() + $4::interval
			where workspace_id = $1 and flow_id = $2 and leased_by = $3`, p.ws, p.flow, p.token, f.cfg.Lease)
		if err == nil && tag.RowsAffected() == 0 {
			stop()
			return
		}
	}
}

// polled is what came of reading an audience.
type polled struct {
	every    time.Duration
	rows     int64
	enrolled int64
	refused  map[string]int64
}

// pollAudience streams the audience outside of any transaction and enrolls its
// people chunk by chunk.
func (f *Flows) pollAudience(ctx context.Context, p poll) (polled, error) {
	done := polled{refused: map[string]int64{}}
	g, err := f.graphs.now(ctx, f.pool, p.ws, p.flow, p.version)
	if err != nil {
		return done, err
	}
	triggers := g.Triggers()
	i := slices.IndexFunc(triggers, func(t graph.CompiledTrigger) bool { return t.Type == fromAudience })
	from, named := lemma.ParseID(lemma.PrefixAudience, g.Definition().AudienceID)
	if i < 0 || !named {
		return done, errPolledNoMore // the version before had the trigger; publishing has taken the row away
	}
	c := &chunk{Flows: f, poll: p, graph: g, condition: triggers[i].Condition, done: &done}
	done.every = triggers[i].Every
	var columns []string
	if c.condition != nil && c.condition.Uses().Profile {
		a, err := f.audiences.Get(ctx, p.ws, from)
		if err != nil {
			return done, err
		}
		columns = columnsOf(g, &a)
	}
	done.rows, err = f.audiences.Stream(ctx, p.ws, from, columns, func(row audience.Row) error {
		c.add(row)
		if len(c.asking)+len(c.refused) < pollChunk {
			return nil
		}
		return c.write(ctx)
	})
	if err != nil {
		return done, err
	}
	return done, c.write(ctx)
}

// chunk is some people of an audience, on their way into the flow.
type chunk struct {
	*Flows
	poll
	graph     *graph.Graph
	condition *graph.Condition
	done      *polled

	asking  []*occurrence
	refused []*candidate // whom the condition does not let in
}

// add decides by the row whether a person asks to be enrolled. Whom the
// condition does not let in is refused right here: enrolling people to look at
// them when they enter would write a journey for each of them at every poll.
func (c *chunk) add(row audience.Row) {
	if !isProfileKey(row.Key) {
		c.done.refused[InvalidKey]++
		c.metrics.triggered(Refused, InvalidKey, 1)
		return
	}
	o := c.occurrence(row.Key)
	if c.condition == nil {
		c.asking = append(c.asking, o)
		return
	}
	who := person{Row: row}
	is, err := c.condition.Eval(graph.Vars{Trigger: o.trigger(), Profile: who.columns(), Now: c.start})
	if is && err == nil {
		c.asking = append(c.asking, o)
		return
	}
	no := &candidate{occurrence: o}
	if err != nil {
		no.refuse(ConditionError, "the condition cannot be decided: %s", err)
	} else {
		no.refuse(Filtered, "the trigger's condition is false")
	}
	c.refused = append(c.refused, no)
}

// occurrence is what stands for a person of the audience. Its key is made of
// the uniqueness key, and so of the recurrence policy: however often the
// audience is looked at, a person is refused once for each time that she could
// have enrolled.
func (c *chunk) occurrence(profile string) *occurrence {
	unique, _ := c.graph.Key(graph.Occurrence{ProfileKey: profile, At: c.start}) // the policies of audiences need no more
	return &occurrence{key: lemma.Key("poll/1", string(c.flow[:]), profile, string(unique[:])), profile: profile, properties: "{}",
		at: c.start, source: fromAudience, flow: c.flow}
}

// write enrolls the chunk in one transaction, as long as the flow is what it
// was when the poll began: it shares the flow's row, so that a pause or another
// version falls wholly before the chunk or wholly after it.
func (c *chunk) write(ctx context.Context) error {
	if len(c.asking)+len(c.refused) == 0 {
		return nil
	}
	c.at("poll: chunk")
	var recorded []Recorded
	var due map[share]bool
	err := c.transact(ctx, func(tx pgx.Tx) error {
		t := &take{Flows: c.Flows, tx: tx, ws: c.ws}
		if err := t.readFlow(ctx, c.flow); err != nil {
			return err
		}
		if now := t.flows[c.flow]; now.status != Live || now.version != c.version {
			return errPolledNoMore
		}
		recorded = make([]Recorded, len(c.asking))
		if err := t.lockProfiles(ctx, c.asking); err != nil {
			return err
		}
		for _, round := range rounds(c.asking) {
			if err := t.enroll(ctx, round, c.asking, recorded); err != nil {
				return err
			}
		}
		if err := c.spread(ctx, tx, recorded); err != nil {
			return err
		}
		due = t.due
		return c.writeRefused(ctx, tx)
	})
	if err != nil {
		return err
	}
	for _, r := range recorded {
		for _, one := range r.Results {
			c.count(one.Outcome, one.Reason)
		}
	}
	for _, no := range c.refused {
		c.count(no.outcome, no.reason)
	}
	c.asking, c.refused = nil, nil
	c.bell.ringFor(due)
	return nil
}

// spread lets people begin at any time until those whom a pause held up are
// released: whoever came into the audience meanwhile is found all at once.
func (c *chunk) spread(ctx context.Context, tx pgx.Tx, recorded []Recorded) error {
	if held, err := releasing(ctx, tx, c.ws, c.flow); err != nil || held == nil {
		return err
	}
	var ids []pgtype.UUID
	for _, r := range recorded {
		for _, one := range r.Results {
			if one.Outcome == Enrolled {
				ids = append(ids, wire(*one.EnrollmentID))
			}
		}
	}
	_, err := tx.Exec(ctx, `
		update enrollments e set resume_at = now() + random() * (f.spread_until - now())
		from flows f, (select $1::uuid as workspace_id, r.* from unnest($3::uuid[]) as r (id) limit $4) r
		where f.workspace_id = $1 and f.id = $2 and e.workspace_id = r.workspace_id and e.id = r.id and e.ended_at is null`, c.ws, c.flow, ids, len(ids))
	if err != nil {
		return fmt.Errorf("spread who came in: %w", err)
	}
	return nil
}

func (c *chunk) writeRefused(ctx context.Context, tx pgx.Tx) error {
	var r refusals
	for _, no := range c.refused {
		no.flow = liveFlow{id: c.flow}
		r.add(no)
	}
	batch := &pgx.Batch{}
	r.queue(batch, c.ws)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("write refusals of flow %s: %w", c.flow, err)
	}
	return nil
}

func (c *chunk) count(outcome, reason string) {
	c.metrics.triggered(outcome, reason, 1)
	if outcome == Enrolled {
		c.done.enrolled++
	} else {
		c.done.refused[reason]++
	}
}

// finishPoll says when the audience is looked at next: a period after this look
// began, or when somebody has set it to meanwhile, as publishing does.
func (f *Flows) finishPoll(ctx context.Context, p poll, d polled) error {
	_, err := f.pool.Exec(ctx, `
		update flow_polls set leased_by = null, lease_until = null, failures = 0, last_error = null,
			last_at = $4, rows_read = $5, enrolled = $6, refused = $7,
			next_at = case when next_at = $8 then $4::timestamptz + $9::interval else next_at end
		where workspace_id = $1 and flow_id = $2 and leased_by = $3`,
		p.ws, p.flow, p.token, p.start, d.rows, d.enrolled, d.refused, p.due, d.every)
	if err != nil {
		return fmt.Errorf("finish poll of flow %s: %w", p.flow, err)
	}
	return nil
}

func (f *Flows) failPoll(ctx context.Context, p poll, cause error) error {
	f.log.Warn("an audience cannot be read, it will be tried again", "flow_id", p.flow, "failures", p.failures+1, "error", cause)
	_, err := f.pool.Exec(ctx, `
		update flow_polls set leased_by = null, lease_until = null, failures = failures + 1, last_error = $4,
			next_at = case when next_at = $5 then now() + $6::interval else next_at end
		where workspace_id = $1 and flow_id = $2 and leased_by = $3`,
		p.ws, p.flow, p.token, troubleOf(cause)+": "+lemma.Public(cause), p.due, f.backOff(p.failures))
	if err != nil {
		return fmt.Errorf("put off poll of flow %s: %w", p.flow, err)
	}
	return nil
}

// releasePoll gives the lease back, also while the program shuts down. When the
// audience is due stays as it was.
func (f *Flows) releasePoll(p poll) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := f.pool.Exec(ctx, `
		update flow_polls set leased_by = null, lease_until = null
		where workspace_id = $1 and flow_id = $2 and leased_by = $3`, p.ws, p.flow, p.token)
	if err != nil {
		return fmt.Errorf("release poll of flow %s: %w", p.flow, err)
	}
	return nil
}

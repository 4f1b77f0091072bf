package intake

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/audience"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/flows/graph"
)

// chunk is a chunk of an audience's profiles that may enroll.
type chunk struct {
	*Intake
	poll
	graph     *graph.Graph
	condition *graph.Condition
	done      *polled
	firsts    *firsts

	pending []*Trigger
	refused []*candidate // excluded by the condition
}

// add decides by the first row of a profile whether it is a candidate, as the entry does. One
// whose first row counts as a further one is left to the next poll. A profile that the
// condition excludes is refused here: to enroll it and check at the entry would write
// an enrollment for each of them at every poll.
func (c *chunk) add(row audience.Row) {
	if !enrollment.IsProfileKey(row.Key) {
		c.done.refused[enrollment.InvalidKey]++
		c.metrics.Triggered(enrollment.Refused, enrollment.InvalidKey, 1)
		return
	}
	if !c.firsts.add(row.Key) {
		return
	}
	o := c.occurrence(strings.Clone(row.Key)) // a part of the memory of many rows
	if c.condition == nil {
		c.pending = append(c.pending, o)
		return
	}
	is, err := decide(c.condition, c.ws, row, o.Data(), c.start)
	if is && err == nil {
		c.pending = append(c.pending, o)
		return
	}
	no := &candidate{Trigger: o}
	if err != nil {
		no.refuse(enrollment.ConditionError, "the condition cannot be decided: %s", err)
	} else {
		no.refuse(enrollment.Filtered, "the trigger's condition is false")
	}
	c.refused = append(c.refused, no)
}

// decide evaluates a trigger's condition for a row of the audience.
func decide(condition *graph.Condition, ws uuid.UUID, row audience.Row, trigger map[string]any, now time.Time) (bool, error) {
	if row.TooLarge && condition.Uses().Profile {
		return false, errors.New("the row of the profile is too large to be read")
	}
	person := execution.Profile{Row: row}
	return condition.EvalInTurn(ws, graph.Vars{Trigger: trigger, Profile: person.Columns(), Now: now})
}

// occurrence is the trigger of a profile of the audience. Its key contains the uniqueness
// key, and so depends on the recurrence policy: however often the audience is polled, a
// profile is refused once for each time that it could have enrolled.
func (c *chunk) occurrence(profile string) *Trigger {
	unique, _ := c.graph.Key(graph.Occurrence{ProfileKey: profile, At: c.start}) // enough for the policies of audiences
	return &Trigger{Key: lemma.Key("poll/1", string(c.flow[:]), profile, string(unique[:])), profile: profile, properties: "{}",
		At: c.start, source: enrollment.FromAudience, flow: c.flow}
}

// write enrolls the chunk in one transaction, if the flow is what it was when the poll
// began: it locks the flow in share mode, so that a pause or another version falls wholly
// before or wholly after the chunk. A poll whose lease expired enrolls nothing: what it
// read may be outdated.
func (c *chunk) write(ctx context.Context) error {
	if len(c.pending)+len(c.refused) == 0 {
		return nil
	}
	c.hook.At("poll: chunk")
	var recorded []Recorded
	var due map[enrollment.Shard]bool
	err := c.exec.Versions.Transact(ctx, c.pool, c.ws, execution.Request{}, func(tx pgx.Tx, versions *execution.Ready) error {
		t := &transaction{Intake: c.Intake, tx: tx, ws: c.ws, versions: versions}
		if err := t.readFlow(ctx, c.flow); err != nil {
			return err
		}
		if now := t.flows[c.flow]; now.status != flowLive || now.version != c.version {
			return errPolledNoMore
		}
		if err := c.checkLease(ctx, tx); err != nil {
			return err
		}
		c.hook.At("poll: held")
		recorded = make([]Recorded, len(c.pending))
		if err := t.lockNow(ctx, c.pending); err != nil {
			return err
		}
		for _, round := range rounds(c.pending) {
			if err := t.enroll(ctx, round, c.pending, recorded); err != nil {
				return err
			}
		}
		if err := c.spread(ctx, tx, recorded); err != nil {
			return err
		}
		if err := c.writeRefused(ctx, tx); err != nil {
			return err
		}
		due = t.due
		return enrollment.LowerBounds(ctx, tx, due)
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
	c.pending, c.refused = nil, nil
	c.waker.WakeShards(due)
	return nil
}

// spread distributes the start of the new enrollments over the rest of the release after a
// pause: one poll finds all profiles that joined the audience during the pause.
func (c *chunk) spread(ctx context.Context, tx pgx.Tx, recorded []Recorded) error {
	if held, err := enrollment.ReleasingSince(ctx, tx, c.ws, c.flow); err != nil || held == nil {
		return err
	}
	var ids []pgtype.UUID
	for _, r := range recorded {
		for _, one := range r.Results {
			if one.Outcome == enrollment.Enrolled {
				ids = append(ids, enrollment.PgUUID(*one.EnrollmentID))
			}
		}
	}
	_, err := tx.Exec(ctx, `
		update enrollments e set resume_at = now() + random() * (f.catch_up_until - now())
		from flows f, (select $1::uuid as workspace_id, r.* from unnest($3::uuid[]) as r (id) limit $4) r
		where f.workspace_id = $1 and f.id = $2 and e.workspace_id = r.workspace_id and e.id = r.id and e.ended_at is null`, c.ws, c.flow, ids,
		len(ids))
	return lemma.Wrap(err, "delay enrollments of the poll")
}

func (c *chunk) writeRefused(ctx context.Context, tx pgx.Tx) error {
	var r enrollment.RefusalRows
	for _, no := range c.refused {
		no.flow = liveFlow{id: c.flow}
		r.Add(no.refusal())
	}
	batch := &pgx.Batch{}
	r.Queue(batch, c.ws)
	return lemma.Wrap(tx.SendBatch(ctx, batch).Close(), "write refusals of flow %s", c.flow)
}

func (c *chunk) count(outcome, reason string) {
	c.metrics.Triggered(outcome, reason, 1)
	if outcome == enrollment.Enrolled {
		c.done.enrolled++
	} else {
		c.done.refused[reason]++
	}
}

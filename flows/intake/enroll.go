package intake

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/graph"
)

// candidate is a trigger that may enroll into a flow.
type candidate struct {
	*Trigger
	index   int // of the trigger
	flow    liveFlow
	id      uuid.UUID // of the enrollment to be
	key     uuid.UUID // uniqueness key
	overlap bool

	outcome     string
	reason      string
	detail      string
	conflicting *uuid.UUID
}

// enroll enrolls for the triggers of one round, which are no events.
func (t *transaction) enroll(ctx context.Context, round []int, all []*Trigger, done []Recorded) (err error) {
	defer func() { t.crossings.note(t.ws, err) }()
	var candidates []*candidate
	for _, i := range round {
		found, err := t.candidates(ctx, i, all[i])
		if err != nil {
			return err
		}
		candidates = append(candidates, found...)
	}
	return t.admit(ctx, candidates, done)
}

// admit enrolls candidates and records the results: the insert decides, and what it skips
// is refused with a reason. All transactions insert in one order, so that
// no two of them wait for each other.
func (t *transaction) admit(ctx context.Context, candidates []*candidate, done []Recorded) (err error) {
	if len(candidates) == 0 {
		return nil
	}
	slices.SortFunc(candidates, func(a, b *candidate) int {
		return cmp.Or(strings.Compare(a.profile, b.profile), bytes.Compare(a.flow.id[:], b.flow.id[:]), bytes.Compare(a.key[:], b.key[:]))
	})
	pending := slices.DeleteFunc(slices.Clone(candidates), func(c *candidate) bool { return c.outcome != "" })
	if pending, err = t.refuseTooMany(ctx, pending); err != nil {
		return fmt.Errorf("count active enrollments: %w", err)
	}
	if pending, err = t.refuseOverlap(ctx, pending); err != nil {
		return fmt.Errorf("find enrollments of the same fields: %w", err)
	}
	if pending, err = t.refuseRepeated(ctx, pending); err != nil {
		return fmt.Errorf("find enrollments of another recurrence: %w", err)
	}
	if err := t.insert(ctx, pending); err != nil {
		return fmt.Errorf("insert enrollments: %w", err)
	}
	if err := t.findConflicts(ctx, pending); err != nil {
		return fmt.Errorf("find active enrollments: %w", err)
	}
	if err := t.write(ctx, candidates); err != nil {
		return fmt.Errorf("write what triggers did: %w", err)
	}
	for _, c := range candidates {
		r := Result{FlowID: c.flow.id, Outcome: c.outcome, Reason: c.reason, Detail: c.detail, EnrollmentID: c.conflicting}
		if c.outcome == enrollment.Enrolled {
			r.EnrollmentID = &c.id
			t.makeDue(c.flow.id, c.id)
		}
		done[c.index].Results = append(done[c.index].Results, r)
	}
	return nil
}

func (c *candidate) refuse(reason, format string, args ...any) {
	c.outcome, c.reason, c.detail = enrollment.Refused, reason, fmt.Sprintf(format, args...)
}

// candidates are those of one trigger, one for each flow.
func (t *transaction) candidates(ctx context.Context, index int, o *Trigger) (found []*candidate, err error) {
	for _, f := range t.into(o) {
		if ctx.Err() != nil { // conditions of many flows take long, and make no call that returns the context's error
			return nil, context.Cause(ctx)
		}
		c := &candidate{Trigger: o, index: index, flow: f}
		found = append(found, c)
		if err := t.decide(ctx, c); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// into lists the flows that a trigger may enroll into.
func (t *transaction) into(o *Trigger) []liveFlow {
	if o.source != enrollment.FromEvent {
		return []liveFlow{t.flows[o.flow]}
	}
	var flows []liveFlow
	for _, l := range t.listeners[o.Name] {
		if l.use == UseTrigger {
			flows = append(flows, t.flows[l.flow])
		}
	}
	return flows
}

// decide refuses what can be refused without reading the profile.
func (t *transaction) decide(ctx context.Context, c *candidate) error {
	switch {
	case c.flow.status == flowPaused:
		c.refuse(enrollment.IsPaused, "the flow is paused")
		return nil
	case c.flow.status != flowLive:
		c.refuse(enrollment.NotLive, "the flow is %s", c.flow.status)
		return nil
	case c.exitedBy != "":
		c.refuse(enrollment.Filtered, "the event %s of exit_on was received after the trigger", c.exitedBy)
		return nil
	case c.unchecked:
		c.refuse(enrollment.Filtered, "the events of exit_on that were received after the trigger take too long to check")
		return nil
	}
	g, err := t.versions.Get(ctx, t.tx, c.flow.id, c.flow.version)
	if err != nil && lemma.KindOf(err) != lemma.Internal { // one flow's fault must not fail every event
		c.refuse(enrollment.ConditionError, "version %d cannot be read: %s", c.flow.version, lemma.Public(err))
		return nil
	}
	if err != nil {
		return err
	}
	for _, trigger := range g.Triggers() {
		if c.source != enrollment.FromEvent || trigger.Event != c.Name || trigger.Condition == nil || trigger.Condition.Uses().Profile {
			continue // a condition on the profile is checked when the enrollment enters
		}
		if ok, err := t.evaluate(trigger.Condition, graph.Vars{Trigger: c.Data(), Now: t.recordedAt(c.Trigger)}); err != nil {
			c.refuse(enrollment.ConditionError, "the condition cannot be decided: %s", err)
			return nil
		} else if !ok {
			c.refuse(enrollment.Filtered, "the trigger's condition is false")
			return nil
		}
	}
	properties, _ := c.Data()["properties"].(map[string]any)
	c.key, err = g.Key(graph.Occurrence{ProfileKey: c.profile, Event: c.Key, At: c.At, Properties: properties})
	if err != nil {
		c.refuse(enrollment.MissingField, "%s", lemma.Public(err))
	}
	c.id, c.overlap = lemma.NewID(), g.Definition().Overlap == "allow"
	return nil
}

// write appends the first steps of new enrollments, with the trigger's data, and the
// refusals.
func (t *transaction) write(ctx context.Context, candidates []*candidate) error {
	var s enrollment.StepRows
	var r enrollment.RefusalRows
	for _, c := range candidates {
		if c.outcome == enrollment.Enrolled {
			s.Add(c.id, 0, c.flow.version, "", enrollment.StepEnrolled, c.json())
		} else {
			r.Add(c.refusal())
		}
	}
	batch := &pgx.Batch{}
	if err := s.Write(ctx, t.tx, batch, t.ws); err != nil {
		return err
	}
	r.Queue(batch, t.ws)
	return t.tx.SendBatch(ctx, batch).Close()
}

// refusal is the row of the refusal. A direct request that was refused is deleted: under
// its id it is new, and may be refused for another reason.
func (c *candidate) refusal() enrollment.RefusalRow {
	r := enrollment.RefusalRow{FlowID: c.flow.id, Key: enrollment.RefusalKey(c.Key), ProfileKey: c.profile, Reason: c.reason,
		Detail: c.detail, Source: c.source, EnrollmentID: c.conflicting}
	if c.source == enrollment.FromDirect && c.sourceID != "" {
		r.Key = lemma.NewID()
	}
	if c.source == enrollment.FromEvent {
		r.EventKey = &c.Key
	}
	if c.reason == enrollment.AlreadyActive && !c.refusedAt.IsZero() {
		r.At = &c.refusedAt // its place among the triggers behind the enrollment
	}
	return r
}

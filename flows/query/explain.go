package query

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/audience"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/flows/graph"
	"lemma/flows/intake"
	"lemma/page"
	"lemma/webhooks"
)

// Explanation explains why a profile is, or is not, enrolled in a flow.
type Explanation struct {
	Summary     string        // one sentence
	Facts       []string      // sentences, from the flow to the next trigger
	Enrollments []Enrollment  // in this flow, newest first: the last that are active, ended, and refused at the entry
	Refusals    []Refusal     // newest first
	Events      []StoredEvent // of the profile, that the live version listens to; newest first
}

// explained is the number of refusals and events in an explanation, and of enrollments of
// each kind.
const explained = 20

// Explain explains why a profile is, or is not, in a flow, from the flow's triggers, the
// profile and the results so far. It writes nothing.
func (r *Reader) Explain(ctx context.Context, ws, flow uuid.UUID, profileKey string) (Explanation, error) {
	if !enrollment.IsText(profileKey, 1, enrollment.MaxProfileKey) {
		return Explanation{}, lemma.Fault("?profile_key", "invalid_key", "must be text of 1 to %d bytes",
			enrollment.MaxProfileKey)
	}
	now, err := r.flows.Get(ctx, ws, flow)
	if err != nil {
		return Explanation{}, err
	}
	at, err := r.clock.Now(ctx)
	if err != nil {
		return Explanation{}, err
	}
	q := inquiry{Reader: r, flow: now, key: profileKey, at: at}
	if err := q.read(ctx); err != nil {
		return Explanation{}, fmt.Errorf("explain flow %s: %w", flow, err)
	}
	q.decide()
	return Explanation{Summary: q.summary(), Facts: q.facts(), Enrollments: q.enrollments, Refusals: q.refusals, Events: q.events}, nil
}

// inquiry collects the facts about one profile in one flow.
type inquiry struct {
	*Reader
	flow flows.Flow
	key  string
	at   time.Time

	version     *flows.Version // the live one; nil: no version was ever published
	graph       *graph.Graph   // of it
	enrollments []Enrollment
	calls       map[uuid.UUID]webhooks.Delivery // of messages whose answer an enrollment waits for, by key
	refusals    []Refusal
	events      []StoredEvent
	triggering  []StoredEvent       // the last of each name that a trigger has, newest first
	person      *execution.Profile  // nil: not read
	sourceFails string              // why not
	gone        bool                // the audience was deleted, which an archived flow allows
	same        sameness            // of a trigger now; with the recurrence fields, of one like the last
	sames       map[string]sameness // with the recurrence fields: of each triggering event, like its last
	poll        *AudiencePoll       // nil: the flow does not poll its audience
	retention   time.Duration       // of events

	predictions []prediction // of the triggers now
}

// prediction is the result that one trigger would have now.
type prediction struct {
	trigger graph.CompiledTrigger
	event   *StoredEvent // the last event of its name
	reason  string       // why it would refuse; empty: it would not, as far as is known
	detail  string
}

func (q *inquiry) read(ctx context.Context) (err error) {
	if q.enrollments, err = q.readProfileEnrollments(ctx); err != nil {
		return err
	}
	if err = q.readCalls(ctx); err != nil {
		return err
	}
	if q.refusals, _, err = q.readRefusals(ctx, q.flow.WorkspaceID, q.flow.ID, q.key, "", page.Query{Limit: explained}); err != nil {
		return err
	}
	if q.flow.LiveVersion == nil {
		q.events = []StoredEvent{}
		return nil
	}
	v, err := q.flows.GetVersion(ctx, q.flow.WorkspaceID, q.flow.ID, *q.flow.LiveVersion)
	if err != nil {
		return err
	}
	q.version = &v
	if q.graph, err = q.exec.Versions.Current(ctx, q.pool, q.flow.WorkspaceID, q.flow.ID, v.Version); err != nil {
		return err
	}
	if q.retention, err = q.flows.Retention(ctx); err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(q.graph.Listens()))
	if q.events, _, err = q.readPast(ctx, q.flow.WorkspaceID, q.key, names, page.Query{Limit: explained}); err != nil {
		return err
	}
	if q.triggering, err = q.readTriggering(ctx); err != nil {
		return err
	}
	if q.poll, err = q.readPoll(ctx, q.flow.WorkspaceID, q.flow.ID); err != nil {
		return err
	}
	if err := q.readProfile(ctx); err != nil {
		return err
	}
	return q.readSame(ctx)
}

// readProfileEnrollments reads the enrollments of the profile in the flow, newest first:
// the last of each kind, so that many of one kind do not hide another. Each order is that
// of an index: see "order by the index" in enrollment/plans.go. An overlap key is zero or
// the enrollment's id.
func (q *inquiry) readProfileEnrollments(ctx context.Context) ([]Enrollment, error) {
	last := func(kind, order string) string {
		return `(` + selectEnrollment + ` where workspace_id = $1 and profile_key = $2 and flow_id = $3 and ` + kind + ` order by ` + order +
			` limit $4)`
	}
	const newest = `enrolled_at desc, id desc`
	return q.readEnrollments(ctx,
		last(`status = 'active'`, `overlap_key desc`)+` union all `+last(`status <> 'active' and status <> 'refused'`, newest)+
			` union all `+last(`status <> 'active' and status = 'refused'`, newest)+
			` order by `+newest, q.flow.WorkspaceID, q.key, q.flow.ID, explained)
}

// readTriggering reads the last events of each name that a trigger has: name by name,
// since other events that the flow listens to may be many.
func (q *inquiry) readTriggering(ctx context.Context) ([]StoredEvent, error) {
	//nolint:unqueryvet // the columns are those of selectEvent
	rows, _ := q.pool.Query(ctx, `
		select e.* from unnest($3::text[]) as n (name) cross join lateral (
			`+selectEvent+` where workspace_id = $1 and profile_key = $2 and name = n.name
			order by received_at desc, key desc limit $4
		) e order by e.received_at desc, e.key desc`, q.flow.WorkspaceID, q.key, q.triggerNames(), explained)
	return pgx.CollectRows(rows, scanEvent)
}

// triggerNames are the names of events that enroll.
func (q *inquiry) triggerNames() []string {
	names := []string{}
	for name, uses := range q.graph.Listens() {
		if slices.Contains(uses, intake.UseTrigger) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// readCalls reads the messages of the nodes that the profile's enrollments are on; only a
// webhook has one.
func (q *inquiry) readCalls(ctx context.Context) (err error) {
	var keys []uuid.UUID
	for _, e := range q.enrollments {
		if e.isActive() {
			keys = append(keys, enrollment.NodeKey(e.ID, e.Node))
		}
	}
	if len(keys) > 0 {
		q.calls, err = q.webhooks.Deliveries(ctx, q.flow.WorkspaceID, keys)
	}
	return err
}

// readProfile looks the profile up. A source that fails, or a deleted audience, is a fact
// and no error.
func (q *inquiry) readProfile(ctx context.Context) error {
	from, named := lemma.ParseID(lemma.PrefixAudience, q.graph.Definition().AudienceID)
	if !named {
		return nil
	}
	a, err := q.audiences.Get(ctx, q.flow.WorkspaceID, from)
	if err != nil && lemma.KindOf(err) == lemma.NotFound {
		q.gone = true
		return nil
	}
	if err != nil {
		return err
	}
	var found audience.Found
	err = q.exec.Sources.Query(ctx, a.DataSourceID, func() (err error) {
		found, err = q.audiences.Lookup(ctx, q.flow.WorkspaceID, from, execution.ColumnsOf(q.graph, &a), []string{q.key}, 0)
		return err
	})
	var known *lemma.Error
	if errors.As(err, &known) && known.Kind != lemma.Internal {
		q.sourceFails = execution.BlockedReason(err) + ": " + lemma.Public(err)
		return nil
	}
	if err != nil {
		return err
	}
	row, there := found.Rows[q.key]
	q.person = &execution.Profile{Row: row, Missing: !there}
	return nil
}

// sameness is the result of the recurrence for a trigger now: the enrollment that it
// counts as the same, if any, or the property that the trigger lacks.
type sameness struct {
	enrollment *Enrollment
	missing    string
}

// readSame finds the results of the recurrence for triggers now. With recurrence fields
// they depend on the event: they are found for the last one of each name.
func (q *inquiry) readSame(ctx context.Context) (err error) {
	if q.graph.Definition().Recurrence.Policy != graph.Fields {
		q.same, err = q.sameAs(ctx, nil)
		return err
	}
	q.sames = map[string]sameness{}
	for i, e := range q.triggering {
		if _, known := q.sames[e.Name]; known {
			continue
		}
		properties, _ := enrollment.TriggerData(e.Name, e.ID, e.OccurredAt, e.Properties)["properties"].(map[string]any)
		if q.sames[e.Name], err = q.sameAs(ctx, properties); err != nil {
			return err
		}
		if i == 0 {
			q.same = q.sames[e.Name]
		}
	}
	return nil
}

// sameAs decides like the insert: by the key, and for a changed recurrence by the triggers
// of earlier enrollments.
func (q *inquiry) sameAs(ctx context.Context, properties map[string]any) (s sameness, err error) {
	key, err := q.graph.Key(graph.Occurrence{ProfileKey: q.key, Event: lemma.NewID(), At: q.at, Properties: properties})
	if err != nil {
		return sameness{missing: missingOf(err)}, nil
	}
	ws, flow := q.flow.WorkspaceID, q.flow.ID
	found, err := q.readEnrollments(ctx, selectEnrollment+` where workspace_id = $1 and id = (
		select enrollment_id from enrollment_keys where workspace_id = $1 and flow_id = $2 and uniqueness_key = $3)`, ws, flow, key)
	if err == nil && len(found) == 0 {
		var before map[int]intake.Earlier
		if before, err = intake.Repeated(ctx, q.pool, ws,
			[]intake.Repetition{{Graph: q.graph, FlowID: flow, ProfileKey: q.key, Key: key}}); err == nil && len(before) > 0 {
			found, err = q.readEnrollments(ctx, selectEnrollment+` where workspace_id = $1 and id = $2`, ws, before[0].ID)
		}
	}
	if err == nil && len(found) > 0 && found[0].Status != enrollment.Refused {
		s.enrollment = &found[0]
	}
	return s, err
}

// missingOf is the sentence about the property that a trigger lacks.
func missingOf(err error) string {
	var e *lemma.Error
	if errors.As(err, &e) && len(e.Fields) > 0 {
		return e.Fields[0].Detail
	}
	return lemma.Public(err)
}

// lastTriggering is the newest event that has a trigger.
func (q *inquiry) lastTriggering() *StoredEvent {
	if len(q.triggering) == 0 {
		return nil
	}
	return &q.triggering[0]
}

// decide evaluates each trigger for the profile now.
func (q *inquiry) decide() {
	if q.graph == nil {
		return
	}
	for _, t := range q.graph.Triggers() {
		v := prediction{trigger: t}
		trigger := enrollment.TriggerData("", "", q.at, nil)
		if t.Type == enrollment.FromEvent {
			if i := slices.IndexFunc(q.triggering, func(e StoredEvent) bool { return e.Name == t.Event }); i >= 0 {
				v.event = &q.triggering[i]
				trigger = enrollment.TriggerData(v.event.Name, v.event.ID, q.at, v.event.Properties)
			}
		}
		v.decide(q, trigger)
		q.predictions = append(q.predictions, v)
	}
}

func (v *prediction) decide(q *inquiry, trigger map[string]any) {
	c := v.trigger.Condition
	switch {
	case q.person != nil && q.person.Missing:
		v.reason, v.detail = enrollment.NoProfile, "the profile is not in the audience"
		return
	case c == nil, c.Uses().Profile && q.person == nil, v.trigger.Type == enrollment.FromEvent && v.event == nil && c.Uses().Trigger:
		return // nothing to decide, or not enough is known
	}
	vars := graph.Vars{Trigger: trigger, Now: q.at}
	if q.person != nil {
		vars.Profile = q.person.Columns()
	}
	if is, err := c.EvalInTurn(q.flow.WorkspaceID, vars); err != nil {
		v.reason, v.detail = enrollment.ConditionError, err.Error()
	} else if !is {
		v.reason, v.detail = enrollment.Filtered, "its condition is false"
	}
}

// unknown reports whether there is an audience whose answer about the profile is missing.
func (q *inquiry) unknown() bool { return q.person == nil && q.graph.Definition().AudienceID != "" }

// undecidable reports whether a condition could not be evaluated.
func (v prediction) undecidable(q *inquiry) bool {
	c := v.trigger.Condition
	return c != nil && v.reason == "" && (c.Uses().Profile && q.person == nil || v.trigger.Type == enrollment.FromEvent && v.event == nil &&
		c.Uses().Trigger)
}

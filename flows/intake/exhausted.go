package intake

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/flows/admission"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/flows/graph"
)

// conditionTime bounds how long one transaction evaluates conditions on events, since
// it holds locks, and a slot that other bulks wait for; the time of compiling them counts. It
// is checked before each event, so that at least the first one is recorded and a client that
// sends the others again makes progress. Compiling alone may take as long: then no event
// is recorded that needs what is not compiled.
const conditionTime = 5 * time.Second

// mostOffered bounds how many enrollments and refusals the events of one transaction lead to,
// which takes some 10 s. It is checked before each event, as conditionTime is.
const mostOffered = 50_000

// errOffered is the error of an event after so many.
var errOffered = &lemma.Error{Kind: lemma.Unavailable, Code: admission.CodeOverloaded,
	Message: "the events of the request enroll too often: send it again in another request"}

// errConditionTime is the error of an event whose conditions were not evaluated.
var errConditionTime = &lemma.Error{Kind: lemma.Unavailable, Code: admission.CodeOverloaded,
	Message: "the conditions on the events of the request took too long: send it again in another request"}

// Overloaded reports whether other events took too much. The event can be sent again.
func (r Recorded) Overloaded() bool { return admission.IsOverloaded(r.Err) }

// exhausted is the error of further events, whose conditions are not evaluated; nil: they are.
func (t *transaction) exhausted() *lemma.Error {
	switch {
	case t.evaluated > 0 && t.evaluated+t.versions.Spent() >= t.conditionTime:
		return errConditionTime
	case t.offered >= t.mostOffered:
		return errOffered
	}
	return nil
}

// ready returns how many of the events, in their order, can be applied with the versions
// that are compiled or may be.
func (t *transaction) ready(all []*Trigger) (int, error) {
	first, checked := len(all), map[string]bool{}
	var missing []execution.VersionID
	for i, o := range all {
		if checked[o.Name] {
			continue
		}
		checked[o.Name] = true
		for _, f := range t.into(o) {
			v := execution.VersionID{Flow: f.id, Version: f.version}
			if f.status == flowLive && t.versions.Missing(v) {
				first, missing = min(first, i), append(missing, v)
			}
		}
	}
	return t.versions.Prefix(first, missing)
}

// overload refuses events that can be sent again.
func overload(done []Recorded, places ...int) {
	for _, i := range places {
		done[i].Err = errConditionTime
	}
}

// evaluate evaluates a condition and adds up the time.
func (t *transaction) evaluate(c *graph.Condition, v graph.Vars) (bool, error) {
	begun := time.Now()
	defer func() { t.evaluated += time.Since(begun) }()
	return c.Eval(v)
}

// forgetOverloaded deletes the events that follow after the transaction was exhausted. They
// had no effect. A repetition of one in the transaction repeats nothing that is recorded.
func (t *transaction) forgetOverloaded(ctx context.Context, all []*Trigger, done []Recorded) error {
	var keys []pgtype.UUID
	forgotten := map[uuid.UUID]error{}
	for i, o := range all {
		if done[i].Overloaded() {
			keys, forgotten[o.Key] = append(keys, enrollment.PgUUID(o.Key)), done[i].Err
		}
	}
	for i, o := range all {
		if err := forgotten[o.Key]; done[i].Duplicate && err != nil {
			done[i] = Recorded{Key: o.Key, Err: err}
		}
	}
	return lemma.Wrap(t.forget(ctx, keys), "delete events whose conditions were not evaluated")
}

// forget deletes triggers that this transaction has recorded: see "rows by ctid" in
// enrollment/plans.go.
func (t *transaction) forget(ctx context.Context, keys []pgtype.UUID) error {
	if len(keys) == 0 {
		return nil
	}
	_, err := t.tx.Exec(ctx, `
		delete from trigger_events where ctid = any(array(
			select e.ctid from `+enrollment.OneByOne+` (
				select v.ctid from trigger_events v where v.workspace_id = $1 and v.key = r.id limit 1
			) e))`, t.ws, keys)
	return err
}

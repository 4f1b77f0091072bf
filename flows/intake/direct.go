package intake

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma/flows/admission"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
)

// Enroll makes one direct enrollment. With dryRun it returns the result and rolls back.
func (in *Intake) Enroll(ctx context.Context, ws, flow uuid.UUID, e Enrolling, dryRun bool) (Result, error) {
	all, err := in.EnrollAll(ctx, ws, flow, []Enrolling{e}, dryRun)
	if err != nil {
		return Result{}, err
	}
	return all[0].Result, all[0].Err
}

// alreadyUsed is the detail for a request with an id that has enrolled a profile.
const alreadyUsed = "this id has already enrolled a profile"

// EnrollAll makes many direct enrollments in one transaction, each as Enroll does. An
// invalid one has its own Err.
func (in *Intake) EnrollAll(ctx context.Context, ws, flow uuid.UUID, es []Enrolling, dryRun bool) ([]EnrolledOne, error) {
	now, err := in.clock.Now(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]EnrolledOne, len(es))
	var sound []*Trigger
	var at []int
	for i, e := range es {
		o, err := e.Check(flow, now)
		if err != nil {
			all[i].Err = err
			continue
		}
		sound, at = append(sound, o), append(at, i)
	}
	place, err := in.bulks.Acquire(ctx, ws, len(es))
	if admission.IsOverloaded(err) {
		in.metrics.Triggered(enrollment.Refused, admission.CodeOverloaded, len(sound))
	}
	if err != nil {
		return nil, err
	}
	defer place.Leave()
	done, err := in.enrollInto(ctx, ws, flow, sound, dryRun, in.request(place))
	if err != nil {
		return nil, err
	}
	for i, r := range done {
		all[at[i]] = r
	}
	return all, nil
}

// EnrolledOne is the result of one of many direct enrollments.
type EnrolledOne struct {
	Result
	Err error
}

// errDryRun rolls back a dry run.
var errDryRun = errors.New("dry run")

// enrollInto enrolls profiles in one flow, from direct requests or an audience.
func (in *Intake) enrollInto(ctx context.Context, ws, flow uuid.UUID, all []*Trigger, dryRun bool,
	by execution.Request) (done []EnrolledOne, err error) {
	var due map[enrollment.Shard]bool
	err = in.exec.Versions.Transact(ctx, in.pool, ws, by, func(tx pgx.Tx, versions *execution.Ready) error {
		t := &transaction{Intake: in, tx: tx, ws: ws, versions: versions}
		if err := t.readFlow(ctx, flow); err != nil {
			return err
		}
		t.date(all)
		done = done[:0]
		recorded := make([]Recorded, len(all))
		if err := t.lockNow(ctx, all); err != nil {
			return err
		}
		fresh, err := t.keepDirect(ctx, flow, all)
		if err != nil {
			return err
		}
		for _, round := range rounds(all) {
			round = slices.DeleteFunc(round, func(i int) bool { return !fresh[i] })
			if err := t.enroll(ctx, round, all, recorded); err != nil {
				return err
			}
		}
		if err := t.letGo(ctx, all, recorded); err != nil {
			return err
		}
		if err := t.answerAgain(ctx, flow, all, fresh, recorded); err != nil {
			return err
		}
		for _, r := range recorded {
			one := EnrolledOne{Err: r.Err}
			if len(r.Results) > 0 {
				one.Result = r.Results[0]
			}
			done = append(done, one)
		}
		due = t.due
		if dryRun {
			return errDryRun
		}
		return enrollment.LowerBounds(ctx, tx, due)
	})
	if errors.Is(err, errDryRun) {
		return done, nil
	}
	if err != nil {
		return nil, fmt.Errorf("enroll %d profiles in %s: %w", len(all), flow, err)
	}
	for _, r := range done {
		if r.Err == nil {
			in.metrics.Triggered(r.Outcome, r.Reason, 1)
		}
	}
	in.waker.WakeShards(due)
	return done, nil
}

// keepDirect records the direct requests that have an id, as events without a name: a
// repeated id is the same request, on any day. It returns which are new; of two with one
// id in a chunk the first is.
func (t *transaction) keepDirect(ctx context.Context, flow uuid.UUID, all []*Trigger) (fresh []bool, err error) {
	named := make([]*Trigger, 0, len(all))
	for i, o := range all {
		o.place = i
		if o.named {
			named = append(named, o)
		}
	}
	written := map[uuid.UUID]bool{}
	if len(named) > 0 {
		batch := &pgx.Batch{}
		t.queueForgetRefused(batch, flow, named)
		written = t.queueEvents(batch, named)
		if err := t.tx.SendBatch(ctx, batch).Close(); err != nil {
			return nil, fmt.Errorf("record direct requests: %w", err)
		}
	}
	fresh = make([]bool, len(all))
	for i, o := range all {
		fresh[i] = !o.named || written[o.Key]
		delete(written, o.Key)
	}
	return fresh, nil
}

// queueForgetRefused deletes the requests whose enrollment was refused at its entry:
// repeated under the caller's id they are new, while a repetition with an Idempotency-Key
// gets the first result. Of two concurrent repetitions the first to lock the row inserts
// another in its place, which the second finds.
func (t *transaction) queueForgetRefused(batch *pgx.Batch, flow uuid.UUID, named []*Trigger) {
	named = slices.DeleteFunc(slices.Clone(named), func(o *Trigger) bool { return o.sourceID == "" })
	batch.Queue(`
		delete from trigger_events where ctid = any(array(
			select e.ctid from `+enrollment.OneByOne+` (
				select v.ctid from trigger_events v
				where v.workspace_id = $1 and v.key = r.id and v.name = ''
				  and (select true from enrollments e where e.workspace_id = $1 and e.profile_key = v.profile_key and e.flow_id = $3
					and e.status <> 'active' and e.status = 'refused' and e.source = 'direct' and e.enrolled_at = v.received_at limit 1)
				for update
			) e))`, t.ws, keysOf(named), flow)
}

func keysOf(all []*Trigger) []pgtype.UUID {
	keys := make([]pgtype.UUID, len(all))
	for i, o := range all {
		keys[i] = enrollment.PgUUID(o.Key)
	}
	return keys
}

// answerAgain fills in the results of requests that are not new: those of other chunks
// have enrolled a profile, those of this chunk get the result of the first.
func (t *transaction) answerAgain(ctx context.Context, flow uuid.UUID, all []*Trigger, fresh []bool, recorded []Recorded) error {
	var again []*Trigger
	first := map[uuid.UUID]*Trigger{}
	for i, o := range all {
		if fresh[i] {
			first[o.Key] = o
		} else {
			again = append(again, o)
		}
	}
	if len(again) == 0 {
		return nil
	}
	known, err := t.made(ctx, flow, again)
	if err != nil {
		return fmt.Errorf("find what requests have enrolled: %w", err)
	}
	for _, o := range again {
		r, reported := &recorded[o.place], known[o.Key]
		if one := first[o.Key]; one != nil {
			reported.profile = one.profile
			r.Results = slices.Clone(recorded[one.place].Results)
		}
		switch {
		case reported.profile != "" && reported.profile != o.profile:
			*r = Recorded{Err: idConflict("this id was used for another profile: use another id")}
		case len(r.Results) == 0 || r.Results[0].Outcome == enrollment.Enrolled:
			r.Results = []Result{repeatedResult(flow, o, reported)}
		}
	}
	return nil
}

// repeatedResult is the result of a request that has enrolled a profile. A request
// without a caller's id can only be a repetition after a lost answer, so it gets the
// first result.
func repeatedResult(flow uuid.UUID, o *Trigger, reported request) Result {
	if o.sourceID == "" && reported.enrollment != nil {
		return Result{FlowID: flow, Outcome: enrollment.Enrolled, EnrollmentID: reported.enrollment}
	}
	return Result{FlowID: flow, Outcome: enrollment.Refused, Reason: enrollment.AlreadyEnrolled, Detail: alreadyUsed,
		EnrollmentID: reported.enrollment}
}

// request is a request that was recorded before.
type request struct {
	profile    string
	enrollment *uuid.UUID // that it made
}

// made finds requests and their enrollments: of the same profile and the same instant.
// Active and ended enrollments are found separately, each by its own index: see "order by
// the index" in enrollment/plans.go.
func (t *transaction) made(ctx context.Context, flow uuid.UUID, again []*Trigger) (map[uuid.UUID]request, error) {
	rows, _ := t.tx.Query(ctx, `
		select v.key, v.profile_key, e.id from `+enrollment.OneByOne+` (
			select v.key, v.profile_key, v.received_at from trigger_events v where v.workspace_id = $1 and v.key = r.id limit 1
		) v
		left join lateral (
			(select e.id from enrollments e where e.workspace_id = $1 and e.profile_key = v.profile_key and e.flow_id = $3 and e.overlap_key >= $4
				and e.status = 'active' and e.source = 'direct' and e.enrolled_at = v.received_at order by e.overlap_key limit 1)
			union all
			select e.id from enrollments e where e.workspace_id = $1 and e.profile_key = v.profile_key and e.flow_id = $3
				and e.status <> 'active' and e.source = 'direct' and e.enrolled_at = v.received_at
			limit 1
		) e on true`, t.ws, keysOf(again), flow, uuid.Nil)
	known := make(map[uuid.UUID]request, len(again))
	var key, id pgtype.UUID
	var profile string
	_, err := pgx.ForEachRow(rows, []any{&key, &profile, &id}, func() error {
		one := request{profile: profile}
		if id.Valid {
			enrollment := uuid.UUID(id.Bytes)
			one.enrollment = &enrollment
		}
		known[key.Bytes] = one
		return nil
	})
	return known, err
}

// letGo deletes the requests that enrolled nothing, so that they may be repeated when the
// reason for the refusal is gone.
func (t *transaction) letGo(ctx context.Context, all []*Trigger, recorded []Recorded) error {
	var keys []pgtype.UUID
	for i, o := range all {
		for _, r := range recorded[i].Results {
			if o.named && r.Outcome == enrollment.Refused {
				keys = append(keys, enrollment.PgUUID(o.Key))
			}
		}
	}
	return lemma.Wrap(t.forget(ctx, keys), "delete refused direct requests")
}

package flows

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Enroll asks for one direct enrollment. With dryRun it finds out what would
// come of it and undoes it.
func (f *Flows) Enroll(ctx context.Context, ws, flow uuid.UUID, e Enrolling, dryRun bool) (Result, error) {
	all, err := f.EnrollAll(ctx, ws, flow, []Enrolling{e}, dryRun)
	if err != nil {
		return Result{}, err
	}
	return all[0].Result, all[0].Err
}

// toldBefore is said of a request whose id is known.
const toldBefore = "this id has enrolled somebody before"

// EnrollAll enrolls many in one transaction, each as Enroll would. A broken one
// has an Err of its own.
func (f *Flows) EnrollAll(ctx context.Context, ws, flow uuid.UUID, es []Enrolling, dryRun bool) ([]EnrolledOne, error) {
	all := make([]EnrolledOne, len(es))
	var sound []*occurrence
	var at []int
	for i, e := range es {
		o, err := e.occurrence(flow)
		if err != nil {
			all[i].Err = err
			continue
		}
		sound, at = append(sound, o), append(at, i)
	}
	leave, err := f.bulks.enter(ctx, ws, len(es))
	if isOverloaded(err) {
		f.metrics.triggered(Refused, codeOverloaded, len(sound))
	}
	if err != nil {
		return nil, err
	}
	defer leave()
	done, err := f.enrollInto(ctx, ws, flow, sound, dryRun)
	if err != nil {
		return nil, err
	}
	for i, r := range done {
		all[at[i]] = r
	}
	return all, nil
}

// EnrolledOne is what came of one of many direct enrollments.
type EnrolledOne struct {
	Result
	Err error
}

// errDryRun undoes what was only tried.
var errDryRun = errors.New("dry run")

// enrollInto enrolls people of one flow, from a direct request or an audience.
func (f *Flows) enrollInto(ctx context.Context, ws, flow uuid.UUID, all []*occurrence, dryRun bool) (done []EnrolledOne, err error) {
	var due map[share]bool
	err = f.transact(ctx, func(tx pgx.Tx) error {
		t := &take{Flows: f, tx: tx, ws: ws}
		if err := t.readFlow(ctx, flow); err != nil {
			return err
		}
		done = done[:0]
		recorded := make([]Recorded, len(all))
		if err := t.lockProfiles(ctx, all); err != nil {
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
		return nil
	})
	if errors.Is(err, errDryRun) {
		return done, nil
	}
	if err != nil {
		return nil, answered(err, fmt.Sprintf("enroll %d people in %s", len(all), flow))
	}
	for _, r := range done {
		if r.Err == nil {
			f.metrics.triggered(r.Outcome, r.Reason, 1)
		}
	}
	f.bell.ringFor(due)
	return done, nil
}

// keepDirect writes down the direct requests that have an id, like events
// without a name: told again, on whatever day, one is the same request. It
// answers which are new; of two with one id in the same lot the first is.
func (t *take) keepDirect(ctx context.Context, flow uuid.UUID, all []*occurrence) (fresh []bool, err error) {
	named := make([]*occurrence, 0, len(all))
	for i, o := range all {
		o.place = i
		if o.named {
			named = append(named, o)
		}
	}
	written := map[uuid.UUID]bool{}
	if len(named) > 0 {
		batch := &pgx.Batch{}
		t.queueLetIn(batch, flow, named)
		written = t.queueEvents(batch, named)
		if err := t.tx.SendBatch(ctx, batch).Close(); err != nil {
			return nil, fmt.Errorf("keep direct requests: %w", err)
		}
	}
	fresh = make([]bool, len(all))
	for i, o := range all {
		fresh[i] = !o.named || written[o.key]
		delete(written, o.key)
	}
	return fresh, nil
}

// queueLetIn forgets the requests whose enrollment was refused when it entered:
// told again under an id of the sender's they are new, while a repetition is
// answered as the first was. Of two who tell one at the same time the first to
// have the row writes another in its place, which the second finds.
func (t *take) queueLetIn(batch *pgx.Batch, flow uuid.UUID, named []*occurrence) {
	named = slices.DeleteFunc(slices.Clone(named), func(o *occurrence) bool { return o.sourceID == "" })
	batch.Queue(`
		delete from trigger_events where ctid = any(array(
			select e.ctid from `+oneByOne+` (
				select v.ctid from trigger_events v
				where v.workspace_id = $1 and v.key = r.id and v.name = ''
				  and (select true from enrollments e where e.workspace_id = $1 and e.profile_key = v.profile_key and e.flow_id = $3
					and e.status <> 'active' and e.status = 'refused' and e.source = 'direct' and e.enrolled_at = v.received_at limit 1)
				for update
			) e))`, t.ws, keysOf(named), flow)
}

func keysOf(all []*occurrence) []pgtype.UUID {
	keys := make([]pgtype.UUID, len(all))
	for i, o := range all {
		keys[i] = wire(o.key)
	}
	return keys
}

// answerAgain says what came of the requests that are not new: those of other
// lots have enrolled somebody, those of this one what the first of them did.
func (t *take) answerAgain(ctx context.Context, flow uuid.UUID, all []*occurrence, fresh []bool, recorded []Recorded) error {
	var again []*occurrence
	first := map[uuid.UUID]*occurrence{}
	for i, o := range all {
		if fresh[i] {
			first[o.key] = o
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
		r, told := &recorded[o.place], known[o.key]
		if one := first[o.key]; one != nil {
			told.profile = one.profile
			r.Results = slices.Clone(recorded[one.place].Results)
		}
		switch {
		case told.profile != "" && told.profile != o.profile:
			*r = Recorded{Err: idConflict("another profile was asked for under this id")}
		case len(r.Results) == 0 || r.Results[0].Outcome == Enrolled:
			r.Results = []Result{toldAgain(flow, o, told)}
		}
	}
	return nil
}

// toldAgain is what a request that has enrolled somebody is answered. An id that
// the request itself stands for is told again by a repetition alone, whose first
// answer was lost: that is answered as the first was.
func toldAgain(flow uuid.UUID, o *occurrence, told request) Result {
	if o.sourceID == "" && told.enrollment != nil {
		return Result{FlowID: flow, Outcome: Enrolled, EnrollmentID: told.enrollment}
	}
	return Result{FlowID: flow, Outcome: Refused, Reason: AlreadyEnrolled, Detail: toldBefore, EnrollmentID: told.enrollment}
}

// request is what is known of one that was told before.
type request struct {
	profile    string
	enrollment *uuid.UUID // that it has made
}

// made finds requests and the enrollments that they have made: of the same
// profile and the same instant. Who is on the way and who has ended are looked
// up apart, each by the index that only they are in; the order by slot leaves a
// planner no other.
func (t *take) made(ctx context.Context, flow uuid.UUID, again []*occurrence) (map[uuid.UUID]request, error) {
	rows, err := t.tx.Query(ctx, `
		select v.key, v.profile_key, e.id from `+oneByOne+` (
			select v.key, v.profile_key, v.received_at from trigger_events v where v.workspace_id = $1 and v.key = r.id limit 1
		) v
		left join lateral (
			(select e.id from enrollments e where e.workspace_id = $1 and e.profile_key = v.profile_key and e.flow_id = $3 and e.slot >= $4
				and e.status = 'active' and e.source = 'direct' and e.enrolled_at = v.received_at order by e.slot limit 1)
			union all
			select e.id from enrollments e where e.workspace_id = $1 and e.profile_key = v.profile_key and e.flow_id = $3
				and e.status <> 'active' and e.source = 'direct' and e.enrolled_at = v.received_at
			limit 1
		) e on true`, t.ws, keysOf(again), flow, uuid.Nil)
	if err != nil {
		return nil, err
	}
	known := make(map[uuid.UUID]request, len(again))
	var key, id pgtype.UUID
	var profile string
	_, err = pgx.ForEachRow(rows, []any{&key, &profile, &id}, func() error {
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

// letGo forgets the requests that enrolled nobody: they may be told again when
// what stood in the way is gone.
func (t *take) letGo(ctx context.Context, all []*occurrence, recorded []Recorded) error {
	var keys []pgtype.UUID
	for i, o := range all {
		for _, r := range recorded[i].Results {
			if o.named && r.Outcome == Refused {
				keys = append(keys, wire(o.key))
			}
		}
	}
	if len(keys) == 0 {
		return nil
	}
	if _, err := t.tx.Exec(ctx, `
		delete from trigger_events where ctid = any(array(
			select e.ctid from `+oneByOne+` (select v.ctid from trigger_events v where v.workspace_id = $1 and v.key = r.id limit 1) e))`, t.ws, keys); err != nil {
		return fmt.Errorf("let go of direct requests: %w", err)
	}
	return nil
}

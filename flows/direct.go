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
	leave, err := f.bulks.enter(ctx, ws)
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
	err = f.transact(ctx, func(tx pgx.Tx) error {
		t := &take{Flows: f, tx: tx, ws: ws}
		if err := t.readFlow(ctx, flow); err != nil {
			return err
		}
		done = done[:0]
		recorded := make([]Recorded, len(all))
		fresh, err := t.keepDirect(ctx, flow, all, recorded)
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
		for _, r := range recorded {
			one := EnrolledOne{Err: r.Err}
			if len(r.Results) > 0 {
				one.Result = r.Results[0]
			}
			done = append(done, one)
		}
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
	f.ring()
	return done, nil
}

// keepDirect writes down the direct requests that have an id, like events
// without a name: told again, on whatever day, one is the same request. It
// answers which are new, and what came of those that are not. An id that the
// request itself stands for is told again by a repetition alone, whose first
// answer was lost: that is answered as the first was.
func (t *take) keepDirect(ctx context.Context, flow uuid.UUID, all []*occurrence, recorded []Recorded) (fresh []bool, err error) {
	fresh = make([]bool, len(all))
	named := make([]*occurrence, 0, len(all))
	for i, o := range all {
		fresh[i], o.place = true, i
		if o.named {
			named = append(named, o)
		}
	}
	if len(named) == 0 {
		return fresh, nil
	}
	batch := &pgx.Batch{}
	written, _ := t.queueEvents(batch, named)
	if err := t.tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("keep direct requests: %w", err)
	}
	for i, o := range all {
		if !o.named || written[o.key] {
			delete(written, o.key)
			continue
		}
		fresh[i] = false
		if recorded[i].Err, err = t.ofAnother(ctx, o); err != nil {
			return nil, err
		}
		if recorded[i].Err != nil {
			continue
		}
		r := Result{FlowID: flow, Outcome: Refused, Reason: AlreadyEnrolled, Detail: toldBefore}
		if r.EnrollmentID, err = t.enrolledBy(ctx, flow, o); err != nil {
			return nil, err
		}
		if o.sourceID == "" && r.EnrollmentID != nil {
			r.Outcome, r.Reason, r.Detail = Enrolled, "", ""
		}
		recorded[i].Results = []Result{r}
	}
	return fresh, nil
}

// ofAnother refuses an id under which somebody else was asked for.
func (t *take) ofAnother(ctx context.Context, o *occurrence) (refusal, err error) {
	var profile string
	err = t.tx.QueryRow(ctx, `select profile_key from trigger_events where workspace_id = $1 and key = $2`, t.ws, o.key).Scan(&profile)
	if err != nil {
		return nil, fmt.Errorf("read direct request: %w", err)
	}
	if profile == o.profile {
		return nil, nil
	}
	return idConflict("another profile was asked for under this id"), nil
}

// enrolledBy finds the enrollment that a request with this id has made.
func (t *take) enrolledBy(ctx context.Context, flow uuid.UUID, o *occurrence) (*uuid.UUID, error) {
	rows, err := t.tx.Query(ctx, `
		select e.id from trigger_events v
		join enrollments e on e.workspace_id = v.workspace_id and e.flow_id = $3 and e.enrolled_at = v.received_at
			and (e.profile_key = v.profile_key and e.status = 'active' or e.profile_key = v.profile_key and e.status <> 'active')
		where v.workspace_id = $1 and v.key = $2 and e.source = 'direct' limit 1`, t.ws, o.key, flow)
	if err != nil {
		return nil, fmt.Errorf("find what a request has enrolled: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// letGo forgets the requests that enrolled nobody: they may be told again when
// what stood in the way is gone.
func (t *take) letGo(ctx context.Context, all []*occurrence, recorded []Recorded) error {
	var keys []pgtype.UUID
	for i, o := range all {
		for _, r := range recorded[i].Results {
			if o.named && r.Outcome == Refused && r.Detail != toldBefore {
				keys = append(keys, wire(o.key))
			}
		}
	}
	if len(keys) == 0 {
		return nil
	}
	if _, err := t.tx.Exec(ctx, `delete from trigger_events where workspace_id = $1 and key = any($2) and name = ''`, t.ws, keys); err != nil {
		return fmt.Errorf("let go of direct requests: %w", err)
	}
	return nil
}

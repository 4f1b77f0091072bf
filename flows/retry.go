package flows

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/audience"
	"lemma/flows/admission"
	"lemma/flows/enrollment"
	"lemma/loop"
	"lemma/slots"
)

// Enrollments that wait for a failed data source are retried with a delay that doubles.
// When the source answers a query, all of them are retried within seconds. One of them is
// retried periodically, so that there is such a query.

// passing are the blocked reasons that end when the source answers.
var passing = []string{audience.CodeUnavailable, audience.CodeTimeout, audience.CodeRefused, audience.CodeMalformed,
	admission.CodeSourceBusy}

const (
	retryChunk  = 5_000                  // enrollments that are retried in a second
	retryMost   = 200                    // chunks for one recovery
	retryAtOnce = 4                      // workspaces whose enrollments one process retries at a time
	tryTime     = 200 * time.Millisecond // of a second for the sources of a workspace that still fail
)

// retrying names the retries in logs and metrics.
const retrying = "retry data sources"

var errNoRetry = errors.New("no slot is free")

func newRetrySlots() *slots.Slots {
	return slots.New(slots.Limits{Process: retryAtOnce, Workspace: 1}, func(string) error { return errNoRetry })
}

// startRetries starts the retries of sources that are due, of several workspaces at a time: the
// many sources of one do not delay those of the others. wait returns what failed.
func (f *Flows) startRetries(ctx context.Context) (wait func() error) {
	if err := f.assumeWaiting(ctx); err != nil {
		return func() error { return err }
	}
	var running sync.WaitGroup
	var mu sync.Mutex
	var failed loop.Errors
	for workspace, due := range f.Execution.Sources.ToRetry(time.Now()) {
		leave, err := f.retrySlots.Try(slots.Resource{Workspace: workspace})
		if err != nil {
			continue
		}
		running.Go(func() {
			defer leave()
			err := lemma.Recovered(func() error { return f.retrySources(ctx, due) })
			mu.Lock()
			defer mu.Unlock()
			failed.Add(err)
		})
	}
	return func() error { running.Wait(); return failed.Err() }
}

// assumeWaiting finds, once in a process, the sources that enrollments or polls wait for: it knows no
// failure of before its start, and would not notice that they answer again.
func (f *Flows) assumeWaiting(ctx context.Context) error {
	if f.assumed.Load() {
		return nil
	}
	rows, _ := f.pool.Query(ctx, `
		select distinct u.workspace_id, s.id from (
			select f.workspace_id, f.id from flows f
			cross join lateral (
				select from enrollments e where e.workspace_id = f.workspace_id and e.flow_id = f.id and e.status || '' = 'active'
					and e.blocked_reason = any($1) and e.blocked_reason is not null order by e.resume_at limit 1
			) e
			union
			select p.workspace_id, p.flow_id from flow_polls p where p.failures > 0
		) w
		join flow_uses u on u.workspace_id = w.workspace_id and u.flow_id = w.id
		left join audiences a on a.workspace_id = u.workspace_id and a.id = u.audience_id
		cross join lateral (values (u.data_source_id), (a.data_source_id)) s (id)
		where s.id is not null`, passing)
	var about admission.Blocked
	_, err := pgx.ForEachRow(rows, []any{&about.Workspace, &about.Source}, func() error {
		f.Execution.Sources.Assume(about)
		return nil
	})
	if err == nil {
		f.assumed.Store(true)
	}
	return lemma.Wrap(err, "find the data sources that enrollments wait for")
}

// retryInBackground is startRetries for Loop, which waits when it ends.
func (f *Flows) retryInBackground(ctx context.Context, loops *sync.WaitGroup) {
	wait := f.startRetries(ctx)
	loops.Go(func() {
		if err := wait(); err != nil && ctx.Err() == nil {
			f.failed(retrying, err)
		}
	})
}

// retrySources retries the enrollments of the sources of a workspace that have recovered, and one
// enrollment of each source that has not. What tryTime leaves is tried by the next call.
func (f *Flows) retrySources(ctx context.Context, due []admission.Retry) error {
	var failed loop.Errors
	var began time.Time
	for _, r := range due {
		now := time.Now()
		if began.IsZero() && !r.Recovered {
			began = now
		}
		if !r.Recovered && now.Sub(began) > f.tryTime {
			break
		}
		if !f.Execution.Sources.Take(r, now) {
			continue
		}
		if err := f.retrySource(ctx, r, now); err != nil {
			f.Execution.Sources.PutBack(r)
			failed.Add(err)
		}
	}
	return failed.Err()
}

func (f *Flows) retrySource(ctx context.Context, r admission.Retry, now time.Time) error {
	if r.Recovered {
		return f.retryAll(ctx, r)
	}
	n, err := f.retry(ctx, r.Blocked, 0, 1)
	if err != nil || n > 0 {
		return err
	}
	waits, err := f.waits(ctx, r.Blocked)
	if err == nil {
		f.Execution.Sources.NoneRetried(r, now, waits)
	}
	return err
}

// retryAll retries the enrollments and polls of a source that has recovered.
func (f *Flows) retryAll(ctx context.Context, r admission.Retry) error {
	n := int64(0)
	for chunk := range retryMost {
		some, err := f.retry(ctx, r.Blocked, chunk, retryChunk)
		if n += some; err != nil {
			return err
		}
		if some < retryChunk || f.Execution.Sources.StillFailing(r) {
			break
		}
	}
	if n > 0 {
		f.log.Info("data source answers again, enrollments are retried", "workspace_id", r.Workspace, "data_source_id",
			r.Source, "flow_id", r.Flow, "node", r.Node, "enrollments", n)
	}
	return f.retryPolls(ctx, r.Blocked)
}

// retry makes due some of the enrollments that have waited longest for a source,
// distributed over one second after so many.
func (f *Flows) retry(ctx context.Context, about admission.Blocked, after, most int) (int64, error) {
	spread := 1000
	if most == 1 { // it is retried at once
		spread = 1
	}
	which, args := waitingFor(about, enrollment.PgUUID(about.Workspace), passing, after, most, spread)
	n := int64(0)
	err := enrollment.Transact(ctx, f.pool, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `
			update enrollments e set resume_at = now() + $3::int * interval '1 second'
				+ abs(uuid_hash_extended(e.id, 0) % $5) * interval '1 millisecond'
			where workspace_id = $1 and id = any(array(
				select e.id from enrollments e
				where `+which+`
				  and e.resume_at > now() + ($3::int + 3) * interval '1 second'
				order by e.resume_at limit $4 for update skip locked)) and ended_at is null
			returning flow_id, shard`, args...)
		s, due := enrollment.Shard{Workspace: about.Workspace}, map[enrollment.Shard]bool{}
		tag, err := pgx.ForEachRow(rows, []any{&s.Flow, &s.Number}, func() error { due[s] = true; return nil })
		if err != nil {
			return err
		}
		n = tag.RowsAffected()
		return enrollment.LowerBounds(ctx, tx, due)
	})
	return n, lemma.Wrap(err, "retry enrollments that wait for a data source")
}

// waits reports whether an enrollment waits for a source, also if a transaction has locked it.
func (f *Flows) waits(ctx context.Context, about admission.Blocked) (found bool, err error) {
	which, args := waitingFor(about, enrollment.PgUUID(about.Workspace), passing)
	err = f.pool.QueryRow(ctx, `select exists (select from enrollments e where `+which+`)`, args...).Scan(&found)
	return found, lemma.Wrap(err, "find enrollments that wait for a data source")
}

// waitingFor selects the enrollments e of workspace $1 that wait for a source for reasons $2, and
// returns the arguments with those that it adds.
func waitingFor(about admission.Blocked, args ...any) (string, []any) {
	at := func(n int) string { return fmt.Sprintf("$%d", len(args)+n) }
	const blocked = `e.workspace_id = $1 and e.status = 'active' and e.blocked_reason = any($2) and e.blocked_reason is not null and `
	if about.Flow != uuid.Nil {
		return blocked + `e.flow_id = ` + at(1) + ` and e.node = ` + at(2), append(args, enrollment.PgUUID(about.Flow), about.Node)
	}
	return blocked + `e.flow_id in (` + usersOf(at(1)) + `)`, append(args, enrollment.PgUUID(about.Source))
}

// usersOf are the flows of workspace $1 that use a data source.
func usersOf(source string) string {
	return `
		select u.flow_id from flow_uses u left join audiences a on a.workspace_id = u.workspace_id and a.id = u.audience_id
		where u.workspace_id = $1 and ` + source + ` in (u.data_source_id, a.data_source_id)`
}

// retryPolls makes the failed polls of a source's audiences due.
func (f *Flows) retryPolls(ctx context.Context, about admission.Blocked) error {
	_, err := f.pool.Exec(ctx, `
		update flow_polls set next_at = now()
		where workspace_id = $1 and failures > 0 and next_at > now() and leased_by is null and flow_id in (`+usersOf("$2")+`)`, about.Workspace,
		about.Source)
	return lemma.Wrap(err, "retry polls of a data source")
}

package flows

import (
	"context"
	"time"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/audience"
	"lemma/flows/admission"
	"lemma/flows/enrollment"
)

// Enrollments that wait for a failed data source are retried with a delay that doubles.
// When the source answers a query, all of them are retried within seconds. One of them is
// retried periodically, so that there is such a query.

// passing are the blocked reasons that end when the source answers.
var passing = []string{audience.CodeUnavailable, audience.CodeTimeout, admission.CodeSourceBusy}

const (
	retryChunk = 5_000 // enrollments that are retried in a second
	retryMost  = 200   // chunks for one recovery
)

// retrySources retries the enrollments of sources that have recovered, and one enrollment
// of each source that has not.
func (f *Flows) retrySources(ctx context.Context) error {
	back, try := f.Execution.Sources.ToRetry(time.Now())
	for _, about := range try {
		if _, err := f.retry(ctx, about, 0, 1); err != nil {
			return err
		}
	}
	for _, about := range back {
		n := int64(0)
		for chunk := range retryMost {
			some, err := f.retry(ctx, about, chunk, retryChunk)
			n += some
			if err != nil {
				return err
			}
			if some < retryChunk || f.Execution.Sources.StillFailing(about) {
				break
			}
		}
		if err := f.retryPolls(ctx, about); err != nil {
			return err
		}
		if n > 0 {
			f.log.Info("data source answers again, enrollments are retried", "workspace_id", about.Workspace, "data_source_id",
				about.Source, "flow_id", about.Flow, "node", about.Node, "enrollments", n)
		}
	}
	return nil
}

// retry makes due some of the enrollments that have waited longest for a source,
// distributed over one second after so many.
func (f *Flows) retry(ctx context.Context, about admission.Blocked, after, most int) (int64, error) {
	spread := 1000
	if most == 1 { // it is retried at once
		spread = 1
	}
	which, args := `e.flow_id in (`+usersOf("$6")+`)`, []any{enrollment.PgUUID(about.Source)}
	if about.Flow != uuid.Nil {
		which, args = `e.flow_id = $6 and e.node = $7`, []any{enrollment.PgUUID(about.Flow), about.Node}
	}
	args = append([]any{enrollment.PgUUID(about.Workspace), passing, after, most, spread}, args...)
	n := int64(0)
	err := enrollment.Transact(ctx, f.pool, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `
			update enrollments e set resume_at = now() + $3::int * interval '1 second'
				+ abs(uuid_hash_extended(e.id, 0) % $5) * interval '1 millisecond'
			where workspace_id = $1 and id = any(array(
				select e.id from enrollments e
				where e.workspace_id = $1 and `+which+` and e.status = 'active' and e.blocked_reason = any($2) and e.blocked_reason is not null
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

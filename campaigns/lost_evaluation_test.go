package campaigns

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"lemma"
)

// An evaluation that has lost its claim, or whose test was decided meanwhile, records no failure
// and stops nothing.
func TestALostEvaluationRecordsNothing(t *testing.T) {
	b := experiments(t, 40)
	ctx := context.Background()
	tested, it := b.converting(0)
	const claim = `update iterations set status = $1, evaluating_by = 'own', evaluating_until = now() + interval '1 minute', retry_at = now()`
	for _, c := range []struct {
		status IterationStatus
		token  string
	}{{IterationRunning, "own"}, {IterationEvaluating, "lost"}} {
		status, token := c.status, c.token
		b.Exec(claim, status)
		b.Must(b.evaluationFailed(ctx, b.Workspace, it.ID, token, lemma.Fault("/sql", "invalid", "the query is not valid")))
		b.Must(pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error {
			if stopped, err := recordStop(ctx, tx, it, token); stopped || err != nil {
				t.Errorf("%s, %s: %v, %v", status, token, stopped, err)
			}
			return nil
		}))
		if got := b.iteration(tested); got.Status != status || got.StatusReason != "" {
			t.Errorf("%s, %s: %+v", status, token, got)
		}
		b.WantCount(1, `select count(*) from iterations where evaluating_by = 'own' and failures = 0`)
	}
}

// A stopped variant takes the lease of a fan-out that runs. One that waits for its retry does so
// for as long as before.
func TestOnlyARunningSampleIsRestarted(t *testing.T) {
	b := experiments(t, 40)
	ctx := context.Background()
	_, it := b.converting(0)
	for state, restarted := range map[string]int{
		`finished_at = null, leased_by = 'run', lease_until = now() + interval '1 minute'`: 1,
		`finished_at = null, leased_by = null, lease_until = null`:                         0,
	} {
		b.Exec(`delete from river_job`)
		b.Exec(`update fanouts set ` + state + `, retry_at = now() + interval '1 hour'`)
		b.Must(pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error { return b.restartSample(ctx, tx, it) }))
		b.WantCount(restarted, `select count(*) from fanouts where leased_by is null and retry_at <= now()`)
		b.WantCount(restarted, `select count(*) from river_job where kind = 'campaign_fanout'`)
	}
}

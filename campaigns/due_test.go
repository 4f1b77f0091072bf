package campaigns

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/audience"
	"lemma/pgtest"
)

// A source of one workspace does not answer. Another workspace is evaluated and measured
// meanwhile, also when all iterations of the first are due.
func TestASlowMetricHoldsNoOtherWorkspace(t *testing.T) {
	b := experiments(t, 600)
	b.deps.Audiences = b.NewAudiences(audience.Options{AllowPrivate: true, AllowUnix: true, FetchTimeout: time.Hour})
	b.Campaigns = New(b.deps, b.cfg)
	b.fill(600)
	bySQL := func() (Campaign, Iteration) {
		return b.sampled(b.bySQL(`select id from customers where :cut_off_at is not null`))
	}
	_, first := bySQL()
	_, second := bySQL()
	o := b.another(pgtest.Workspace(t, b.Pool), 600)
	oc, oit := o.sampled(ab(func(e *Experiment) { e.SamplePercent = 100 }))
	o.convertBest(oit, 1, 80)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	b.hang()
	measured, err := b.startMeasurements(ctx)
	b.Must(err)
	b.hangs()
	pgtest.Eventually(t, 20*time.Second, "the other workspace is measured", func() bool {
		return b.Count(`select count(*) from iteration_results where workspace_id = $1 and iteration_id = $2`, o.Workspace, oit.ID) > 0
	})
	for _, it := range []Iteration{first, second, oit} {
		b.endTest(it)
	}
	evaluated, err := b.startEvaluations(ctx)
	b.Must(err)
	pgtest.Eventually(t, 20*time.Second, "the other workspace is evaluated", func() bool { return o.iteration(oc).Winner != nil })
	tick, end := context.WithTimeout(ctx, 20*time.Second)
	defer end()
	again, err := b.startEvaluations(tick)
	b.Must(err)
	if _, err := again(); err != nil {
		t.Error(err)
	}
	if n := b.Count(`select count(*) from iterations where workspace_id = $1 and evaluating_by is not null`, b.Workspace); n != 1 {
		t.Errorf("%d iterations of the workspace are evaluated at a time", n)
	}
	if tick.Err() != nil {
		t.Error("the next tick evaluates another iteration of the workspace")
	}
	stop()
	_, _ = measured()
	_, _ = evaluated()
}

// Each workspace has one slot, and a process eight.
func TestWorkspacesAtOnce(t *testing.T) {
	t.Parallel()
	free, release := newWorkspaceSlots(), make(chan struct{})
	var due []ref
	for range workspacesAtOnce + 2 {
		ws := uuid.New()
		due = append(due, ref{ws, uuid.New()}, ref{ws, uuid.New()})
	}
	begun := make(chan ref, len(due))
	wait := startDue(context.Background(), free, due, func(_ context.Context, r ref) (bool, error) {
		begun <- r
		<-release
		return true, nil
	})
	workspaces := map[uuid.UUID]bool{}
	for range workspacesAtOnce {
		workspaces[(<-begun).WorkspaceID] = true
	}
	close(release)
	if n, err := wait(); n != 2*workspacesAtOnce || err != nil || len(workspaces) != workspacesAtOnce {
		t.Errorf("%d of %d workspaces: %v", n, len(workspaces), err)
	}
}

// Iterations of a paused campaign whose cut-off has passed keep a time of their guardrail.
// They delay no guardrail of others.
func TestGuardrailsPastTheCutOffDelayNoOther(t *testing.T) {
	b := experiments(t, 400)
	_, it := b.guarded(Complaints)
	b.endBatches()
	b.complain(it, 1, 50, Complaints)
	b.guardrailDue(it)
	for range 21 {
		past := b.experiment(ab(func(e *Experiment) { e.Guardrail = &Guardrail{Complaints, 0.01} }))
		b.Exec(`update iterations set guardrail_at = now() - interval '1 hour', cut_off_at = now() where id = $1`, *past.IterationID)
	}
	b.checkGuardrails()
	if got, err := b.GetIteration(context.Background(), b.Workspace, it.ID); err != nil || got.Variants[1].StoppedAt == nil {
		t.Errorf("B is not stopped: %v", err)
	}
}

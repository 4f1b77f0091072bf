package campaigns

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/abtest"
)

// Guardrail stops a variant whose recipients unsubscribe or complain too often: it is not
// sent any more, and cannot win.
type Guardrail struct {
	Metric string  // unsubscribes or complaints
	Limit  float64 // fraction of sent notifications
}

// The metrics of guardrails.
const (
	Unsubscribes = "unsubscribes"
	Complaints   = "complaints"
)

func (g *Guardrail) faults(metric *Metric, add func(pointer, code, detail string, args ...any)) {
	switch {
	case g == nil:
	case metric == nil:
		add("/guardrail", "not_allowed", "must not be given without a metric")
	case g.Metric != Unsubscribes && g.Metric != Complaints:
		add("/guardrail/metric", "invalid", "must be unsubscribes or complaints")
	case g.Limit <= 0 || g.Limit >= 1:
		add("/guardrail/limit", "out_of_range", "must be above 0 and below 1")
	}
}

// count has the sent notifications of a variant, and those that the guardrail counts.
func (g *Guardrail) count(t Tally) abtest.Count {
	n := t.Complaints
	if g.Metric == Unsubscribes {
		n = t.Unsubscribes
	}
	return abtest.Count{Recipients: t.Sent, Converted: n}
}

// breach is a variant that the guardrail stops.
type breach struct {
	variant int
	reason  string
}

// breaches are the variants that break the guardrail and have not been stopped yet.
func (it Iteration) breaches(all []Tally) (found []breach) {
	g := it.Guardrail
	if g == nil {
		return nil
	}
	for i, v := range it.Variants {
		if n := g.count(all[i]); v.StoppedAt == nil && n.Breaks(g.Limit) {
			found = append(found, breach{i, fmt.Sprintf("%d %s of %d sent (%.2f %%) are above the limit of %.4g %% (p = %.2g)",
				n.Converted, g.Metric, n.Recipients, 100*n.Rate(), 100*g.Limit, n.PAbove(g.Limit))})
		}
	}
	return found
}

// without is the iteration with variants stopped.
func (it Iteration) without(stopped []breach) Iteration {
	it.Variants = append([]Variant{}, it.Variants...)
	for _, b := range stopped {
		it.Variants[b.variant].StoppedAt, it.Variants[b.variant].StoppedReason = it.CutOffAt, b.reason
	}
	return it
}

// guardrailsAtOnce is how many iterations one run checks.
const guardrailsAtOnce = 20

// CheckGuardrails checks the guardrails that are due, and waits: nine times at most, at
// fixed times before the cut-off, and again after each extension. The evaluation is the
// tenth check.
func (c *Campaigns) CheckGuardrails(ctx context.Context) (n int, err error) {
	return waitFor(ctx, c.startChecks)
}

// startChecks is CheckGuardrails, and does not wait.
func (c *Campaigns) startChecks(ctx context.Context) (wait func() (int, error), err error) {
	due, err := c.refs(ctx, `
		select i.workspace_id, i.id from iterations i
		where i.status in ('sampling', 'running') and i.guardrail_at <= now() and i.cut_off_at > now()
		  and (i.evaluating_until is null or i.evaluating_until < now())
		order by row_number() over (partition by i.workspace_id order by i.guardrail_at), random() limit $1`, guardrailsAtOnce)
	if err != nil {
		return nil, fmt.Errorf("find guardrails to check: %w", err)
	}
	return startDue(ctx, c.checking, due, func(ctx context.Context, r ref) (bool, error) {
		err := c.checkGuardrail(ctx, r)
		if err != nil {
			err = fmt.Errorf("check guardrail of iteration %s: %w", r.ID, err)
		}
		return err == nil, err
	}), nil
}

// checkGuardrail claims an iteration as an evaluation does, and stops the variants that
// break its guardrail. A check that fails is repeated when its claim has expired.
func (c *Campaigns) checkGuardrail(ctx context.Context, r ref) error {
	token := lemma.NewID().String()
	tag, err := c.pool.Exec(ctx, `
		update iterations set evaluating_by = $3, evaluating_until = now() + $4
		where workspace_id = $1 and id = $2 and status in ('sampling', 'running') and guardrail_at <= now() and cut_off_at > now()
		  and (evaluating_until is null or evaluating_until < now())`, r.WorkspaceID, r.ID, token, c.cfg.EvaluateLease)
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	c.at(ctx, "guardrail claimed", r.ID)
	it, err := c.GetIteration(ctx, r.WorkspaceID, r.ID)
	if err != nil {
		return err
	}
	all := make([]Tally, len(it.Variants))
	if err := c.readSent(ctx, it, all); err != nil {
		return err
	}
	if err := c.readReported(ctx, it, all); err != nil {
		return err
	}
	c.at(ctx, "guardrail measured", r.ID)
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error { return c.recordCheck(ctx, tx, it, token, it.breaches(all)) })
}

// recordCheck stops variants if token still holds the claim, and schedules the next check:
// the checks that are left divide the time until the cut-off.
func (c *Campaigns) recordCheck(ctx context.Context, tx pgx.Tx, it Iteration, token string, stopped []breach) error {
	if err := lockForVerb(ctx, tx, it.CampaignID); err != nil {
		return err
	}
	tag, err := tx.Exec(ctx, `
		update iterations set evaluating_by = null, evaluating_until = null, guardrail_checks = guardrail_checks + 1,
			guardrail_at = case when guardrail_checks + 2 < $4 then now() + (cut_off_at - now()) / ($4 - guardrail_checks - 1) end
		where workspace_id = $1 and id = $2 and evaluating_by = $3 and status in ('sampling', 'running')`,
		it.WorkspaceID, it.ID, token, abtest.GuardrailChecks)
	if err != nil || tag.RowsAffected() == 0 || len(stopped) == 0 {
		return err
	}
	if err := c.stopVariants(ctx, tx, it, stopped); err != nil {
		return err
	}
	return c.restartSample(ctx, tx, it)
}

// stopVariants stops variants in the transaction that holds the claim: their
// notifications that were not sent are cancelled.
func (c *Campaigns) stopVariants(ctx context.Context, tx pgx.Tx, it Iteration, stopped []breach) error {
	for _, b := range stopped {
		v := it.Variants[b.variant]
		_, err := tx.Exec(ctx, `
			update iteration_variants set stopped_at = now(), stopped_reason = $4
			where workspace_id = $1 and iteration_id = $2 and ordinal = $3 and stopped_at is null`,
			it.WorkspaceID, it.ID, b.variant, b.reason)
		if err != nil {
			return fmt.Errorf("stop variant %s: %w", v.Name, err)
		}
		cancelled, err := c.ledger.CancelContent(ctx, tx, it.WorkspaceID, it.CampaignID, v.contentID)
		if err != nil {
			return err
		}
		detail := fmt.Sprintf("%s: %s; %d notifications cancelled", v.Name, b.reason, cancelled)
		if err := logIteration(ctx, tx, it.WorkspaceID, it.ID, "variant_stopped", detail); err != nil {
			return err
		}
	}
	return nil
}

// restartSample takes the lease of a sample's fan-out that runs, so that it writes no
// chunk for a stopped variant. The next run reads the audience again.
func (c *Campaigns) restartSample(ctx context.Context, tx pgx.Tx, it Iteration) error {
	tag, err := tx.Exec(ctx, `
		update fanouts set leased_by = null, lease_until = null, retry_at = now()
		where workspace_id = $1 and campaign_id = $2 and finished_at is null and leased_by is not null`, it.WorkspaceID, it.CampaignID)
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	return c.enqueue(ctx, tx, it.WorkspaceID, it.CampaignID)
}

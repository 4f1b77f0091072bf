package campaigns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/abtest"
	"lemma/fence"
)

// canBeEvaluated is true of an iteration i of a campaign c whose cut-off is $1 ago, $2 if it
// counts rows of Lemma, and which no process evaluates. Their time is that of the begin of their
// transaction, and these have ended by then (tracking.committed). Opens and clicks before the
// cut-off are applied.
const canBeEvaluated = `i.metric is not null and i.retry_at <= now() and c.status = 'sending'
	and i.cut_off_at <= now() - case i.metric when 'sql' then $1::interval else $2::interval end
	and i.status in ('running', 'evaluating') and (i.evaluating_until is null or i.evaluating_until < now())
	and (i.metric not in ('unique_opens', 'unique_clicks') or not exists (
		select from tracking_queue q
		where q.workspace_id = i.workspace_id and q.origin_id = i.campaign_id and q.times > 0 and q.occurred_at < i.cut_off_at))`

// EvaluateDue evaluates iterations whose cut-off has passed, and waits. It may run in every
// process at once: the claim decides.
func (c *Campaigns) EvaluateDue(ctx context.Context) (n int, err error) {
	return waitFor(ctx, c.startEvaluations)
}

// startEvaluations is EvaluateDue, and does not wait: a source may be slow.
func (c *Campaigns) startEvaluations(ctx context.Context) (wait func() (int, error), err error) {
	due, err := c.refs(ctx, `
		select i.workspace_id, i.id from iterations i
		join campaigns c on c.workspace_id = i.workspace_id and c.id = i.campaign_id
		where i.status in ('running', 'evaluating') and `+canBeEvaluated+`
		order by row_number() over (partition by i.workspace_id order by i.cut_off_at), random() limit 100`,
		c.cfg.CutOffGrace, c.cfg.EventGrace)
	if err != nil {
		return nil, fmt.Errorf("find iterations to evaluate: %w", err)
	}
	return startDue(ctx, c.evaluating, due, func(ctx context.Context, r ref) (bool, error) {
		err := c.Evaluate(ctx, r.WorkspaceID, r.ID)
		return err == nil, err
	}), nil
}

// Evaluate claims an iteration, compares its variants by the numbers at the cut-off, and
// records the result. A process that cannot claim it, or has lost its claim, changes
// nothing. An error of the metric is recorded and met again later; a permanent one, or
// the fifth in a row, leaves the decision to a person.
func (c *Campaigns) Evaluate(ctx context.Context, workspaceID, id uuid.UUID) error {
	token := lemma.NewID().String()
	claimed, err := c.claimEvaluation(ctx, workspaceID, id, token)
	if err != nil || !claimed {
		return err
	}
	c.at(ctx, "evaluation claimed", id)
	running, stop := context.WithCancel(ctx)
	defer stop()
	go fence.Renew(running, c.pool, c.cfg.EvaluateLease, stop, c.failed("renew evaluation"), `
		update iterations set evaluating_until = now() + $4
		where workspace_id = $1 and id = $2 and evaluating_by = $3 and evaluating_until >= now()`,
		workspaceID, id, token, c.cfg.EvaluateLease)
	d, it, err := c.decide(running, workspaceID, id)
	c.at(ctx, "evaluation measured", id)
	if err != nil {
		return c.evaluationFailed(ctx, workspaceID, id, token, err)
	}
	if _, err = c.commitDecision(ctx, it, token, d); err != nil {
		return errors.Join(err, c.evaluationFailed(ctx, workspaceID, id, token, err))
	}
	return nil
}

// claimEvaluation acquires the right to decide, if no other process has it.
func (c *Campaigns) claimEvaluation(ctx context.Context, workspaceID, id uuid.UUID, token string) (bool, error) {
	tag, err := c.pool.Exec(ctx, `
		update iterations i set status = 'evaluating', evaluating_by = $5, evaluating_until = now() + $6
		from campaigns c
		where i.workspace_id = $3 and i.id = $4 and c.workspace_id = i.workspace_id and c.id = i.campaign_id
		  and `+canBeEvaluated, c.cfg.CutOffGrace, c.cfg.EventGrace, workspaceID, id, token, c.cfg.EvaluateLease)
	if err != nil {
		return false, fmt.Errorf("claim evaluation of %s: %w", id, err)
	}
	return tag.RowsAffected() > 0, nil
}

// decision is what is to be recorded of an iteration.
type decision struct {
	winner         int    // -1: none
	by             string // evaluation, on_inconclusive or person
	reason, detail string
	verdict        *Verdict
	stop           bool // without a winner: end the experiment instead of leaving it to a person
	results        []Tally
	stopped        []breach // variants that the guardrail stops with this decision
}

// decide measures the variants at the cut-off and compares them.
func (c *Campaigns) decide(ctx context.Context, workspaceID, id uuid.UUID) (decision, Iteration, error) {
	it, err := c.GetIteration(ctx, workspaceID, id)
	if err != nil {
		return decision{}, it, err
	}
	all, err := c.measure(ctx, it, *it.CutOffAt)
	if err != nil {
		return decision{}, it, err
	}
	d := decision{winner: -1, results: all, stopped: it.breaches(all)}
	it = it.without(d.stopped)
	now, err := c.now(ctx)
	if err != nil {
		return decision{}, it, err
	}
	v := verdictOf(it, all, now)
	d.verdict, d.reason, d.detail = &v, string(v.Outcome), v.Sentence
	best := it.indexOf(v.Best)
	switch {
	case v.Outcome == abtest.Significant:
		d.winner, d.by = best, "evaluation"
	case v.Outcome == abtest.RatioMismatch || v.Outcome == abtest.NoneLeft || it.OnInconclusive == Hold:
		// A mismatch blocks every automatic choice.
	case it.OnInconclusive == RollOutControl && it.Variants[0].StoppedAt != nil:
	case it.OnInconclusive == RollOutControl:
		d.winner, d.by = 0, "on_inconclusive"
	default:
		d.winner, d.by = best, "on_inconclusive"
	}
	return d, it, nil
}

// verdictOf compares the variants. all are their tallies, and that of the holdout.
func verdictOf(it Iteration, all []Tally, now time.Time) Verdict {
	var observed []abtest.Observed // those that compete
	for i, v := range it.Variants {
		if v.StoppedAt == nil {
			observed = append(observed, abtest.Observed{Name: v.Name, Weight: v.Weight, Sent: all[i].Sent, Count: all[i].count()})
		}
	}
	result := abtest.Compare(observed, abtest.Rules{Confidence: it.Confidence, MinSample: it.MinSample, Did: it.Metric.did()})
	out := all[len(it.Variants)]
	v := Verdict{CutOffAt: *it.CutOffAt, Method: abtest.Method, Confidence: it.Confidence, MinSample: it.MinSample, Outcome: result.Outcome,
		Comparisons: result.Comparisons, RatioP: result.RatioP, Sentence: result.Sentence,
		Excluded: excludedOf(it, all), EvaluatedAt: now.UTC(), HoldoutCount: out.Recipients, HoldoutConvert: *out.Converted}
	if len(observed) > 0 {
		v.Best = observed[result.Best].Name
	}
	for i, one := range it.Variants {
		n := all[i].count()
		shown := VariantVerdict{Name: one.Name, Stopped: one.StoppedReason, Recipients: n.Recipients, Sent: all[i].Sent, Converted: n.Converted,
			Excluded: all[i].Excluded, Rate: n.Rate(), Interval: n.Wilson(it.Confidence)}
		if one.StoppedAt == nil {
			shown.ChanceToBeBest, result.ChanceToBeBest = result.ChanceToBeBest[0], result.ChanceToBeBest[1:]
		} else {
			v.Sentence += " The guardrail stopped " + one.Name + ": " + one.StoppedReason + "."
		}
		v.Variants = append(v.Variants, shown)
	}
	return v
}

// excludedOf are the numbers of what the metric does not count, by reason.
func excludedOf(it Iteration, all []Tally) map[string]int64 {
	by := map[string]int64{}
	if !it.Metric.tracked() {
		return by
	}
	kind := "machine_opens"
	if it.Metric.Type == UniqueClicks {
		kind = "machine_clicks"
	}
	for _, t := range all {
		by[kind] += t.Excluded
	}
	return by
}

// commitDecision records a decision if token still holds the claim. A winner, its content
// and the job of its rollout are one transaction.
func (c *Campaigns) commitDecision(ctx context.Context, it Iteration, token string, d decision) (held bool, err error) {
	now, err := c.Get(ctx, it.WorkspaceID, it.CampaignID)
	if err != nil {
		return false, err
	}
	err = pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) (err error) {
		if err = lockForVerb(ctx, tx, it.CampaignID); err != nil {
			return err
		}
		held, err = c.recordDecision(ctx, tx, now, it, token, d)
		return err
	})
	if err == nil && !held {
		c.log.Warn("evaluation lost its claim, its decision had no effect", "iteration_id", it.ID, "token", token)
	}
	return held, err
}

// recordDecision is commitDecision in a transaction that has locked the campaign.
func (c *Campaigns) recordDecision(ctx context.Context, tx pgx.Tx, now Campaign, it Iteration, token string, d decision) (bool, error) {
	var held bool
	var err error
	switch {
	case d.winner >= 0:
		held, err = c.recordWinner(ctx, tx, now, it, token, d)
	case d.stop:
		held, err = recordStop(ctx, tx, it, token)
	default:
		held, err = recordHold(ctx, tx, it, token, d)
	}
	if err != nil {
		return false, fmt.Errorf("record decision of iteration %s: %w", it.ID, err)
	}
	if !held {
		return false, nil
	}
	if err := c.stopVariants(ctx, tx, it, d.stopped); err != nil {
		return false, err
	}
	if d.winner >= 0 || d.stop {
		if err := settleNow(ctx, tx, it.WorkspaceID, it.CampaignID); err != nil {
			return false, err
		}
	}
	return true, storeResults(ctx, tx, it, d.results)
}

// recordWinner writes the winner, the content that is rolled out, and the job of the
// rollout, which reads the audience again.
func (c *Campaigns) recordWinner(ctx context.Context, tx pgx.Tx, now Campaign, it Iteration, token string, d decision) (bool, error) {
	verdict, err := verdictJSON(d.verdict)
	if err != nil {
		return false, err
	}
	rollout := lemma.NewID()
	tag, err := tx.Exec(ctx, `
		update iterations set status = 'decided', winner = $4, decided_by = $5, decided_at = now(), verdict = coalesce($6::jsonb, verdict),
			rollout_id = $7, status_reason = nullif($8, ''), status_detail = nullif($9, ''), evaluating_by = null, evaluating_until = null
		where workspace_id = $1 and id = $2 and evaluating_by = $3 and status in ('evaluating', 'inconclusive')
		  and not exists (select from iteration_variants v
			where v.workspace_id = $1 and v.iteration_id = $2 and v.ordinal = $4 and v.stopped_at is not null)`,
		it.WorkspaceID, it.ID, token, d.winner, d.by, verdict, rollout, d.reason, d.detail)
	if err != nil || tag.RowsAffected() == 0 {
		return false, err
	}
	variant := it.Variants[d.winner]
	if err := writeContent(ctx, tx, now, rollout, &variant); err != nil {
		return false, err
	}
	if err := restartFanout(ctx, tx, it); err != nil {
		return false, err
	}
	if err := logIteration(ctx, tx, it.WorkspaceID, it.ID, "decided", variant.Name+" by "+d.by); err != nil {
		return false, err
	}
	if err := recordDecided(ctx, tx, it, variant.Name, d); err != nil {
		return false, err
	}
	return true, c.enqueue(ctx, tx, it.WorkspaceID, it.CampaignID)
}

// restartFanout makes the fan-out of the sample, which has finished, read the audience
// again. A run of the sample that is late holds no lease and writes nothing.
func restartFanout(ctx context.Context, tx pgx.Tx, it Iteration) error {
	tag, err := tx.Exec(ctx, `
		update fanouts set finished_at = null, leased_by = null, lease_until = null, retry_at = now(), source_failures = 0,
			internal_failures = 0, crashes = 0
		where workspace_id = $1 and campaign_id = $2 and finished_at is not null`, it.WorkspaceID, it.CampaignID)
	if err == nil && tag.RowsAffected() == 0 {
		err = errors.New("the fan-out of the sample has not finished")
	}
	return err
}

// recordHold leaves the decision to a person.
func recordHold(ctx context.Context, tx pgx.Tx, it Iteration, token string, d decision) (bool, error) {
	verdict, err := verdictJSON(d.verdict)
	if err != nil {
		return false, err
	}
	tag, err := tx.Exec(ctx, `
		update iterations set status = 'inconclusive', status_reason = $4, status_detail = $5, verdict = coalesce($6::jsonb, verdict),
			evaluating_by = null, evaluating_until = null
		where workspace_id = $1 and id = $2 and evaluating_by = $3 and status = 'evaluating'`,
		it.WorkspaceID, it.ID, token, d.reason, d.detail, verdict)
	if err != nil || tag.RowsAffected() == 0 {
		return false, err
	}
	if err := logIteration(ctx, tx, it.WorkspaceID, it.ID, "held", d.detail); err != nil {
		return false, err
	}
	return true, recordInconclusive(ctx, tx, it.WorkspaceID, it.ID, it.CampaignID, d.reason, d.detail)
}

// recordStop ends an experiment without a rollout.
func recordStop(ctx context.Context, tx pgx.Tx, it Iteration, token string) (bool, error) {
	tag, err := tx.Exec(ctx, `
		update iterations set status = 'cancelled', status_reason = 'stopped', status_detail = null, evaluating_by = null, evaluating_until = null
		where workspace_id = $1 and id = $2 and evaluating_by = $3 and status in ('evaluating', 'inconclusive')`,
		it.WorkspaceID, it.ID, token)
	if err != nil || tag.RowsAffected() == 0 {
		return false, err
	}
	if err := forgetMembers(ctx, tx, it.WorkspaceID, it.CampaignID); err != nil {
		return false, err
	}
	return true, logIteration(ctx, tx, it.WorkspaceID, it.ID, "stopped", "")
}

func verdictJSON(v *Verdict) ([]byte, error) {
	if v == nil {
		return nil, nil
	}
	return json.Marshal(v)
}

// evaluationFailures is how many evaluations in a row may fail before a person decides.
const evaluationFailures = 5

// evaluationFailed records why an evaluation failed, if it still holds the claim, and
// when it is tried again. After a permanent error, or too many, a person decides.
func (c *Campaigns) evaluationFailed(ctx context.Context, workspaceID, id uuid.UUID, token string, cause error) error {
	stopped := ctx.Err() != nil // a shutdown: another process continues
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	kind := lemma.KindOf(cause)
	permanent := kind != lemma.Unavailable && kind != lemma.Internal
	err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		var status IterationStatus
		var campaign uuid.UUID
		err := tx.QueryRow(ctx, `
			update iterations set evaluating_by = null, evaluating_until = null, failures = failures + $4::boolean::int,
				status_reason = $5, status_detail = $6,
				retry_at = now() + case when $4 then $7::interval * (1 << failures) else interval '0' end,
				status = case when $8 or failures + 1 >= $9 and $4 then 'inconclusive' else status end
			where workspace_id = $1 and id = $2 and evaluating_by = $3 and status = 'evaluating' returning status, campaign_id`,
			workspaceID, id, token, !stopped, reasonOf(cause), lemma.Public(cause), c.cfg.RetryFor, permanent && !stopped, evaluationFailures).
			Scan(&status, &campaign)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil || stopped {
			return err
		}
		if err := logIteration(ctx, tx, workspaceID, id, "evaluation_failed", lemma.Public(cause)); err != nil {
			return err
		}
		if status != IterationInconclusive {
			return nil
		}
		return recordInconclusive(ctx, tx, workspaceID, id, campaign, reasonOf(cause), lemma.Public(cause))
	})
	if err != nil {
		return fmt.Errorf("record that evaluation of %s failed: %w", id, err)
	}
	if !stopped {
		c.log.Error("evaluation failed", "iteration_id", id, "reason", reasonOf(cause), "error", cause)
	}
	return nil
}

package campaigns

import (
	"time"

	"lemma/clock"
)

// aheadMost is how many rows one run of a repair changes.
const aheadMost = 1_000

// Repairs returns the repairs of the times of campaigns, of fan-outs and of evaluations.
func (c *Campaigns) Repairs() []clock.Repair {
	lease, evaluation := c.cfg.Lease+clock.Slack, c.cfg.EvaluateLease+clock.Slack
	return []clock.Repair{
		clock.Update(c.pool, "campaigns", repairSettle, settleWithin+clock.Slack, aheadMost),
		clock.Update(c.pool, "campaigns", repairResumed, clock.Slack, aheadMost),
		clock.Update(c.pool, "fanouts", repairFanouts, c.cfg.RetryFor<<c.cfg.Retries+clock.Slack, lease, aheadMost),
		clock.Update(c.pool, "iterations", repairIterations, c.cfg.RetryFor<<evaluationFailures+clock.Slack, evaluation,
			time.Hour, aheadMost),
	}
}

// settleWithin is the longest time until a campaign without an experiment is checked again:
// see checkDue.
const settleWithin = time.Hour

const repairSettle = `
	with ahead as (
		select c.workspace_id, c.id from campaigns c
		where c.status in ('sending', 'paused') and c.settle_at > now() + $1::interval and not exists (
			select from iterations i where i.workspace_id = c.workspace_id and i.campaign_id = c.id and i.cut_off_at >= c.settle_at)
		order by c.settle_at limit $2 for no key update of c skip locked
	)
	update campaigns c set settle_at = now() from ahead a where c.workspace_id = a.workspace_id and c.id = a.id`

// repairResumed moves a resume into the past. Until then no failure of a provider would pause
// the campaign.
const repairResumed = `
	with ahead as (
		select workspace_id, id from campaigns
		where status in ('preparing', 'sending') and resumed_at > now() + $1::interval limit $2 for no key update skip locked
	)
	update campaigns c set resumed_at = now() from ahead a where c.workspace_id = a.workspace_id and c.id = a.id`

const repairFanouts = `
	with ahead as (
		select f.workspace_id, f.campaign_id from campaigns c
		join fanouts f on f.workspace_id = c.workspace_id and f.campaign_id = c.id
		where c.status in ('preparing', 'sending') and f.finished_at is null
			and (f.retry_at > now() + $1::interval or f.lease_until > now() + 2 * $2::interval)
		limit $3 for no key update of f skip locked
	)
	update fanouts f set retry_at = case when f.retry_at > now() + $1::interval then now() else f.retry_at end,
		lease_until = case when f.lease_until > now() + 2 * $2::interval then now() + $2::interval else f.lease_until end
	from ahead a where f.workspace_id = a.workspace_id and f.campaign_id = a.campaign_id`

// repairIterations makes measurements and evaluations due that have failed. The cut-off, and
// the checks of the guardrail before it, were chosen.
const repairIterations = `
	with ahead as (
		select workspace_id, id from iterations
		where status in ('sampling', 'running', 'evaluating') and (retry_at > now() + $1::interval
			or evaluating_until > now() + 2 * $2::interval
			or measure_at > now() + greatest($3::interval, (cut_off_at - started_at) / 25))
		limit $4 for no key update skip locked
	)
	update iterations i set retry_at = case when i.retry_at > now() + $1::interval then now() else i.retry_at end,
		evaluating_until = case when i.evaluating_until > now() + 2 * $2::interval then now() + $2::interval else i.evaluating_until end,
		measure_at = case when i.measure_at > now() + greatest($3::interval, (i.cut_off_at - i.started_at) / 25) then now() else i.measure_at end
	from ahead a where i.workspace_id = a.workspace_id and i.id = a.id`

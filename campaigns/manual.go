package campaigns

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/abtest"
	"lemma/fence"
	"lemma/lifecycle"
)

// SelectWinner records the winner that a person chose, and rolls it out.
func (c *Campaigns) SelectWinner(ctx context.Context, workspaceID, id uuid.UUID, variant string, request uuid.UUID) (Iteration, error) {
	return c.byPerson(ctx, workspaceID, id, request, selectWinner, func(it Iteration) (decision, error) {
		winner := it.indexOf(variant)
		if winner < 0 {
			return decision{}, lemma.Fault("/variant", "unknown_variant", "must be the name of a variant of the iteration")
		}
		if v := it.Variants[winner]; v.StoppedAt != nil {
			return decision{}, lemma.Fault("/variant", "variant_stopped", "must not be %s, which the guardrail stopped: %s", v.Name, v.StoppedReason)
		}
		return decision{winner: winner, by: "person"}, nil
	})
}

// StopIteration ends the experiment without a winner: nothing is rolled out.
func (c *Campaigns) StopIteration(ctx context.Context, workspaceID, id, request uuid.UUID) (Iteration, error) {
	return c.byPerson(ctx, workspaceID, id, request, stopTest, func(Iteration) (decision, error) {
		return decision{winner: -1, stop: true}, nil
	})
}

// byPerson claims an iteration as an evaluation does, and records a decision in the same
// transaction. While a process evaluates it, the claim is refused.
func (c *Campaigns) byPerson(ctx context.Context, workspaceID, id, request uuid.UUID, v iterationVerb,
	choose func(Iteration) (decision, error)) (Iteration, error) {
	it, now, err := c.iterationToChange(ctx, workspaceID, id, v)
	if err != nil {
		return c.iterationDone(ctx, it, id, workspaceID, request, err)
	}
	d, err := choose(it)
	if err != nil {
		return Iteration{}, err
	}
	token := lemma.NewID().String()
	err = fence.Transact(ctx, c.pool, func(tx pgx.Tx) error {
		if err := lockForVerb(ctx, tx, it.CampaignID); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			update iterations i set status = case when i.status = 'running' then 'evaluating' else i.status end,
				evaluating_by = $3, evaluating_until = now() + $4
			from campaigns c
			where i.workspace_id = $1 and i.id = $2 and i.metric is not null and i.status in ('running', 'evaluating', 'inconclusive')
			  and (i.evaluating_until is null or i.evaluating_until < now())
			  and c.workspace_id = i.workspace_id and c.id = i.campaign_id and c.status in ('sending', 'paused')`,
			workspaceID, id, token, c.cfg.EvaluateLease)
		if err != nil {
			return fmt.Errorf("claim iteration %s: %w", id, err)
		}
		if tag.RowsAffected() == 0 {
			return refuseIteration(ctx, tx, workspaceID, id, v)
		}
		held, err := c.recordDecision(ctx, tx, now, it, token, d)
		if err != nil {
			return err
		}
		if !held { // the guardrail stopped the variant since it was read
			return refuseIteration(ctx, tx, workspaceID, id, v)
		}
		return recordRequest(ctx, tx, workspaceID, it.CampaignID, verb(v), request)
	})
	return c.iterationDone(ctx, it, id, workspaceID, request, err)
}

// Extend moves the cut-off of an iteration to a later time, before it has passed. It takes the
// claim of an evaluation and releases it by the same statement: while a process checks the
// guardrail, it is refused. The guardrail is checked at each tenth of the time that is left.
func (c *Campaigns) Extend(ctx context.Context, workspaceID, id uuid.UUID, until time.Time, request uuid.UUID) (Iteration, error) {
	it, _, err := c.iterationToChange(ctx, workspaceID, id, extend)
	if err != nil {
		return c.iterationDone(ctx, it, id, workspaceID, request, err)
	}
	if !until.After(*it.CutOffAt) || until.After(it.StartedAt.Add(MaxDuration)) {
		err := lemma.Fault("/until", "out_of_range", "must be after %s, the cut-off, and at most 28 days after the start",
			it.CutOffAt.UTC().Format(time.RFC3339))
		return c.iterationDone(ctx, it, id, workspaceID, request, err)
	}
	err = fence.Transact(ctx, c.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			update iterations set cut_off_at = $3, extensions = extensions + 1, evaluating_by = null, evaluating_until = null,
				guardrail_checks = 0, guardrail_at = case when guardrail is not null then now() + ($3 - now()) / $5 end
			where workspace_id = $1 and id = $2 and metric is not null and status in ('sampling', 'running')
			  and (evaluating_until is null or evaluating_until < now()) and cut_off_at > now() and cut_off_at < $3
			  and extensions < $4`, workspaceID, id, until, MaxExtensions, abtest.GuardrailChecks)
		if err != nil {
			return fmt.Errorf("extend iteration %s: %w", id, err)
		}
		if tag.RowsAffected() == 0 {
			return refuseExtension(ctx, tx, workspaceID, id)
		}
		if err := logIteration(ctx, tx, workspaceID, id, "extended", until.UTC().Format(time.RFC3339)); err != nil {
			return err
		}
		return recordRequest(ctx, tx, workspaceID, it.CampaignID, verb(extend), request)
	})
	return c.iterationDone(ctx, it, id, workspaceID, request, err)
}

// iterationToChange reads an iteration and its campaign for a verb.
func (c *Campaigns) iterationToChange(ctx context.Context, workspaceID, id uuid.UUID, v iterationVerb) (Iteration, Campaign, error) {
	it, err := c.GetIteration(ctx, workspaceID, id)
	if err != nil {
		return it, Campaign{}, err
	}
	if it.Metric == nil {
		return it, Campaign{}, notAllowed(it, v)
	}
	if err := iterationTable.Check(it.Status, v); err != nil {
		return it, Campaign{}, err
	}
	now, err := c.Get(ctx, workspaceID, it.CampaignID)
	return it, now, err
}

func notAllowed(it Iteration, v iterationVerb) error {
	return &lemma.Error{Kind: lemma.WrongStatus, Status: string(it.Status), Allowed: it.Allowed,
		Message: fmt.Sprintf("an iteration without a metric does not allow %s", v)}
}

// refuseExtension is refuseIteration of an extension.
func refuseExtension(ctx context.Context, tx pgx.Tx, workspaceID, id uuid.UUID) error {
	var n int
	err := tx.QueryRow(ctx, `select extensions from iterations where workspace_id = $1 and id = $2`, workspaceID, id).Scan(&n)
	if err == nil && n >= MaxExtensions {
		return &lemma.Error{Kind: lemma.Conflict, Code: "too_many_extensions",
			Message: fmt.Sprintf("the iteration was extended %d times: decide by select_winner or stop, or await the cut-off", n)}
	}
	return refuseIteration(ctx, tx, workspaceID, id, extend)
}

// refuseIteration returns the error of a verb whose update changed no row.
func refuseIteration(ctx context.Context, tx pgx.Tx, workspaceID, id uuid.UUID, v iterationVerb) error {
	it, err := readIteration(ctx, tx, `i.id = $2`, workspaceID, id)
	if err != nil {
		return err
	}
	if err := iterationTable.Check(it.Status, v); err != nil {
		return err
	}
	message := "the iteration is being evaluated, or its campaign has ended; read it again"
	if v == extend {
		message = "the cut-off of the iteration has passed, or its guardrail is being checked; read it again"
	}
	return &lemma.Error{Kind: lemma.WrongStatus, Status: string(it.Status), Allowed: it.Allowed, Message: message}
}

// iterationDone ends a verb. It returns the iteration, also if the verb failed because an
// earlier attempt of the same request applied it.
func (c *Campaigns) iterationDone(ctx context.Context, it Iteration, id, workspaceID, request uuid.UUID, err error) (Iteration, error) {
	repeated := func(ctx context.Context) (before bool, err error) {
		if it.CampaignID == uuid.Nil {
			return false, nil
		}
		err = c.pool.QueryRow(ctx, `
			select exists (select from campaign_requests where workspace_id = $1 and campaign_id = $2 and id = $3)`,
			workspaceID, it.CampaignID, request).Scan(&before)
		return before, err
	}
	return lifecycle.Once(ctx, err, repeated, func(ctx context.Context) (Iteration, error) { return c.GetIteration(ctx, workspaceID, id) })
}

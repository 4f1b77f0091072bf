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
	"lemma/lifecycle"
)

// IterationStatus is the status of the experiment of a campaign. It only goes forward,
// in the order below, which the trigger iterations_forward enforces.
type IterationStatus string

// The statuses of an iteration.
const (
	IterationDraft        IterationStatus = "draft"        // the campaign has not started
	IterationSampling     IterationStatus = "sampling"     // the notifications of the sample are being written
	IterationRunning      IterationStatus = "running"      // the sample is written; events are counted until the cut-off
	IterationEvaluating   IterationStatus = "evaluating"   // the cut-off has passed, and the variants are being compared
	IterationInconclusive IterationStatus = "inconclusive" // a person must decide; StatusReason is the reason
	IterationDecided      IterationStatus = "decided"      // the winner is recorded
	IterationRollingOut   IterationStatus = "rolling_out"  // the winner is being sent to the rest
	IterationCompleted    IterationStatus = "completed"
	IterationCancelled    IterationStatus = "cancelled" // without a rollout, or before its end
)

// iterationVerb is a decision of a person.
type iterationVerb string

const (
	selectWinner iterationVerb = "select_winner"
	stopTest     iterationVerb = "stop"
	extend       iterationVerb = "extend"
)

var iterationTable = lifecycle.Table[IterationStatus, iterationVerb]{
	Noun: "an iteration",
	From: map[iterationVerb][]IterationStatus{
		selectWinner: {IterationRunning, IterationEvaluating, IterationInconclusive},
		stopTest:     {IterationRunning, IterationEvaluating, IterationInconclusive},
		extend:       {IterationSampling, IterationRunning},
	},
	Public: []iterationVerb{selectWinner, stopTest, extend},
}

// Iteration is the experiment of a campaign: its variants, its status and the decision.
type Iteration struct {
	WorkspaceID  uuid.UUID
	ID           uuid.UUID
	CampaignID   uuid.UUID
	Status       IterationStatus
	StatusReason string
	StatusDetail string
	Experiment
	StartedAt *time.Time
	CutOffAt  *time.Time
	Winner    *int // an index of Variants
	DecidedBy string
	DecidedAt *time.Time
	Verdict   *Verdict
	CreatedAt time.Time
	Allowed   []string

	rolloutID *uuid.UUID
}

// Verdict is what was decided by, as it is stored.
type Verdict struct {
	CutOffAt       time.Time           `json:"cut_off_at"`
	Method         string              `json:"method"`
	Confidence     float64             `json:"confidence"`
	MinSample      int64               `json:"min_sample"`
	Outcome        abtest.Outcome      `json:"outcome"`
	Best           string              `json:"best"`
	Variants       []VariantVerdict    `json:"variants"`
	Comparisons    []abtest.Comparison `json:"comparisons"`
	RatioP         float64             `json:"sample_ratio_p"`
	Excluded       map[string]int64    `json:"excluded"` // conversions that do not count, by reason
	Sentence       string              `json:"sentence"`
	EvaluatedAt    time.Time           `json:"evaluated_at"`
	HoldoutCount   int64               `json:"holdout_recipients"`
	HoldoutConvert int64               `json:"holdout_converted"`
}

// VariantVerdict has the numbers of a variant that the verdict was decided by.
type VariantVerdict struct {
	Name           string          `json:"name"`
	Stopped        string          `json:"stopped"` // why the guardrail stopped it; empty: it competed
	Recipients     int64           `json:"recipients"`
	Sent           int64           `json:"sent"`
	Converted      int64           `json:"converted"`
	Excluded       int64           `json:"excluded"` // opened or clicked by machines only
	Rate           float64         `json:"rate"`
	Interval       abtest.Interval `json:"interval"`
	ChanceToBeBest float64         `json:"chance_to_be_best"`
}

// GetIteration reads one iteration.
func (c *Campaigns) GetIteration(ctx context.Context, workspaceID, id uuid.UUID) (Iteration, error) {
	return readIteration(ctx, c.pool, `i.id = $2`, workspaceID, id)
}

// iterationOf reads the iteration of a campaign; found is false if it has none.
func iterationOf(ctx context.Context, q querier, workspaceID, campaign uuid.UUID) (it Iteration, found bool, err error) {
	it, err = readIteration(ctx, q, `i.campaign_id = $2`, workspaceID, campaign)
	if lemma.KindOf(err) == lemma.NotFound {
		return it, false, nil
	}
	return it, err == nil, err
}

type iterationRow struct {
	ID, CampaignID             uuid.UUID
	Status                     IterationStatus
	StatusReason, StatusDetail string
	SamplePercent              float64
	HoldoutPercent             float64
	Metric                     *MetricType
	Event                      *string
	DataSourceID               *uuid.UUID
	SQL                        *string
	Duration                   *time.Duration
	EvaluateAt                 *time.Time
	MinSample                  int64
	Confidence                 float64
	OnInconclusive             string
	Guardrail                  *string
	GuardrailLimit             *float64
	BaseRate, Effect           float64
	StartedAt, CutOffAt        *time.Time
	Winner                     *int
	DecidedBy                  string
	DecidedAt                  *time.Time
	Verdict                    []byte
	RolloutID                  *uuid.UUID
	CreatedAt                  time.Time
	Variants                   []byte
}

// selectIteration reads iterations of a workspace with their variants, as iterationRow.
const selectIteration = `
	select i.id, i.campaign_id, i.status, coalesce(i.status_reason, ''), coalesce(i.status_detail, ''), i.sample_percent, i.holdout_percent,
		i.metric, i.event_name, i.data_source_id, i.sql, i.duration, i.evaluate_at, i.min_sample, i.confidence, i.on_inconclusive,
		i.guardrail, i.guardrail_limit, i.base_rate, i.effect,
		i.started_at, i.cut_off_at, i.winner::int, coalesce(i.decided_by, ''), i.decided_at, i.verdict, i.rollout_id, i.created_at,
		(select json_agg(json_build_object('Name', v.name, 'Weight', v.weight, 'TemplateID', v.template_id,
			'TemplateVersion', coalesce(v.template_version, 0), 'Subject', coalesce(v.subject, ''), 'Preheader', coalesce(v.preheader, ''),
			'FromName', coalesce(v.from_name, ''), 'SendOffset', (extract(epoch from v.send_offset) * 1000000000)::bigint,
			'StoppedAt', v.stopped_at, 'StoppedReason', coalesce(v.stopped_reason, ''), 'ContentID', v.content_id) order by v.ordinal)
		from iteration_variants v where v.workspace_id = i.workspace_id and v.iteration_id = i.id)
	from iterations i where i.workspace_id = $1 and `

// readIteration reads one iteration by one statement.
func readIteration(ctx context.Context, q querier, where string, workspaceID, id uuid.UUID) (Iteration, error) {
	rows, _ := q.Query(ctx, selectIteration+where, workspaceID, id)
	row, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[iterationRow])
	if errors.Is(err, pgx.ErrNoRows) {
		return Iteration{}, lemma.Missing("iteration")
	}
	if err != nil {
		return Iteration{}, fmt.Errorf("get iteration: %w", err)
	}
	return row.iteration(workspaceID)
}

func (r iterationRow) iteration(workspaceID uuid.UUID) (Iteration, error) {
	it := Iteration{WorkspaceID: workspaceID, ID: r.ID, CampaignID: r.CampaignID, Status: r.Status, StatusReason: r.StatusReason,
		StatusDetail: r.StatusDetail, StartedAt: r.StartedAt, CutOffAt: r.CutOffAt, Winner: r.Winner, DecidedBy: r.DecidedBy,
		DecidedAt: r.DecidedAt, CreatedAt: r.CreatedAt, rolloutID: r.RolloutID, Experiment: Experiment{SamplePercent: r.SamplePercent,
			HoldoutPercent: r.HoldoutPercent, EvaluateAt: r.EvaluateAt, MinSample: r.MinSample, Confidence: r.Confidence,
			OnInconclusive: r.OnInconclusive, BaseRate: r.BaseRate, Effect: r.Effect}}
	lemma.Set(&it.Duration, r.Duration)
	if r.Guardrail != nil {
		it.Guardrail = &Guardrail{Metric: *r.Guardrail, Limit: *r.GuardrailLimit}
	}
	if r.Metric != nil {
		it.Metric = &Metric{Type: *r.Metric}
	}
	switch {
	case r.Event != nil:
		it.Metric.Event = *r.Event
	case r.SQL != nil:
		it.Metric.DataSourceID, it.Metric.SQL = *r.DataSourceID, *r.SQL
	}
	if it.Metric != nil { // a split has nothing to decide
		it.Allowed = iterationTable.Allowed(it.Status)
	} else {
		it.Allowed = []string{}
	}
	var variants []struct {
		Variant
		ContentID uuid.UUID
	}
	if err := json.Unmarshal(r.Variants, &variants); err != nil {
		return it, fmt.Errorf("read variants: %w", err)
	}
	for _, v := range variants {
		v.contentID = v.ContentID
		it.Variants = append(it.Variants, v.Variant)
	}
	if r.Verdict != nil {
		if err := json.Unmarshal(r.Verdict, &it.Verdict); err != nil {
			return it, fmt.Errorf("read verdict: %w", err)
		}
	}
	return it, nil
}

// logIteration appends an event to the timeline of an iteration.
func logIteration(ctx context.Context, tx pgx.Tx, workspaceID, id uuid.UUID, event, detail string) error {
	_, err := tx.Exec(ctx, `
		insert into iteration_log (workspace_id, iteration_id, id, event, detail) values ($1, $2, $3, $4, $5)`,
		workspaceID, id, lemma.NewID(), event, detail)
	return lemma.Wrap(err, "log iteration %s", id)
}

// startIteration begins the experiment of a campaign that starts, and fixes its cut-off.
func startIteration(ctx context.Context, tx pgx.Tx, workspaceID, campaign uuid.UUID) error {
	return changeIteration(ctx, tx, workspaceID, campaign, "started", "", `
		update iterations set status = 'sampling', started_at = now(), measure_at = now(),
			cut_off_at = coalesce(evaluate_at, now() + duration),
			guardrail_at = case when guardrail is not null then now() + (coalesce(evaluate_at, now() + duration) - now()) / 10 end
		where workspace_id = $1 and campaign_id = $2 and status = 'draft' returning id`)
}

// changeIteration changes the iteration of a campaign by a statement that returns its
// id, and logs it. A campaign without one stays as it is.
func changeIteration(ctx context.Context, tx pgx.Tx, workspaceID, campaign uuid.UUID, event, detail, sql string, args ...any) error {
	_, err := changedIteration(ctx, tx, workspaceID, campaign, event, detail, sql, args...)
	return err
}

// changedIteration is changeIteration, and returns the iteration; uuid.Nil if none has changed.
func changedIteration(ctx context.Context, tx pgx.Tx, workspaceID, campaign uuid.UUID, event, detail, sql string, args ...any) (
	id uuid.UUID, err error) {
	err = tx.QueryRow(ctx, sql, append([]any{workspaceID, campaign}, args...)...).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return uuid.Nil, nil
	}
	if err != nil {
		return uuid.Nil, fmt.Errorf("change iteration of %s: %w", campaign, err)
	}
	return id, logIteration(ctx, tx, workspaceID, id, event, detail)
}

// eventSampled is logged when the sample is written.
const eventSampled = "sampled"

// sampled moves an iteration to running when its sample is written. If its cut-off was not
// after its start, there is nothing to compare, and a person decides.
func sampled(ctx context.Context, tx pgx.Tx, workspaceID, campaign uuid.UUID) error {
	err := changeIteration(ctx, tx, workspaceID, campaign, eventSampled, "", `
		update iterations set status = 'running' where workspace_id = $1 and campaign_id = $2 and status = 'sampling' returning id`)
	if err != nil {
		return err
	}
	const reason, detail = "cut_off_passed", "the campaign started after evaluate_at, so nothing was measured"
	id, err := changedIteration(ctx, tx, workspaceID, campaign, "held", detail, `
		update iterations set status = 'inconclusive', status_reason = $3, status_detail = $4
		where workspace_id = $1 and campaign_id = $2 and status = 'running' and cut_off_at <= started_at returning id`, reason, detail)
	if err != nil || id == uuid.Nil {
		return err
	}
	return recordInconclusive(ctx, tx, workspaceID, id, campaign, reason, detail)
}

// cancelIteration ends the experiment of a campaign that is cancelled or fails. An
// evaluation that runs loses its claim.
func cancelIteration(ctx context.Context, tx pgx.Tx, workspaceID, campaign uuid.UUID, reason string) error {
	err := changeIteration(ctx, tx, workspaceID, campaign, "cancelled", reason, `
		update iterations set status = 'cancelled', status_reason = $3, status_detail = null, evaluating_by = null, evaluating_until = null
		where workspace_id = $1 and campaign_id = $2 and status not in ('completed', 'cancelled') returning id`, reason)
	if err != nil {
		return err
	}
	return forgetMembers(ctx, tx, workspaceID, campaign)
}

// completeIteration ends the experiment of a campaign that has completed.
func completeIteration(ctx context.Context, tx pgx.Tx, workspaceID, campaign uuid.UUID) error {
	err := changeIteration(ctx, tx, workspaceID, campaign, "completed", "", `
		update iterations set status = 'completed'
		where workspace_id = $1 and campaign_id = $2 and status in ('sampling', 'running', 'decided', 'rolling_out') returning id`)
	if err != nil {
		return err
	}
	return forgetMembers(ctx, tx, workspaceID, campaign)
}

// forgetMembers deletes the hashes of the recipients: nothing is measured or written any more.
func forgetMembers(ctx context.Context, tx pgx.Tx, workspaceID, campaign uuid.UUID) error {
	_, err := tx.Exec(ctx, `delete from iteration_members where workspace_id = $1 and origin_id = $2`, workspaceID, campaign)
	return lemma.Wrap(err, "forget members of %s", campaign)
}

// undecided is true of a campaign c whose experiment has no winner yet: it is not
// completed, though its audience was read.
const undecided = `exists (select from iterations i where i.workspace_id = c.workspace_id and i.campaign_id = c.id
	and i.metric is not null and i.status in ('sampling', 'running', 'evaluating', 'inconclusive', 'decided'))`

// IterationEvent is an entry of the timeline of an iteration.
type IterationEvent struct {
	At     time.Time
	Event  string
	Detail string
}

// Timeline lists what happened to an iteration.
func (c *Campaigns) Timeline(ctx context.Context, workspaceID, id uuid.UUID) ([]IterationEvent, error) {
	rows, _ := c.pool.Query(ctx, `
		select at, event, detail from iteration_log where workspace_id = $1 and iteration_id = $2 order by id`, workspaceID, id)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[IterationEvent])
	return all, lemma.Wrap(err, "read timeline of iteration %s", id)
}

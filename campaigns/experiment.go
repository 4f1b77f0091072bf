package campaigns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/abtest"
	"lemma/audience"
	"lemma/message"
)

// Experiment compares variants of a campaign. With a metric, a sample gets the variants
// and the rest gets the winner. Without one, it is a split.
type Experiment struct {
	Variants       []Variant // the first is the control
	SamplePercent  float64
	HoldoutPercent float64 // profiles that get nothing
	Metric         *Metric
	Duration       time.Duration // from the start to the cut-off, or
	EvaluateAt     *time.Time    // the cut-off
	MinSample      int64         // notifications that each variant must have sent
	Confidence     float64       // 0: 0.95
	OnInconclusive string        // best, control or hold; empty: hold
	Guardrail      *Guardrail    // nil: none
	BaseRate       float64       // with Effect, what it is planned to find: for warnings. 0: 0.05
	Effect         float64       // absolute; 0: 0.01
}

// Variant replaces parts of the campaign's message.
type Variant struct {
	Name            string
	Weight          int        // in percent
	TemplateID      *uuid.UUID // nil: the campaign's template
	TemplateVersion int        // 0: the newest
	Subject         string
	Preheader       string
	FromName        string
	SendOffset      time.Duration // how much later its messages are sent

	StoppedAt     *time.Time // when the guardrail stopped it; nil: it competes
	StoppedReason string

	contentID uuid.UUID
}

// The policies without a significant difference.
const (
	RollOutBest    = "best"    // the variant with the highest rate
	RollOutControl = "control" // the first variant
	Hold           = "hold"    // nothing, until a person decides
)

// Limits of experiments.
const (
	MaxVariants = 8
	MinDuration = 10 * time.Second
	MaxDuration = 28 * 24 * time.Hour // events are kept longer
	MaxOffset   = 7 * 24 * time.Hour

	MaxExtensions = 100 // each is an entry of the timeline
)

// prepareExperiment completes an experiment and finds its faults. n is the campaign.
func (c *Campaigns) prepareExperiment(ctx context.Context, n Campaign, e *Experiment) error {
	if e == nil {
		return nil
	}
	e.Variants, e.Metric = slices.Clone(e.Variants), e.Metric.typed()
	now, err := c.now(ctx)
	if err != nil {
		return err
	}
	if faults := e.faults(n.Channel, now); len(faults) > 0 {
		return &lemma.Error{Kind: lemma.Invalid, Message: "the request is not valid", Fields: faults}
	}
	if e.Confidence == 0 {
		e.Confidence = 0.95
	}
	if e.BaseRate == 0 {
		e.BaseRate = defaultBaseRate
	}
	if e.Effect == 0 {
		e.Effect = defaultEffect
	}
	if e.OnInconclusive == "" {
		e.OnInconclusive = Hold
	}
	for i := range e.Variants {
		v := &e.Variants[i]
		v.contentID = lemma.NewID()
		if v.TemplateID != nil {
			channel, version, err := c.templateVersion(ctx, n.WorkspaceID, *v.TemplateID, v.TemplateVersion)
			if err == nil && channel != n.Channel {
				err = lemma.Fault("/template_id", "wrong_channel", "must be a template for %s, the channel of the campaign", n.Channel)
			}
			if err != nil {
				return under(variantPointer(i), err)
			}
			v.TemplateVersion = version
		}
		if _, err := c.variantContent(ctx, n, *v); err != nil {
			return under(variantPointer(i), err)
		}
	}
	return c.checkSQL(ctx, n.WorkspaceID, e.Metric)
}

func variantPointer(i int) string { return fmt.Sprintf("/experiment/variants/%d", i) }

// under puts the pointers of an error below another.
func under(pointer string, err error) error {
	var e *lemma.Error
	if !errors.As(err, &e) {
		return err
	}
	moved := *e
	moved.Fields = slices.Clone(e.Fields)
	for i := range moved.Fields {
		moved.Fields[i].Pointer = pointer + moved.Fields[i].Pointer
	}
	return &moved
}

// faults finds all faults that need no other row.
func (e *Experiment) faults(channel lemma.Channel, now time.Time) (faults []lemma.Field) {
	add := func(pointer, code, detail string, args ...any) {
		faults = append(faults, lemma.Field{Pointer: "/experiment" + pointer, Code: code, Detail: fmt.Sprintf(detail, args...)})
	}
	sum, names := 0, map[string]bool{}
	for i, v := range e.Variants {
		at := fmt.Sprintf("/variants/%d", i)
		sum += v.Weight
		if names[v.Name] {
			add(at+"/name", "duplicate", "must be different from the names of the other variants")
		}
		names[v.Name] = true
		if channel != lemma.Email && v.FromName != "" {
			add(at+"/from_name", "wrong_channel", "must not be given for %s, the channel of the template", channel)
		}
		if strings.ContainsAny(v.FromName, "\r\n\x00") {
			add(at+"/from_name", "single_line", "must be one line")
		}
		if v.SendOffset < 0 || v.SendOffset > MaxOffset {
			add(at+"/send_offset", "out_of_range", "must be between PT0S and P7D")
		} else if e.Metric != nil && v.SendOffset != e.Variants[0].SendOffset {
			add(at+"/send_offset", "not_allowed", "must be that of the first variant, since the metric compares all at one moment: "+
				"a later one would have less time")
		}
		if v.TemplateID == nil && v.TemplateVersion != 0 {
			add(at+"/template_version", "not_allowed", "must not be given without template_id")
		}
	}
	if len(e.Variants) < 2 || len(e.Variants) > MaxVariants {
		add("/variants", "out_of_range", "must be 2 to %d variants", MaxVariants)
	} else if sum != 100 {
		add("/variants", "invalid_weight", "the weights must add up to 100; they add up to %d", sum)
	}
	e.metricFaults(channel, add)
	e.Guardrail.faults(e.Metric, add)
	if e.EvaluateAt != nil && !e.EvaluateAt.After(now) {
		add("/evaluate_at", "in_the_past", "must be in the future")
	}
	base, effect := cmp.Or(e.BaseRate, defaultBaseRate), cmp.Or(e.Effect, defaultEffect)
	if rate := base + effect; base <= 0 || base >= 1 || rate <= 0 || rate >= 1 {
		add("/effect", "invalid", "base_rate and base_rate + effect must be between 0 and 1; they are %.4g and %.4g", base, rate)
	}
	return faults
}

func (e *Experiment) metricFaults(channel lemma.Channel, add func(pointer, code, detail string, args ...any)) {
	timed := e.Duration != 0 || e.EvaluateAt != nil
	switch {
	case e.Metric == nil && timed:
		add("/metric", "required", "must be given with a duration or evaluate_at")
	case e.Metric == nil && e.SamplePercent != 100:
		add("/sample_percent", "invalid", "must be 100 without a metric: a split has no winner for the rest")
	case e.Metric != nil && !timed:
		add("/duration", "required", "must be given, or evaluate_at")
	case e.Duration != 0 && e.EvaluateAt != nil:
		add("/evaluate_at", "not_allowed", "must not be given with a duration")
	case e.Duration != 0 && (e.Duration < MinDuration || e.Duration > MaxDuration):
		add("/duration", "out_of_range", "must be between %s and %s", "PT10S", "P28D")
	}
	e.Metric.faults(channel, add)
}

// variantContent is the compiled content of a variant, with the headers of the campaign.
func (c *Campaigns) variantContent(ctx context.Context, now Campaign, v Variant) (*message.Compiled, error) {
	template, version := now.TemplateID, now.TemplateVersion
	if v.TemplateID != nil {
		template, version = *v.TemplateID, v.TemplateVersion
	}
	compiled, err := c.templates.Compiled(ctx, now.WorkspaceID, template, version)
	if err != nil {
		return nil, err
	}
	if compiled, err = compiled.Replaced(message.Replacement{Subject: v.Subject, Preheader: v.Preheader}); err != nil {
		return nil, err
	}
	return compiled.WithHeaders(message.SentHeaders(now.Channel, now.Transactional, now.Headers))
}

// variantContents are the contents of all variants. The audience must have the columns
// that they use.
func (c *Campaigns) variantContents(ctx context.Context, now Campaign, e Experiment, aud audience.Audience) ([]*message.Compiled, error) {
	all := make([]*message.Compiled, len(e.Variants))
	for i, v := range e.Variants {
		content, err := c.variantContent(ctx, now, v)
		if err == nil {
			err = c.checkPublicURL(now, content)
		}
		if err == nil {
			err = known(aud, "", "the variant uses", content.Variables())
		}
		if err != nil {
			return nil, under(variantPointer(i), err)
		}
		all[i] = content
	}
	return all, nil
}

// sentContents are the contents of all variants of an experiment that is sent, which track what its metric counts.
func (c *Campaigns) sentContents(ctx context.Context, now Campaign, e Experiment, aud audience.Audience) ([]*message.Compiled, error) {
	all, err := c.variantContents(ctx, now, e, aud)
	if err == nil {
		err = c.checkTracked(now, e, all)
	}
	return all, err
}

// columnsOf are the columns that any of the contents uses, sorted.
func columnsOf(contents ...*message.Compiled) []string {
	var all []string
	for _, one := range contents {
		all = append(all, one.Variables()...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// saveExperiment replaces the experiment of a draft; nil: it has none.
func saveExperiment(ctx context.Context, tx pgx.Tx, workspaceID, campaign uuid.UUID, e *Experiment) error {
	_, err := tx.Exec(ctx, `delete from iterations where workspace_id = $1 and campaign_id = $2 and status = 'draft'`, workspaceID, campaign)
	if err != nil || e == nil {
		return err
	}
	id := lemma.NewID()
	var kind *MetricType
	var event, sql, guardrail *string
	var limit *float64
	var source *uuid.UUID
	if m := e.Metric; m != nil {
		kind = &m.Type
		switch m.Type {
		case EventMetric:
			event = &m.Event
		case SQLMetric:
			source, sql = &m.DataSourceID, &m.SQL
		}
	}
	if g := e.Guardrail; g != nil {
		guardrail, limit = &g.Metric, &g.Limit
	}
	_, err = tx.Exec(ctx, `
		insert into iterations (workspace_id, id, campaign_id, sample_percent, holdout_percent, metric, event_name, data_source_id, sql,
			duration, evaluate_at, min_sample, confidence, on_inconclusive, guardrail, guardrail_limit, base_rate, effect)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, nullif($10, '0'::interval), $11, $12, $13, $14, $15, $16, $17, $18)`,
		workspaceID, id, campaign, e.SamplePercent, e.HoldoutPercent, kind, event, source, sql,
		e.Duration, e.EvaluateAt, e.MinSample, e.Confidence, e.OnInconclusive, guardrail, limit,
		e.BaseRate, e.Effect)
	if err != nil {
		return err
	}
	for i, v := range e.Variants {
		_, err = tx.Exec(ctx, `
			insert into iteration_variants (workspace_id, iteration_id, ordinal, name, weight, template_id, template_version, subject,
				preheader, from_name, send_offset, content_id)
			values ($1, $2, $3, $4, $5, $6, nullif($7, 0), nullif($8, ''), nullif($9, ''), nullif($10, ''), $11, $12)`,
			workspaceID, id, i, v.Name, v.Weight, v.TemplateID, v.TemplateVersion, v.Subject, v.Preheader, v.FromName, v.SendOffset, v.contentID)
		if err != nil {
			return err
		}
	}
	return nil
}

// assignmentPlan is the plan by which the profiles of an experiment are assigned.
func assignmentPlan(id uuid.UUID, e Experiment) abtest.Plan {
	weights := make([]int, len(e.Variants))
	for i, v := range e.Variants {
		weights[i] = v.Weight
	}
	return abtest.NewPlan(lemma.FormatID(lemma.PrefixIteration, id), weights, e.SamplePercent, e.HoldoutPercent)
}

// names of the variants.
func (e Experiment) names() []string {
	all := make([]string, len(e.Variants))
	for i, v := range e.Variants {
		all[i] = v.Name
	}
	return all
}

// contents are the ids of the variants' contents.
func (e Experiment) contents() []uuid.UUID {
	all := make([]uuid.UUID, len(e.Variants))
	for i, v := range e.Variants {
		all[i] = v.contentID
	}
	return all
}

// indexOf is the index of a variant by its name, or -1.
func (e Experiment) indexOf(name string) int {
	return slices.IndexFunc(e.Variants, func(v Variant) bool { return v.Name == name })
}

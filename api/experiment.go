package api

import (
	"fmt"
	"time"

	"lemma"
	"lemma/api/strict"
	"lemma/campaigns"
	"lemma/flows/graph"
)

type experimentBody struct {
	Variants       []variantBody `json:"variants"`
	SamplePercent  *float64      `json:"sample_percent"`
	HoldoutPercent float64       `json:"holdout_percent"`
	Metric         *metricBody   `json:"metric"`
	Duration       *string       `json:"duration"`
	EvaluateAt     *time.Time    `json:"evaluate_at"`
	MinSample      int64         `json:"min_sample"`
	Confidence     *float64      `json:"confidence"`
	OnInconclusive string        `json:"on_inconclusive"`
	Guardrail      *guardrail    `json:"guardrail"`
	BaseRate       *float64      `json:"base_rate"`
	Effect         *float64      `json:"effect"`
}

type guardrail struct {
	Metric string  `json:"metric"`
	Limit  float64 `json:"limit"`
}

type variantBody struct {
	Name            string  `json:"name"`
	Weight          int     `json:"weight"`
	TemplateID      *string `json:"template_id"`
	TemplateVersion *int    `json:"template_version"`
	Subject         *string `json:"subject"`
	Preheader       *string `json:"preheader"`
	FromName        *string `json:"from_name"`
	SendOffset      *string `json:"send_offset"`
}

type metricBody struct {
	Type         *string `json:"type"`
	Event        *string `json:"event"`
	DataSourceID *string `json:"data_source_id"`
	SQL          *string `json:"sql"`
}

// experiment reads the experiment of a campaign; nil: none.
func (in *experimentBody) experiment() (*campaigns.Experiment, error) {
	if in == nil {
		return nil, nil
	}
	e := &campaigns.Experiment{SamplePercent: 100, HoldoutPercent: in.HoldoutPercent, EvaluateAt: in.EvaluateAt, MinSample: in.MinSample,
		OnInconclusive: in.OnInconclusive, Confidence: orZero(in.Confidence), BaseRate: orZero(in.BaseRate), Effect: orZero(in.Effect)}
	var faults []lemma.Field
	lemma.Set(&e.SamplePercent, in.SamplePercent)
	if in.Guardrail != nil {
		e.Guardrail = &campaigns.Guardrail{Metric: in.Guardrail.Metric, Limit: in.Guardrail.Limit}
	}
	e.Duration = readDuration("/experiment/duration", in.Duration, &faults)
	e.Metric = in.Metric.metric(&faults)
	for i, v := range in.Variants {
		e.Variants = append(e.Variants, v.variant(fmt.Sprintf("/experiment/variants/%d", i), &faults))
	}
	return e, strict.Invalid(faults)
}

func (v variantBody) variant(at string, faults *[]lemma.Field) campaigns.Variant {
	one := campaigns.Variant{Name: v.Name, Weight: v.Weight, Subject: orZero(v.Subject), Preheader: orZero(v.Preheader),
		FromName: orZero(v.FromName), TemplateVersion: orZero(v.TemplateVersion),
		SendOffset: readDuration(at+"/send_offset", v.SendOffset, faults)}
	if v.TemplateID != nil {
		id, ok := lemma.ParseID(lemma.PrefixTemplate, *v.TemplateID)
		if !ok {
			*faults = append(*faults, unknownID(at+"/template_id", "template").Fields...)
		}
		one.TemplateID = &id
	}
	return one
}

func (m *metricBody) metric(faults *[]lemma.Field) *campaigns.Metric {
	if m == nil {
		return nil
	}
	one := &campaigns.Metric{Type: campaigns.MetricType(orZero(m.Type)), Event: orZero(m.Event), SQL: orZero(m.SQL)}
	switch {
	case one.SQL == "" && m.DataSourceID == nil:
	case one.SQL == "":
		*faults = append(*faults, lemma.Field{Pointer: "/experiment/metric/sql", Code: "required", Detail: "must be given with data_source_id"})
	case m.DataSourceID == nil:
		*faults = append(*faults, lemma.Field{Pointer: "/experiment/metric/data_source_id", Code: "required", Detail: "must be given with sql"})
	default:
		id, ok := lemma.ParseID(lemma.PrefixDataSource, *m.DataSourceID)
		if !ok {
			*faults = append(*faults, unknownID("/experiment/metric/data_source_id", "data source").Fields...)
		}
		one.DataSourceID = id
	}
	return one
}

func readDuration(pointer string, text *string, faults *[]lemma.Field) time.Duration {
	if text == nil {
		return 0
	}
	d, err := graph.ParseDuration(*text)
	if err != nil {
		*faults = append(*faults, lemma.Field{Pointer: pointer, Code: "bad_format", Detail: err.Error()})
	}
	return d
}

// showExperiment shows an experiment with all its fields.
func showExperiment(e campaigns.Experiment) experimentBody {
	b := experimentBody{SamplePercent: &e.SamplePercent, HoldoutPercent: e.HoldoutPercent, EvaluateAt: utc(e.EvaluateAt),
		MinSample: e.MinSample, Confidence: &e.Confidence, OnInconclusive: e.OnInconclusive, BaseRate: &e.BaseRate, Effect: &e.Effect,
		Variants: []variantBody{}}
	if e.Guardrail != nil {
		b.Guardrail = &guardrail{e.Guardrail.Metric, e.Guardrail.Limit}
	}
	if e.Duration != 0 {
		b.Duration = iso(e.Duration)
	}
	if m := e.Metric; m != nil {
		b.Metric = &metricBody{Type: orNull(string(m.Type)), Event: orNull(m.Event), SQL: orNull(m.SQL)}
		if m.SQL != "" {
			b.Metric.DataSourceID = idOrNull(lemma.PrefixDataSource, &m.DataSourceID)
		}
	}
	for _, v := range e.Variants {
		one := variantBody{Name: v.Name, Weight: v.Weight, TemplateID: idOrNull(lemma.PrefixTemplate, v.TemplateID), Subject: orNull(v.Subject),
			Preheader: orNull(v.Preheader), FromName: orNull(v.FromName), SendOffset: iso(v.SendOffset)}
		if v.TemplateID != nil {
			one.TemplateVersion = &v.TemplateVersion
		}
		b.Variants = append(b.Variants, one)
	}
	return b
}

// iso writes a duration in days if it is some, otherwise in seconds (ISO 8601).
func iso(d time.Duration) *string {
	const day = 24 * time.Hour
	if d >= day && d%day == 0 {
		return new(fmt.Sprintf("P%dD", int64(d/day)))
	}
	text := fmt.Sprintf("PT%dS", int64(d/time.Second))
	return &text
}

package api

import (
	"context"
	"math"
	"strconv"

	"lemma"
	"lemma/abtest"
	"lemma/client"
)

type powerRequest struct {
	BaseRate   float64  `json:"base_rate"`
	Effect     float64  `json:"effect"`
	Variants   int      `json:"variants"`
	Confidence *float64 `json:"confidence"`
	Power      *float64 `json:"power"`
	Recipients *int64   `json:"recipients_per_variant"`
}

// computePower answers how many recipients an experiment needs.
func (s *server) computePower(_ context.Context, _ *call, in powerRequest) (client.Power, error) {
	d, err := in.design()
	if err != nil {
		return client.Power{}, err
	}
	b := client.Power{Required: d.RequiredSample()}
	b.RequiredTotal = b.Required * int64(d.Variants)
	if in.Recipients == nil {
		return b, nil
	}
	power, effect := d.PowerOf(*in.Recipients), d.SmallestEffect(*in.Recipients)
	b.Power, b.Warning = &power, orNull(d.Warning(*in.Recipients))
	if !math.IsNaN(effect) {
		b.SmallestEffect = &effect
	}
	return b, nil
}

func (in powerRequest) design() (abtest.Design, error) {
	d := abtest.Design{BaseRate: in.BaseRate, Effect: in.Effect, Variants: in.Variants, Confidence: 0.95, Power: 0.8}
	if in.Variants == 0 {
		d.Variants = 2
	}
	lemma.Set(&d.Confidence, in.Confidence)
	lemma.Set(&d.Power, in.Power)
	if rate := d.BaseRate + d.Effect; rate <= 0 || rate >= 1 || math.Abs(d.Effect) < leastEffect {
		return d, lemma.Fault("/effect", "invalid", "must not be between -%[1]s and %[1]s, and base_rate + effect must be between 0 and 1",
			strconv.FormatFloat(leastEffect, 'f', -1, 64))
	}
	return d, nil
}

// leastEffect bounds required samples to numbers that are written exactly.
const leastEffect = 1e-6

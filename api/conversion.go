package api

import (
	"lemma"
	"lemma/campaigns"
)

// conversionBody is an event that is counted if it occurs within a time after a message.
type conversionBody struct {
	Event  string  `json:"event"`
	Within *string `json:"within"`
}

func (in *conversionBody) conversion() (campaigns.Conversion, error) {
	if in == nil {
		return campaigns.Conversion{}, nil
	}
	var faults []lemma.Field
	if in.Within == nil {
		faults = append(faults, lemma.Field{Pointer: "/conversion/within", Code: "required", Detail: "must be given"})
	}
	c := campaigns.Conversion{ConversionEvent: in.Event, ConversionWithin: readDuration("/conversion/within", in.Within, &faults)}
	if len(faults) > 0 {
		return c, &lemma.Error{Kind: lemma.Invalid, Message: "the request is not valid", Fields: faults}
	}
	return c, nil
}

func showConversion(c campaigns.Conversion) *conversionBody {
	if c == (campaigns.Conversion{}) {
		return nil
	}
	return &conversionBody{c.ConversionEvent, iso(c.ConversionWithin)}
}

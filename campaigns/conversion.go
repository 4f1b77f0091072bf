package campaigns

import (
	"time"
	"unicode/utf8"

	"lemma"
)

// Conversion is what recipients are to do after a message: an event of their profile that
// occurs within a time after it was sent. Zero: none.
type Conversion struct {
	ConversionEvent  string
	ConversionWithin time.Duration
}

func (c Conversion) checkConversion() error {
	switch {
	case c == Conversion{}:
		return nil
	case c.ConversionEvent == "":
		return lemma.Fault("/conversion/event", "required", "must be the name of an event")
	case utf8.RuneCountInString(c.ConversionEvent) > lemma.MaxEventName:
		return lemma.Fault("/conversion/event", "too_long", "must have at most %d characters", lemma.MaxEventName)
	case c.ConversionWithin < time.Second || c.ConversionWithin > lemma.MaxConversion:
		return lemma.Fault("/conversion/within", "out_of_range", "must be between PT1S and P90D")
	}
	return nil
}

package api

import (
	"time"

	"lemma"
)

// instant reads the start of a campaign: a time with an offset, or a local time with a
// zone.
func (in schedule) instant() (time.Time, error) {
	at, err := in.parse()
	if err == nil && !representable(at) {
		err = lemma.Fault("/at", "bad_format", "must be before the year 9999")
	}
	return at, err
}

func (in schedule) parse() (time.Time, error) {
	at, err := parseTime(in.At)
	switch {
	case err == nil && in.Timezone != "":
		return at, lemma.Fault("/timezone", "not_allowed", "at has an offset already; leave one of the two out")
	case err == nil:
		return at, nil
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04"} {
		local, err := time.Parse(layout, in.At)
		if err == nil {
			return in.inZone(local)
		}
	}
	return at, lemma.Fault("/at", "bad_format",
		"must be a time such as 2126-12-24T09:00:00Z (RFC 3339), or a local time together with timezone")
}

func (in schedule) inZone(local time.Time) (time.Time, error) {
	if in.Timezone == "" {
		return local, lemma.Fault("/timezone", "required", "a time without an offset needs a timezone")
	}
	zone, err := lemma.Zone(in.Timezone)
	if err != nil {
		return local, lemma.Fault("/timezone", "invalid_zone", "%s", rules["zone"].Detail)
	}
	return lemma.Instant(local, zone).UTC(), nil
}

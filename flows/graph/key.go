package graph

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"lemma"
)

// Recurrence policies.
const (
	Once     = "once"
	Daily    = "daily"
	Weekly   = "weekly"
	Monthly  = "monthly"
	PerEvent = "per_event"
	Fields   = "fields"
)

// Occurrence is one time that a trigger fires for a profile.
type Occurrence struct {
	ProfileKey string
	Event      uuid.UUID // key of the event
	At         time.Time // the event's own time
	Properties map[string]any
}

// Key is the uniqueness key of the enrollment that an occurrence requests: occurrences
// that the recurrence policy treats as one have the same key. It depends on the
// occurrence's own time, so that recording it later changes nothing.
func (g *Graph) Key(o Occurrence) (uuid.UUID, error) {
	r := g.def.Recurrence
	parts := []string{string(g.flow.FlowID[:]), r.Policy, o.ProfileKey}
	local := o.At.In(g.zone)
	switch r.Policy {
	case Daily:
		parts = append(parts, local.Format(time.DateOnly))
	case Weekly:
		year, week := local.ISOWeek()
		parts = append(parts, fmt.Sprintf("%04d-W%02d", year, week))
	case Monthly:
		parts = append(parts, local.Format("2006-01"))
	case PerEvent:
		parts = append(parts, string(o.Event[:]))
	case Fields:
		for _, name := range slices.Sorted(slices.Values(r.Fields)) { // independent of their order in the document
			value := o.Properties[name]
			if value == nil {
				return uuid.Nil, missingField(name)
			}
			parts = append(parts, name, string(appendCanonical(nil, value)))
		}
	}
	if zone := r.zone(); zone != "UTC" { // a day in one zone is not that day in another
		parts = append(parts, zone)
	}
	return lemma.Key("enrollment/1", parts...), nil
}

// Same reports whether two recurrences treat the same occurrences as one, and give them
// the same keys.
func (r Recurrence) Same(other Recurrence) bool {
	fields := func(r Recurrence) []string { return slices.Sorted(slices.Values(r.Fields)) }
	return r.Policy == other.Policy && r.zone() == other.zone() && slices.Equal(fields(r), fields(other))
}

// zone is the zone of the days of daily, weekly and monthly.
func (r Recurrence) zone() string { return cmp.Or(r.Zone, "UTC") }

func missingField(name string) error {
	return &lemma.Error{
		Kind: lemma.Invalid, Code: "missing_field", Message: "the recurrence of the flow needs a property that is not there",
		Fields: []lemma.Field{{Pointer: at("/properties", name), Code: "missing_field", Detail: "there is no property " + name}},
	}
}

// appendCanonical writes a value so that equal values are equal bytes: names sorted, and
// numbers by value instead of spelling. Only json.Number keeps numbers exactly: as
// float64, two ids beyond 2^53 could be equal, and the second profile would not be
// enrolled.
func appendCanonical(dst []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...)
	case bool:
		return strconv.AppendBool(dst, v)
	case string:
		return appendText(dst, v)
	case json.Number:
		return append(dst, canonicalNumber(v.String())...)
	case float64:
		return append(dst, canonicalNumber(strconv.FormatFloat(v, 'e', -1, 64))...)
	case int:
		return append(dst, canonicalNumber(strconv.Itoa(v))...)
	case int64:
		return append(dst, canonicalNumber(strconv.FormatInt(v, 10))...)
	case []any:
		dst = append(dst, '[')
		for i, item := range v {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendCanonical(dst, item)
		}
		return append(dst, ']')
	case map[string]any:
		return appendObject(dst, v)
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("graph: a property is a %T", v))
	}
	return append(dst, text...)
}

func appendObject(dst []byte, object map[string]any) []byte {
	dst = append(dst, '{')
	for i, name := range sorted(object) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendText(dst, name), ':')
		dst = appendCanonical(dst, object[name])
	}
	return append(dst, '}')
}

func appendText(dst []byte, s string) []byte {
	text, _ := json.Marshal(s) // a string always marshals
	return append(dst, text...)
}

// canonicalNumber writes a JSON number as its digits and a power of ten: 1.50
// and 15e-1 are both 15e-1, and 0, -0 and 0.00 are 0.
func canonicalNumber(s string) string {
	mantissa, power, _ := strings.Cut(strings.ToLower(s), "e")
	exponent := new(big.Int)
	if power != "" {
		exponent.SetString(strings.TrimPrefix(power, "+"), 10)
	}
	digits, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(digits, ".")
	exponent.Sub(exponent, big.NewInt(int64(len(fraction))))
	digits = strings.TrimLeft(whole+fraction, "0")
	short := strings.TrimRight(digits, "0")
	if short == "" {
		return "0"
	}
	exponent.Add(exponent, big.NewInt(int64(len(digits)-len(short))))
	if negative {
		short = "-" + short
	}
	return short + "e" + exponent.String()
}

func itoa(i int) string { return strconv.Itoa(i) }

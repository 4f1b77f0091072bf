package graph

import (
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"lemma"
)

// zoned are CEL's functions that take a time zone, by name, with those overloads.
var zoned = map[string]string{
	overloads.TimeGetFullYear:     overloads.TimestampToYearWithTz,
	overloads.TimeGetMonth:        overloads.TimestampToMonthWithTz,
	overloads.TimeGetDayOfYear:    overloads.TimestampToDayOfYearWithTz,
	overloads.TimeGetDate:         overloads.TimestampToDayOfMonthOneBasedWithTz,
	overloads.TimeGetDayOfMonth:   overloads.TimestampToDayOfMonthZeroBasedWithTz,
	overloads.TimeGetDayOfWeek:    overloads.TimestampToDayOfWeekWithTz,
	overloads.TimeGetHours:        overloads.TimestampToHoursWithTz,
	overloads.TimeGetMinutes:      overloads.TimestampToMinutesWithTz,
	overloads.TimeGetSeconds:      overloads.TimestampToSecondsWithTz,
	overloads.TimeGetMilliseconds: overloads.TimestampToMillisecondsWithTz,
}

// zonedFunctions are those functions for an IANA zone, or an offset such as +02:00. CEL takes the zones
// of the machine, also 'Local' and an empty name, so that a condition would depend on the machine that
// evaluates it.
func zonedFunctions() (options []cel.EnvOption) {
	for name, overload := range zoned {
		inZone := func(at, zone ref.Val) ref.Val {
			text, isText := zone.(types.String)
			t, isTime := at.(types.Timestamp)
			switch {
			case !isText || !isTime:
				return types.MaybeNoSuchOverloadErr(zone)
			case strings.Contains(string(text), ":"):
				return t.Receive(name, overload, []ref.Val{zone})
			}
			in, err := lemma.Zone(string(text))
			if err != nil {
				return types.NewErr("unknown time zone")
			}
			return types.Timestamp{Time: t.In(in)}.Receive(name, "", nil)
		}
		options = append(options, cel.Function(name,
			cel.MemberOverload(overload, []*cel.Type{cel.TimestampType, cel.StringType}, cel.IntType, cel.BinaryBinding(inZone))))
	}
	return options
}

// isZone accepts the name of an IANA zone, or an offset such as +02:00. An unreadable
// offset is CEL's own error.
func isZone(text string) bool {
	if strings.Contains(text, ":") {
		return true
	}
	_, err := lemma.Zone(text)
	return err == nil
}

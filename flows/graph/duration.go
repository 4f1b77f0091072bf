package graph

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// MaxDuration is the longest delay, timeout or offset: a little over a year.
const MaxDuration = 400 * 24 * time.Hour

var (
	errDuration = errors.New("it is no ISO 8601 duration such as P3D, PT2H30M or P1W")
	errCalendar = errors.New("years and months have no fixed length; write days or weeks, such as P30D")
	errTooLong  = errors.New("it is too long")
)

// ParseDuration reads an ISO 8601 duration: P3D, PT2H30M, P1W, PT1.5S, with a
// minus before it when it is negative. A day is 24 hours and a week 7 days.
// Years and months are refused: how long they are depends on when they begin.
func ParseDuration(s string) (time.Duration, error) {
	rest, negative := strings.CutPrefix(s, "-")
	rest, ok := strings.CutPrefix(rest, "P")
	if !ok {
		return 0, errDuration
	}
	date, clock, hasClock := strings.Cut(rest, "T")
	if strings.ContainsAny(date, "YM") {
		return 0, errCalendar
	}
	if date == "" && clock == "" || hasClock && clock == "" {
		return 0, errDuration
	}
	days, err := sumUnits(date, "WD", []time.Duration{7 * 24 * time.Hour, 24 * time.Hour})
	if err != nil {
		return 0, err
	}
	hours, err := sumUnits(clock, "HMS", []time.Duration{time.Hour, time.Minute, time.Second})
	if err != nil {
		return 0, err
	}
	if hours > math.MaxInt64-days {
		return 0, errTooLong
	}
	if negative {
		return -(days + hours), nil
	}
	return days + hours, nil
}

// sumUnits adds up "2H30M": each unit at most once, in their order.
func sumUnits(s, units string, lengths []time.Duration) (time.Duration, error) {
	var sum time.Duration
	for s != "" {
		end := strings.IndexFunc(s, func(c rune) bool { return c != '.' && (c < '0' || c > '9') })
		if end <= 0 {
			return 0, errDuration
		}
		unit := strings.IndexByte(units, s[end])
		if unit < 0 {
			return 0, errDuration
		}
		d, err := times(s[:end], lengths[unit])
		if err != nil {
			return 0, err
		}
		if d > math.MaxInt64-sum {
			return 0, errTooLong
		}
		sum += d
		s, units, lengths = s[end+1:], units[unit+1:], lengths[unit+1:]
	}
	return sum, nil
}

// times multiplies a unit; only seconds may have a fraction, to the nanosecond.
func times(number string, unit time.Duration) (time.Duration, error) {
	whole, fraction, hasFraction := strings.Cut(number, ".")
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, errDuration
	}
	if err != nil || n > int64(math.MaxInt64/unit)-1 {
		return 0, errTooLong
	}
	d := time.Duration(n) * unit
	if !hasFraction {
		return d, nil
	}
	if unit != time.Second || fraction == "" || len(fraction) > 9 {
		return 0, errDuration
	}
	nanos, err := strconv.ParseUint((fraction + "00000000")[:9], 10, 64)
	if err != nil {
		return 0, errDuration
	}
	return d + time.Duration(nanos), nil
}

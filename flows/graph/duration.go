package graph

import (
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// MaxDuration is the longest delay, timeout or offset: a little over a year.
const MaxDuration = 400 * 24 * time.Hour

var (
	errDuration = errors.New("must be an ISO 8601 duration such as P3D, PT2H30M or P1W")
	errCalendar = errors.New("years and months have no fixed length; write days or weeks, such as P30D")
	errTooLong  = errors.New("it is too long")
)

// ParseDuration reads an ISO 8601 duration: P3D, PT2H30M, P1W, PT1.5S, with a leading
// minus if it is negative. A day is 24 hours and a week 7 days. Years and months are
// rejected: their length depends on when they begin.
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

// spans matches common spellings that are neither ISO 8601 nor CEL's.
var spans = regexp.MustCompile(`^(\d{1,5}) ?(s|sec|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?)$`)

// meantSpan is the duration that a text such as "3d", "2 hours" or "P3D" means.
func meantSpan(text string) (time.Duration, bool) {
	text = strings.TrimSpace(text)
	if d, err := ParseDuration(strings.ToUpper(text)); err == nil {
		return d, true
	}
	found := spans.FindStringSubmatch(strings.ToLower(text))
	if found == nil {
		return 0, false
	}
	n, err := strconv.Atoi(found[1])
	unit := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour,
		'w': 7 * 24 * time.Hour}[found[2][0]]
	return time.Duration(n) * unit, err == nil
}

// spelledISO writes a duration of whole seconds as ISO 8601.
func spelledISO(d time.Duration) string {
	days, rest := d/(24*time.Hour), d%(24*time.Hour)
	text := "P"
	if days > 0 {
		text += strconv.FormatInt(int64(days), 10) + "D"
	}
	if rest > 0 || days == 0 {
		text += "T" + strings.ToUpper(spelledGo(rest))
	}
	return text
}

// spelledGo writes a duration as CEL's duration() reads it: 48h, 1h30m.
func spelledGo(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// sumUnits adds up "2H30M": each unit at most once, in order.
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

package graph

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"lemma"
)

// clock is a local time of day.
type clock struct{ hour, minute, second int }

func parseClock(s string) (clock, bool) {
	for _, form := range []string{"15:04", "15:04:05"} {
		if t, err := time.Parse(form, s); err == nil && len(s) == len(form) {
			return clock{t.Hour(), t.Minute(), t.Second()}, true
		}
	}
	return clock{}, false
}

var weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

func parseWeekday(s string) (time.Weekday, bool) {
	i := slices.Index(weekdays, s)
	return time.Weekday(i), i >= 0
}

// day is a day of the calendar.
type day struct {
	year  int
	month time.Month
	day   int
}

func dayOf(t time.Time) day {
	y, m, d := t.Date()
	return day{y, m, d}
}

// plus adds days of the calendar, whatever their length in hours.
func (d day) plus(n int) day {
	return dayOf(time.Date(d.year, d.month, d.day+n, 0, 0, 0, 0, time.UTC))
}

func (d day) weekday() time.Weekday {
	return time.Date(d.year, d.month, d.day, 0, 0, 0, 0, time.UTC).Weekday()
}

// in returns the instant at which a zone's clocks show this day and time, see lemma.Instant.
func (d day) in(zone *time.Location, c clock) time.Time {
	return lemma.Instant(time.Date(d.year, d.month, d.day, c.hour, c.minute, c.second, 0, time.UTC), zone)
}

// when is what a wait_until waits for, parsed once.
type when struct {
	clock      clock
	hasClock   bool
	days       []time.Weekday // empty: any
	dateColumn string
	offset     time.Duration
	zone       *time.Location
	zoneColumn string
}

// Until returns when a wait_until ends: the first instant, not before now, that fits
// all fields of the node.
//
//   - Without a date it is the next local time on one of the weekdays.
//   - A date of the profile gives the node's time, or midnight, of that day. Whole days
//     of the offset are counted on the calendar: three days before at 09:00 is 09:00
//     whatever the clocks do in between.
//   - A timestamp of the profile is that instant plus the offset, or, with a time, that
//     time on its local day.
//   - A date that is past, with its time and the offset, is now: there is no wait,
//     whatever the weekdays.
//   - A date more than ten years ahead is not waited for: 9999-12-31 often means never.
//   - A future date that falls on none of the weekdays moves to the next of them.
//
// A column without a readable date is an error, whose text quotes no data.
func (c *Compiled) Until(now time.Time, profile map[string]any) (time.Time, error) {
	w := c.when
	if w == nil {
		return time.Time{}, fmt.Errorf("node %s waits for no time", c.ID)
	}
	zone := w.zoneOf(profile)
	if w.dateColumn == "" {
		return w.next(now, zone), nil
	}
	t, err := w.date(profile, zone)
	if err != nil {
		return time.Time{}, err
	}
	if !t.After(now) {
		return now, nil
	}
	if t.After(now.AddDate(farthest, 0, 0)) {
		return time.Time{}, fmt.Errorf("column %s holds a date that is more than %d years ahead", w.dateColumn, farthest)
	}
	if len(w.days) == 0 || slices.Contains(w.days, t.In(zone).Weekday()) {
		return t, nil
	}
	return w.next(t, zone), nil
}

// farthest is how many years ahead a date may be.
const farthest = 10

// UnknownZone returns the zone that a wait_until uses because the profile's own is
// unknown. A profile without a zone has no unknown one.
func (c *Compiled) UnknownZone(profile map[string]any) (instead string, unknown bool) {
	if c.when == nil || c.when.zoneColumn == "" {
		return "", false
	}
	value := profile[c.when.zoneColumn]
	name, text := value.(string)
	name = strings.TrimSpace(name)
	_, err := lemma.Zone(name)
	if value == nil || text && name == "" || err == nil {
		return "", false
	}
	return c.when.zone.String(), true
}

// zoneOf is the profile's zone if it is valid, else the node's.
func (w *when) zoneOf(profile map[string]any) *time.Location {
	if w.zoneColumn != "" {
		name, _ := profile[w.zoneColumn].(string)
		if zone, err := lemma.Zone(strings.TrimSpace(name)); err == nil {
			return zone
		}
	}
	return w.zone
}

// next is the first fitting time from an instant on. It begins a day early and covers two
// weeks, since a gap can remove a whole day from a zone.
func (w *when) next(from time.Time, zone *time.Location) time.Time {
	today := dayOf(from.In(zone))
	for n := -1; n <= 15; n++ {
		d := today.plus(n)
		if len(w.days) > 0 && !slices.Contains(w.days, d.weekday()) {
			continue
		}
		if t := d.in(zone, w.clock); !t.Before(from) {
			return t
		}
	}
	return from // not reached: within two weeks each weekday is there twice
}

// date reads the profile's date column and adds the offset.
func (w *when) date(profile map[string]any, zone *time.Location) (time.Time, error) {
	d, instant, err := readDate(w.dateColumn, profile)
	if err != nil {
		return time.Time{}, err
	}
	if !instant.IsZero() && !w.hasClock {
		return instant.Add(w.offset), nil
	}
	if !instant.IsZero() {
		d = dayOf(instant.In(zone))
	}
	whole := w.offset / (24 * time.Hour)
	return d.plus(int(whole)).in(zone, w.clock).Add(w.offset % (24 * time.Hour)), nil
}

// readDate returns a day, or an instant, in the formats that audiences return.
func readDate(column string, profile map[string]any) (day, time.Time, error) {
	text, ok := profile[column].(string)
	if !ok {
		return day{}, time.Time{}, fmt.Errorf("column %s has no date", column)
	}
	text = strings.TrimSpace(text)
	if t, err := time.Parse(time.DateOnly, text); err == nil {
		return dayOf(t), time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return day{}, t, nil
	}
	return day{}, time.Time{}, fmt.Errorf("column %s holds no date that can be read: YYYY-MM-DD or RFC 3339", column)
}

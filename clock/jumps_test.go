package clock

import (
	"testing"
	"time"
)

// A clock that is set ahead is noticed for as long as there may be times from before, also by
// a process that has just started. Clocks that differ a little, or by the same, are not ahead.
func TestJumps(t *testing.T) {
	t.Parallel()
	type seen struct{ at, ahead time.Duration }
	for name, c := range map[string]struct {
		seen []seen
		now  seen
		want time.Duration
	}{
		"the same":         {[]seen{{0, 0}, {time.Minute, 0}}, seen{2 * time.Minute, 0}, 0},
		"a slow statement": {[]seen{{0, 0}}, seen{time.Minute, 4 * time.Second}, 0},
		"ahead":            {[]seen{{0, 0}}, seen{time.Minute, time.Hour}, time.Hour},
		"ahead for a while": {[]seen{{0, 0}, {time.Minute, time.Hour}, {2 * time.Minute, time.Hour}},
			seen{time.Hour, time.Hour}, time.Hour},
		"ahead for long":               {[]seen{{0, 0}, {time.Minute, time.Hour}, {2 * time.Hour, time.Hour}}, seen{2 * time.Hour, time.Hour}, 0},
		"one reading in a long time":   {[]seen{{0, 0}}, seen{2 * time.Hour, time.Hour}, time.Hour},
		"never seen before":            {nil, seen{time.Minute, time.Hour}, time.Hour},
		"behind":                       {[]seen{{0, 0}}, seen{time.Minute, -time.Hour}, 0},
		"behind, and back again":       {[]seen{{0, 0}, {time.Minute, -time.Hour}}, seen{2 * time.Minute, 0}, time.Hour},
		"behind the machine as always": {[]seen{{0, -time.Hour}}, seen{time.Minute, -time.Hour}, 0},
		"ahead twice":                  {[]seen{{0, 0}, {time.Minute, time.Hour}}, seen{2 * time.Minute, 3 * time.Hour}, 3 * time.Hour},
	} {
		j := NewJumps(time.Hour)
		for _, s := range c.seen {
			j.Add(Reading{At: j.begun.Add(s.at + s.ahead).UTC(), Begun: j.begun.Add(s.at), Ended: j.begun.Add(s.at)})
		}
		if got := j.Ahead(j.begun.Add(c.now.at+c.now.ahead).UTC(), j.begun.Add(c.now.at)); got.Round(time.Second) != c.want {
			t.Errorf("%s: %v instead of %v", name, got, c.want)
		}
	}
}

// What is kept does not grow.
func TestJumpsAreForgotten(t *testing.T) {
	t.Parallel()
	j := NewJumps(time.Hour)
	for minute := range 10_000 {
		at := j.begun.Add(time.Duration(minute) * time.Minute)
		j.Add(Reading{At: at.UTC(), Begun: at, Ended: at})
	}
	if len(j.seen) > 63 {
		t.Errorf("%d readings of an hour", len(j.seen))
	}
}

// A reading that took long does not show how far the clock was behind.
func TestASlowReadingIsNoJump(t *testing.T) {
	t.Parallel()
	j := NewJumps(time.Hour)
	at := j.begun.Add(time.Minute)
	j.Add(Reading{At: at.UTC(), Begun: at, Ended: at.Add(40 * time.Second)})
	if ahead := j.Ahead(at.Add(time.Minute).UTC(), at.Add(time.Minute)); ahead != 0 {
		t.Error(ahead)
	}
}

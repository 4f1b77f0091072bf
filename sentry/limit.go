package sentry

import (
	"sync"
	"time"
)

const (
	perMinute  = 30 // reports of a process
	mostGroups = 1000
)

// limit admits a report of each group in a minute.
type limit struct {
	now func() time.Time

	mu     sync.Mutex
	groups map[string]*counted
	minute time.Time
	sent   int // in that minute
}

type counted struct {
	last    time.Time
	leftOut int
}

func newLimit(now func() time.Time) *limit { return &limit{now: now, groups: map[string]*counted{}} }

// admit reports whether an error of a group is reported, and how many of it were left out
// before.
func (l *limit) admit(group string) (leftOut int, allowed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if now.Sub(l.minute) >= time.Minute {
		l.minute, l.sent = now, 0
	}
	g, known := l.groups[group]
	if !known {
		if len(l.groups) >= mostGroups {
			clear(l.groups)
		}
		g = &counted{}
		l.groups[group] = g
	}
	if l.sent >= perMinute || known && now.Sub(g.last) < time.Minute {
		g.leftOut++
		return 0, false
	}
	leftOut = g.leftOut
	g.last, g.leftOut = now, 0
	l.sent++
	return leftOut, true
}

package sender

import (
	"slices"
	"time"

	"lemma/notifications"
)

// refusals are how often each row was refused for itself and not because of the provider, and
// before which time it is not called again. They are stored in the batch by ordinal, so that
// they outlive the claim, however it ends. Each row has its own time: a row that was not called
// does not wait for another, and a batch that is given back early calls no refused row early.
type refusals struct {
	counts []int16      // by ordinal; nil when no row was refused
	times  []*time.Time // by ordinal, of the database; nil when no row was refused
	added  bool         // a row was refused in this claim
}

// gatherFor is how long a row that may be called waits for others that may be called soon: rows
// of many windows, which were refused one after the other, do not need a claim each.
const gatherFor = 5 * time.Second

func (r *refusals) of(ordinal int16) int {
	if int(ordinal) >= len(r.counts) {
		return 0
	}
	return int(r.counts[ordinal])
}

// until is before which time a row is not called; zero for a row that was not refused.
func (r *refusals) until(ordinal int16) time.Time {
	if int(ordinal) >= len(r.times) || r.times[ordinal] == nil {
		return time.Time{}
	}
	return *r.times[ordinal]
}

func (r *refusals) add(ordinal int16, until time.Time) {
	if missing := int(ordinal) + 1 - len(r.counts); missing > 0 {
		r.counts = append(r.counts, make([]int16, missing)...)
	}
	if missing := int(ordinal) + 1 - len(r.times); missing > 0 {
		r.times = append(r.times, make([]*time.Time, missing)...)
	}
	r.counts[ordinal]++
	r.times[ordinal] = &until
	r.added = true
}

// mostSpared is how often a call that was not made because of the recipient's server counts like
// a refusal: each time it waits longer, and it never fails for that.
const mostSpared = 3

// spared reports that a message was not called because of the server of its recipient.
func (r Receipt) spared() bool { return r.Outcome == NotCalled && !r.Provider && r.RetryAfter > 0 }

// spare notes that a row was not called because of the server of its recipient.
func (r *refusals) spare(ordinal int16, until time.Time) {
	r.add(ordinal, until)
	if r.counts[ordinal] > mostSpared {
		r.counts[ordinal]--
	}
}

// changed is what a commit stores: nil while no row was refused in this claim.
func (r *refusals) changed() (counts []int16, times []*time.Time) {
	if !r.added {
		return nil, nil
	}
	return r.counts, r.times
}

// next is when some rows are due that were all refused; nil if one of them may be called now.
func (r *refusals) next(rows []int16, now time.Time) *time.Time {
	if len(r.times) == 0 || len(rows) == 0 {
		return nil
	}
	times := make([]time.Time, len(rows))
	for i, ordinal := range rows {
		if times[i] = r.until(ordinal); !times[i].After(now) {
			return nil
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	last := times[0]
	for _, t := range times {
		if t.Sub(times[0]) <= gatherFor {
			last = t
		}
	}
	return &last
}

// left is how long until a time; 0 for none.
func left(until *time.Time, now time.Time) time.Duration {
	if until == nil {
		return 0
	}
	return max(0, until.Sub(now))
}

// backOff is how long a row is not called again that was refused so often before.
func (s *Sender) backOff(before int) time.Duration {
	return min(s.cfg.DeferFor<<min(before, 20), s.cfg.DeferMost)
}

// spareDirect is how long a direct notification waits for its server first. Recipients wait for it, and
// there are fewer than of a campaign.
const spareDirect = 2 * time.Second

// spareFor is how long a row is not called because of the server of its recipient.
func (s *Sender) spareFor(c *claim, ordinal int16) time.Duration {
	before := c.refusals.of(ordinal)
	if notifications.IsDirect(c.OriginID) {
		return min(spareDirect<<min(before, 20), s.backOff(before))
	}
	return s.backOff(before)
}

// leaveWaiting leaves rows that were refused to a later claim while their time has not come.
func (c *claim) leaveWaiting() {
	if len(c.refusals.times) > 0 {
		c.leave(func(r row) bool { return c.refusals.until(r.Ordinal).After(c.clock) })
	}
}

// leave takes rows out of a claim that has no window yet. They are free: no window contains
// them, and they are given back with the others.
func (c *claim) leave(which func(row) bool) {
	c.rows = slices.DeleteFunc(c.rows, func(r row) bool {
		if !which(r) {
			return false
		}
		c.free = append(c.free, r.Ordinal)
		return true
	})
}

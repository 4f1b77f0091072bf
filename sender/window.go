package sender

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"lemma"
)

// window is the rows that are called next, as messages.
type window struct {
	rows     []int16   // ordinals of the messages
	messages []Message // what is called
	skipped  []outcome // rows that cannot be rendered: never called
	receipts []Receipt
	run      run       // what the circuit counts of its receipts
	date     time.Time // of its messages, in attempt 1
}

const notificationBytes = 64 // of an id, at most

// render renders the next messages of a claim, for most of the given time, while their
// data is read and there is memory for them. It is a pure function of the intent and the
// template's version: two attempts send the same bytes. Rows that cannot be rendered end
// here and leave the claim.
func (d *content) render(c *claim, size int, most time.Duration) *window {
	rows := c.rows[c.next:min(c.next+size, len(c.rows))]
	begun := time.Now()
	w := &window{messages: make([]Message, 0, len(rows)), rows: make([]int16, 0, len(rows))}
	bytes := 0
	idOf := lemma.AppendNotificationIDs(c.OriginID)
	var id [notificationBytes]byte
	kept := rows[:0]
	for i, r := range rows {
		if i > 0 && (r.Payload == "" || time.Since(begun) > most || !c.memory.fits(bytes)) {
			rows = rows[:i]
			break
		}
		text, headers, err := d.renderRow(c.OriginID, r, c.trackingURL, c.renderWithin)
		if err != nil {
			w.skipped = append(w.skipped, outcome{ordinal: r.Ordinal, kind: skipped, basis: "gate",
				reason: "template_error", detail: err.Error()})
			continue
		}
		r.Payload = ""
		kept = append(kept, r)
		bytes += len(text.Subject) + len(text.HTML) + len(text.Text) + bytesOf(headers)
		w.rows = append(w.rows, r.Ordinal)
		w.messages = append(w.messages, Message{
			Notification: string(idOf(id[:0], r.Key)), Attempt: int(c.attempt),
			To: r.Address, FromName: d.fromName, FromEmail: d.fromEmail, ReplyTo: d.replyTo, Headers: headers,
			Subject: text.Subject, HTML: text.HTML, Text: text.Text, Link: text.Link, Data: text.Data,
			Seed: r.Key,
		})
	}
	c.rows = slices.Delete(c.rows, c.next+len(kept), c.next+len(rows))
	c.memory.shrink(bytes)
	return w
}

func bytesOf(headers [][2]string) (n int) {
	for _, h := range headers {
		n += len(h[0]) + len(h[1])
	}
	return n
}

// pace sizes the windows of one provider, so that one takes about 100 ms: a crash
// leaves about that much work unknown. The calls of a window run side by side, so a window takes
// at least the time of a call: where that is longer, it takes up to three times as long.
// A pace is also that of reading an origin's audience again.
type pace struct {
	rows atomic.Int64
	took atomic.Int64 // of the last window, with its wait for the rate, or read, in ns; 0: none yet
}

const (
	firstWindow = 20
	leastWindow = 1
	mostWindow  = 1000
	shortWindow = 50 * time.Millisecond  // a window grows below it
	longWindow  = 200 * time.Millisecond // and shrinks above it
	slowWindow  = 2 * time.Second        // which it does not exceed if more than one call at a time takes it
)

// paceOf returns the pace of a provider, or of the reads of an origin.
func (s *Sender) paceOf(of uuid.UUID) *pace {
	if p, ok := s.cache.paces.Get(of); ok {
		return p
	}
	fresh := &pace{}
	fresh.rows.Store(firstWindow)
	s.cache.paces.Put(0, uuid.Nil, of, fresh, 0)
	return fresh
}

func (p *pace) size(most int) int { return min(int(p.rows.Load()), most) }

// adjust grows the size only after a full window: a short one shows nothing about the
// pace. call is the time of one call. A smaller window would not take less than that, and so it
// neither shrinks for it nor stays as small as it once became. One call alone does not show
// whether others would be made beside it.
func (p *pace) adjust(n int, took, call time.Duration) {
	size := p.rows.Load()
	full := int64(n) >= size
	alone := took < call*6/5 // the calls were made side by side
	switch {
	case took > max(longWindow, min(3*call, slowWindow)) && !alone:
		p.rows.CompareAndSwap(size, max(size/2, leastWindow))
	case full && took < max(shortWindow, min(call*3/2, slowWindow/2)), full && alone && size < firstWindow && (n > 1 || took < slowWindow):
		p.rows.CompareAndSwap(size, min(size*2, mostWindow))
	}
}

// countCalls returns for how many of n messages a carrier was called. A window whose provider fails ends before the
// others.
func countCalls(n int, receipts []Receipt) int {
	for _, r := range receipts {
		if r.Outcome == NotCalled {
			n--
		}
	}
	return n
}

// firstAnswer is the time of the first call of a window that was accepted, or else answered; 0 if
// there is none.
func firstAnswer(receipts []Receipt, begun time.Time, took time.Duration) (first time.Duration) {
	accepted := false
	for _, r := range receipts {
		at := r.At.Sub(begun)
		if r.Outcome == Unknown || r.Outcome == NotCalled || r.At.IsZero() || at < 0 || at > took {
			continue
		}
		if better := r.Outcome == Accepted && !accepted; better || (r.Outcome == Accepted) == accepted && (first == 0 || at < first) {
			first, accepted = at, accepted || r.Outcome == Accepted
		}
	}
	return first
}

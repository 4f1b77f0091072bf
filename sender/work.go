package sender

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lemma"
	"lemma/notifications"
)

// Work answers one ring of the bell: it finds a place, claims the batch and
// takes it window by window to its end, or gives back what it could not finish.
// It answers with how long until the batch is due again, 0 when the bell has
// done its work. When it is another workspace's turn that is served, and the
// bell rings again at once.
func (s *Sender) Work(ctx context.Context, ref notifications.Ref) (again time.Duration, err error) {
	if s.isDraining() {
		return time.Second, nil
	}
	if s.serveAnother(ctx, ref) {
		return time.Millisecond, nil
	}
	p, again, err := s.enter(ctx, ref)
	if p == nil {
		return again, err
	}
	defer s.places.leave(p)
	return s.work(ctx, ref, p)
}

func (s *Sender) work(ctx context.Context, ref notifications.Ref, p *place) (again time.Duration, err error) {
	c, err := s.Claim(ctx, ref)
	if err != nil {
		return 0, err
	}
	if c == nil {
		if c, again, err = s.probe(ctx, ref); c == nil {
			return again, err
		}
		defer s.holdProbe(ctx, c)()
	}
	c.place = p
	s.places.claimed(p, c.providerID)
	s.at(ctx, "claimed", ref)
	carrier, desk, err := s.prepare(ctx, c)
	if err != nil {
		return s.unprepared(ctx, c, err)
	}
	settled, err := s.settleByEvidence(ctx, c)
	if err != nil {
		return 0, err
	}
	late, err := s.skipOptedOut(ctx, c)
	if err != nil {
		again, back := s.giveBack(ctx, c, settled, s.cfg.DeferFor/6)
		return again, errors.Join(err, back)
	}
	settled = append(settled, late...)
	gone, wait, err := s.recheck(ctx, c)
	if err != nil || wait > 0 {
		again, back := s.giveBack(ctx, c, settled, wait)
		return again, errors.Join(err, back)
	}
	if err := s.readDates(ctx, c); err != nil {
		return 0, err
	}
	c.leaveRefused()
	return s.windows(ctx, c, carrier, desk, append(settled, gone...))
}

// windows takes the claimed rows window by window. Each commit writes the
// outcomes of one window and opens the next in a single transaction. A window
// none of whose rows can be rendered is committed as well: that renews the lease.
func (s *Sender) windows(ctx context.Context, c *claim, carrier Carrier, desk *desk, pending []outcome) (time.Duration, error) {
	p := s.paceOf(c.providerID)
	for c.next < len(c.rows) {
		begun := time.Now()
		s.places.busy(c.place, begun)
		w := desk.render(c, c.alike(c.windowSize(p.size(s.cfg.MaxWindow))), s.cfg.renderFor())
		pending = append(pending, w.skipped...)
		done, after, ok, err := s.draw(ctx, c, len(w.letters), pending)
		if !ok || err != nil || s.mustStop(c) {
			again, back := s.giveBack(ctx, c, done, after)
			return again, errors.Join(err, back)
		}
		waited := time.Since(begun)
		c.date(w)
		gate, err := s.commit(ctx, c, done, opening(c, w))
		if err != nil || gate == lost {
			return 0, err
		}
		if gate != open || s.mustStop(c) || c.stale(w) { // a commit may have taken long
			return s.giveBack(ctx, c, nil, 0)
		}
		if len(w.letters) == 0 {
			pending = nil
			continue
		}
		s.at(ctx, "opened", c.Ref)
		known := s.call(ctx, c, carrier, w, p)
		s.places.busy(c.place, time.Time{})
		p.ended(time.Since(begun), waited)
		s.at(ctx, "called", c.Ref)
		if w.stopped() {
			return s.giveBack(ctx, c, known, s.backOff(c))
		}
		pending = known
	}
	return s.finish(ctx, c, pending)
}

// mustStop: no call begins while this node shuts down, nor past the send
// deadline, nor when the claim has lasted a whole lease, so that no job
// outlives what River allows it, nor when a call might outlive the lease, nor
// behind a circuit that has opened.
func (s *Sender) mustStop(c *claim) bool {
	now := time.Now()
	return s.isDraining() || c.shut || now.Sub(c.started) > s.cfg.Lease || now.Add(s.cfg.CallTimeout).After(c.until) || now.After(c.expires)
}

// call hands a window's letters to the carrier, outside any transaction, and
// sorts the receipts.
func (s *Sender) call(ctx context.Context, c *claim, carrier Carrier, w *window, p *pace) []outcome {
	begun := time.Now()
	s.startBy(c, w, begun)
	calls, cancel := context.WithDeadline(context.WithoutCancel(ctx), c.until)
	receipts := carrier.Send(calls, w.letters)
	cancel()
	took := time.Since(begun)
	p.learn(len(w.letters), took)
	s.metrics.called(len(w.letters), took)
	var done []outcome
	for i, ordinal := range w.rows {
		if i >= len(receipts) { // a carrier that answers for too few has not said what became of the others
			c.unknown = append(c.unknown, ordinal)
			continue
		}
		if o, ended := s.sort(c, ordinal, receipts[i]); ended {
			done = append(done, o)
		}
	}
	w.receipts = receipts[:min(len(receipts), len(w.rows))]
	w.run = runOf(w.receipts)
	c.words = w.run.down
	c.unheeded = w
	c.next += len(w.rows)
	return done
}

// sort turns a receipt into an outcome, if it is one. What was surely not
// accepted is free to be called again; what is unknown gets nothing written.
func (s *Sender) sort(c *claim, ordinal int16, r Receipt) (outcome, bool) {
	o := outcome{ordinal: ordinal, basis: "response", reason: r.Reason, code: r.Code, carrierID: r.CarrierID, detail: r.Detail, at: r.At}
	switch r.Outcome {
	case Accepted, Rejected:
		o.kind = string(r.Outcome)
		return o, true
	case NotAccepted:
		if !r.Provider && c.refusals.of(ordinal) >= s.cfg.MaxDeferrals {
			o.kind = refused
			return o, true
		}
		s.metrics.putOff()
		if !r.Provider {
			c.refusals.add(ordinal)
		}
		c.free = append(c.free, ordinal)
	case NotCalled:
		c.free = append(c.free, ordinal)
	default:
		c.unknown = append(c.unknown, ordinal)
	}
	return o, false
}

// refusals counts how often each row was refused for itself and not for the
// provider's sake. The counts lie by ordinal in the batch row, so that they
// outlive the claim; a batch none of whose rows was ever refused has none.
type refusals struct {
	counts []int16 // by ordinal; nil when no row was refused
	most   int     // of the rows that this claim saw refused; 0 when none was
}

func (r *refusals) of(ordinal int16) int {
	if int(ordinal) >= len(r.counts) {
		return 0
	}
	return int(r.counts[ordinal])
}

func (r *refusals) add(ordinal int16) {
	if missing := int(ordinal) + 1 - len(r.counts); missing > 0 {
		r.counts = append(r.counts, make([]int16, missing)...)
	}
	r.counts[ordinal]++
	r.most = max(r.most, int(r.counts[ordinal]))
}

// changed is what a commit writes: nothing while this claim saw none refused.
func (r *refusals) changed() []int16 {
	if r.most == 0 {
		return nil
	}
	return r.counts
}

// stopped says whether a window ended in a way that makes the next one
// pointless: the provider itself fails.
func (w *window) stopped() bool {
	return slices.ContainsFunc(w.receipts, func(r Receipt) bool {
		return r.Provider && (r.Outcome == NotCalled || r.Outcome == NotAccepted)
	})
}

// finish ends the claim after the last window: done, or due again later with
// the rows that were refused. Rows whose outcome is unknown are left to the reaper.
func (s *Sender) finish(ctx context.Context, c *claim, done []outcome) (time.Duration, error) {
	if len(c.unknown) > 0 || len(c.free) > 0 {
		return s.giveBack(ctx, c, done, s.backOff(c))
	}
	_, err := s.commit(ctx, c, done, ending{state: stateDone})
	s.at(ctx, "finished", c.Ref)
	return 0, err
}

// giveBack commits what is known and returns the rest: the rows that no
// window has covered, and those that were called and surely not accepted.
// Rows whose outcome is unknown stay leased, since only the reaper may decide:
// in a batch of their own, or in this one where there are no others. After a
// commit that failed nothing is written: what it held is neither stored nor
// among the rest, and the reaper settles it.
func (s *Sender) giveBack(ctx context.Context, c *claim, done []outcome, after time.Duration) (time.Duration, error) {
	if c.over {
		return 0, nil
	}
	rest := c.rest()
	if len(rest) == 0 {
		e := ending{state: stateDone}
		if len(c.unknown) > 0 {
			e.state = stateDoubt
		}
		_, err := s.commit(ctx, c, done, e)
		return 0, err
	}
	gate, err := s.commit(ctx, c, done, ending{state: stateReady, open: rest, split: c.split(), after: after, detail: c.words})
	if err != nil || gate != open {
		return 0, err
	}
	return max(after, time.Millisecond), nil
}

// backOff says when rows that are given back are due again: doubled for every
// refusal of the row that this claim saw refused most often; soon when it is the
// provider that fails, since its circuit then says when it is called; and at
// once when only the time for calls was over.
func (s *Sender) backOff(c *claim) time.Duration {
	switch {
	case len(c.free) == 0:
		return 0
	case c.refusals.most == 0 && c.words != "":
		return s.cfg.CircuitFirst
	case c.refusals.most == 0:
		return 0
	}
	return min(s.cfg.DeferFor<<min(c.refusals.most-1, 20), s.cfg.DeferMost)
}

// unprepared gives a batch back that cannot be sent for a reason that is not
// its own: its provider or its content cannot be opened.
func (s *Sender) unprepared(ctx context.Context, c *claim, cause error) (time.Duration, error) {
	if lemma.KindOf(cause) == lemma.Internal {
		_, err := s.giveBack(ctx, c, nil, s.cfg.DeferFor/6)
		return 0, errors.Join(cause, err)
	}
	s.metrics.paused("provider_unusable")
	if err := s.pause(ctx, c.WorkspaceID, c.OriginID, "provider_unusable", lemma.Public(cause)); err != nil {
		return 0, fmt.Errorf("pause %s: %w", c.OriginID, err)
	}
	return s.giveBack(ctx, c, nil, s.cfg.DeferFor)
}

// windowSize keeps a window within half a second of the provider's rate, so
// that a slow rate is a trickle and not bursts with pauses.
func (c *claim) windowSize(n int) int {
	if c.probing {
		n = min(n, probeWindow)
	}
	if c.rate == nil {
		return n
	}
	return max(1, min(n, int(*c.rate/2)))
}

// alike ends a window before a row that was refused more or less often than its
// first: a recipient for which the server hangs takes the time of the whole window,
// and must not take it from the same rows again.
func (c *claim) alike(n int) int {
	rows := c.rows[c.next:min(c.next+n, len(c.rows))]
	for i, r := range rows {
		if c.refusals.of(r.Ordinal) != c.refusals.of(rows[0].Ordinal) {
			return i
		}
	}
	return n
}

// draw takes the window's share of the provider's rate, which all nodes share.
// A short wait is waited, after what is known has been written down; a long one
// gives the worker back to others. It answers what is still to be written.
func (s *Sender) draw(ctx context.Context, c *claim, n int, done []outcome) (left []outcome, after time.Duration, ok bool, err error) {
	if c.rate == nil || n == 0 {
		return done, 0, true, nil
	}
	for {
		wait, ok, err := s.accounts.Draw(ctx, c.WorkspaceID, c.providerID, n, *c.rate, rateBurst)
		if err != nil || (!ok && wait > rateWait) {
			return done, max(wait, s.cfg.DeferFor/6), false, err
		}
		if wait > 0 && len(done) > 0 {
			if gate, err := s.commit(ctx, c, done, ending{state: stateKeep}); err != nil || gate != open {
				return nil, 0, false, err
			}
			done = nil
		}
		select {
		case <-time.After(wait):
		case <-s.draining:
			return done, 0, false, nil
		}
		if ok {
			return done, 0, true, nil
		}
	}
}

const (
	rateBurst = 200 * time.Millisecond // how far ahead of the rate calls may run
	rateWait  = 2 * time.Second        // longer waits give the batch back
)

package sender

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"lemma/notifications"
)

// Work works a batch for one run of its job: it acquires a slot, claims the batch and
// works its windows, or gives back what it could not finish. It returns how long until
// the batch is due again, 0 for not at all. It may work a batch of another workspace
// instead; then its own batch is due at once. If its own has to wait for long, it may work one of
// another provider besides.
func (s *Sender) Work(ctx context.Context, ref notifications.Ref) (again time.Duration, err error) {
	if s.isDraining() {
		return time.Second, nil
	}
	if s.serveAnother(ctx, ref) {
		return time.Millisecond, nil
	}
	claimed, again, err := s.workOwn(ctx, ref)
	if !claimed && again >= longWait && err == nil && notifications.IsDirect(ref.OriginID) && !s.isDraining() {
		s.serveOtherProvider(ctx, ref)
	}
	return again, err
}

func (s *Sender) workOwn(ctx context.Context, ref notifications.Ref) (claimed bool, again time.Duration, err error) {
	p, again, err := s.acquire(ctx, ref)
	if p == nil {
		s.logFailed(ref, uuid.Nil, err)
		return false, again, err
	}
	defer p.release()
	again, err = s.work(ctx, ref, p)
	return p.claimed, again, err
}

func (s *Sender) work(ctx context.Context, ref notifications.Ref, p *slot) (again time.Duration, err error) {
	again, err = s.workClaim(ctx, ref, p)
	s.logFailed(ref, p.provider, err)
	return again, err
}

func (s *Sender) workClaim(ctx context.Context, ref notifications.Ref, p *slot) (again time.Duration, err error) {
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
	c.slot = p
	p.claim(c.providerID, c.bulk)
	s.at(ctx, "claimed", ref)
	carrier, content, err := s.prepare(ctx, c)
	if err != nil {
		return s.unprepared(ctx, c, err)
	}
	settled, err := s.settleByEvidence(ctx, c)
	if err != nil {
		return 0, err
	}
	late, err := s.skipOptedOut(ctx, c)
	if err != nil {
		return s.giveBackFailed(ctx, c, settled, err)
	}
	settled = append(settled, late...)
	late, err = s.skipSuppressed(ctx, c, content)
	if err != nil {
		return s.giveBackFailed(ctx, c, settled, err)
	}
	settled = append(settled, late...)
	gone, wait, err := s.recheck(ctx, c, content.suppressed.Channel)
	if err != nil || wait > 0 {
		again, back := s.giveBack(ctx, c, settled, wait)
		return again, alongside(err, back)
	}
	if err := s.readDates(ctx, c); err != nil {
		return 0, err
	}
	c.leaveWaiting() // after the whole batch was checked: the check is remembered for the batch
	c.leaveRefused()
	return s.windows(ctx, c, carrier, content, append(settled, gone...))
}

// windows works the claimed rows by window. Each commit writes the outcomes of one
// window and opens the next in one transaction. A window without messages, since no
// row can be rendered, is committed as well: that renews the lease.
func (s *Sender) windows(ctx context.Context, c *claim, carrier Carrier, content *content, pending []outcome) (time.Duration, error) {
	p := s.paceOf(c.providerID)
	defer func() { c.memory.shrink(0) }()
	afterWindow := false
	for c.next < len(c.rows) {
		gone, err := s.checkAgain(ctx, c, content)
		pending = append(pending, gone...)
		if err != nil {
			return s.giveBackFailed(ctx, c, pending, err)
		}
		if c.next >= len(c.rows) {
			break
		}
		if same, err := s.linked(ctx, c, content); err != nil {
			return s.giveBackFailed(ctx, c, pending, err)
		} else if !same {
			return s.giveBack(ctx, c, pending, 0)
		}
		if s.makeRoom(c, afterWindow) {
			s.metrics.throttled(limitProvider)
			c.detail = "makes room for single requests: they come before the items of a bulk"
			return s.giveBack(ctx, c, pending, bulkRetry)
		}
		afterWindow = true
		if err := s.prepareWindow(ctx, c); err != nil {
			return s.giveBackFailed(ctx, c, pending, s.noMemory(c, err))
		}
		begun := time.Now()
		c.slot.busy(begun)
		if c.alone() {
			if ok, err := s.renderAlone(ctx, c, pending); !ok || err != nil {
				return s.giveBackFailed(ctx, c, nil, err)
			}
			pending = nil
		}
		w := content.render(c, c.alike(c.windowSize(p.size(s.cfg.MaxWindow))), s.cfg.renderFor())
		pending = append(pending, w.skipped...)
		done, after, ok, err := s.takeRate(ctx, c, len(w.messages), pending)
		if !ok || err != nil || s.mustStop(c) {
			again, back := s.giveBack(ctx, c, done, after)
			return again, alongside(err, back)
		}
		waited := time.Since(begun)
		s.at(ctx, "rated", c.Ref)
		gone, err = s.checkAgain(ctx, c, content) // the wait may have taken long
		done = append(done, gone...)
		if err != nil {
			return s.giveBackFailed(ctx, c, done, err)
		}
		w.leave(gone)
		c.date(w)
		gate, err := s.commit(ctx, c, done, opening(c, w))
		if err != nil || gate == lost {
			return 0, err
		}
		pending, err = s.checkAgain(ctx, c, content) // of what was recorded before the window opened
		if err != nil {
			return s.giveBackFailed(ctx, c, pending, err)
		}
		if gate != open || s.mustStop(c) || c.stale(w) { // the commit may have taken long
			return s.giveBack(ctx, c, pending, 0)
		}
		if c.changed { // the next claim has the address, the credentials and the limits that the provider has now
			c.detail = "the provider was changed"
			return s.giveBack(ctx, c, pending, 0)
		}
		w.leave(pending)
		if len(w.messages) == 0 {
			continue
		}
		s.at(ctx, "opened", c.Ref)
		pending = s.call(ctx, c, carrier, w, p, pending)
		c.forget(w)
		c.slot.busy(time.Time{})
		p.ended(time.Since(begun), waited)
		s.at(ctx, "called", c.Ref)
		if c.detail != "" { // the provider fails: soon its circuit decides
			return s.giveBack(ctx, c, pending, s.cfg.CircuitFirst)
		}
	}
	return s.finish(ctx, c, pending)
}

// mustStop reports that no call may begin: the process shuts down, the send deadline has
// passed, a call could outlive the lease, the circuit has opened, or the claim has
// lasted a whole lease, since River limits how long a job runs.
func (s *Sender) mustStop(c *claim) bool {
	now := time.Now()
	return s.isDraining() || c.circuitOpen || now.Sub(c.started) > s.cfg.Lease ||
		now.Add(s.cfg.CallTimeout).After(c.until) || now.After(c.expires)
}

// call sends a window's messages over the carrier, outside any transaction, and
// adds the receipts that are outcomes to done.
func (s *Sender) call(ctx context.Context, c *claim, carrier Carrier, w *window, p *pace, done []outcome) []outcome {
	begun := time.Now()
	s.startBy(c, w, begun)
	calls, cancel := context.WithDeadline(context.WithoutCancel(ctx), c.until)
	receipts := carrier.Send(calls, w.messages)
	cancel()
	took := time.Since(begun)
	n := countCalls(len(w.messages), receipts)
	p.adjust(n, took, firstAnswer(receipts, begun, took))
	s.metrics.called(n, took)
	w.receipts = receipts[:min(len(receipts), len(w.rows))]
	for i := range w.receipts {
		w.receipts[i].At = c.answered(w.receipts[i].At)
	}
	w.run = runOf(w.receipts)
	w.run.countHangs(w.receipts, func(i int) bool { return c.refusals.of(w.rows[i]) == 0 })
	done = slices.Grow(done, len(w.rows))
	for i, ordinal := range w.rows {
		if i >= len(receipts) { // without a receipt the outcome is unknown
			c.unknown = append(c.unknown, ordinal)
			continue
		}
		if o, ended := s.classify(c, ordinal, receipts[i]); ended {
			done = append(done, o)
		}
	}
	c.detail = w.failure()
	c.unrecorded = w
	c.next += len(w.rows)
	return done
}

// classify turns a receipt into an outcome, if it is one. A row that was not accepted
// is free to be called again; for an unknown outcome nothing is written.
func (s *Sender) classify(c *claim, ordinal int16, r Receipt) (outcome, bool) {
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
			c.refusals.add(ordinal, r.At.Add(max(s.backOff(c.refusals.of(ordinal)), r.wait())))
		}
		c.free = append(c.free, ordinal)
	case NotCalled:
		if r.spared() {
			s.metrics.putOff()
			c.refusals.spare(ordinal, r.At.Add(max(s.spareFor(c, ordinal), r.wait())))
		}
		c.free = append(c.free, ordinal)
	default:
		c.unknown = append(c.unknown, ordinal)
	}
	return o, false
}

// finish ends the claim after the last window: the batch is done, or due again with the rows
// that were refused, or not called. Rows whose outcome is unknown are left to the reaper.
func (s *Sender) finish(ctx context.Context, c *claim, done []outcome) (time.Duration, error) {
	if len(c.unknown) > 0 || len(c.free) > 0 {
		return s.giveBack(ctx, c, done, 0)
	}
	_, err := s.commit(ctx, c, done, ending{state: stateDone})
	s.at(ctx, "finished", c.Ref)
	return 0, err
}

// giveBack commits the known outcomes and makes the rest ready: rows that no window
// contained, and rows that were called and not accepted. The batch is due after the given
// time, or later if each of its rows waits for a time of its own. Rows whose outcome is unknown
// stay leased for the reaper, in a batch of their own if there are others. After a
// failed commit it writes nothing, since the outcomes of that commit are lost: the
// reaper settles the batch.
func (s *Sender) giveBack(ctx context.Context, c *claim, done []outcome, after time.Duration) (time.Duration, error) {
	if c.over {
		return 0, nil
	}
	rest := c.rest()
	if len(rest) == 0 {
		e := ending{state: stateDone}
		if len(c.unknown) > 0 {
			e.state = stateUnknown
		}
		_, err := s.commit(ctx, c, done, e)
		return 0, err
	}
	until := c.refusals.next(rest, c.now())
	gate, err := s.commit(ctx, c, done,
		ending{state: stateReady, open: rest, split: c.split(), after: after, until: until, detail: c.detail})
	if err != nil || gate != open {
		return 0, err
	}
	return max(after, left(until, c.now()), time.Millisecond), nil
}

// giveBackFailed gives a claim back that cannot be worked now.
func (s *Sender) giveBackFailed(ctx context.Context, c *claim, done []outcome, cause error) (time.Duration, error) {
	again, err := s.giveBack(ctx, c, done, s.cfg.DeferFor/6)
	return again, alongside(cause, err)
}

// windowSize limits a window to half a second of the provider's rate, so that a slow
// rate is steady.
func (c *claim) windowSize(n int) int {
	if c.alone() {
		return 1
	}
	if c.probing {
		n = min(n, probeWindow)
	}
	if c.rate == nil {
		return n
	}
	return max(1, min(n, int(*c.rate/2)))
}

// alike ends a window before a row that was refused more or less often than its first
// row. A recipient for which the server hangs uses up the time of its window, and must
// not do so twice for the same other rows.
func (c *claim) alike(n int) int {
	rows := c.rows[c.next:min(c.next+n, len(c.rows))]
	for i, r := range rows {
		if c.refusals.of(r.Ordinal) != c.refusals.of(rows[0].Ordinal) {
			return i
		}
	}
	return n
}

// takeRate takes a window's tokens of the provider's rate, which all processes share. It
// waits for a short time, after it has committed the known outcomes; for a longer wait
// the batch must be given back. It returns the outcomes that are still to be
// committed.
func (s *Sender) takeRate(ctx context.Context, c *claim, n int, done []outcome) (left []outcome, after time.Duration, ok bool, err error) {
	if c.rate == nil || n == 0 {
		return done, 0, true, nil
	}
	for {
		wait, ok, err := s.accounts.Acquire(ctx, c.WorkspaceID, c.providerID, n, *c.rate, c.burst())
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
	rateBurst   = 200 * time.Millisecond // how far ahead of the rate calls may run
	directBurst = time.Second            // those of single direct notifications: a campaign or a bulk that uses up the rate waits for them
	bulkBurst   = 600 * time.Millisecond // those of bulks: a campaign waits for them, too
	rateWait    = 2 * time.Second        // the batch is given back for a longer wait
)

// burst is how far ahead of the provider's rate the calls of a claim may run.
func (c *claim) burst() time.Duration {
	switch {
	case c.bulk:
		return bulkBurst
	case notifications.IsDirect(c.OriginID):
		return directBurst
	}
	return rateBurst
}

package smtp

import (
	"context"
	"crypto/tls"
	"errors"
	"os"
	"time"

	"lemma/dial"
	"lemma/sender"
)

// Send is part of sender.Carrier. It uses one connection for as long as that lasts.
func (c *carrier) Send(ctx context.Context, messages []sender.Message) []sender.Receipt {
	receipts := make([]sender.Receipt, len(messages))
	if l := c.pool.take(ctx); l != nil {
		r := run{carrier: c, line: l, ctx: ctx, messages: messages, receipts: receipts}
		r.all()
		c.pool.give(l)
	}
	for i := range receipts {
		if receipts[i].Outcome == "" {
			receipts[i] = sender.Receipt{Outcome: sender.NotCalled, Reason: "call_ended", At: time.Now()}
		}
	}
	return receipts
}

// Close closes the pool.
func (c *carrier) Close() { c.pool.close() }

// run is one call to Send.
type run struct {
	*carrier
	*line
	ctx      context.Context //nolint:containedctx // run is the state of one call
	messages []sender.Message
	receipts []sender.Receipt
	drafted  int         // messages before this one are drafts or have their receipt
	busy     *draft      // the last that was delivered
	unhook   func() bool // detaches the connection from ctx
}

// all sends the messages in order, and checks ctx before each step. Messages without a
// receipt at the end were not called.
func (r *run) all() {
	if r.conn != nil && !r.conn.alive() {
		r.hangUp()
	}
	r.hook()
	d, opened := r.draft(), false
	for d != nil && !r.over(d) {
		switch {
		case opened:
			d, opened = r.deliver(d)
		case r.open(d):
			opened = true
		default:
			d = r.draft()
		}
	}
	r.part(opened)
}

// over reports that a message's body may not begin any more. It also reads the clock:
// after a process was stopped, an answer may arrive before the timer of ctx runs.
func (r *run) over(d *draft) bool {
	end, ok := r.ctx.Deadline()
	now, by := time.Now(), r.messages[d.index].StartBy
	return r.ctx.Err() != nil || ok && !now.Before(end) || !by.IsZero() && !now.Before(by)
}

// part makes the connection idle. One that waits for a body is closed: a dot would
// send an empty message.
func (r *run) part(opened bool) {
	if r.conn == nil {
		return
	}
	if opened || r.conn.pending() > 0 || r.conn.settle() != nil || !r.unhook() {
		r.hangUp()
	}
}

// hook interrupts the connection at the end of ctx.
func (r *run) hook() {
	if r.conn != nil {
		r.unhook = context.AfterFunc(r.ctx, r.conn.interrupt)
	}
}

func (r *run) drop() {
	if r.conn != nil {
		r.unhook()
		r.hangUp()
	}
}

// draft writes the next message that can be written, and leaves the draft before it
// unchanged.
func (r *run) draft() *draft {
	for r.drafted < len(r.messages) {
		i := r.drafted
		r.drafted++
		d := r.spare()
		if err := d.write(&r.writer, &r.messages[i], &r.settings); err != nil {
			r.settle(i, sender.Receipt{Outcome: sender.Rejected, Reason: "message_invalid",
				Detail: sender.Detail(nil, err.Error(), r.messages[i].To)})
			continue
		}
		d.index = i
		return d
	}
	return nil
}

// spare is the draft that is not delivered now.
func (r *run) spare() *draft {
	if d := &r.drafts[0]; d != r.busy {
		return d
	}
	return &r.drafts[1]
}

func (r *run) settle(i int, receipt sender.Receipt) {
	if receipt.At.IsZero() {
		receipt.At = time.Now()
	}
	r.receipts[i] = receipt
}

// fits is false, and the message rejected, when it is larger than the server's SIZE
// (RFC 1870).
func (r *run) fits(d *draft) bool {
	if r.conn.limit == 0 || d.size <= r.conn.limit {
		return true
	}
	r.settle(d.index, sender.Receipt{Outcome: sender.Rejected, Reason: "message_too_large",
		Detail: "larger than the SIZE that the server announces"})
	return false
}

// open sends a message's envelope. It reports whether the server waits for the body;
// otherwise the message has its receipt. A connection that was used before and is lost
// is replaced once, since nothing of the message has been sent.
func (r *run) open(d *draft) bool {
	for {
		if !r.connect(d) || !r.fits(d) {
			return false
		}
		fresh := !r.conn.used
		r.conn.used = true
		waits, lost := r.sendEnvelope(d)
		if lost == nil {
			return waits
		}
		r.drop()
		if fresh || lost.Reason == "timeout" || r.ctx.Err() != nil {
			r.unopened(d, *lost)
			return false
		}
	}
}

// unopened settles a message whose envelope failed. If ctx has ended, the message was
// not called.
func (r *run) unopened(d *draft, receipt sender.Receipt) {
	if r.ctx.Err() == nil {
		r.settle(d.index, receipt)
	}
}

func (r *run) connect(d *draft) bool {
	if r.conn != nil {
		return true
	}
	began := time.Now()
	if cause := r.pool.backoff(began); cause != nil {
		receipt := cause.receipt()
		receipt.Outcome = sender.NotCalled
		r.settle(d.index, receipt)
		return false
	}
	conn, refusal := r.dial(r.ctx)
	if r.ctx.Err() == nil {
		r.pool.dialed(began, refusal)
	}
	if refusal != nil {
		r.unopened(d, refusal.receipt())
		return false
	}
	r.conn = conn
	r.hook()
	return true
}

// deliver sends a message's body, with the envelope of the next message behind it, and
// settles the message. It returns the next message, and whether the server waits for
// its body.
func (r *run) deliver(d *draft) (next *draft, opened bool) {
	s := r.conn
	r.busy = d
	next = r.following()
	grouped := next != nil && s.pipelining
	if grouped {
		d.mail = s.appendEnvelope(d.mail, next)
	}
	if !r.hand(d) {
		r.drop()
		return next, false
	}
	if !grouped {
		r.surplus(d)
		return next, false
	}
	waits, lost := r.readEnvelope(next)
	switch {
	case lost != nil:
		return r.lostBehind(d, next, *lost)
	case waits:
		return next, true
	}
	return r.draft(), false
}

// following is the next message that fits.
func (r *run) following() *draft {
	for {
		next := r.draft()
		if next == nil || r.fits(next) {
			return next
		}
	}
}

// hand writes a body and reads the answer: the one request of a message. It is false
// when the connection cannot be used again.
func (r *run) hand(d *draft) bool {
	r.conn.recordMail(d.mail, d.size)
	r.conn.arm()
	n, err := r.conn.conn.Write(d.mail)
	if err != nil {
		if at := r.started(n); at == atBody || r.ctx.Err() == nil {
			r.settle(d.index, *r.lost(at, err))
		}
		return false
	}
	a, err := r.conn.answer()
	if err != nil {
		r.settle(d.index, *r.lost(atBody, err))
		return false
	}
	receipt := r.receiptFor(atBody, a, d.to)
	r.settle(d.index, receipt)
	return a.code != 421 && receipt.Outcome != sender.Unknown
}

// started is the stage of a failed write of n bytes. TLS does not report how much it
// has sent.
func (r *run) started(n int) stage {
	if _, ok := r.conn.conn.(*tls.Conn); n > 0 || ok {
		return atBody
	}
	return atData
}

// surplus checks that no answer follows the last but 421, which a server may send at
// any time (RFC 5321, 3.8). Otherwise that answer may belong to another command.
func (r *run) surplus(d *draft) {
	s := r.conn
	if s.pending() == 0 {
		return
	}
	if a, err := s.next(); err != nil || a.code != 421 {
		r.settle(d.index, *r.lost(atBody, errSurplus))
	}
	r.drop()
}

// lostBehind settles a body whose next envelope lost the connection. After an invalid
// reply, the body's own answer may belong to another command.
func (r *run) lostBehind(d, next *draft, lost sender.Receipt) (*draft, bool) {
	r.drop()
	if lost.Reason == "protocol_error" {
		r.settle(d.index, *r.lost(atBody, errSurplus))
	}
	if lost.Reason == "timeout" {
		r.unopened(next, lost)
		return r.draft(), false
	}
	return next, false
}

// lost is the receipt for a missing answer.
func (r *run) lost(at stage, err error) *sender.Receipt {
	reason := "connection_lost"
	switch {
	case r.ctx.Err() != nil:
		reason = "call_ended"
	case errors.Is(err, os.ErrDeadlineExceeded):
		reason = "timeout"
	case errors.Is(err, errReplyForm), errors.Is(err, errReplyLong), errors.Is(err, errSurplus):
		reason = "protocol_error"
	}
	receipt := broken(at, reason)
	receipt.At = time.Now()
	if err != nil {
		receipt.Detail = dial.Cause(err)
		r.trace.Failed(receipt.Detail)
	}
	return &receipt
}

package smtp

import "lemma/sender"

// sendEnvelope sends a message's envelope and reads the answers, in one round trip
// where the server offers PIPELINING.
func (r *run) sendEnvelope(d *draft) (waits bool, lost *sender.Receipt) {
	s := r.conn
	if s.pending() > 0 {
		return false, r.lost(atMail, errSurplus)
	}
	if !s.pipelining {
		if err := s.settle(); err != nil {
			return false, r.lost(atMail, err)
		}
		return r.readEnvelope(d)
	}
	debt := s.debt()
	s.envelope = s.appendEnvelope(s.envelope[:0], d)
	s.recordLines(s.envelope)
	s.arm()
	if _, err := s.conn.Write(s.envelope); err != nil {
		return false, r.lost(atMail, err)
	}
	for range debt {
		if a, err := s.answer(); err != nil || a.code == 421 {
			return false, r.lost(atMail, err)
		}
	}
	return r.readEnvelope(d)
}

// readEnvelope reads the answers to MAIL, RCPT and DATA. If waits, the server waits
// for the body. Otherwise the message is settled, or lost is its receipt, unless
// another connection is tried.
func (r *run) readEnvelope(d *draft) (waits bool, lost *sender.Receipt) {
	s := r.conn
	s.owesDot, s.owesReset = false, false
	var e exchange
	for at := atMail; at <= atData && (s.pipelining || !e.refused()); at++ {
		a, err := s.put(at, d)
		if err == nil && e.record(r.carrier, at, a, d.to) {
			continue
		}
		lost = r.lost(at, err)
		if err == nil {
			*lost = r.receiptFor(at, a, d.to)
		}
		return false, r.cut(d, &e, lost)
	}
	if s.pending() > 0 {
		return false, r.cut(d, &e, r.lost(atData, errSurplus))
	}
	if !e.refused() {
		return true, nil
	}
	r.settle(d.index, e.refusal)
	r.tidy(&e)
	return false, nil
}

// cut ends an envelope whose connection was lost. An earlier refusal settles the
// message.
func (r *run) cut(d *draft, e *exchange, lost *sender.Receipt) *sender.Receipt {
	if !e.refused() {
		return lost
	}
	r.settle(d.index, e.refusal)
	r.drop()
	return nil
}

// tidy ends the transaction of a refused message. If a server asks for a body without
// a recipient, a bare dot answers that (RFC 2920, 3.1). With a recipient it would send
// an empty message.
func (r *run) tidy(e *exchange) {
	switch {
	case e.asked && e.noRecipient:
		r.conn.owesDot = true
	case e.asked:
		r.drop()
	default:
		r.conn.owesReset = true
	}
}

// exchange is the result of one envelope.
type exchange struct {
	refusal     sender.Receipt // the first refusal
	noRecipient bool           // RCPT was refused
	asked       bool           // DATA was granted
}

func (e *exchange) refused() bool { return e.refusal.Outcome != "" }

// record records an answer. It is false if the connection cannot be used after it.
func (e *exchange) record(c *carrier, at stage, a reply, to string) bool {
	if goesOn(at, a.code) {
		e.asked = at == atData
		return true
	}
	receipt := c.receiptFor(at, a, to)
	if a.code == 421 || receipt.Reason == "protocol_error" {
		return false
	}
	e.noRecipient = e.noRecipient || at == atRcpt
	if !e.refused() {
		e.refusal = receipt
	}
	return true
}

package smtp

import "lemma/sender"

// knock sends a message's envelope and hears the answers, in one round trip
// where the server offers PIPELINING.
func (r *run) knock(d *draft) (waits bool, lost *sender.Receipt) {
	s := r.conn
	if s.pending() > 0 {
		return false, r.lost(atMail, errSurplus)
	}
	if !s.pipelining {
		if err := s.settle(); err != nil {
			return false, r.lost(atMail, err)
		}
		return r.hear(d)
	}
	debt := s.debt()
	s.envelope = s.appendEnvelope(s.envelope[:0], d)
	s.arm()
	if _, err := s.conn.Write(s.envelope); err != nil {
		return false, r.lost(atMail, err)
	}
	for range debt {
		if a, err := s.answer(); err != nil || a.code == 421 {
			return false, r.lost(atMail, err)
		}
	}
	return r.hear(d)
}

// hear reads the answers to MAIL, RCPT and DATA. waits: the server wants the
// body. Otherwise the message has its receipt, or lost says that the connection
// is of no more use, and what the message's receipt is if no other is tried.
func (r *run) hear(d *draft) (waits bool, lost *sender.Receipt) {
	s := r.conn
	s.owesDot, s.owesReset = false, false
	var e exchange
	for at := atMail; at <= atData && (s.pipelining || !e.refused()); at++ {
		a, err := s.put(at, d)
		if err == nil && e.note(at, a, d.to) {
			continue
		}
		lost = r.lost(at, err)
		if err == nil {
			*lost = heard(at, a, d.to)
		}
		return false, r.cut(d, &e, lost)
	}
	if s.pending() > 0 {
		return false, r.cut(d, &e, r.lost(atData, errSurplus))
	}
	if !e.refused() {
		return true, nil
	}
	r.settle(d.index, e.verdict)
	r.tidy(&e)
	return false, nil
}

// cut: the connection ended within an envelope. A refusal that came before
// stands.
func (r *run) cut(d *draft, e *exchange, lost *sender.Receipt) *sender.Receipt {
	if !e.refused() {
		return lost
	}
	r.settle(d.index, e.verdict)
	r.drop()
	return nil
}

// tidy ends the transaction of a refused message. A server may ask for a body
// although nobody is there to get it: the bare dot answers that (RFC 2920,
// 3.1). It would make an empty mail if somebody were there.
func (r *run) tidy(e *exchange) {
	switch {
	case e.asked && e.nobody:
		r.conn.owesDot = true
	case e.asked:
		r.drop()
	default:
		r.conn.owesReset = true
	}
}

// exchange is what the answers to one envelope came to.
type exchange struct {
	verdict sender.Receipt // the first refusal
	nobody  bool           // RCPT was refused
	asked   bool           // DATA was granted
}

func (e *exchange) refused() bool { return e.verdict.Outcome != "" }

// note takes an answer down. It is false for one after which the connection
// cannot be used.
func (e *exchange) note(at stage, a reply, to string) bool {
	if goesOn(at, a.code) {
		e.asked = at == atData
		return true
	}
	receipt := heard(at, a, to)
	if a.code == 421 || receipt.Reason == "protocol_error" {
		return false
	}
	e.nobody = e.nobody || at == atRcpt
	if !e.refused() {
		e.verdict = receipt
	}
	return true
}

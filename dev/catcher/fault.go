package catcher

import (
	"strings"
	"time"
)

// Stage is where in a conversation something may go wrong.
type Stage int

// The stages, in their order.
const (
	Connect Stage = iota // before the greeting
	Mail                 // before the answer to MAIL
	Rcpt                 // before the answer to RCPT
	Data                 // before the answer to DATA
	Dot                  // after the final dot, before the answer
	stages
)

// Event is what a catcher is about to reply to.
type Event struct {
	Stage      Stage
	N          int    // how many events of this stage there have been, with this one
	Connection int    // from 1
	Recipient  string // from Rcpt on: the last one named
	MessageID  string // at Dot
}

// Fault is a simulated fault; none when zero. A message is kept even if its sender
// gets no reply, unless the fault loses or refuses it.
type Fault struct {
	Delay time.Duration // before anything else, but after keeping the message
	Reply string        // instead of the usual reply, without CRLF; may have several lines and be invalid
	Lose  bool          // at Dot: the message is not kept
	Close bool          // close the connection; without a reply, if Reply is empty
	Hang  bool          // send nothing until the client disconnects
}

// keeps reports whether a message with this fault at its dot is kept.
func (f Fault) keeps() bool {
	return !f.Lose && !strings.HasPrefix(f.Reply, "4") && !strings.HasPrefix(f.Reply, "5")
}

// Common faults.
var (
	DropKept = Fault{Close: true}             // at Dot: accepted without a reply
	DropLost = Fault{Close: true, Lose: true} // at Dot: lost without a reply
	Garbage  = Fault{Reply: "what a lovely day", Close: true}
	Closing  = Fault{Reply: "421 4.3.2 Closing", Close: true}
)

// Refuse is a reply such as "451 4.7.1 Slow down".
func Refuse(reply string) Fault { return Fault{Reply: reply} }

// Rule is when a fault happens: at a stage, from the First event to the Last,
// each Every-th of them, for recipients that contain To. Zero values do not
// restrict.
type Rule struct {
	At          Stage
	First, Last int
	Every       int
	To          string
	Fault       Fault
}

func (r Rule) applies(e Event) bool {
	n := e.N - max(r.First, 1) // from 0
	return r.At == e.Stage && n >= 0 && (r.Last == 0 || e.N <= r.Last) &&
		(r.Every <= 1 || (n+1)%r.Every == 0) && strings.Contains(e.Recipient, r.To)
}

// Script makes faults out of rules; the first that applies is taken.
func Script(rules ...Rule) func(Event) Fault {
	return func(e Event) Fault {
		for _, r := range rules {
			if r.applies(e) {
				return r.Fault
			}
		}
		return Fault{}
	}
}

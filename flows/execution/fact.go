package execution

import (
	"encoding/json"
	"time"

	"lemma/flows/enrollment"
)

// fact is a JSON object that was read for an execution. It is decoded while the execution
// is executed, and kept as text between: a decoded object takes up to 20 times its size,
// and a chunk has the facts of a thousand executions.
type fact struct {
	size    int // of the text, in bytes
	decode  func() map[string]any
	decoded map[string]any
}

// value is the object; nil if the fact was not read.
func (f *fact) value() map[string]any {
	if f == nil {
		return nil
	}
	if f.decoded == nil {
		f.decoded = f.decode()
	}
	return f.decoded
}

// forget keeps the text only.
func (f *fact) forget() {
	if f != nil {
		f.decoded = nil
	}
}

// triggerFact is the trigger in the data of step 0.
func triggerFact(data string) *fact {
	return &fact{size: len(data), decode: func() map[string]any { return enrollment.TriggerOf(data) }}
}

// eventFact is a recorded event.
func eventFact(name, id string, at time.Time, properties string) *fact {
	return &fact{size: len(properties), decode: func() map[string]any {
		return enrollment.TriggerData(name, id, at, []byte(properties))
	}}
}

// given is a fact that is decoded already.
func given(data map[string]any) *fact {
	return &fact{decode: func() map[string]any { return data }}
}

// past sums up the events of one name: how many there are, and the ones that were recorded
// first and last. The properties of the last one are decoded by the conditions that read them.
type past struct {
	times           int
	firstAt, lastAt any    // occurred_at of the first and of the last, RFC 3339; nil: there was none
	last            string // properties of the last, a JSON object
}

// summed is the past of a name with events.
func summed(times int, first, latest time.Time, last string) past {
	return past{min(times, MaxTimes), first.UTC().Format(time.RFC3339Nano), latest.UTC().Format(time.RFC3339Nano), last}
}

// read is how conditions see it.
func (p past) read() map[string]any {
	return p.with(func() map[string]any { return enrollment.ReadObject([]byte(p.last)) })
}

// maxStoredEvents is how many bytes of events a step stores: those of one event of the largest size, or
// of many small ones.
const maxStoredEvents = 32 << 10

// stored is how a step stores it: the last event is null if it and those before it have
// more than maxStoredEvents bytes.
func (p past) stored(before *int) map[string]any {
	if *before+len(p.last) > maxStoredEvents {
		return p.with(nil)
	}
	*before += len(p.last)
	return p.with(json.RawMessage(p.last))
}

func (p past) with(last any) map[string]any {
	return map[string]any{"times": p.times, "first_at": p.firstAt, "last_at": p.lastAt, "last": last}
}

// forget keeps the texts of the facts only.
func (t *Execution) forget() {
	t.trigger.forget()
	t.matchedData.forget()
	if t.profile != nil {
		t.profile.data = nil
	}
}

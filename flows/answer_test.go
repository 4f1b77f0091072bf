package flows_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lemma/flows"
	"lemma/flows/flowstest"
)

const asksThenEnds = `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"ask","nodes":{
	"ask":{$ask,"next":"end"},"end":{"type":"exit"}}}`

// An endpoint fails while a version is published in which the node that called it waits
// for something else, or calls again. The answer to the retry belongs to its call and ends
// no other wait.
func TestALateAnswerEndsNoOtherWait(t *testing.T) {
	for name, c := range map[string]struct{ node, trace string }{
		"a delay": {`"type":"delay","for":"PT1H"`, "enrolled@ checked@ webhook@ask moved@ask"},
		"a wait for a day": {`"type":"wait_until","weekdays":["mon","tue","wed","thu","fri","sat","sun"],"time":"$later"`,
			"enrolled@ checked@ webhook@ask moved@ask"},
		"an event": {`"type":"wait_for_event","event":"bought","timeout":"PT1H","on_timeout":"end"`,
			"enrolled@ checked@ webhook@ask moved@ask"},
		"the same webhook": {`"type":"webhook","endpoint_id":"$endpoint","data":{"more":1}`,
			"enrolled@ checked@ webhook@ask moved@ask answered@ask completed@end"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 1)
			var status atomic.Int32
			status.Store(500)
			endpoint := b.AnsweringEndpoint(&status)
			text := func(node string) string {
				return strings.NewReplacer("$endpoint", endpoint, "$later",
					time.Now().Add(2*time.Hour).UTC().Format("15:04")).Replace(strings.Replace(asksThenEnds, "$ask", node, 1))
			}
			flow := b.Live(text(`"type":"webhook","endpoint_id":"$endpoint"`))
			b.RecordEvent("c1", "go")
			b.Settle()
			b.CallWebhooks()
			b.PublishNext(flow, text(c.node), flows.InFlight{Mode: "move"})
			b.FinishMoves()
			b.Settle()
			was := b.Enrollment(flow, "c1")
			b.Exec(`update outbox set due_at = now()`)
			status.Store(200)
			b.CallWebhooks()
			if is := b.Enrollment(flow, "c1"); name != "the same webhook" && !is.ResumeAt.Equal(*was.ResumeAt) {
				t.Errorf("the answer moved the end of the wait from %s to %s", was.ResumeAt, is.ResumeAt)
			}
			b.Settle()
			b.WantTrace(was.ID, c.trace)
			b.Invariants()
		})
	}
}

// The answer to a message of another step of the same enrollment wakes nothing, whatever
// node it names.
func TestAnAnswerBelongsToItsStep(t *testing.T) {
	b := setup(t, 1)
	var status atomic.Int32
	status.Store(200)
	flow := b.Live(strings.ReplaceAll(flowstest.CallsWebhook, "$endpoint", b.AnsweringEndpoint(&status)))
	b.RecordEvent("c1", "go")
	b.Settle()
	was := b.Enrollment(flow, "c1")
	b.Exec(`update outbox set step = step - 1`)
	b.CallWebhooks()
	if is := b.Enrollment(flow, "c1"); !is.ResumeAt.Equal(*was.ResumeAt) {
		t.Errorf("it is due at %s, not %s", is.ResumeAt, was.ResumeAt)
	}
	b.Exec(`update outbox set step = step + 1, status = 'pending', finished_at = null, due_at = now()`)
	b.CallWebhooks()
	b.Settle()
	b.WantTrace(was.ID, "enrolled@ checked@ webhook@notify answered@notify completed@end")
}

// The endpoint answers between a worker's check for the answer and its write that the wait
// goes on. The answer still wakes the enrollment.
func TestAnAnswerBesideAWorkerIsNotLost(t *testing.T) {
	b := setup(t, 1)
	var status atomic.Int32
	status.Store(200)
	text := strings.ReplaceAll(flowstest.CallsWebhook, "$endpoint", b.AnsweringEndpoint(&status))
	flow := b.Live(text)
	b.RecordEvent("c1", "go")
	b.Settle()
	b.PublishNext(flow, text, flows.InFlight{Mode: "move"}) // registers the wait again
	b.FinishMoves()
	w := b.StopAt("evaluated")
	b.Reached(w)
	b.CallWebhooks()
	b.Must(w.End())
	b.Settle()
	b.WantTrace(b.Enrollment(flow, "c1").ID, "enrolled@ checked@ webhook@notify moved@notify answered@notify completed@end")
	b.Invariants()
}

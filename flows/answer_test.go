package flows

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const asksThenEnds = `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"ask","nodes":{
	"ask":{$ask,"next":"end"},"end":{"type":"exit"}}}`

// An endpoint fails while a version is published in which the node that called
// it waits for something else, or calls again. What the retry is answered
// belongs to the call that was made: it ends no other wait.
func TestALateAnswerEndsNoOtherWait(t *testing.T) {
	for name, c := range map[string]struct{ node, story string }{
		"a delay":          {`"type":"delay","for":"PT1H"`, "enrolled@ checked@ webhook@ask moved@ask"},
		"a wait for a day": {`"type":"wait_until","weekdays":["mon","tue","wed","thu","fri","sat","sun"],"time":"$later"`, "enrolled@ checked@ webhook@ask moved@ask"},
		"an event":         {`"type":"wait_for_event","event":"bought","timeout":"PT1H","on_timeout":"end"`, "enrolled@ checked@ webhook@ask moved@ask"},
		"the same webhook": {`"type":"webhook","endpoint_id":"$endpoint","data":{"more":1}`, "enrolled@ checked@ webhook@ask moved@ask answered@ask completed@end"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 1)
			var status atomic.Int32
			status.Store(500)
			endpoint := b.answering(&status)
			text := func(node string) string {
				return strings.NewReplacer("$endpoint", endpoint, "$later", time.Now().Add(2*time.Hour).UTC().Format("15:04")).Replace(strings.Replace(asksThenEnds, "$ask", node, 1))
			}
			flow := b.live(text(`"type":"webhook","endpoint_id":"$endpoint"`))
			b.tell("c1", "go")
			b.settleDown()
			b.call()
			b.publish(flow, text(c.node), InFlight{Mode: "move"})
			b.moveAllOver()
			b.settleDown()
			was := b.enrollment(flow, "c1")
			b.run(b.pool, `update outbox set due_at = now()`)
			status.Store(200)
			b.call()
			if is := b.enrollment(flow, "c1"); name != "the same webhook" && !is.ResumeAt.Equal(*was.ResumeAt) {
				t.Errorf("the answer moved the end of the wait from %s to %s", was.ResumeAt, is.ResumeAt)
			}
			b.settleDown()
			if got := b.story(was.ID); got != c.story {
				t.Error(got)
			}
			b.invariants()
		})
	}
}

// A message of another step of the same enrollment wakes nobody, whatever node it names.
func TestAnAnswerBelongsToItsStep(t *testing.T) {
	b := setup(t, 1)
	var status atomic.Int32
	status.Store(200)
	flow := b.live(strings.ReplaceAll(tells, "$endpoint", b.answering(&status)))
	b.tell("c1", "go")
	b.settleDown()
	was := b.enrollment(flow, "c1")
	b.run(b.pool, `update outbox set step = step - 1`)
	b.call()
	if is := b.enrollment(flow, "c1"); !is.ResumeAt.Equal(*was.ResumeAt) {
		t.Errorf("it is due at %s, not %s", is.ResumeAt, was.ResumeAt)
	}
	b.run(b.pool, `update outbox set step = step + 1, state = 'pending', finished_at = null, due_at = now()`)
	b.call()
	b.settleDown()
	if got := b.story(was.ID); got != "enrolled@ checked@ webhook@tell answered@tell completed@end" {
		t.Error(got)
	}
}

// The endpoint answers between a worker's question whether it has and what the
// worker writes: that it goes on waiting. The answer wakes all the same.
func TestAnAnswerBesideAWorkerIsNotLost(t *testing.T) {
	b := setup(t, 1)
	var status atomic.Int32
	status.Store(200)
	text := strings.ReplaceAll(tells, "$endpoint", b.answering(&status))
	flow := b.live(text)
	b.tell("c1", "go")
	b.settleDown()
	b.publish(flow, text, InFlight{Mode: "move"}) // asks for the answer anew
	b.moveAllOver()
	w := b.stopAt("walked")
	b.stands(w)
	b.call()
	b.must(w.ends())
	b.settleDown()
	if got := b.story(b.enrollment(flow, "c1").ID); got != "enrolled@ checked@ webhook@tell moved@tell answered@tell completed@end" {
		t.Error(got)
	}
	b.invariants()
}

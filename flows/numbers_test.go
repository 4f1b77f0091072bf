package flows

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/message"
)

// An id of 16 digits and its neighbour are one as doubles. They stay two from
// the event on: in conditions, letters, webhooks, the history and a simulation.
func TestLargeIDsStayWhatTheyAre(t *testing.T) {
	b := setup(t, 1)
	const order, neighbour = "9007199254740993", "9007199254740992"
	tpl, err := b.rooms.Templates.Create(bg, b.ws, message.NewTemplate{ID: lemma.NewID(), Name: "order",
		Content: message.Content{Subject: "Order {{ trigger.properties.order }}", Text: "t"}})
	b.must(err)
	b.template = tpl.ID
	flow := b.live(strings.ReplaceAll(`{"audience_id":"$audience","triggers":[{"type":"event","event":"ordered","condition":"trigger.properties.order >= 9007199254740993"}],
		"recurrence":{"policy":"fields","fields":["order"]},"exit_on":[{"event":"cancelled","condition":"event.properties.order == trigger.properties.order"}],
		"start":"shipped","nodes":{
		"shipped":{"type":"wait_for_event","event":"shipped","condition":"event.properties.order == trigger.properties.order","timeout":"P3D","next":"hello","on_timeout":"end"},
		"tell":{"type":"webhook","endpoint_id":"$endpoint","next":"end","on_error":"end"},
		"hello":{$send,"next":"tell"},"end":{"type":"exit"}}}`, "$endpoint", b.endpoint()))
	about := func(order string) func(*Event) { return properties(fmt.Sprintf(`{"order":%s}`, order)) }

	b.tell("c1", "ordered", about(neighbour))
	if n := len(b.enrollments(flow, "c1")); n != 0 {
		t.Fatalf("%d are enrolled by the neighbour", n)
	}
	b.tell("c1", "ordered", about(order))
	b.settleDown()
	e := b.enrollment(flow, "c1")
	b.tell("c1", "shipped", about(neighbour))
	b.tell("c1", "cancelled", about(neighbour))
	b.settleDown()
	if got := b.enrollment(flow, "c1"); got.Node != "shipped" || got.Status != statusWaiting {
		t.Fatalf("the neighbour's shipment woke her: %s, %s", got.Node, got.Status)
	}
	b.tell("c1", "shipped", about(order))
	b.settleDown()

	var letter, body string
	b.must(b.pool.QueryRow(bg, `select n.payload, o.body from notifications n join outbox o using (workspace_id) where workspace_id = $1`, b.ws).Scan(&letter, &body))
	_, steps, err := b.Steps(bg, b.ws, e.ID)
	b.must(err)
	history, err := json.Marshal(steps)
	b.must(err)
	for what, text := range map[string]string{"letter": letter, "webhook": body, "history": string(history)} {
		if !strings.Contains(text, `"order":`+order) {
			t.Errorf("the %s says %s", what, text)
		}
	}
	made := b.simulate(flow, 1, Simulation{ProfileKey: "c1", At: noon,
		Trigger: Event{Name: "ordered", Properties: json.RawMessage(`{"order":` + order + `}`)},
		Events:  []Event{{Name: "shipped", Properties: json.RawMessage(`{"order":` + neighbour + `}`), OccurredAt: noon.Add(time.Hour)}}})
	if last := made.Path[len(made.Path)-1]; last.Event != "completed" || last.At.Sub(noon) != 72*time.Hour {
		t.Errorf("simulated, she was woken: %v", brief(made))
	}
}

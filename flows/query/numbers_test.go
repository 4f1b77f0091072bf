package query_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
	"lemma/flows/query"
	"lemma/message"
)

// An id of 16 digits and its neighbour are equal as doubles. They stay distinct after the
// event: in conditions, messages, webhooks, the history and a simulation.
func TestLargeIDsStayWhatTheyAre(t *testing.T) {
	b := setup(t, 1)
	const order, neighbour = "9007199254740993", "9007199254740992"
	tpl, err := b.Deps.Templates.Create(bg, b.Workspace, message.NewTemplate{ID: lemma.NewID(), Name: "order",
		Content: message.Content{Subject: "Order {{ trigger.properties.order }}", Text: "t"}})
	b.Must(err)
	b.Template = tpl.ID
	flow := b.Live(strings.ReplaceAll(`{"audience_id":"$audience","triggers":[{"type":"event","event":"ordered",
		"condition":"trigger.properties.order >= 9007199254740993"}],
		"recurrence":{"policy":"fields","fields":["order"]},"exit_on":[{"event":"cancelled",
			"condition":"event.properties.order == trigger.properties.order"}],
		"start":"shipped","nodes":{
		"shipped":{"type":"wait_for_event","event":"shipped","condition":"event.properties.order == trigger.properties.order","timeout":"P3D",
			"next":"hello","on_timeout":"end"},
		"notify":{"type":"webhook","endpoint_id":"$endpoint","next":"end","on_error":"end"},
		"hello":{$send,"next":"notify"},"end":{"type":"exit"}}}`, "$endpoint", b.Endpoint()))
	about := func(order string) func(*intake.Event) {
		return flowstest.Properties(fmt.Sprintf(`{"order":%s}`, order))
	}

	b.RecordEvent("c1", "ordered", about(neighbour))
	if n := len(b.Enrollments(flow, "c1")); n != 0 {
		t.Fatalf("%d are enrolled by the neighbour", n)
	}
	b.RecordEvent("c1", "ordered", about(order))
	b.Settle()
	e := b.Enrollment(flow, "c1")
	b.RecordEvent("c1", "shipped", about(neighbour))
	b.RecordEvent("c1", "cancelled", about(neighbour))
	b.Settle()
	if got := b.Enrollment(flow, "c1"); got.Node != "shipped" || got.Status != enrollment.Waiting {
		t.Fatalf("the neighbour's shipment woke the enrollment: %s, %s", got.Node, got.Status)
	}
	b.RecordEvent("c1", "shipped", about(order))
	b.Settle()

	var message, body string
	b.Must(b.Pool.QueryRow(bg, `select n.payload, o.body from notifications n join outbox o using (workspace_id) where workspace_id = $1`,
		b.Workspace).Scan(&message, &body))
	_, steps, _, err := b.Steps(bg, b.Workspace, e.ID, -1)
	b.Must(err)
	history, err := json.Marshal(steps)
	b.Must(err)
	for what, text := range map[string]string{"message": message, "webhook": body, "history": string(history)} {
		if !strings.Contains(text, `"order":`+order) {
			t.Errorf("the %s has %s", what, text)
		}
	}
	made := b.simulate(flow, 1, query.Simulation{ProfileKey: "c1", At: noon,
		Trigger: intake.Event{Name: "ordered", Properties: json.RawMessage(`{"order":` + order + `}`)},
		Events: []intake.Event{{Name: "shipped", Properties: json.RawMessage(`{"order":` + neighbour + `}`),
			OccurredAt: noon.Add(time.Hour)}}})
	if last := made.Path[len(made.Path)-1]; last.Event != "completed" || last.At.Sub(noon) != 72*time.Hour {
		t.Errorf("the simulated enrollment was woken: %v", brief(made))
	}
}

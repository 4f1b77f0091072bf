package execution_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/flows/flowstest"
	"lemma/pgtest"
	"lemma/webhooks"
)

// The list of step events is the same in the code, the schema and the contract.
func TestStepsAreNamedAlikeEverywhere(t *testing.T) {
	b := setup(t, 0)
	ours := slices.Sorted(slices.Values(enrollment.StepEvents))
	check := pgtest.One[string](b.T, b.Pool, `select pg_get_constraintdef(oid) from pg_constraint where conname = 'enrollment_steps_event'
		and conrelid = 'enrollment_steps'::regclass`)
	var schema []string
	for _, m := range regexp.MustCompile(`'(\w+)'`).FindAllStringSubmatch(check, -1) {
		schema = append(schema, m[1])
	}
	if d := cmp.Diff(ours, slices.Sorted(slices.Values(schema))); d != "" {
		t.Errorf("the schema's check: %s", d)
	}
	doc, err := openapi3.NewLoader().LoadFromData(lemma.OpenAPI)
	b.Must(err)
	var contract []string
	step := doc.Components.Schemas["EnrollmentHistory"].Value.Properties["steps"].Value.Items.Value
	for _, name := range step.Properties["event"].Value.Enum {
		contract = append(contract, name.(string))
	}
	if d := cmp.Diff(ours, slices.Sorted(slices.Values(contract))); d != "" {
		t.Errorf("the contract: %s", d)
	}
}

// A worker compiles no template: what a route needs of one is stored with its version. Here it is one
// that does not compile any more.
func TestARouteCompilesNoTemplate(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(flowstest.Welcome)
	b.Exec(`insert into template_versions (workspace_id, template_id, version, subject, html, text, variables)
		select workspace_id, template_id, 99, subject, '{% if %}', text, variables from template_versions where version = 1`)
	b.Exec(`update flow_versions set definition = regexp_replace(definition, '"template_version": ?1', '"template_version":99', 'g')`)
	b.WantCount(1, `select count(*) from flow_versions where workspace_id = $1 and definition like '%"template_version":99%'`, b.Workspace)
	b.RecordEvent("c1", "signed_up")
	worker, _ := b.Traced()
	b.Must(flowstest.Second(worker.RunOnce(t.Context())))
	b.WantCount(1, `select count(*) from notifications where workspace_id = $1 and payload::text <> '{}'`, b.Workspace)
	b.WantCount(0, `select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and blocked_reason is not null`,
		b.Workspace, flow)
}

// A send that skipped a profile has acted: moved back to it, the profile gets no message,
// and the history does not claim one.
func TestASendThatSkippedHasActed(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(flowstest.Welcome)
	b.ExecDB(`update customers set email = null`)
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	id := b.Enrollment(flow, "c1").ID
	b.ExecDB(`update customers set email = 'c1@shop.example'`)
	for range 2 {
		if s := b.PutBack(id, "hello"); s.Event != enrollment.StepSkipped || s.Data["reason"] != execution.AlreadySkipped {
			t.Errorf("%+v", s)
		}
	}
	if s := b.PutBack(id, "nudge"); s.Event != enrollment.StepSent {
		t.Errorf("%+v", s)
	}
	if n := b.Count(`select count(*) from notifications where workspace_id = $1 and skip_reason is null`,
		b.Workspace); n != 1 || b.Notifications() != 2 {
		t.Errorf("%d to be sent, of %d", n, b.Notifications())
	}
	b.Invariants()
}

// The reason not to act again names the first act. A message that was too large was never
// written, and is tried again.
func TestWhatANodeHasDoneIsNotDoneAgain(t *testing.T) {
	b := setup(t, 1)
	text := strings.ReplaceAll(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},
		"start":"hello","nodes":{
		"hello":{$send,"next":"notify"},"notify":{"type":"webhook","endpoint_id":"$endpoint","columns":["name"],"next":"wait","on_error":"wait"},
		"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`, "$endpoint", b.Endpoint())
	flow := b.Live(text)
	b.ExecDB(`update customers set name = $1`, strings.Repeat("\x01", webhooks.MaxBody/4)) // each is six bytes in JSON
	b.RecordEvent("c1", "go")
	b.Settle()
	id := b.Enrollment(flow, "c1").ID
	if s := b.LastStepOn(id, "notify"); s.Data["reason"] != execution.TooLarge {
		t.Fatalf("%+v", s)
	}
	b.ExecDB(`update customers set name = 'N'`)
	if s := b.PutBack(id, "notify"); s.Event != enrollment.StepWebhook {
		t.Errorf("%+v", s)
	}
	b.PutBack(id, "wait")
	if s := b.PutBack(id, "notify"); s.Event != enrollment.StepSkipped || s.Data["reason"] != execution.AlreadyCalled {
		t.Errorf("%+v", s)
	}
	for range 2 {
		if s := b.PutBack(id, "hello"); s.Event != enrollment.StepSkipped || s.Data["reason"] != execution.AlreadySent {
			t.Errorf("%+v", s)
		}
	}
	if n := b.Count(`select count(*) from outbox where workspace_id = $1`, b.Workspace); n != 1 || b.Notifications() != 1 {
		t.Errorf("%d messages, %d notifications", n, b.Notifications())
	}
	b.Invariants()
}

// A webhook message that was too large was not written: it does not prevent the message
// that the node sends in a later version.
func TestANotificationThatWasNotWrittenIsNoMessage(t *testing.T) {
	b := setup(t, 1)
	const text = `{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"notify",
		"nodes":{
		"notify":{$notify,"next":"wait"},"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`
	flow := b.Live(strings.Replace(text, "$notify", `"type":"webhook","endpoint_id":"`+b.Endpoint()+`","columns":["name"]`, 1))
	b.ExecDB(`update customers set name = $1`, strings.Repeat("\x01", webhooks.MaxBody/4))
	b.RecordEvent("c1", "go")
	b.Settle()
	b.PublishNext(flow, strings.Replace(text, "$notify", "$send", 1), flows.InFlight{Mode: "stay"})
	b.ExecDB(`update customers set name = 'N'`)
	id := b.Enrollment(flow, "c1").ID
	b.Must(flowstest.Second(b.Move(bg, b.Workspace, id, new(2), "notify")))
	b.Settle()
	if s := b.LastStepOn(id, "notify"); s.Event != enrollment.StepSent || b.Notifications() != 1 {
		t.Errorf("%+v, %d notifications", s, b.Notifications())
	}
	b.Invariants()
}

// A node that gets another type in a later version has not acted as that. Back in its old
// type it has.
func TestANodeOfAnotherTypeHasNotActed(t *testing.T) {
	b := setup(t, 1)
	const text = `{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"act",
		"nodes":{
		"act":{$act,"next":"wait"},"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`
	call := strings.Replace(text, "$act", `"type":"webhook","endpoint_id":"`+b.Endpoint()+`","on_error":"wait"`, 1)
	send := strings.Replace(text, "$act", "$send", 1)
	first, second := b.Live(call), b.Live(send)
	b.RecordEvent("c1", "go")
	b.Settle()
	for _, next := range []struct {
		flow       uuid.UUID
		text, want string
	}{
		{first, call, execution.AlreadyCalled},
		{first, send, enrollment.StepSent},
		{first, call, execution.AlreadyCalled},
		{first, send, execution.AlreadySent},
		{second, call, enrollment.StepWebhook},
	} {
		id := b.Enrollment(next.flow, "c1").ID
		b.PutBack(id, "wait")
		v := b.PublishNext(next.flow, next.text, flows.InFlight{Mode: "stay"})
		b.Must(flowstest.Second(b.Move(bg, b.Workspace, id, &v, "act")))
		b.Settle()
		if s := b.LastStepOn(id, "act"); s.Event != next.want && s.Data["reason"] != next.want {
			t.Errorf("%s: %+v", next.want, s)
		}
	}
	b.WantCount(2, `select count(*) from outbox where workspace_id = $1`, b.Workspace)
	b.WantCount(2, `select count(*) from notifications where workspace_id = $1`, b.Workspace)
	b.Invariants()
}

// A message that contains the profile's data is not written after the profile is gone; one
// without it is.
func TestAWebhookOfAnErasedProfile(t *testing.T) {
	b := setup(t, 1)
	const text = `{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},
		"start":"wait","nodes":{"wait":{"type":"delay","for":"PT1H","next":"notify"},
			"notify":{"type":"webhook","endpoint_id":"$endpoint",$columns"next":"end"},"end":{"type":"exit"}}}`
	live := func(columns string) uuid.UUID {
		return b.Live(strings.NewReplacer("$endpoint", b.Endpoint(), "$columns", columns).Replace(text))
	}
	with, without := live(`"columns":["email","name"],`), live("")
	b.RecordEvent("c1", "go")
	b.Settle()
	b.ExecDB(`delete from customers`)
	b.Pass(2 * time.Hour)
	b.Settle()
	if e := b.Enrollment(with, "c1"); e.Status != enrollment.Exited || e.ExitReason != enrollment.ExitNoProfile || e.Node != "notify" {
		t.Errorf("%+v", e)
	}
	if e := b.Enrollment(without, "c1"); e.Status != enrollment.Waiting {
		t.Errorf("%+v", e)
	}
	b.WantCount(1, `select count(*) from outbox where workspace_id = $1`, b.Workspace)
	b.Invariants()
}

// The history has the events that decided a branch: those of all cases that were checked,
// and no others.
func TestWhatDecidedABranch(t *testing.T) {
	b := setup(t, 3)
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"wait",
		"nodes":{
		"wait":{"type":"delay","for":"PT1H","next":"ask"},"ask":{"type":"branch","cases":[
			{"if":"events.bought.times >= 2","next":"x"},{"if":"profile.country == 'DE'","next":"x"},{"if":"events.viewed.times >= 1","next":"x"}],
				"else":"y"},
		"x":{"type":"exit"},"y":{"type":"exit"}}}`)
	for profile, events := range map[string]string{"c1": "go bought", "c2": "go", "c3": "go bought viewed"} {
		b.RecordEvents(profile, strings.Fields(events)...)
	}
	b.Settle()
	b.Pass(2 * time.Hour)
	b.Settle()
	for profile, want := range map[string]string{"c1": `{"bought":1,"case":"else","viewed":0}`, "c2": `{"bought":0,"case":1}`,
		"c3": `{"bought":1,"case":2,"viewed":1}`} {
		s := b.LastStepOn(b.Enrollment(flow, profile).ID, "ask")
		got := map[string]any{"case": s.Data["case"]}
		for name, sum := range s.Data["events"].(map[string]any) {
			got[name] = sum.(map[string]any)["times"]
		}
		if text, _ := json.Marshal(got); string(text) != want {
			t.Errorf("%s: %s", profile, text)
		}
	}
}

// A definition stays as written; a sender on an internationalized domain is sent with the
// address that mail servers accept.
func TestSenderOnAnInternationalizedDomain(t *testing.T) {
	b := setup(t, 1)
	text := strings.Replace(flowstest.Welcome, "$send", `"type":"send","channel":"email","from":{"email":"Hi@Bücher.example"},
		"reply_to":"hilfe@bücher.example",
		"provider_id":"`+lemma.FormatID(lemma.PrefixProvider, b.Provider)+`","template_id":"`+lemma.FormatID(lemma.PrefixTemplate,
		b.Template)+`"`, 1)
	b.Live(text)
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	var from, reply string
	b.Must(b.Pool.QueryRow(bg, `select from_email, reply_to from contents where workspace_id = $1 and node = 'hello'`,
		b.Workspace).Scan(&from, &reply))
	if from != "Hi@xn--bcher-kva.example" || reply != "hilfe@xn--bcher-kva.example" {
		t.Errorf("from %s, reply to %s", from, reply)
	}
}

package flows

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
	"lemma/webhooks"
)

// What may be said to have happened is one list: in the program, in the schema
// and in the contract.
func TestStepsAreNamedAlikeEverywhere(t *testing.T) {
	b := setup(t, 0)
	ours := slices.Sorted(slices.Values(stepEvents))
	var check string
	b.must(b.pool.QueryRow(bg, `select pg_get_constraintdef(oid) from pg_constraint where conname = 'enrollment_steps_event' and conrelid = 'enrollment_steps'::regclass`).Scan(&check))
	var schema []string
	for _, m := range regexp.MustCompile(`'(\w+)'`).FindAllStringSubmatch(check, -1) {
		schema = append(schema, m[1])
	}
	if d := cmp.Diff(ours, slices.Sorted(slices.Values(schema))); d != "" {
		t.Errorf("the schema's check: %s", d)
	}
	doc, err := openapi3.NewLoader().LoadFromData(lemma.OpenAPI)
	b.must(err)
	var contract []string
	for _, name := range doc.Components.Schemas["EnrollmentHistory"].Value.Properties["steps"].Value.Items.Value.Properties["event"].Value.Enum {
		contract = append(contract, name.(string))
	}
	if d := cmp.Diff(ours, slices.Sorted(slices.Values(contract))); d != "" {
		t.Errorf("the contract: %s", d)
	}
}

// lastOf is the last step at a node.
func (b *bundle) lastOf(id uuid.UUID, node string) (found Step) {
	b.t.Helper()
	_, steps, err := b.Steps(bg, b.ws, id)
	b.must(err)
	for _, s := range steps {
		if s.Node == node && s.Event != stepMoved {
			found = s
		}
	}
	return found
}

// putBack puts somebody on a node by hand, and lets her go on from there.
func (b *bundle) putBack(id uuid.UUID, node string) Step {
	b.t.Helper()
	b.must(second(b.Move(bg, b.ws, id, nil, node)))
	b.settleDown()
	return b.lastOf(id, node)
}

// A send that skipped somebody has acted: put back on it she is not written to,
// and the history does not say that she was.
func TestASendThatSkippedHasActed(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(welcome)
	b.run(b.shop, `update customers set email = null`)
	b.tell("c1", "signed_up")
	b.settleDown()
	id := b.enrollment(flow, "c1").ID
	b.run(b.shop, `update customers set email = 'c1@shop.example'`)
	for range 2 {
		if s := b.putBack(id, "hello"); s.Event != stepSkipped || s.Data["reason"] != alreadySkipped {
			t.Errorf("%+v", s)
		}
	}
	if s := b.putBack(id, "nudge"); s.Event != stepSent {
		t.Errorf("%+v", s)
	}
	if n := b.count(`select count(*) from notifications where workspace_id = $1 and skip_reason is null`); n != 1 || b.notifications() != 2 {
		t.Errorf("%d to be sent, of %d", n, b.notifications())
	}
	b.invariants()
}

// Each reason not to act a second time is the one of what was done the first
// time. A message that was too large was never written, and is tried again.
func TestWhatANodeHasDoneIsNotDoneAgain(t *testing.T) {
	b := setup(t, 1)
	text := strings.ReplaceAll(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"hello","nodes":{
		"hello":{$send,"next":"tell"},"tell":{"type":"webhook","endpoint_id":"$endpoint","columns":["name"],"next":"wait","on_error":"wait"},
		"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`, "$endpoint", b.endpoint())
	flow := b.live(text)
	b.run(b.shop, `update customers set name = $1`, strings.Repeat("\x01", webhooks.MaxBody/4)) // six bytes each in JSON
	b.tell("c1", "go")
	b.settleDown()
	id := b.enrollment(flow, "c1").ID
	if s := b.lastOf(id, "tell"); s.Data["reason"] != tooLarge {
		t.Fatalf("%+v", s)
	}
	b.run(b.shop, `update customers set name = 'N'`)
	if s := b.putBack(id, "tell"); s.Event != stepWebhook {
		t.Errorf("%+v", s)
	}
	b.putBack(id, "wait")
	if s := b.putBack(id, "tell"); s.Event != stepSkipped || s.Data["reason"] != alreadyCalled {
		t.Errorf("%+v", s)
	}
	for range 2 {
		if s := b.putBack(id, "hello"); s.Event != stepSkipped || s.Data["reason"] != alreadySent {
			t.Errorf("%+v", s)
		}
	}
	if n := b.count(`select count(*) from outbox where workspace_id = $1`); n != 1 || b.notifications() != 1 {
		t.Errorf("%d messages, %d notifications", n, b.notifications())
	}
	b.invariants()
}

// What was too large for a webhook was not written, and keeps nobody from the
// letter that the node has become since.
func TestAMessageThatWasNotWrittenIsNoLetter(t *testing.T) {
	b := setup(t, 1)
	const text = `{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"tell","nodes":{
		"tell":{$tell,"next":"wait"},"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`
	flow := b.live(strings.Replace(text, "$tell", `"type":"webhook","endpoint_id":"`+b.endpoint()+`","columns":["name"]`, 1))
	b.run(b.shop, `update customers set name = $1`, strings.Repeat("\x01", webhooks.MaxBody/4))
	b.tell("c1", "go")
	b.settleDown()
	b.publish(flow, strings.Replace(text, "$tell", "$send", 1), InFlight{Mode: "stay"})
	b.run(b.shop, `update customers set name = 'N'`)
	id := b.enrollment(flow, "c1").ID
	b.must(second(b.Move(bg, b.ws, id, ptr(2), "tell")))
	b.settleDown()
	if s := b.lastOf(id, "tell"); s.Event != stepSent || b.notifications() != 1 {
		t.Errorf("%+v, %d notifications", s, b.notifications())
	}
	b.invariants()
}

// A message that would say something of the profile is not written of somebody
// who is gone; one that says nothing of it is.
func TestAWebhookOfSomebodyWhoIsGone(t *testing.T) {
	b := setup(t, 1)
	const text = `{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},
		"start":"wait","nodes":{"wait":{"type":"delay","for":"PT1H","next":"tell"},"tell":{"type":"webhook","endpoint_id":"$endpoint",$columns"next":"end"},"end":{"type":"exit"}}}`
	live := func(columns string) uuid.UUID {
		return b.live(strings.NewReplacer("$endpoint", b.endpoint(), "$columns", columns).Replace(text))
	}
	with, without := live(`"columns":["email","name"],`), live("")
	b.tell("c1", "go")
	b.settleDown()
	b.run(b.shop, `delete from customers`)
	b.pass(2 * time.Hour)
	b.settleDown()
	if e := b.enrollment(with, "c1"); e.Status != Exited || e.ExitReason != ExitNoProfile || e.Node != "tell" {
		t.Errorf("%+v", e)
	}
	if e := b.enrollment(without, "c1"); e.Status != statusWaiting {
		t.Errorf("%+v", e)
	}
	if n := b.count(`select count(*) from outbox where workspace_id = $1`); n != 1 {
		t.Errorf("%d messages", n)
	}
	b.invariants()
}

// Whichever way a branch goes, the history has the events by which it did: of
// all cases that were looked at, and of none after that.
func TestWhatDecidedABranch(t *testing.T) {
	b := setup(t, 3)
	flow := b.live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"wait","nodes":{
		"wait":{"type":"delay","for":"PT1H","next":"ask"},"ask":{"type":"branch","cases":[
			{"if":"events.bought.times >= 2","next":"x"},{"if":"profile.country == 'DE'","next":"x"},{"if":"events.viewed.times >= 1","next":"x"}],"else":"y"},
		"x":{"type":"exit"},"y":{"type":"exit"}}}`)
	for profile, events := range map[string]string{"c1": "go bought", "c2": "go", "c3": "go bought viewed"} {
		b.tellAll(profile, strings.Fields(events)...)
	}
	b.settleDown()
	b.pass(2 * time.Hour)
	b.settleDown()
	for profile, want := range map[string]string{"c1": `{"bought":1,"case":"else","viewed":0}`, "c2": `{"bought":0,"case":1}`, "c3": `{"bought":1,"case":2,"viewed":1}`} {
		s := b.lastOf(b.enrollment(flow, profile).ID, "ask")
		got := map[string]any{"case": s.Data["case"]}
		for name, sum := range s.Data["events"].(map[string]any) {
			got[name] = sum.(map[string]any)["times"]
		}
		if text, _ := json.Marshal(got); string(text) != want {
			t.Errorf("%s: %s", profile, text)
		}
	}
}

// A definition stays as it was written; what is sent from an internationalized
// domain has its address as mail servers take it.
func TestSenderOnAnInternationalizedDomain(t *testing.T) {
	b := setup(t, 1)
	text := strings.Replace(welcome, "$send", `"type":"send","channel":"email","from":{"email":"Hi@Bücher.example"},"reply_to":"hilfe@bücher.example",
		"provider_id":"`+lemma.FormatID(lemma.PrefixProvider, b.provider)+`","template_id":"`+lemma.FormatID(lemma.PrefixTemplate, b.template)+`"`, 1)
	b.live(text)
	b.tell("c1", "signed_up")
	b.settleDown()
	var from, reply string
	b.must(b.pool.QueryRow(bg, `select from_email, reply_to from contents where workspace_id = $1 and node = 'hello'`, b.ws).Scan(&from, &reply))
	if from != "Hi@xn--bcher-kva.example" || reply != "hilfe@xn--bcher-kva.example" {
		t.Errorf("from %s, reply to %s", from, reply)
	}
}

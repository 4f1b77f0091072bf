package flows

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
)

var noon = time.Date(2026, 3, 27, 12, 0, 0, 0, time.UTC)

// brief is a path in short: when, since the beginning, what, where, and whither.
func brief(s Simulated) []string {
	var all []string
	for _, p := range s.Path {
		line := fmt.Sprintf("%s %s@%s", p.At.Sub(s.Path[0].At), p.Event, p.Node)
		if p.Until != nil {
			line += " until " + p.Until.Sub(s.Path[0].At).String()
		}
		if p.Next != "" {
			line += " -> " + p.Next
		}
		all = append(all, line)
	}
	return append(all, strings.TrimSpace(s.Status+" "+s.ExitReason+s.Reason))
}

func (b *bundle) simulate(flow uuid.UUID, version int, s Simulation) Simulated {
	b.t.Helper()
	if s.At.IsZero() {
		s.At = noon
	}
	made, err := b.Simulate(context.Background(), b.ws, flow, version, s)
	b.must(err)
	return made
}

const grand = `{"audience_id":"$audience","triggers":[{"type":"event","event":"signed_up","condition":"trigger.properties.plan == 'pro'"}],"recurrence":{"policy":"once"},
	"exit_on":[{"event":"left"},{"event":"bought","condition":"event.properties.total > 100.0","goal":true}],
	"start":"hello","nodes":{
	"hello":{$send,"next":"pause"},
	"pause":{"type":"delay","for":"P1D","next":"morning"},
	"morning":{"type":"wait_until","time":"09:00","zone_column":"zone","next":"reply"},
	"reply":{"type":"wait_for_event","event":"clicked","condition":"event.properties.link == 'pay'","timeout":"P2D","next":"country","on_timeout":"bought"},
	"bought":{"type":"branch","cases":[{"sql":"select customer_id from orders join people on profile_key = customer_id and at > enrolled_at","next":"end"},
		{"if":"events.clicked.times > 1","next":"end"}],"else":"country"},
	"country":{"type":"branch","cases":[{"if":"profile.country == 'DE'","next":"tell"}],"else":"end"},
	"tell":{"type":"webhook","endpoint_id":"$endpoint","next":"nudge","on_status":{"410":"end"},"on_error":"lost"},
	"nudge":{$send,"next":"end"},
	"lost":{"type":"exit"},
	"end":{"type":"exit","goal":true}}}`

// A simulation walks the real profile through the real graph, and time jumps
// from wait to wait: also over the change to summer time.
func TestSimulate(t *testing.T) {
	b := setup(t, 4)
	text := strings.ReplaceAll(grand, "$endpoint", b.endpoint())
	flow := b.live(text)
	pro := Event{Name: "signed_up", Properties: json.RawMessage(`{"plan":"pro"}`)}
	before := b.rows()
	event := func(name string, after time.Duration, properties string) Event {
		return Event{Name: name, OccurredAt: noon.Add(after), Properties: json.RawMessage(properties)}
	}
	begin := []string{"0s enrolled@", "0s checked@ -> hello", "0s sent@hello -> pause", "0s waiting@pause until 24h0m0s", "24h0m0s resumed@pause -> morning",
		"24h0m0s waiting@morning until 43h0m0s", "43h0m0s resumed@morning -> reply", "43h0m0s waiting@reply until 91h0m0s"}
	for name, c := range map[string]struct {
		who  string
		s    Simulation
		want []string
	}{
		"nothing happens": {"c2", Simulation{}, append(slices.Clone(begin), "91h0m0s timed_out@reply -> bought", "91h0m0s branched@bought -> country", "91h0m0s branched@country -> tell",
			"91h0m0s webhook@tell", "91h0m0s answered@tell -> nudge", "91h0m0s sent@nudge -> end", "91h0m0s completed@end", "completed goal")},
		"she clicks, and is of another country": {"c1", Simulation{Events: []Event{event("clicked", 90*time.Hour, `{"link":"pay"}`), event("clicked", 60*time.Hour, `{"link":"pay"}`), event("clicked", 44*time.Hour, `{"link":"home"}`)}},
			append(slices.Clone(begin), "60h0m0s resumed@reply -> country", "60h0m0s branched@country -> end", "60h0m0s completed@end", "completed goal")},
		"clicks count that nobody waited for": {"c2", Simulation{Events: []Event{event("clicked", time.Hour, `{}`), event("clicked", 2*time.Hour, `{}`)}},
			append(slices.Clone(begin), "91h0m0s timed_out@reply -> bought", "91h0m0s branched@bought -> end", "91h0m0s completed@end", "completed goal")},
		"she buys little, then much": {"c2", Simulation{Events: []Event{event("bought", time.Hour, `{"total":100}`), event("bought", 30*time.Hour, `{"total":101}`)}},
			append(slices.Clone(begin[:6]), "30h0m0s exited@morning", "exited goal")},
		"she leaves at once": {"c2", Simulation{Events: []Event{event("left", 0, ``)}}, append(slices.Clone(begin[:4]), "0s exited@pause", "exited condition")},
		"the endpoint is gone": {"c2", Simulation{Webhooks: map[string]int{"tell": 410}}, append(slices.Clone(begin), "91h0m0s timed_out@reply -> bought", "91h0m0s branched@bought -> country",
			"91h0m0s branched@country -> tell", "91h0m0s webhook@tell", "91h0m0s answered@tell -> end", "91h0m0s completed@end", "completed goal")},
		"the endpoint never answers": {"c2", Simulation{Webhooks: map[string]int{"tell": 0}}, append(slices.Clone(begin), "91h0m0s timed_out@reply -> bought", "91h0m0s branched@bought -> country",
			"91h0m0s branched@country -> tell", "91h0m0s webhook@tell", "91h0m0s answered@tell -> lost", "91h0m0s completed@lost", "completed")},
		"a stranger":        {"nobody", Simulation{}, []string{"0s enrolled@", "0s refused@", "refused no_profile"}},
		"of another plan":   {"c2", Simulation{Trigger: Event{Name: "signed_up", Properties: json.RawMessage(`{"plan":"free"}`)}}, []string{"refused filtered"}},
		"of no plan":        {"c2", Simulation{Trigger: Event{Name: "signed_up"}}, []string{"refused condition_error"}},
		"of another event":  {"c2", Simulation{Trigger: Event{Name: "signed_down"}}, []string{"refused no_trigger"}},
		"directly enrolled": {"c2", Simulation{Trigger: Event{Properties: json.RawMessage(`{"a":1}`)}, Events: []Event{event("left", time.Hour, ``)}}, append(slices.Clone(begin[:4]), "1h0m0s exited@pause", "exited condition")},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.s
			if s.ProfileKey = c.who; s.Trigger.Name == "" && s.Trigger.Properties == nil {
				s.Trigger = pro
			}
			if d := cmp.Diff(c.want, brief(b.simulate(flow, 0, s))); d != "" {
				t.Error(d)
			}
		})
	}
	b.run(b.shop, `insert into orders values ('c4', '2026-03-28T00:00:00Z')`)
	if got := brief(b.simulate(flow, 1, Simulation{ProfileKey: "c4", Trigger: pro})); !slices.Contains(got, "91h0m0s branched@bought -> end") {
		t.Errorf("the source was not asked: %v", got)
	}
	if d := cmp.Diff(before, b.rows()); d != "" {
		t.Errorf("a simulation leaves traces: %s", d)
	}
}

// What she has done is looked at anew behind every wait.
func TestSimulatedEventsAreOfTheirTime(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(`{"triggers":[],"recurrence":{"policy":"once"},"start":"now","nodes":{
		"now":{"type":"branch","cases":[{"if":"events.bought.times > 0","next":"end"}],"else":"wait"},"wait":{"type":"delay","for":"PT2H","next":"then"},
		"then":{"type":"branch","cases":[{"if":"events.bought.times == 1 && events.bought.last.total > 1.0 && events.bought.last_at == events.bought.first_at","next":"end"}],"else":"lost"},
		"lost":{"type":"exit"},"end":{"type":"exit"}}}`)
	got := brief(b.simulate(flow, 0, Simulation{ProfileKey: "anybody", Events: []Event{
		{Name: "bought", OccurredAt: noon.Add(time.Hour), Properties: json.RawMessage(`{"total":2}`)}, {Name: "bought", OccurredAt: noon.Add(3 * time.Hour)}}}))
	want := []string{"0s enrolled@", "0s checked@ -> now", "0s branched@now -> wait", "0s waiting@wait until 2h0m0s", "2h0m0s resumed@wait -> then",
		"2h0m0s branched@then -> end", "2h0m0s completed@end", "completed"}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
}

// The messages are those that would be sent, word by word; whoever cannot be
// written to gets none, and that is said.
func TestSimulatedMessages(t *testing.T) {
	b := setup(t, 4)
	b.run(b.shop, `update customers set name = '<Ann>' where id = 'c1'; update customers set email = null where id = 'c2'; update customers set opted_out = true where id = 'c3'`)
	tpl, err := b.rooms.Templates.Create(context.Background(), b.ws, newTemplate(`<p>{{ name }} {{ trigger.properties.plan }} {{ trigger.name }}</p>`))
	b.must(err)
	text := strings.ReplaceAll(string(b.definition(welcome)), lemma.FormatID(lemma.PrefixTemplate, b.template), lemma.FormatID(lemma.PrefixTemplate, tpl.ID))
	flow := b.live(text)
	message := func(who string) *SimulatedMessage {
		t.Helper()
		s := b.simulate(flow, 0, Simulation{ProfileKey: who, Trigger: Event{Name: "signed_up", Properties: json.RawMessage(`{"plan":"pro"}`)}})
		i := slices.IndexFunc(s.Path, func(p SimulatedStep) bool { return p.Node == "hello" })
		return s.Path[i].Message
	}
	m := message("c1")
	if m == nil || m.Address != "c1@shop.example" || m.Subject != "s" || !strings.Contains(m.HTML, "&lt;Ann&gt; pro signed_up") || m.Text == "" || m.Skipped != "" || m.Error != "" {
		t.Fatalf("%+v", m)
	}
	if m = message("c2"); m.Skipped != "missing_address" || m.HTML != "" || m.Address != "" {
		t.Fatalf("%+v", m)
	}
	if m = message("c3"); m.Skipped != "unsubscribed" || m.HTML != "" {
		t.Fatalf("%+v", m)
	}
}

// What would be posted is what is posted, but for the enrollment's id.
func TestSimulatedWebhooks(t *testing.T) {
	b := setup(t, 1)
	endpoint := b.endpoint()
	flow := b.live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"hello","nodes":{
		"hello":{$send,"next":"tell"},"tell":{"type":"webhook","endpoint_id":"` + endpoint + `","columns":["country"],"data":{"list":"vip"},"next":"again"},
		"again":{"type":"webhook","endpoint_id":"` + endpoint + `","data":{"list":"all"},"next":"end"},"end":{"type":"exit"}}}`)
	var bodies []any
	for _, step := range b.simulate(flow, 0, Simulation{ProfileKey: "c1", Trigger: Event{Name: "go", Properties: json.RawMessage(`{"plan":"pro"}`)}}).Path {
		if step.Webhook == nil {
			continue
		}
		if step.Event != "webhook" || lemma.FormatID(lemma.PrefixEndpoint, step.Webhook.EndpointID) != endpoint {
			t.Errorf("%+v", step)
		}
		body := readObject(step.Webhook.Body)
		data, _ := body["data"].(map[string]any)
		trigger, _ := data["trigger"].(map[string]any)
		bodies = append(bodies, []any{body["type"], data["node"], data["profile_key"], data["profile"], data["data"], trigger["properties"]})
	}
	want := []any{
		[]any{"flow.webhook", "tell", "c1", map[string]any{"country": "US"}, map[string]any{"list": "vip"}, map[string]any{"plan": "pro"}},
		[]any{"flow.webhook", "again", "c1", nil, map[string]any{"list": "all"}, map[string]any{"plan": "pro"}}}
	if d := cmp.Diff(want, bodies); d != "" {
		t.Error(d)
	}
}

// A draft is simulated as it is; one with faults answers them all.
func TestSimulateADraft(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	f := b.draft(welcome)
	got := b.simulate(f.ID, 1, Simulation{ProfileKey: "c1", Trigger: Event{Name: "signed_up"}})
	if got.Status != Completed || got.Path[2].Message.Subject != "Hi N1" {
		t.Fatalf("%+v", got)
	}
	b.wants(lemma.WrongState, second(b.Simulate(ctx, b.ws, f.ID, 0, Simulation{ProfileKey: "c1"})))
	b.wants(lemma.NotFound, second(b.Simulate(ctx, b.ws, f.ID, 9, Simulation{ProfileKey: "c1"})))
	broken := b.draft(`{"triggers":[],"recurrence":{"policy":"once"},"start":"a","nodes":{"a":{"type":"delay","for":"P1D","next":"b"}}}`)
	if e := b.wants(lemma.Invalid, second(b.Simulate(ctx, b.ws, broken.ID, 1, Simulation{ProfileKey: "c1"}))); !strings.Contains(pointers(e), "/nodes/a/next") {
		t.Fatal(pointers(e))
	}
}

// What is asked wrongly is answered with pointers, all at once.
func TestSimulateBadInput(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(strings.ReplaceAll(grand, "$endpoint", b.endpoint()))
	for want, s := range map[string]Simulation{
		"/profile_key invalid_key": {},
		"/at out_of_range":         {ProfileKey: "c1", At: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)},
		"/trigger/properties properties_invalid, /events/1/event event_invalid, /events/1/occurred_at out_of_range, /events/2/occurred_at required": {ProfileKey: "c1", At: noon,
			Trigger: Event{Properties: json.RawMessage(`[]`)}, Events: []Event{{Name: "ok", OccurredAt: noon}, {OccurredAt: noon.Add(-time.Second)}, {Name: "when"}}},
		"/trigger/occurred_at out_of_range": {ProfileKey: "c1", At: noon, Trigger: Event{OccurredAt: noon.Add(25 * time.Hour)}},
		"/webhooks/a~1b unknown_node, /webhooks/hello unknown_node, /webhooks/tell out_of_range": {ProfileKey: "c1", Webhooks: map[string]int{"a/b": 200, "hello": 200, "tell": 199}},
		"/trigger/type unknown":        {ProfileKey: "c1", Source: "friend"},
		"/trigger/event event_invalid": {ProfileKey: "c1", Source: fromEvent},
		"/trigger/event not_allowed":   {ProfileKey: "c1", Source: fromDirect, Trigger: Event{Name: "signed_up"}},
		"/trigger not_allowed":         {ProfileKey: "c1", Source: fromAudience, Trigger: Event{ID: "x"}},
		"/events too_many":             {ProfileKey: "c1", Events: make([]Event, 101)},
	} {
		_, err := b.Simulate(context.Background(), b.ws, flow, 1, s)
		if got := pointers(b.wants(lemma.Invalid, err)); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	b.run(b.shop, `alter table customers rename to gone`)
	_, err := b.Simulate(context.Background(), b.ws, flow, 1, Simulation{ProfileKey: "c1"})
	if e := b.wants(lemma.Invalid, err); e.Code != "source_changed" {
		t.Error(err)
	}
}

// A journey longer than a simulation goes is left waiting.
func TestSimulateIsBounded(t *testing.T) {
	b := setup(t, 1)
	nodes := `"n0":{"type":"delay","for":"P400D","next":"n1"},"n1":{"type":"delay","for":"P400D","next":"n2"},"n2":{"type":"delay","for":"P400D","next":"end"},"end":{"type":"exit"}`
	flow := b.live(`{"triggers":[],"recurrence":{"policy":"once"},"start":"n0","nodes":{` + nodes + `}}`)
	got := b.simulate(flow, 0, Simulation{ProfileKey: "anybody"})
	if got.Status != "waiting" || !got.Enrolled || got.Path[len(got.Path)-1].Node != "n2" {
		t.Fatalf("%v", brief(got))
	}
}

// A look at the audience lets in whom its condition lets in, and refuses the
// others before a journey begins, as the engine does.
func TestSimulateAnAudience(t *testing.T) {
	b := setup(t, 2)
	flow := b.live(looked("once", "profile.country == 'DE'"))
	in := []string{"0s enrolled@", "0s checked@ -> w", "0s waiting@w until 24h0m0s", "24h0m0s resumed@w -> end", "24h0m0s completed@end", "completed"}
	for name, c := range map[string]struct {
		s    Simulation
		want []string
	}{
		"whom the condition lets in":     {Simulation{ProfileKey: "c2"}, in},
		"whom it does not":               {Simulation{ProfileKey: "c1"}, []string{"refused filtered"}},
		"who is not in the audience":     {Simulation{ProfileKey: "nobody"}, []string{"refused no_profile"}},
		"by name":                        {Simulation{ProfileKey: "c1", Source: fromAudience}, []string{"refused filtered"}},
		"who asks directly is let in":    {Simulation{ProfileKey: "c1", Source: fromDirect}, in},
		"and so is who says more":        {Simulation{ProfileKey: "c1", Trigger: Event{Properties: json.RawMessage(`{}`)}}, in},
		"an event that is not a trigger": {Simulation{ProfileKey: "c2", Trigger: Event{Name: "signed_up"}}, []string{"refused no_trigger"}},
	} {
		if d := cmp.Diff(c.want, brief(b.simulate(flow, 0, c.s))); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	b.look()
	b.settleDown()
	if len(b.enrollments(flow, "c1")) != 0 || len(b.enrollments(flow, "c2")) != 1 {
		t.Error("the engine is of another mind")
	}
	both := b.live(strings.Replace(looked("once", "trigger.name == 'x'"), `"triggers":[`, `"triggers":[{"type":"event","event":"signed_up"},`, 1))
	if got := brief(b.simulate(both, 0, Simulation{ProfileKey: "c1"})); got[len(got)-1] != "completed" {
		t.Errorf("with triggers of both kinds, directly: %v", got)
	}
	if got := brief(b.simulate(both, 0, Simulation{ProfileKey: "c1", Source: fromAudience})); got[0] != "refused filtered" {
		t.Errorf("a condition without the profile: %v", got)
	}
	if got := brief(b.simulate(b.live(welcome), 0, Simulation{ProfileKey: "c1", Source: fromAudience})); got[0] != "refused no_trigger" {
		t.Errorf("of a flow that does not look: %v", got)
	}
}

package query_test

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
	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
	"lemma/flows/query"
)

var noon = time.Date(2026, 3, 27, 12, 0, 0, 0, time.UTC)

// brief is a path in short: time since the beginning, event, node and next node.
func brief(s execution.Simulated) []string {
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

func (b *bundle) simulate(flow uuid.UUID, version int, s query.Simulation) execution.Simulated {
	b.T.Helper()
	if s.At.IsZero() {
		s.At = noon
	}
	made, err := b.Simulate(context.Background(), b.Workspace, flow, version, s)
	b.Must(err)
	return made
}

const grand = `{"audience_id":"$audience","triggers":[{"type":"event","event":"signed_up","condition":"trigger.properties.plan == 'pro'"}],
	"recurrence":{"policy":"once"},
	"exit_on":[{"event":"left"},{"event":"bought","condition":"event.properties.total > 100.0","goal":true}],
	"start":"hello","nodes":{
	"hello":{$send,"next":"pause"},
	"pause":{"type":"delay","for":"P1D","next":"morning"},
	"morning":{"type":"wait_until","time":"09:00","zone_column":"zone","next":"reply"},
	"reply":{"type":"wait_for_event","event":"clicked","condition":"event.properties.link == 'pay'",
		"timeout":"P2D","next":"country","on_timeout":"bought"},
	"bought":{"type":"branch","cases":[{"sql":"select customer_id from orders join people on profile_key = customer_id and at > enrolled_at",
		"next":"end"},
		{"if":"events.clicked.times > 1","next":"end"}],"else":"country"},
	"country":{"type":"branch","cases":[{"if":"profile.country == 'DE'","next":"notify"}],"else":"end"},
	"notify":{"type":"webhook","endpoint_id":"$endpoint","next":"nudge","on_status":{"410":"end"},"on_error":"lost"},
	"nudge":{$send,"next":"end"},
	"lost":{"type":"exit"},
	"end":{"type":"exit","goal":true}}}`

// An event is recorded when the simulation begins, whenever it occurred. An explanation
// foretells what an event that occurs now would do.
func TestASimulatedEventIsRecordedNow(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(`{"triggers":[{"type":"event","event":"order","condition":"now - trigger.at < duration('24h')"}],
		"recurrence":{"policy":"once"},"start":"end","nodes":{"end":{"type":"exit"}}}`)
	for ago, want := range map[time.Duration]string{23 * time.Hour: "completed", 25 * time.Hour: "refused filtered"} {
		path := brief(b.simulate(flow, 0, query.Simulation{ProfileKey: "c1",
			Trigger: intake.Event{Name: "order", OccurredAt: noon.Add(-ago)}}))
		if got := path[len(path)-1]; got != want {
			t.Errorf("an order of %s ago: %s, want %s", ago, got, want)
		}
	}
	b.RecordEvent("c1", "order", flowstest.At(time.Now().Add(-25*time.Hour)))
	b.whyIs(flow, "c1", "The profile is not enrolled: the trigger of T was refused as filtered (the trigger's condition is false).",
		"The event order now, like its last one, would enroll the profile.")
}

// A simulation executes the real profile through the real graph, and time advances from
// wait to wait, also over the change to summer time.
func TestSimulate(t *testing.T) {
	b := setup(t, 4)
	text := strings.ReplaceAll(grand, "$endpoint", b.Endpoint())
	flow := b.Live(text)
	pro := intake.Event{Name: "signed_up", Properties: json.RawMessage(`{"plan":"pro"}`)}
	before := b.RowCounts()
	event := func(name string, after time.Duration, properties string) intake.Event {
		return intake.Event{Name: name, OccurredAt: noon.Add(after), Properties: json.RawMessage(properties)}
	}
	begin := []string{"0s enrolled@", "0s checked@ -> hello", "0s sent@hello -> pause", "0s waiting@pause until 24h0m0s",
		"24h0m0s resumed@pause -> morning",
		"24h0m0s waiting@morning until 43h0m0s", "43h0m0s resumed@morning -> reply", "43h0m0s waiting@reply until 91h0m0s"}
	for name, c := range map[string]struct {
		profile string
		s       query.Simulation
		want    []string
	}{
		"nothing happens": {"c2", query.Simulation{}, append(slices.Clone(begin), "91h0m0s timed_out@reply -> bought",
			"91h0m0s branched@bought -> country", "91h0m0s branched@country -> notify",
			"91h0m0s webhook@notify", "91h0m0s answered@notify -> nudge", "91h0m0s sent@nudge -> end", "91h0m0s completed@end", "completed goal")},
		"it clicks, and is of another country": {"c1", query.Simulation{Events: []intake.Event{event("clicked", 90*time.Hour,
			`{"link":"pay"}`), event("clicked", 60*time.Hour, `{"link":"pay"}`), event("clicked", 44*time.Hour, `{"link":"home"}`)}},
			append(slices.Clone(begin), "60h0m0s resumed@reply -> country", "60h0m0s branched@country -> end", "60h0m0s completed@end",
				"completed goal")},
		"clicks count without a wait": {"c2",
			query.Simulation{Events: []intake.Event{event("clicked", time.Hour, `{}`), event("clicked", 2*time.Hour, `{}`)}},
			append(slices.Clone(begin), "91h0m0s timed_out@reply -> bought", "91h0m0s branched@bought -> end", "91h0m0s completed@end",
				"completed goal")},
		"it buys little, then much": {"c2", query.Simulation{Events: []intake.Event{event("bought", time.Hour, `{"total":100}`),
			event("bought", 30*time.Hour, `{"total":101}`)}},
			append(slices.Clone(begin[:6]), "30h0m0s exited@morning", "exited goal")},
		"it leaves at once": {"c2", query.Simulation{Events: []intake.Event{event("left", 0, ``)}},
			append(slices.Clone(begin[:4]), "0s exited@pause", "exited condition")},
		"the endpoint is gone": {"c2", query.Simulation{Webhooks: map[string]int{"notify": 410}},
			append(slices.Clone(begin), "91h0m0s timed_out@reply -> bought", "91h0m0s branched@bought -> country",
				"91h0m0s branched@country -> notify", "91h0m0s webhook@notify", "91h0m0s answered@notify -> end", "91h0m0s completed@end",
				"completed goal")},
		"the endpoint never answers": {"c2", query.Simulation{Webhooks: map[string]int{"notify": 0}},
			append(slices.Clone(begin), "91h0m0s timed_out@reply -> bought", "91h0m0s branched@bought -> country",
				"91h0m0s branched@country -> notify", "91h0m0s webhook@notify", "91h0m0s answered@notify -> lost", "91h0m0s completed@lost",
				"completed")},
		"an unknown profile": {"missing", query.Simulation{}, []string{"0s enrolled@", "0s refused@", "refused no_profile"}},
		"of another plan": {"c2", query.Simulation{Trigger: intake.Event{Name: "signed_up",
			Properties: json.RawMessage(`{"plan":"free"}`)}}, []string{"refused filtered"}},
		"of no plan":       {"c2", query.Simulation{Trigger: intake.Event{Name: "signed_up"}}, []string{"refused condition_error"}},
		"of another event": {"c2", query.Simulation{Trigger: intake.Event{Name: "signed_down"}}, []string{"refused no_trigger"}},
		"directly enrolled": {"c2", query.Simulation{Trigger: intake.Event{Properties: json.RawMessage(`{"a":1}`)},
			Events: []intake.Event{event("left", time.Hour, ``)}}, append(slices.Clone(begin[:4]), "1h0m0s exited@pause", "exited condition")},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.s
			if s.ProfileKey = c.profile; s.Trigger.Name == "" && s.Trigger.Properties == nil {
				s.Trigger = pro
			}
			if d := cmp.Diff(c.want, brief(b.simulate(flow, 0, s))); d != "" {
				t.Error(d)
			}
		})
	}
	b.ExecDB(`insert into orders values ('c4', '2026-03-28T00:00:00Z')`)
	if got := brief(b.simulate(flow, 1, query.Simulation{ProfileKey: "c4", Trigger: pro})); !slices.Contains(got,
		"91h0m0s branched@bought -> end") {
		t.Errorf("the source was not queried: %v", got)
	}
	if d := cmp.Diff(before, b.RowCounts()); d != "" {
		t.Errorf("a simulation writes rows: %s", d)
	}
}

// The profile's events are read again after every wait.
func TestSimulatedEventsAreOfTheirTime(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(`{"triggers":[],"recurrence":{"policy":"once"},"start":"now","nodes":{
		"now":{"type":"branch","cases":[{"if":"events.bought.times > 0","next":"end"}],"else":"wait"},
			"wait":{"type":"delay","for":"PT2H","next":"then"},
		"then":{"type":"branch","cases":[{"if":"events.bought.times == 1 && events.bought.last.total > 1.0 ` +
		`&& events.bought.last_at == events.bought.first_at",
			"next":"end"}],"else":"lost"},
		"lost":{"type":"exit"},"end":{"type":"exit"}}}`)
	got := brief(b.simulate(flow, 0, query.Simulation{ProfileKey: "any", Events: []intake.Event{
		{Name: "bought", OccurredAt: noon.Add(time.Hour), Properties: json.RawMessage(`{"total":2}`)}, {Name: "bought",
			OccurredAt: noon.Add(3 * time.Hour)}}}))
	want := []string{"0s enrolled@", "0s checked@ -> now", "0s branched@now -> wait", "0s waiting@wait until 2h0m0s",
		"2h0m0s resumed@wait -> then",
		"2h0m0s branched@then -> end", "2h0m0s completed@end", "completed"}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
}

// The messages are those that would be sent, byte by byte; a profile that cannot be sent
// to gets none, with the reason.
func TestSimulatedMessages(t *testing.T) {
	b := setup(t, 4)
	b.ExecDB(`update customers set name = '<Ann>' where id = 'c1'; update customers set email = null where id = 'c2'; update customers
		set opted_out = true where id = 'c3'`)
	tpl, err := b.Deps.Templates.Create(context.Background(), b.Workspace,
		flowstest.NewTemplate(`<p>{{ name }} {{ trigger.properties.plan }} {{ trigger.name }}</p>`))
	b.Must(err)
	text := strings.ReplaceAll(string(b.Definition(flowstest.Welcome)), lemma.FormatID(lemma.PrefixTemplate, b.Template),
		lemma.FormatID(lemma.PrefixTemplate, tpl.ID))
	flow := b.Live(text)
	message := func(profile string) *execution.SimulatedMessage {
		t.Helper()
		s := b.simulate(flow, 0,
			query.Simulation{ProfileKey: profile, Trigger: intake.Event{Name: "signed_up", Properties: json.RawMessage(`{"plan":"pro"}`)}})
		i := slices.IndexFunc(s.Path, func(p execution.SimulatedStep) bool { return p.Node == "hello" })
		return s.Path[i].Message
	}
	m := message("c1")
	if m == nil || m.Address != "c1@shop.example" || m.Subject != "s" || !strings.Contains(m.HTML,
		"&lt;Ann&gt; pro signed_up") || m.Text == "" || m.Skipped != "" || m.Error != "" {
		t.Fatalf("%+v", m)
	}
	if m = message("c2"); m.Skipped != "missing_address" || m.HTML != "" || m.Address != "" {
		t.Fatalf("%+v", m)
	}
	if m = message("c3"); m.Skipped != "unsubscribed" || m.HTML != "" {
		t.Fatalf("%+v", m)
	}
}

// Two hundred nodes could show 400 MB.
func TestSimulatedMessagesAreBounded(t *testing.T) {
	b := setup(t, 1)
	tpl, err := b.Deps.Templates.Create(context.Background(), b.Workspace, flowstest.NewTemplate("<p>"+strings.Repeat("x", 250<<10)+"</p>"))
	b.Must(err)
	var nodes strings.Builder
	const sends = 20
	for i := range sends {
		fmt.Fprintf(&nodes, `"n%d":{$send,"next":"n%d"},`, i, i+1)
	}
	text := string(b.Definition(fmt.Sprintf(`{"audience_id":"$audience","triggers":[],"recurrence":{"policy":"once"},"start":"n0",
		"nodes":{%s"n%d":{"type":"exit"}}}`, &nodes, sends)))
	flow := b.Live(strings.ReplaceAll(text, lemma.FormatID(lemma.PrefixTemplate, b.Template), lemma.FormatID(lemma.PrefixTemplate, tpl.ID)))
	size, shown, hidden := 0, 0, 0
	for _, p := range b.simulate(flow, 0, query.Simulation{ProfileKey: "c1"}).Path {
		switch m := p.Message; {
		case m == nil:
		case strings.HasPrefix(m.Error, "not shown"):
			hidden++
		default:
			shown, size = shown+1, size+len(m.HTML)+len(m.Text)
		}
	}
	if shown == 0 || shown+hidden != sends || size > 4<<20 {
		t.Errorf("%d messages of %d bytes are shown, %d are not", shown, size, hidden)
	}
}

// A simulated webhook message is the real one, except for the enrollment's id.
func TestSimulatedWebhooks(t *testing.T) {
	b := setup(t, 1)
	endpoint := b.Endpoint()
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"hello",
		"nodes":{
		"hello":{$send,"next":"notify"},"notify":{"type":"webhook","endpoint_id":"` + endpoint +
		`","columns":["country"],"data":{"list":"vip"},"next":"again"},
		"again":{"type":"webhook","endpoint_id":"` + endpoint + `","data":{"list":"all"},"next":"end"},"end":{"type":"exit"}}}`)
	var bodies []any
	for _, step := range b.simulate(flow, 0,
		query.Simulation{ProfileKey: "c1", Trigger: intake.Event{Name: "go", Properties: json.RawMessage(`{"plan":"pro"}`)}}).Path {
		if step.Webhook == nil {
			continue
		}
		if step.Event != "webhook" || lemma.FormatID(lemma.PrefixEndpoint, step.Webhook.EndpointID) != endpoint {
			t.Errorf("%+v", step)
		}
		body := enrollment.ReadObject(step.Webhook.Body)
		data, _ := body["data"].(map[string]any)
		trigger, _ := data["trigger"].(map[string]any)
		bodies = append(bodies,
			[]any{body["type"], data["node"], data["profile_key"], data["profile"], data["data"], trigger["properties"]})
	}
	want := []any{
		[]any{"flow.webhook", "notify", "c1", map[string]any{"country": "US"}, map[string]any{"list": "vip"}, map[string]any{"plan": "pro"}},
		[]any{"flow.webhook", "again", "c1", nil, map[string]any{"list": "all"}, map[string]any{"plan": "pro"}}}
	if d := cmp.Diff(want, bodies); d != "" {
		t.Error(d)
	}
}

// A draft can be simulated; one with faults returns them all.
func TestSimulateADraft(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	f := b.NewDraft(flowstest.Welcome)
	got := b.simulate(f.ID, 1, query.Simulation{ProfileKey: "c1", Trigger: intake.Event{Name: "signed_up"}})
	if got.Status != enrollment.Completed || got.Path[2].Message.Subject != "Hi N1" {
		t.Fatalf("%+v", got)
	}
	b.Wants(lemma.WrongStatus, flowstest.Second(b.Simulate(ctx, b.Workspace, f.ID, 0, query.Simulation{ProfileKey: "c1"})))
	b.Wants(lemma.NotFound, flowstest.Second(b.Simulate(ctx, b.Workspace, f.ID, 9, query.Simulation{ProfileKey: "c1"})))
	broken := b.NewDraft(`{"triggers":[],"recurrence":{"policy":"once"},"start":"a","nodes":{"a":{"type":"delay","for":"P1D","next":"b"}}}`)
	if e := b.Wants(lemma.Invalid, flowstest.Second(b.Simulate(ctx, b.Workspace, broken.ID, 1,
		query.Simulation{ProfileKey: "c1"}))); !strings.Contains(flowstest.Pointers(e), "/nodes/a/next") {
		t.Fatal(flowstest.Pointers(e))
	}
}

// Invalid input is answered with pointers, all at once.
func TestSimulateBadInput(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(strings.ReplaceAll(grand, "$endpoint", b.Endpoint()))
	for want, s := range map[string]query.Simulation{
		"/profile_key invalid_key": {},
		"/at out_of_range":         {ProfileKey: "c1", At: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)},
		"/trigger/properties properties_invalid, /events/1/event event_invalid, /events/1/occurred_at out_of_range, /events/2/occurred_at " +
			"required": {ProfileKey: "c1", At: noon,
			Trigger: intake.Event{Properties: json.RawMessage(`[]`)}, Events: []intake.Event{{Name: "ok", OccurredAt: noon},
				{OccurredAt: noon.Add(-time.Second)}, {Name: "when"}}},
		"/trigger/occurred_at out_of_range": {ProfileKey: "c1", At: noon, Trigger: intake.Event{OccurredAt: noon.Add(25 * time.Hour)}},
		"/webhooks/a~1b unknown_node, /webhooks/hello unknown_node, /webhooks/notify out_of_range": {ProfileKey: "c1",
			Webhooks: map[string]int{"a/b": 200, "hello": 200, "notify": 199}},
		"/trigger/type not_allowed":    {ProfileKey: "c1", Source: "friend"},
		"/trigger/event event_invalid": {ProfileKey: "c1", Source: enrollment.FromEvent},
		"/trigger/event not_allowed":   {ProfileKey: "c1", Source: enrollment.FromDirect, Trigger: intake.Event{Name: "signed_up"}},
		"/trigger not_allowed":         {ProfileKey: "c1", Source: enrollment.FromAudience, Trigger: intake.Event{ID: "x"}},
		"/events too_many":             {ProfileKey: "c1", Events: make([]intake.Event, 101)},
	} {
		_, err := b.Simulate(context.Background(), b.Workspace, flow, 1, s)
		if got := flowstest.Pointers(b.Wants(lemma.Invalid, err)); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	b.ExecDB(`alter table customers rename to gone`)
	_, err := b.Simulate(context.Background(), b.Workspace, flow, 1, query.Simulation{ProfileKey: "c1"})
	if e := b.Wants(lemma.Invalid, err); e.Code != "source_changed" {
		t.Error(err)
	}
}

// An enrollment that takes longer than a simulation covers is left waiting.
func TestSimulateIsBounded(t *testing.T) {
	b := setup(t, 1)
	nodes := `"n0":{"type":"delay","for":"P400D","next":"n1"},"n1":{"type":"delay","for":"P400D","next":"n2"},
		"n2":{"type":"delay","for":"P400D","next":"end"},"end":{"type":"exit"}`
	flow := b.Live(`{"triggers":[],"recurrence":{"policy":"once"},"start":"n0","nodes":{` + nodes + `}}`)
	got := b.simulate(flow, 0, query.Simulation{ProfileKey: "any"})
	if got.Status != "waiting" || !got.Enrolled || got.Path[len(got.Path)-1].Node != "n2" {
		t.Fatalf("%v", brief(got))
	}
}

// A poll of the audience admits profiles by its condition, and refuses the others before
// an enrollment exists, as the engine does.
func TestSimulateAnAudience(t *testing.T) {
	b := setup(t, 2)
	flow := b.Live(flowstest.Polled("once", "profile.country == 'DE'"))
	in := []string{"0s enrolled@", "0s checked@ -> w", "0s waiting@w until 24h0m0s", "24h0m0s resumed@w -> end", "24h0m0s completed@end",
		"completed"}
	for name, c := range map[string]struct {
		s    query.Simulation
		want []string
	}{
		"a profile that the condition admits": {query.Simulation{ProfileKey: "c2"}, in},
		"a profile that it excludes":          {query.Simulation{ProfileKey: "c1"}, []string{"refused filtered"}},
		"a profile outside of the audience":   {query.Simulation{ProfileKey: "missing"}, []string{"refused no_profile"}},
		"by name": {query.Simulation{ProfileKey: "c1", Source: enrollment.FromAudience},
			[]string{"refused filtered"}},
		"a direct request is admitted": {query.Simulation{ProfileKey: "c1", Source: enrollment.FromDirect}, in},
		"and so is one with properties": {query.Simulation{ProfileKey: "c1", Trigger: intake.Event{Properties: json.RawMessage(`{}`)}},
			in},
		"an event that is not a trigger": {query.Simulation{ProfileKey: "c2", Trigger: intake.Event{Name: "signed_up"}},
			[]string{"refused no_trigger"}},
	} {
		if d := cmp.Diff(c.want, brief(b.simulate(flow, 0, c.s))); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	b.PollOne()
	b.Settle()
	if len(b.Enrollments(flow, "c1")) != 0 || len(b.Enrollments(flow, "c2")) != 1 {
		t.Error("the engine decides differently")
	}
	both := b.Live(strings.Replace(flowstest.Polled("once", "trigger.name == 'x'"), `"triggers":[`,
		`"triggers":[{"type":"event","event":"signed_up"},`, 1))
	if got := brief(b.simulate(both, 0, query.Simulation{ProfileKey: "c1"})); got[len(got)-1] != "completed" {
		t.Errorf("with triggers of both kinds, directly: %v", got)
	}
	if got := brief(b.simulate(both, 0,
		query.Simulation{ProfileKey: "c1", Source: enrollment.FromAudience})); got[0] != "refused filtered" {
		t.Errorf("a condition without the profile: %v", got)
	}
	if got := brief(b.simulate(b.Live(flowstest.Welcome), 0,
		query.Simulation{ProfileKey: "c1", Source: enrollment.FromAudience})); got[0] != "refused no_trigger" {
		t.Errorf("of a flow that does not poll: %v", got)
	}
}

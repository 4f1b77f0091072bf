package graph

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Each row breaks the valid definition in one place: old text, new text, faults.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what, from, to string
		want           []string
	}{
		{"no audience", `"audience_id": "aud_1",`, ``, []string{"/audience_id required", "/nodes/ask/data_source_id required"}},
		{"audience of another type", `"aud_1"`, `7`, []string{"/audience_id wrong_type", "/nodes/ask/data_source_id required"}},
		{"unknown field", `"audience_id"`, `"audience"`,
			[]string{"/audience unknown_field", "/audience_id required", "/nodes/ask/data_source_id required"}},
		{"name in another case", `"audience_id"`, `"Audience_ID"`,
			[]string{"/Audience_ID unknown_field", "/audience_id required", "/nodes/ask/data_source_id required"}},
		{"name twice", `"start": "hello",`, `"start": "hello", "start": "pause",`,
			[]string{"/nodes/hello unreachable", "/start duplicate"}},
		{"pointer is escaped", `"start": "hello",`, `"start": "hello", "a/b~c": 1,`, []string{"/a~1b~0c unknown_field"}},
		{"null is absent", `"start": "hello",`, `"overlap": null, "start": "hello",`, nil},
		{"no start", `"start": "hello",`, ``, []string{"/start required"}},
		{"start is nowhere", `"start": "hello"`, `"start": "hallo"`, []string{"/start unknown_node"}},
		{"a node that leads nowhere", `"for": "P3D", "next": "morning"`, `"for": "P3D"`, []string{"/nodes/pause/next dead_end"}},
		{"a node of unknown type", `"type": "delay", "for": "P3D", "next": "morning"`, `"type": "leap"`,
			[]string{"/nodes/pause/type not_allowed"}},
		{"start is in the middle", `"start": "hello"`, `"start": "pause"`, []string{"/nodes/hello unreachable"}},
		{"overlap", `"start"`, `"overlap": "maybe", "start"`, []string{"/overlap not_allowed"}},

		{"trigger of no type", `"type": "event", "event"`, `"event"`, []string{"/triggers/0/type required"}},
		{"trigger of unknown type", `"type": "event"`, `"type": "moon"`, []string{"/triggers/0/type not_allowed"}},
		{"trigger without event", `"event": "signed_up", `, ``, []string{"/triggers/0/event required"}},
		{"event name with a line break", `"signed_up"`, `"signed\nup"`, []string{"/triggers/0/event invalid"}},
		{"event name too long", `"signed_up"`, `"` + strings.Repeat("é", 101) + `"`, []string{"/triggers/0/event too_long"}},
		{"event every", `"event": "signed_up"`, `"event": "signed_up", "every": "PT1H"`, []string{"/triggers/0/every not_allowed"}},
		{"audience without every", `, "every": "PT1H"`, ``, []string{"/triggers/1/every required"}},
		{"audience too often", `"PT1H"`, `"PT59S"`, []string{"/triggers/1/every invalid_duration"}},
		{"audience with event", `"every": "PT1H"`, `"every": "PT1H", "event": "x"`, []string{"/triggers/1/event not_allowed"}},
		{"trigger twice", `{"type": "audience", "every": "PT1H"}`, `{"type": "event", "event": "signed_up"}`,
			[]string{"/triggers/1 duplicate"}},
		{"trigger condition", `&& profile.vip`, `&& profile.vip2`, []string{"/triggers/0/condition unknown_column"}},
		{"trigger reads events", `&& profile.vip`, `&& events.x.times == 1`, []string{"/triggers/0/condition expression_type"}},

		{"no policy", `"policy": "daily", `, ``, []string{"/recurrence/policy required"}},
		{"no recurrence", `"recurrence": {"policy": "daily", "zone": "Europe/Kyiv"},`, ``, []string{"/recurrence/policy required"}},
		{"unknown policy", `"daily"`, `"hourly"`, []string{"/recurrence/policy not_allowed"}},
		{"once with a zone", `"daily"`, `"once"`, []string{"/recurrence/zone not_allowed"}},
		{"zone", `"Europe/Kyiv"`, `"Europe/Kyjiv"`, []string{"/recurrence/zone invalid_zone"}},
		{"zone of the machine", `"Europe/Kyiv"`, `"Local"`, []string{"/recurrence/zone invalid_zone"}},
		{"zone out of the directory", `"Europe/Kyiv"`, `"../../etc/passwd"`, []string{"/recurrence/zone invalid_zone"}},
		{"per_event with an audience", `"daily", "zone": "Europe/Kyiv"`, `"per_event"`, []string{"/recurrence/policy invalid"}},
		{"fields without fields", `"daily", "zone": "Europe/Kyiv"`, `"fields"`,
			[]string{"/recurrence/fields required", "/recurrence/policy invalid"}},
		{"fields for daily", `"policy": "daily"`, `"policy": "daily", "fields": ["a"]`, []string{"/recurrence/fields not_allowed"}},

		{"exit without event", `{"event": "bought", `, `{`, []string{"/exit_on/0/event required"}},
		{"exit reads the profile", `event.properties.total > 10`, `profile.age > 10`, []string{"/exit_on/0/condition expression_type"}},
		{"exit condition that does not parse", `event.properties.total > 10`, `event.`, []string{"/exit_on/0/condition expression_syntax"}},

		{"id of a node", `"sorry": {"type": "exit"}`, `"sorry": {"type": "exit"}, "a b/c": {"type": "exit"}`,
			[]string{"/nodes/a b~1c invalid", "/nodes/a b~1c unreachable"}},
		{"id too long", `"sorry": {"type": "exit"}`, `"sorry": {"type": "exit"}, "` + strings.Repeat("a", 65) + `": {"type": "exit"}`,
			[]string{"/nodes/" + strings.Repeat("a", 65) + " invalid", "/nodes/" + strings.Repeat("a", 65) + " unreachable"}},
		{"unreachable", `"sorry": {"type": "exit"}`, `"sorry": {"type": "exit"}, "attic": {"type": "exit"}`,
			[]string{"/nodes/attic unreachable"}},
		{"unreachable circle", `"sorry": {"type": "exit"}`,
			`"sorry": {"type": "exit"}, "a": {"type": "delay", "for": "P1D", "next": "b"}, "b": {"type": "delay", "for": "P1D", "next": "a"}`,
			[]string{"/nodes/b/next cycle"}},
		{"unreachable circle with nodes before and behind it", `"sorry": {"type": "exit"}`,
			`"sorry": {"type": "exit"}, "a": {"type": "delay", "for": "P1D", "next": "b"},
			"b": {"type": "wait_for_event", "event": "x", "timeout": "P1D", "on_timeout": "d", "next": "a"},
			"c": {"type": "delay", "for": "P1D", "next": "a"}, "d": {"type": "exit"}`, []string{"/nodes/b/next cycle", "/nodes/c unreachable"}},
		{"unreachable cycle by fields that are no paths", `"sorry": {"type": "exit"}`,
			`"sorry": {"type": "exit"}, "a": {"type": "exit", "next": "b"}, "b": {"type": "exit", "next": "a"}`,
			[]string{"/nodes/a unreachable", "/nodes/a/next not_allowed", "/nodes/b/next not_allowed"}},
		{"unreachable way of several", `"sorry": {"type": "exit"}`,
			`"sorry": {"type": "exit"}, "a": {"type": "delay", "for": "P1D", "next": "b"}, "b": {"type": "delay", "for": "P1D", "next": "pause"}`,
			[]string{"/nodes/a unreachable"}},
		{"node is no object", `"sorry": {"type": "exit"}`, `"sorry": null`, []string{"/nodes/sorry wrong_type"}},
		{"node of no type", `"sorry": {"type": "exit"}`, `"sorry": {}`, []string{"/nodes/sorry/type required"}},
		{"node of unknown type", `"sorry": {"type": "exit"}`, `"sorry": {"type": "leave"}`, []string{"/nodes/sorry/type not_allowed"}},
		{"exit with next", `"sorry": {"type": "exit"}`, `"sorry": {"type": "exit", "next": "done"}`,
			[]string{"/nodes/sorry/next not_allowed"}},
		{"exit with a way back", `"sorry": {"type": "exit"}`, `"sorry": {"type": "exit", "next": "hello"}`,
			[]string{"/nodes/sorry/next not_allowed"}},
		{"exit with a next node", `"sorry": {"type": "exit"}`, `"sorry": {"type": "exit", "next": "missing"}`,
			[]string{"/nodes/sorry/next not_allowed"}},
		{"exit on the way", `"next": "pause"`, `"next": "gone"}, "gone": {"type": "exit", "next": "pause"`,
			[]string{"/nodes/gone/next not_allowed"}},
		{"field of another type", `"for": "P3D"`, `"for": "P3D", "goal": false`, []string{"/nodes/pause/goal not_allowed"}},
		{"name too long", `"for": "P3D"`, `"for": "P3D", "name": "` + strings.Repeat("n", 201) + `"`,
			[]string{"/nodes/pause/name too_long"}},

		{"next is nowhere", `"next": "pause"`, `"next": "paus"`, []string{"/nodes/hello/next unknown_node"}},
		{"dead end", `"on_error": "sorry", "next": "done"`, `"on_error": "sorry"`, []string{"/nodes/notify/next dead_end"}},
		{"next of another type", `"on_error": "sorry", "next": "done"`, `"on_error": "sorry", "next": 3`,
			[]string{"/nodes/notify/next wrong_type"}},
		{"cycle", `"on_error": "sorry", "next": "done"`, `"on_error": "sorry", "next": "ask"`, []string{"/nodes/notify/next cycle"}},
		{"circle of one", `"for": "P3D", "next": "morning"`, `"for": "P3D", "next": "pause"`,
			[]string{"/nodes/morning unreachable", "/nodes/pause/next cycle"}},
		{"timeout leads nowhere", `, "on_timeout": "deal"`, ``, []string{"/nodes/opens/on_timeout dead_end"}},
		{"timeout leads to an unknown node", `"on_timeout": "deal"`, `"on_timeout": "dial"`, []string{"/nodes/opens/on_timeout unknown_node"}},
		{"no else", `, "else": "done"`, ``, []string{"/nodes/ask/else dead_end"}},
		{"case leads to an unknown node", `people", "next": "done"`, `people", "next": "dome"`, []string{"/nodes/ask/cases/1/next unknown_node"}},
		{"case without next", `people", "next": "done"`, `people"`, []string{"/nodes/ask/cases/1/next dead_end"}},
		{"arm leads to an unknown node", `"weight": 3, "next": "done"`, `"weight": 3, "next": "dome"`,
			[]string{"/nodes/deal/arms/1/next unknown_node"}},
		{"arm without next", `"weight": 3, "next": "done"`, `"weight": 3`, []string{"/nodes/deal/arms/1/next dead_end"}},
		{"status leads to an unknown node", `"410": "done"`, `"410": "dome"`, []string{"/nodes/notify/on_status/410 unknown_node"}},
		{"error leads to an unknown node", `"on_error": "sorry"`, `"on_error": "sory"`, []string{"/nodes/notify/on_error unknown_node"}},

		{"send without anything",
			`"channel": "email", "provider_id": "prv_1", "template_id": "tpl_1", "from": {"email": "a@example.com"}, `, ``,
			[]string{"/nodes/hello/channel required", "/nodes/hello/from required", "/nodes/hello/provider_id required",
				"/nodes/hello/template_id required"}},
		{"channel", `"channel": "email"`, `"channel": "pigeon"`, []string{"/nodes/hello/channel not_allowed"}},
		{"from", `"a@example.com"`, `"a"`, []string{"/nodes/hello/from/email address"}},
		{"from name", `"a@example.com"`, `"a@example.com", "name": "a\r\nBcc: b@example.com"`,
			[]string{"/nodes/hello/from/name single_line"}},
		{"from with more", `"a@example.com"`, `"a@example.com", "nick": "a"`, []string{"/nodes/hello/from/nick unknown_field"}},
		{"reply to", `"channel"`, `"reply_to": "x", "channel"`, []string{"/nodes/hello/reply_to address"}},
		{"header", `"channel"`, `"headers": {"X-A": "b\nc"}, "channel"`, []string{"/nodes/hello/headers/X-A single_line"}},
		{"header of ours", `"channel"`, `"headers": {"Bcc": "b@example.com"}, "channel"`,
			[]string{"/nodes/hello/headers/Bcc not_reserved"}},
		{"header with a colon", `"channel"`, `"headers": {"X:/Y": "b"}, "channel"`, []string{"/nodes/hello/headers/X:~1Y header_name"}},
		{"header that is none", `"channel"`, `"headers": {"X-A": 7}, "channel"`, []string{"/nodes/hello/headers/X-A wrong_type"}},
		{"sender without an address", `{"email": "a@example.com"}`, `{}`, []string{"/nodes/hello/from/email address"}},
		{"from an empty address", `"a@example.com"`, `""`, []string{"/nodes/hello/from/email address"}},
		{"from that is no object", `{"email": "a@example.com"}`, `"a@example.com"`, []string{"/nodes/hello/from wrong_type"}},
		{"strategy", `"channel"`, `"strategy": "perhaps", "channel"`, []string{"/nodes/hello/strategy not_allowed"}},
		{"expiry", `"expires_after": "P1D"`, `"expires_after": "P1M"`, []string{"/nodes/hello/expires_after invalid_duration"}},
		{"template version", `"channel"`, `"template_version": -1, "channel"`, []string{"/nodes/hello/template_version invalid"}},
		{"template version with a fraction", `"channel"`, `"template_version": 1.5, "channel"`,
			[]string{"/nodes/hello/template_version wrong_type"}},

		{"no delay", `"for": "P3D", `, ``, []string{"/nodes/pause/for required"}},
		{"delay of nothing", `"P3D", "next"`, `"PT0S", "next"`, []string{"/nodes/pause/for invalid_duration"}},
		{"delay into the past", `"P3D", "next"`, `"-P3D", "next"`, []string{"/nodes/pause/for invalid_duration"}},
		{"delay of a month", `"P3D", "next"`, `"P1M", "next"`, []string{"/nodes/pause/for invalid_duration"}},
		{"delay too long", `"P3D", "next"`, `"P401D", "next"`, []string{"/nodes/pause/for invalid_duration"}},
		{"timeout", `"timeout": "P2D"`, `"timeout": "2 days"`, []string{"/nodes/opens/timeout invalid_duration"}},
		{"no timeout", `"timeout": "P2D", `, ``, []string{"/nodes/opens/timeout required"}},
		{"wait for nothing", `"event": "opened", `, ``, []string{"/nodes/opens/event required"}},
		{"wait condition", `event.at > trigger.at`, `event.at > 3`, []string{"/nodes/opens/condition expression_type"}},

		{"time", `"09:00"`, `"9 am"`, []string{"/nodes/morning/time invalid_time"}},
		{"time over", `"09:00"`, `"24:00"`, []string{"/nodes/morning/time invalid_time"}},
		{"short time", `"09:00"`, `"9:00"`, []string{"/nodes/morning/time invalid_time"}},
		{"weekday", `"mon"`, `"monday"`, []string{"/nodes/morning/weekdays/0 invalid_weekday"}},
		{"weekday twice", `"mon"`, `"tue"`, []string{"/nodes/morning/weekdays/1 duplicate"}},
		{"until nothing", `"time": "09:00", "weekdays": ["mon", "tue"], `, ``, []string{"/nodes/morning/time required"}},
		{"offset without date", `"time": "09:00"`, `"time": "09:00", "offset": "P1D"`, []string{"/nodes/morning/offset not_allowed"}},
		{"offset", `"-P3D"`, `"-P401D"`, []string{"/nodes/birthday/offset invalid_duration"}},
		{"date column", `"born"`, `"burn"`, []string{"/nodes/birthday/date_column unknown_column"}},
		{"date column of another type", `"born"`, `"age"`, []string{"/nodes/birthday/date_column wrong_type"}},
		{"missing date leads to an unknown node", `"date_column": "born"`, `"date_column": "born", "on_missing": "missing"`,
			[]string{"/nodes/birthday/on_missing unknown_node"}},
		{"missing date in a circle", `"date_column": "born"`, `"date_column": "born", "on_missing": "pause"`,
			[]string{"/nodes/birthday/on_missing cycle"}},
		{"missing without a date", `"time": "09:00"`, `"time": "09:00", "on_missing": "done"`,
			[]string{"/nodes/morning/on_missing not_allowed"}},
		{"missing of another type of node", `"for": "P3D"`, `"for": "P3D", "on_missing": "done"`,
			[]string{"/nodes/pause/on_missing not_allowed"}},
		{"zone column", `"zone_column": "zone"`, `"zone_column": "zones"`, []string{"/nodes/morning/zone_column unknown_column"}},
		{"zone column of another type", `"zone_column": "zone"`, `"zone_column": "born"`,
			[]string{"/nodes/morning/zone_column wrong_type"}},
		{"zone of a wait", `"zone_column": "zone"`, `"zone": "Mars/Base"`, []string{"/nodes/morning/zone invalid_zone"}},

		{"no cases", `[{"if": "events.bought.times == 0 && profile.age > 18", "next": "deal"},
      {"sql": "select profile_key from people", "next": "done"}]`, `[]`,
			[]string{"/nodes/ask/cases required"}},
		{"case of nothing", `"sql": "select profile_key from people", `, ``, []string{"/nodes/ask/cases/1/if required"}},
		{"case of both", `{"sql"`, `{"if": "true", "sql"`, []string{"/nodes/ask/cases/1/sql not_allowed"}},
		{"case reads event", `profile.age > 18`, `event.name == 'x'`, []string{"/nodes/ask/cases/0/if expression_type"}},
		{"case answers a number", `profile.age > 18"`, `true ? 1 : 2"`, []string{"/nodes/ask/cases/0/if expression_type"}},
		{"case with a broken pattern", `profile.age > 18"`, `profile.city.matches('(')"`,
			[]string{"/nodes/ask/cases/0/if expression_type"}},
		{"source without SQL", `{"sql": "select profile_key from people", "next": "done"}], "else"`,
			`{"if": "true", "next": "done"}], "data_source_id": "ds_1", "else"`,
			[]string{"/nodes/ask/data_source_id not_allowed"}},

		{"weight", `"weight": 3`, `"weight": 0`, []string{"/nodes/deal/arms/1/weight invalid_weight"}},
		{"no weight", `{"weight": 3, `, `{`, []string{"/nodes/deal/arms/1/weight invalid_weight"}},
		{"negative weight", `"weight": 3`, `"weight": -3`, []string{"/nodes/deal/arms/1/weight invalid_weight"}},
		{"weights", `"weight": 3`, `"weight": 1000000`, []string{"/nodes/deal/arms invalid_weight"}},
		{"weight beyond numbers", `"weight": 3`, `"weight": 99999999999999999999`, []string{"/nodes/deal/arms/1/weight wrong_type"}},
		{"no arms", `[{"name": "a", "weight": 1, "next": "notify"}, {"weight": 3, "next": "done"}]`, `[]`,
			[]string{"/nodes/deal/arms required", "/nodes/notify unreachable"}},

		{"no endpoint", `"endpoint_id": "whe_1", `, ``, []string{"/nodes/notify/endpoint_id required"}},
		{"webhook column", `["city"]`, `["town"]`, []string{"/nodes/notify/columns/0 unknown_column"}},
		{"webhook column twice", `["city"]`, `["city", "city"]`, []string{"/nodes/notify/columns/1 duplicate"}},
		{"number beyond numbers", `"data": {"n": 1}`, `"data": {"n": 1e400}`, []string{"/nodes/notify/data/n number_out_of_range"}},
		{"numbers deep down", `"data": {"n": 1}`, `"data": {"a/b": [1, {"c": -1e200000}], "d": 1e308, "e": 1e-400}`,
			[]string{"/nodes/notify/data/a~1b/1/c number_out_of_range"}},
		{"weight beyond floats", `"weight": 3`, `"weight": 1e400`, []string{"/nodes/deal/arms/1/weight wrong_type"}},
		{"number in an unknown field", `"start"`, `"more": {"n": 1e400}, "start"`, []string{"/more unknown_field"}},
		{"status", `"410": "done"`, `"41": "done"`, []string{"/nodes/notify/on_status/41 invalid"}},
		{"class of status", `"410": "done"`, `"6xx": "done"`, []string{"/nodes/notify/on_status/6xx invalid"}},
	} {
		text := strings.Replace(welcome, c.from, c.to, 1)
		if text == welcome {
			t.Errorf("%s: the text to replace is missing", c.what)
			continue
		}
		_, err := Compile([]byte(text), ourFlow, Facts{Columns: shopColumns})
		if c.want == nil && err == nil {
			continue
		}
		if d := cmp.Diff(c.want, short(faultsIn(t, err))); d != "" {
			t.Errorf("%s: %s", c.what, d)
		}
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	_, err := Compile([]byte(`{
		"triggers": [{"type": "event", "event": "x", "condition": "profile.town == 'x'", "evry": 1}],
		"recurrence": {"policy": 3},
		"start": "a",
		"nodes": {
			"a": {"type": "delay", "for": "P1Y", "next": "b"},
			"b": {"type": "branch", "cases": [{"if": "1 +", "next": "a"}], "else": "c"},
			"d": {"type": "leap"}
		}
	}`), ourFlow, Facts{Columns: shopColumns})
	want := []string{
		"/nodes/a/for invalid_duration", "/nodes/b/cases/0/if expression_syntax", "/nodes/b/cases/0/next cycle", "/nodes/b/else unknown_node",
		"/nodes/d/type not_allowed", "/recurrence/policy wrong_type", "/triggers/0/condition unknown_column", "/triggers/0/evry unknown_field",
	}
	faults := faultsIn(t, err)
	if d := cmp.Diff(want, short(faults)); d != "" {
		t.Error(d)
	}
	for _, f := range faults {
		if f.Code == "cycle" && !strings.Contains(f.Detail, "a -> b -> a") {
			t.Errorf("the detail does not name the cycle: %s", f.Detail)
		}
		if f.Code == "unknown_column" && (f.Line != 1 || f.Column != 8) {
			t.Errorf("the place in the expression is: %d:%d", f.Line, f.Column)
		}
	}
}

func TestDocumentsThatAreNone(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		``:                      "syntax 1:1",
		`null`:                  "wrong_type 0:0",
		`[]`:                    "wrong_type 0:0",
		"{\n \"start\": }":      "syntax 2:11",
		`{} {}`:                 "syntax 1:4",
		`{"start": "a"`:         "syntax 1:14",
		"{\"start\": \"\xff\"}": "syntax 0:0",
		`{"nodes": {"a": {"data": {"x": ` + strings.Repeat("[", 60) + strings.Repeat("]", 60) + `}}}}`: "syntax",
		strings.Repeat(" ", MaxDefinition+1): "too_large 0:0",
	} {
		for _, err := range []error{second(Read([]byte(text))), second(Compile([]byte(text), ourFlow, Facts{}))} {
			faults := faultsIn(t, err)
			got := fmt.Sprintf("%s %d:%d", faults[0].Code, faults[0].Line, faults[0].Column)
			if len(faults) != 1 || faults[0].Pointer != "" || !strings.HasPrefix(got, want) {
				t.Errorf("%.40q: got %s %+v, want %s", text, got, faults, want)
			}
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	for i := range MaxNodes {
		fmt.Fprintf(&many, `"n%d": {"type": "delay", "for": "PT1S", "next": "n%d"},`, i, i+1)
	}
	fmt.Fprintf(&many, `"n%d": {"type": "exit"}`, MaxNodes)
	tooMany := `{"recurrence": {"policy": "once"}, "start": "n0", "nodes": {` + many.String() + `}}`
	cases := strings.Repeat(`{"if": "true", "next": "b"},`, MaxCases) + `{"if": "true", "next": "b"}`
	arms := strings.Repeat(`{"weight": 1, "next": "b"},`, MaxCases) + `{"weight": 1, "next": "b"}`
	var events strings.Builder
	for i := range MaxEventsRead {
		fmt.Fprintf(&events, "events.e%d.times > 0 || ", i)
	}
	sql := `{"sql": "` + strings.Repeat("x", maxSQL+1) + `", "next": "b"}`
	one := `{"audience_id": "a", "recurrence": {"policy": "once"}, "start": "a", "nodes": {"a": %s, "b": {"type": "exit"}}}`
	for text, want := range map[string]string{
		tooMany: "/nodes too_many",
		fmt.Sprintf(one, `{"type": "branch", "else": "b", "cases": [`+cases+`]}`): "/nodes/a/cases too_many",
		fmt.Sprintf(one, `{"type": "branch", "else": "b", "cases": [`+sql+`]}`):   "/nodes/a/cases/0/sql too_long",
		fmt.Sprintf(one, `{"type": "branch", "else": "b", "cases": [{"next": "b", "if": "`+events.String()+`true"},
			{"next": "b", "if": "events.other.times > 0"}]}`): "/nodes/a/cases/1/if too_many",
		fmt.Sprintf(one, `{"type": "split", "arms": [`+arms+`]}`): "/nodes/a/arms too_many",
		fmt.Sprintf(one, `{"type": "branch", "else": "b", "cases": [{"next": "b", "if": "`+strings.Repeat(" ",
			5000)+`true"}]}`): "/nodes/a/cases/0/if too_long",
	} {
		if d := cmp.Diff([]string{want}, short(faultsIn(t, second(Compile([]byte(text), ourFlow, Facts{}))))); d != "" {
			t.Error(d)
		}
	}
}

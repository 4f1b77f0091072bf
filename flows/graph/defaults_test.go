package graph

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"
)

const inheriting = `{
  "description": "Sends two greetings", "layout": {"zoom": 1.5}, "audience_id": "aud_1", "triggers": [], "recurrence": {"policy": "once"},
  "defaults": {"channel": "email", "provider_id": "prv_1", "from": {"email": "shop@example.com"}, "strategy": "at_most_once"},
  "start": "hello",
  "nodes": {
    "hello": {"type": "send", "description": "first", "layout": {"x": 10, "y": -20}, "template_id": "tpl_1", "next": "again"},
    "again": {"type": "send", "template_id": "tpl_2", "provider_id": "prv_2", "from": {"email": "vip@example.com"}, "next": "end"},
    "end": {"type": "exit", "layout": {"x": 10, "y": 400}}
  }
}`

// A send node inherits what it lacks, and nothing else does.
func TestDefaults(t *testing.T) {
	t.Parallel()
	g := compileText(t, inheriting)
	hello, _ := g.Node("hello")
	again, _ := g.Node("again")
	end, _ := g.Node("end")
	for what, pair := range map[string][2]string{
		"hello's provider": {hello.ProviderID, "prv_1"}, "hello's sender": {hello.From.Email,
			"shop@example.com"}, "hello's channel": {hello.Channel, "email"},
		"again's provider": {again.ProviderID, "prv_2"}, "again's sender": {again.From.Email,
			"vip@example.com"}, "again's strategy": {again.Strategy, "at_most_once"},
		"end's provider": {end.ProviderID, ""},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %q, not %q", what, pair[0], pair[1])
		}
	}
	if d := g.Definition(); d.Description != "Sends two greetings" || string(d.Layout) != `{"zoom":1.5}` ||
		string(d.Nodes["hello"].Layout) != `{"x":10,"y":-20}` {
		t.Errorf("what is for people and editors is not kept: %+v", d)
	}
}

// A fault of an inherited value is reported once, where it is written.
func TestFaultsOfDefaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to string
		want     []string
	}{
		{`"email": "shop@example.com"`, `"email": "shop"`, []string{"/defaults/from/email address"}},
		{`"provider_id": "prv_1", `, ``, []string{"/nodes/hello/provider_id required"}},
		{`"channel": "email"`, `"channel": "fax"`, []string{"/defaults/channel not_allowed"}},
		{`"provider_id": "prv_1"`, `"provider": "prv_1"`,
			[]string{"/defaults/provider unknown_field", "/nodes/hello/provider_id required"}},
		{`"at_most_once"`, `"often"`, []string{"/defaults/strategy not_allowed"}},
		{`"description": "first"`, `"description": "` + strings.Repeat("a", 4097) + `"`, []string{"/nodes/hello/description too_long"}},
		{`"layout": {"zoom": 1.5}`, `"layout": 5`, []string{"/layout wrong_type"}},
	} {
		_, err := Compile([]byte(strings.Replace(inheriting, c.from, c.to, 1)), ourFlow, Facts{Columns: shopColumns})
		if d := cmp.Diff(c.want, short(faultsIn(t, err))); d != "" {
			t.Errorf("%s: %s", c.to, d)
		}
	}
}

// A misspelt field is reported once, with the one of its node's type that is near.
func TestMisspeltFields(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to string
		want     []lemma.Field
	}{
		{`"for": "P3D", "next": "morning"`, `"for": "P3D", "nxt": "morning"`,
			[]lemma.Field{{Pointer: "/nodes/pause/nxt", Code: "unknown_field", Detail: "there is no such field; did you mean next?"}}},
		{`"for": "P3D", "next": "morning"`, `"fro": "P3D", "next": "morning"`,
			[]lemma.Field{{Pointer: "/nodes/pause/fro", Code: "unknown_field", Detail: "there is no such field; did you mean for?"}}},
		{`"for": "P3D"`, `"for": "P3D", "wait": 1`, []lemma.Field{{Pointer: "/nodes/pause/wait", Code: "unknown_field",
			Detail: "there is no such field; there are description, for, layout, name, next, type"}}},
		{`"for": "P3D", "next": "morning"`, `"for": "P3D", "next": "mornin"`, []lemma.Field{{Pointer: "/nodes/pause/next",
			Code: "unknown_node", Detail: "there is no node mornin; did you mean morning?"}}},
		{`"for": "P3D"`, `"for": "3 days"`, []lemma.Field{{Pointer: "/nodes/pause/for", Code: "invalid_duration",
			Detail: "must be an ISO 8601 duration such as P3D, PT2H30M or P1W; write P3D"}}},
		{`"for": "P3D"`, `"for": "90m"`, []lemma.Field{{Pointer: "/nodes/pause/for", Code: "invalid_duration",
			Detail: "must be an ISO 8601 duration such as P3D, PT2H30M or P1W; write PT1H30M"}}},
		{`"date_column": "born"`, `"date_column": "bron"`, []lemma.Field{{Pointer: "/nodes/birthday/date_column", Code: "unknown_column",
			Detail: "the audience has no column bron; did you mean born?"}}},
	} {
		text := strings.Replace(welcome, c.from, c.to, 1)
		if text == welcome {
			t.Fatalf("%s is not there", c.from)
		}
		_, err := Compile([]byte(text), ourFlow, Facts{Columns: shopColumns})
		if d := cmp.Diff(c.want, faultsIn(t, err)); d != "" {
			t.Errorf("%s: %s", c.to, d)
		}
	}
}

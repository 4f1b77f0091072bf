package graph_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"lemma"
	"lemma/flows/graph"
)

// faultsOfSend compiles a graph with one send node and returns its faults.
func faultsOfSend(t *testing.T, defaults, fields string) string {
	t.Helper()
	raw := json.RawMessage(`{"audience_id":"aud_1","triggers":[],"recurrence":{"policy":"once"},"start":"a",` + defaults +
		`"nodes":{"a":{"type":"send","provider_id":"prv_1","template_id":"tpl_1","next":"end"` + fields + `},"end":{"type":"exit"}}}`)
	_, err := graph.Compile(raw, graph.Flow{WorkspaceID: lemma.NewID(), FlowID: lemma.NewID()}, graph.Facts{})
	var faults []string
	if wrong, ok := errors.AsType[*lemma.Error](err); ok {
		for _, f := range wrong.Fields {
			faults = append(faults, f.Pointer+" "+f.Code)
		}
	} else if err != nil {
		t.Fatal(err)
	}
	return strings.Join(faults, ",")
}

func TestChannelsOfSendNodes(t *testing.T) {
	for what, c := range map[string]struct{ defaults, fields, want string }{
		"email":                       {"", `,"channel":"email","from":{"email":"a@shop.example"}`, ""},
		"sms":                         {"", `,"channel":"sms"`, ""},
		"push":                        {"", `,"channel":"push"`, ""},
		"a channel that there is not": {"", `,"channel":"fax","from":{"email":"a@shop.example"}`, "/nodes/a/channel not_allowed"},
		"no channel":                  {"", `,"from":{"email":"a@shop.example"}`, "/nodes/a/channel required"},
		"email without a sender":      {"", `,"channel":"email"`, "/nodes/a/from required"},
		"sms with a sender":           {"", `,"channel":"sms","from":{"email":"a@shop.example"}`, "/nodes/a/from not_allowed"},
		"push with a reply address":   {"", `,"channel":"push","reply_to":"a@shop.example"`, "/nodes/a/reply_to not_allowed"},
		"sms with headers":            {"", `,"channel":"sms","headers":{"X-A":"b"}`, "/nodes/a/headers not_allowed"},
		"a default channel":           {`"defaults":{"channel":"sms"},`, "", ""},
		"a default that is none": {`"defaults":{"channel":"fax","from":{"email":"a@shop.example"}},`, "",
			"/defaults/channel not_allowed"},
		"a default sender for sms":       {`"defaults":{"from":{"email":"a@shop.example"},"reply_to":"a@shop.example"},`, `,"channel":"sms"`, ""},
		"a default sender and channel":   {`"defaults":{"channel":"push","from":{"email":"a@shop.example"}},`, "", ""},
		"email with the default sender":  {`"defaults":{"channel":"sms","from":{"email":"a@shop.example"}},`, `,"channel":"email"`, ""},
		"email without a default sender": {`"defaults":{"channel":"sms"},`, `,"channel":"email"`, "/nodes/a/from required"},
	} {
		if got := faultsOfSend(t, c.defaults, c.fields); !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}

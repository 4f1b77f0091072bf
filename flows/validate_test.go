package flows

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/audience"
	"lemma/message"
	"lemma/webhooks"
)

// whole uses everything that a version can name.
const whole = `{"audience_id":"$audience","triggers":[{"type":"event","event":"hi","condition":"profile.country == 'DE'"}],"recurrence":{"policy":"once"},
	"start":"hello","nodes":{
		"hello":{$send,"next":"ask"},
		"ask":{"type":"branch","cases":[{"sql":"select customer_id from orders join people on customer_id = profile_key","next":"tell"}],"else":"end"},
		"tell":{"type":"webhook","endpoint_id":"$endpoint","columns":["zone"],"on_error":"end","next":"end"},
		"end":{"type":"exit"}}}`

func (b *bundle) endpoint() string {
	b.t.Helper()
	e, _, err := b.rooms.Webhooks.Create(context.Background(), b.ws, webhooks.NewEndpoint{ID: lemma.NewID(), Name: lemma.NewID().String(), URL: "http://127.0.0.1:9/"})
	b.must(err)
	return lemma.FormatID(lemma.PrefixEndpoint, e.ID)
}

func (b *bundle) validate(text string) Validation {
	b.t.Helper()
	v, err := b.Validate(context.Background(), b.ws, b.draft(text).ID, 1)
	b.must(err)
	return v
}

func TestValidateNamesEveryFault(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	whole := strings.ReplaceAll(whole, "$endpoint", b.endpoint())
	v := b.validate(whole)
	if !v.Valid || len(v.Faults) != 0 || len(v.Warnings) != 0 {
		t.Fatalf("%+v", v)
	}
	if d := cmp.Diff([]string{"country", "name", "zone"}, v.Columns); d != "" {
		t.Error(d)
	}

	odd, err := b.rooms.Templates.Create(ctx, b.ws, message.NewTemplate{ID: lemma.NewID(), Name: "odd",
		Content: message.Content{Subject: "Hi {{ trigger.properties.plan }}", HTML: "<p>{{ shoe_size }}</p>"}})
	b.must(err)
	down, err := b.rooms.Audiences.CreateSource(ctx, b.ws, audience.NewSource{ID: lemma.NewID(), Name: "down", Kind: "postgres", DSN: "postgres://u@/x?host=/nowhere"})
	b.must(err)
	template, provider := lemma.FormatID(lemma.PrefixTemplate, b.template), lemma.FormatID(lemma.PrefixProvider, b.provider)
	audienceID := lemma.FormatID(lemma.PrefixAudience, b.audience)
	other := lemma.FormatID(lemma.PrefixFlow, lemma.NewID())
	for name, c := range map[string]struct{ from, to, want string }{
		"an audience that is none":   {audienceID, lemma.FormatID(lemma.PrefixAudience, lemma.NewID()), "/audience_id unknown_id"},
		"an id of another kind":      {audienceID, other, "/audience_id unknown_id"},
		"a template that is none":    {template, lemma.FormatID(lemma.PrefixTemplate, lemma.NewID()), "/nodes/hello/template_id unknown_id"},
		"a version yet to come":      {`"template_id"`, `"template_version":2,"template_id"`, "/nodes/hello/template_version unknown_version"},
		"a variable without column":  {template, lemma.FormatID(lemma.PrefixTemplate, odd.ID), "/nodes/hello/template_id unknown_column"},
		"a provider that is none":    {provider, "prv_nonsense", "/nodes/hello/provider_id unknown_id"},
		"no address":                 {"hi@shop.example", "hi at shop", "/nodes/hello/from/email invalid_address"},
		"a reply to nobody":          {`"from"`, `"reply_to":"x","from"`, "/nodes/hello/reply_to invalid_address"},
		"a header with a line break": {`"from"`, `"headers":{"X/Y":"a\r\nBcc: b"},"from"`, "/nodes/hello/headers/X~1Y line_break"},
		"an endpoint that is none":   {`"endpoint_id":"whe`, `"endpoint_id":"whx`, "/nodes/tell/endpoint_id unknown_id"},
		"a source that is none":      {`"cases"`, `"data_source_id":"ds_0","cases"`, "/nodes/ask/data_source_id unknown_id"},
		"SQL on a table that is not": {"from orders", "from ordres", "/nodes/ask/cases/0/sql query_invalid"},
		"a source that is down": {`"cases"`, `"data_source_id":"` + lemma.FormatID(lemma.PrefixDataSource, down.ID) + `","cases"`,
			"/nodes/ask/cases/0 source_unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(string(b.definition(whole)), c.from, c.to, 1)
			v, err := b.Validate(ctx, b.ws, b.draft(text).ID, 1)
			if err != nil {
				t.Fatal(err)
			}
			found := false
			for _, f := range v.Faults {
				found = found || f.Pointer+" "+f.Code == c.want
				if f.Detail == "" {
					t.Errorf("%s has no detail", f.Pointer)
				}
			}
			if v.Valid || !found || len(v.Faults) != 1 {
				t.Errorf("%+v", v.Faults)
			}
		})
	}
}

// The faults of the document and those of what it names come in one list, and
// nothing with any is published.
func TestFaultsComeAllAtOnceAndKeepAVersionFromBeingPublished(t *testing.T) {
	b := setup(t, 0)
	flow := b.draft(`{"audience_id":"aud_0","recurrence":{"policy":"never"},"start":"a","nodes":{"a":{$send,"next":"b"},"b":{"type":"branch","cases":[{"if":"1 +","next":"zzz"}],"else":"c"},"c":{"type":"exit"}}}`)
	v, err := b.Validate(context.Background(), b.ws, flow.ID, 1)
	b.must(err)
	got := map[string]bool{}
	for _, f := range v.Faults {
		got[f.Pointer] = true
	}
	for _, want := range []string{"/audience_id", "/recurrence/policy", "/nodes/b/cases/0/if", "/nodes/b/cases/0/next"} {
		if !got[want] {
			t.Errorf("no fault at %s: %v", want, got)
		}
	}
	_, err = b.Publish(context.Background(), b.ws, flow.ID, 1, nil, InFlight{}, nil)
	e := b.wants(lemma.Invalid, err)
	if d := cmp.Diff(v.Faults, e.Fields); d != "" || e.Code != "version_invalid" {
		t.Error(d)
	}
	now, err := b.GetVersion(context.Background(), b.ws, flow.ID, 1)
	b.must(err)
	if now.Status != "draft" || b.flow(flow.ID).Status != Draft {
		t.Errorf("it is %s", now.Status)
	}
}

// SQL without an audience and without a source has nobody to ask.
func TestSQLNeedsASource(t *testing.T) {
	b := setup(t, 0)
	text := `{"recurrence":{"policy":"once"},"start":"a","nodes":{"a":{"type":"branch","cases":[{"sql":"select profile_key from people","next":"c"}],"else":"c"},"c":{"type":"exit"}}}`
	if v := b.validate(text); v.Valid {
		t.Errorf("%+v", v)
	}
	v := b.validate(strings.Replace(text, `"cases"`, `"data_source_id":"$source","cases"`, 1))
	if !v.Valid || len(v.Warnings) != 1 {
		t.Errorf("%+v", v)
	}
}

func TestPublishingPinsTemplates(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	text := strings.Replace(welcome, `"recurrence"`, `"exit_on":[{"event":"gone","condition":"event.properties.n < 3 && true"}],"recurrence"`, 1)
	flow := b.live(text)
	v, err := b.GetVersion(ctx, b.ws, flow, 1)
	b.must(err)
	var d struct {
		Nodes map[string]struct {
			TemplateVersion int `json:"template_version"`
		} `json:"nodes"`
	}
	b.must(json.Unmarshal(v.Definition, &d))
	if d.Nodes["hello"].TemplateVersion != 1 || d.Nodes["nudge"].TemplateVersion != 1 {
		t.Errorf("%s", v.Definition)
	}
	if !strings.Contains(string(v.Definition), "n < 3 && true") {
		t.Errorf("an expression was rewritten: %s", v.Definition)
	}
	_, err = b.rooms.Templates.AddVersion(ctx, b.ws, b.template, nil, message.Content{Subject: "New", HTML: "<p>New</p>"})
	b.must(err)
	b.tell("c1", "signed_up")
	b.settleDown()
	if n := b.count(`select count(*) from contents where workspace_id = $1 and template_version = 1`); n != 1 {
		t.Errorf("the published version follows the template: %d", n)
	}
	// What a plan shows is what publishing would write.
	_, err = b.CreateVersion(ctx, b.ws, flow, b.definition(text))
	b.must(err)
	p, err := b.Plan(ctx, b.ws, flow, 2, InFlight{})
	b.must(err)
	var changed []string
	for _, c := range p.Changes {
		changed = append(changed, c.Pointer+" "+string(c.From)+" "+string(c.To))
	}
	if d := cmp.Diff([]string{"/nodes/hello/template_version 1 2", "/nodes/nudge/template_version 1 2"}, changed); d != "" {
		t.Error(d)
	}
}

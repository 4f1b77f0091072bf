package flows_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/audience"
	"lemma/flows"
	"lemma/flows/flowstest"
	"lemma/flows/graph"
	"lemma/message"
)

// whole uses everything that a version can name.
const whole = `{"audience_id":"$audience","triggers":[{"type":"event","event":"hi","condition":"profile.country == 'DE'"}],
	"recurrence":{"policy":"once"},
	"start":"hello","nodes":{
		"hello":{$send,"next":"ask"},
		"ask":{"type":"branch","cases":[{"sql":"select customer_id from orders join people on customer_id = profile_key","next":"notify"}],
			"else":"end"},
		"notify":{"type":"webhook","endpoint_id":"$endpoint","columns":["zone"],"on_error":"end","next":"end"},
		"end":{"type":"exit"}}}`

func (b *bundle) validate(text string) flows.Validation {
	b.T.Helper()
	v, err := b.Validate(context.Background(), b.Workspace, b.NewDraft(text).ID, 1)
	b.Must(err)
	return v
}

func TestValidateNamesEveryFault(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	whole := strings.ReplaceAll(whole, "$endpoint", b.Endpoint())
	v := b.validate(whole)
	if !v.Valid || len(v.Faults) != 0 || len(v.Warnings) != 0 {
		t.Fatalf("%+v", v)
	}
	if d := cmp.Diff([]string{"country", "name", "zone"}, v.Columns); d != "" {
		t.Error(d)
	}

	odd, err := b.Deps.Templates.Create(ctx, b.Workspace, message.NewTemplate{ID: lemma.NewID(), Name: "odd",
		Content: message.Content{Subject: "Hi {{ trigger.properties.plan }}", HTML: "<p>{{ shoe_size }}</p>"}})
	b.Must(err)
	down, err := b.Deps.Audiences.CreateSource(ctx, b.Workspace,
		audience.NewSource{ID: lemma.NewID(), Name: "down", Kind: "postgres", DSN: "postgres://u@/x?host=/nowhere"})
	b.Must(err)
	template, provider := lemma.FormatID(lemma.PrefixTemplate, b.Template), lemma.FormatID(lemma.PrefixProvider, b.Provider)
	audienceID := lemma.FormatID(lemma.PrefixAudience, b.Audience)
	other := lemma.FormatID(lemma.PrefixFlow, lemma.NewID())
	for name, c := range map[string]struct{ from, to, want string }{
		"an audience that is none": {audienceID, lemma.FormatID(lemma.PrefixAudience, lemma.NewID()), "/audience_id unknown_id"},
		"an id of another kind":    {audienceID, other, "/audience_id unknown_id"},
		"a template that is none": {template, lemma.FormatID(lemma.PrefixTemplate, lemma.NewID()),
			"/nodes/hello/template_id unknown_id"},
		"a version yet to come": {`"template_id"`, `"template_version":2,"template_id"`,
			"/nodes/hello/template_version unknown_version"},
		"a variable without column":  {template, lemma.FormatID(lemma.PrefixTemplate, odd.ID), "/nodes/hello/template_id unknown_column"},
		"a provider that is none":    {provider, "prv_nonsense", "/nodes/hello/provider_id unknown_id"},
		"no address":                 {"hi@shop.example", "hi at shop", "/nodes/hello/from/email address"},
		"an invalid reply-to":        {`"from"`, `"reply_to":"x","from"`, "/nodes/hello/reply_to address"},
		"a header with a line break": {`"from"`, `"headers":{"X/Y":"a\r\nBcc: b"},"from"`, "/nodes/hello/headers/X~1Y header_name"},
		"a header of two lines":      {`"from"`, `"headers":{"X-Y":"a\r\nBcc: b"},"from"`, "/nodes/hello/headers/X-Y single_line"},
		"a header of ours":           {`"from"`, `"headers":{"Bcc":"b@shop.example"},"from"`, "/nodes/hello/headers/Bcc not_reserved"},
		"a name of two lines": {`{"email":"hi@shop.example"}`, `{"email":"hi@shop.example","name":"a\nb"}`,
			"/nodes/hello/from/name single_line"},
		"no sender":                  {`{"email":"hi@shop.example"}`, `{}`, "/nodes/hello/from/email address"},
		"an endpoint that is none":   {`"endpoint_id":"whe`, `"endpoint_id":"whx`, "/nodes/notify/endpoint_id unknown_id"},
		"a source that is none":      {`"cases"`, `"data_source_id":"ds_0","cases"`, "/nodes/ask/data_source_id unknown_id"},
		"SQL on a table that is not": {"from orders", "from ordres", "/nodes/ask/cases/0/sql query_invalid"},
		"a source that is down": {`"cases"`, `"data_source_id":"` + lemma.FormatID(lemma.PrefixDataSource, down.ID) + `","cases"`,
			"/nodes/ask/cases/0 source_unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(string(b.Definition(whole)), c.from, c.to, 1)
			v, err := b.Validate(ctx, b.Workspace, b.NewDraft(text).ID, 1)
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

// The faults of the document and of what it names come in one list, and a version with
// faults is not published.
func TestFaultsComeAllAtOnceAndKeepAVersionFromBeingPublished(t *testing.T) {
	b := setup(t, 0)
	flow := b.NewDraft(`{"audience_id":"aud_0","recurrence":{"policy":"never"},"start":"a",
		"nodes":{"a":{$send,"next":"b"},"b":{"type":"branch","cases":[{"if":"1 +","next":"zzz"}],"else":"c"},"c":{"type":"exit"}}}`)
	v, err := b.Validate(context.Background(), b.Workspace, flow.ID, 1)
	b.Must(err)
	got := map[string]bool{}
	for _, f := range v.Faults {
		got[f.Pointer] = true
	}
	for _, want := range []string{"/audience_id", "/recurrence/policy", "/nodes/b/cases/0/if", "/nodes/b/cases/0/next"} {
		if !got[want] {
			t.Errorf("no fault at %s: %v", want, got)
		}
	}
	_, err = b.Publish(context.Background(), b.Workspace, flow.ID, 1, nil, flows.InFlight{}, nil)
	e := b.Wants(lemma.Invalid, err)
	if d := cmp.Diff(v.Faults, e.Fields); d != "" || e.Code != "version_invalid" {
		t.Error(d)
	}
	now, err := b.GetVersion(context.Background(), b.Workspace, flow.ID, 1)
	b.Must(err)
	if now.Status != "draft" || b.Flow(flow.ID).Status != flows.Draft {
		t.Errorf("it is %s", now.Status)
	}
}

// SQL needs an audience or a source.
func TestSQLNeedsASource(t *testing.T) {
	b := setup(t, 0)
	text := `{"recurrence":{"policy":"once"},"start":"a",
		"nodes":{"a":{"type":"branch","cases":[{"sql":"select profile_key from people","next":"c"}],"else":"c"},
		"c":{"type":"exit"}}}`
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
	text := strings.Replace(flowstest.Welcome, `"recurrence"`,
		`"exit_on":[{"event":"gone","condition":"event.properties.n < 3 && true"}],"recurrence"`, 1)
	flow := b.Live(text)
	v, err := b.GetVersion(ctx, b.Workspace, flow, 1)
	b.Must(err)
	var d struct {
		Nodes map[string]struct {
			TemplateVersion int `json:"template_version"`
		} `json:"nodes"`
	}
	b.Must(json.Unmarshal(v.Definition, &d))
	if d.Nodes["hello"].TemplateVersion != 1 || d.Nodes["nudge"].TemplateVersion != 1 {
		t.Errorf("%s", v.Definition)
	}
	if !strings.Contains(string(v.Definition), "n < 3 && true") {
		t.Errorf("an expression was rewritten: %s", v.Definition)
	}
	_, err = b.Deps.Templates.AddVersion(ctx, b.Workspace, b.Template, nil, message.Content{Subject: "New", HTML: "<p>New</p>"},
		lemma.NewID())
	b.Must(err)
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	b.WantCount(1, `select count(*) from contents where workspace_id = $1 and template_version = 1`, b.Workspace)
	// A plan shows what publishing would write.
	_, err = b.CreateVersion(ctx, b.Workspace, flow, b.Definition(text))
	b.Must(err)
	p, err := b.Plan(ctx, b.Workspace, flow, 2, flows.InFlight{})
	b.Must(err)
	var changed []string
	for _, c := range p.Changes {
		changed = append(changed, c.Pointer+" "+string(c.From)+" "+string(c.To))
	}
	if d := cmp.Diff([]string{"/nodes/hello/template_version 1 2", "/nodes/nudge/template_version 1 2"}, changed); d != "" {
		t.Error(d)
	}
}

// A number that programs cannot read is never saved, and one in an old draft is a fault
// and no internal error.
func TestANumberBeyondADouble(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	text := strings.ReplaceAll(whole, "$endpoint", b.Endpoint())
	flow := b.NewDraft(text)
	broken := strings.Replace(string(b.Definition(text)), `"columns"`, `"data":{"n":[1e400]},"columns"`, 1)
	_, err := b.CreateVersion(ctx, b.Workspace, flow.ID, json.RawMessage(broken))
	if got := flowstest.Pointers(b.Wants(lemma.Invalid, err)); got != "/nodes/notify/data/n/0 number_out_of_range" {
		t.Error(got)
	}
	b.Exec(`update flow_versions set definition = $3 where workspace_id = $1 and flow_id = $2`, b.Workspace, flow.ID, broken)
	_, err = b.Publish(ctx, b.Workspace, flow.ID, 1, nil, flows.InFlight{}, nil)
	if got := flowstest.Pointers(b.Wants(lemma.Invalid, err)); got != "/nodes/notify/data/n/0 number_out_of_range" {
		t.Error(got)
	}
}

// The uses of a version are read from the published text, by the usual reader.
func TestUsesOfWhatCannotBeRead(t *testing.T) {
	b := setup(t, 0)
	err := flows.UseOf(json.RawMessage(`{"nodes":{"a":{"type":"webhook","data":{"n":1e400}}}}`))
	if got := flowstest.Pointers(b.Wants(lemma.Invalid, err)); got != "/nodes/a/data/n number_out_of_range" {
		t.Error(got)
	}
}

// A version that becomes too large with its pinned templates is not published.
func TestADefinitionThatOutgrowsItsLimitWhenItIsPublished(t *testing.T) {
	b := setup(t, 0)
	text := string(b.Definition(strings.ReplaceAll(whole, "$endpoint", b.Endpoint())))
	var compact bytes.Buffer
	b.Must(json.Compact(&compact, []byte(text)))
	made := compact.String()
	fill := func(n int) string {
		return strings.Replace(made, `"columns"`, `"data":{"x":"`+strings.Repeat("x", n-len(made)-len(`"data":{"x":""},`))+`"},"columns"`,
			1)
	}
	if v := b.validate(fill(graph.MaxDefinition - 100)); !v.Valid {
		t.Errorf("%+v", v.Faults)
	}
	v := b.validate(fill(graph.MaxDefinition))
	if v.Valid || len(v.Faults) != 1 || v.Faults[0].Code != "too_large" {
		t.Errorf("%+v", v.Faults)
	}
}

func TestWarningsOfDates(t *testing.T) {
	b := setup(t, 0)
	node := `{"audience_id":"$audience","triggers":[{"type":"event","event":"x"}],"recurrence":{"policy":"once"},"start":"a",
		"nodes":{"a":{"type":"wait_until",$what,"next":"z"},"z":{"type":"exit"}}}`
	for what, want := range map[string][]string{
		`"time":"09:00"`: {},
		`"date_column":"renews_on","on_missing":"z"`: {},
		`"date_column":"renews_on"`:                  {"node a has no on_missing"},
		`"date_column":"name","on_missing":"z"`:      {"node a reads a date from name, a text"},
		`"date_column":"name"`:                       {"node a has no on_missing", "node a reads a date from name, a text"},
	} {
		v := b.validate(strings.Replace(node, "$what", what, 1))
		if !v.Valid || len(v.Warnings) != len(want) {
			t.Errorf("%s: %+v", what, v)
			continue
		}
		for i, w := range want {
			if !strings.HasPrefix(v.Warnings[i], w) {
				t.Errorf("%s: %s", what, v.Warnings[i])
			}
		}
	}
}

// A profile without a date follows its own path; one with a date waits for it, unless it
// is past.
func TestAMissingDate(t *testing.T) {
	b := setup(t, 3)
	b.ExecDB(`update customers set renews_on = case id when 'c1' then current_date + 400 when 'c2' then date '2020-01-01' end`)
	text := `{"audience_id":"$audience","triggers":[{"type":"event","event":"x"}],"recurrence":{"policy":"once"},"start":"a",
		"nodes":{"a":{"type":"wait_until","date_column":"renews_on","weekdays":["mon"]$missing,"next":"on"},
			"on":{"type":"exit"},"without":{"type":"exit"}}}`
	flow := b.Live(strings.Replace(text, "$missing", `,"on_missing":"without"`, 1))
	old := b.Live(strings.Replace(strings.Replace(text, "$missing", "", 1), `,"without":{"type":"exit"}`, "", 1))
	for _, profile := range []string{"c1", "c2", "c3"} {
		b.RecordEvent(profile, "x")
	}
	b.Settle()
	for profile, want := range map[string]string{
		"c1": "enrolled@ checked@", "c2": "enrolled@ checked@ resumed@a completed@on", "c3": "enrolled@ checked@ resumed@a completed@without",
	} {
		if got := b.Trace(b.Enrollment(flow, profile).ID); got != want {
			t.Errorf("%s: %s", profile, got)
		}
	}
	b.WantTrace(b.Enrollment(old, "c3").ID, "enrolled@ checked@ resumed@a completed@on")
	b.WantCount(2, `select count(*) from enrollment_steps where workspace_id = $1 and node = 'a'
		and data like '%column renews_on has no date%'`, b.Workspace)
}

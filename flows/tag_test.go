package flows_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/flows"
	"lemma/flows/flowstest"
	"lemma/message"
)

// A publish with the ETag of a plan publishes what was planned, or nothing: also when a
// template or the audience has changed, which do not change the flow.
func TestAPublishDoesWhatWasPlanned(t *testing.T) {
	newest := func(b *bundle) {
		b.Must(flowstest.Second(b.Deps.Templates.AddVersion(bg, b.Workspace, b.Template, nil,
			message.Content{Subject: "New", HTML: "<p>New</p>"}, lemma.NewID())))
	}
	named := strings.ReplaceAll(flowstest.Welcome, "$send", `$send,"template_version":1`)
	for name, c := range map[string]struct {
		text    string
		changes func(b *bundle)
		stale   bool
	}{
		"nothing changes":                    {flowstest.Welcome, func(*bundle) {}, false},
		"a template has a new version":       {flowstest.Welcome, newest, true},
		"a template that is named with it":   {named, newest, false},
		"the audience has another query":     {whole, anotherQuery, true},
		"the query of an audience not named": {flowstest.Minimal, anotherQuery, false},
	} {
		for stage, early := range map[string]bool{"before": true, "during the check": false} {
			t.Run(name+" "+stage, func(t *testing.T) {
				b := setup(t, 0)
				flow := b.NewDraft(strings.ReplaceAll(c.text, "$endpoint", b.Endpoint())).ID
				tag := b.planned(flow, 1)
				stale := c.stale && early // later it is not a part of what is published
				if early {
					c.changes(b)
				} else {
					b.Hook.Do = func(stage string) {
						if stage == "publish: checked" {
							c.changes(b)
						}
					}
				}
				if early {
					_, err := b.Preview(bg, b.Workspace, flow, 1, &tag, flows.InFlight{})
					b.wantStale(stale, err)
				}
				f, err := b.Publish(bg, b.Workspace, flow, 1, &tag, flows.InFlight{}, nil)
				b.wantStale(stale, err)
				if stale {
					if f := b.Flow(flow); f.Status != flows.Draft || f.LiveVersion != nil || f.Version != tag.Version {
						t.Errorf("%+v", f)
					}
					tag = b.planned(flow, 1)
					f, err = b.Publish(bg, b.Workspace, flow, 1, &tag, flows.InFlight{}, nil)
				}
				if b.Must(err); *f.LiveVersion != 1 {
					t.Errorf("%+v", f)
				}
				v, err := b.GetVersion(bg, b.Workspace, flow, 1)
				if b.Must(err); strings.Contains(string(v.Definition), `"template_version":2`) != stale && c.text == flowstest.Welcome {
					t.Errorf("%s", v.Definition)
				}
			})
		}
	}
}

// The plan of one draft is not that of another one, nor of the live version.
func TestAPlanIsOfOneVersion(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.Welcome)
	b.Must(flowstest.Second(b.CreateVersion(bg, b.Workspace, flow, b.Definition(flowstest.Welcome))))
	b.Must(flowstest.Second(b.CreateVersion(bg, b.Workspace, flow, b.Definition(flowstest.Welcome))))
	tag := b.planned(flow, 2)
	for _, n := range []int{1, 3} {
		_, err := b.Publish(bg, b.Workspace, flow, n, &tag, flows.InFlight{}, nil)
		b.wantStale(true, err)
	}
	if live := b.planned(flow, 1); live.Planned != "" {
		t.Errorf("%+v", live)
	}
	f, err := b.Publish(bg, b.Workspace, flow, 2, &flows.Tag{Version: tag.Version}, flows.InFlight{}, nil)
	if b.Must(err); *f.LiveVersion != 2 {
		t.Errorf("%+v", f)
	}
}

func anotherQuery(b *bundle) {
	b.T.Helper()
	a, err := b.Deps.Audiences.Get(bg, b.Workspace, b.Audience)
	b.Must(err)
	other := audience.Patch{SQL: new("select * from (" + a.SQL + ") a")}
	b.Must(flowstest.Second(b.Deps.Audiences.Update(bg, b.Workspace, b.Audience, nil, other, nil)))
}

// planned is the ETag of a plan, of a dry run, and of the validation.
func (b *bundle) planned(flow uuid.UUID, n int) flows.Tag {
	b.T.Helper()
	plan, err := b.Plan(bg, b.Workspace, flow, n, flows.InFlight{})
	b.Must(err)
	valid, err := b.Validate(bg, b.Workspace, flow, n)
	b.Must(err)
	if valid.ETag != plan.ETag || plan.ETag.Version != b.Flow(flow).Version {
		b.T.Errorf("%+v and %+v", valid.ETag, plan.ETag)
	}
	return plan.ETag
}

func (b *bundle) wantStale(stale bool, err error) {
	b.T.Helper()
	if stale {
		b.Wants(lemma.Stale, err)
		return
	}
	b.Must(err)
}

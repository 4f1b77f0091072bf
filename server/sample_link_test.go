package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/campaigns"
	"lemma/flows"
	"lemma/message"
	"lemma/pgtest"
	"lemma/pgtest/shop"
	"lemma/providers"
	"lemma/sender"
	"lemma/sender/sendertest"
	"lemma/workspaces"
)

// texting is a process with a provider for SMS, and an audience of two: with the link to
// unsubscribe, the message of the first has the most characters that are sent, and that of the
// second has one more.
type texting struct {
	*shop.Fixture
	*Server
	token    string
	got      inbox
	people   uuid.UUID
	template uuid.UUID
	provider uuid.UUID
	fits     int // characters of the first, besides the link
}

// smsLink is a template whose text consists of data and the link.
const smsLink = "{{ fill }} {{ unsubscribe_url }}"

func startTexting(t *testing.T) *texting {
	t.Helper()
	t.Parallel()
	ctx := t.Context()
	b := &texting{got: make(inbox, 10), fits: 1530 - len(publicURL+"/u/ ") - 134} // a token has 100 bytes in base64
	b.Fixture = shop.New(pgtest.NewShop(t, `create table people (id text, phone text, fill text)`, fmt.Sprintf(
		`insert into people values ('fits', '030 123401', repeat('x', %d)), ('long', '030 123402', repeat('x', %d))`, b.fits, b.fits+1)),
		shop.Local, nil)
	kind := (&sendertest.Carrier{Script: b.got.accept}).Kind()
	kind.Channels = []lemma.Channel{lemma.SMS}
	var err error
	b.Server, err = New(Deps{Pool: b.Fixture.Pool, Box: b.Box, Log: slog.New(slog.DiscardHandler), Kinds: []sender.Kind{kind}}, Config{
		PublicURL: publicURL, Sources: shop.Local, Flows: flows.Config{Poll: 5 * time.Millisecond}})
	b.Must(err)
	people, err := b.Server.Audiences.Create(ctx, b.Workspace, audience.NewAudience{ID: lemma.NewID(), DataSourceID: b.NewSource(b.DSN),
		Name: "people", SQL: "select * from people", KeyColumn: "id", PhoneColumn: "phone", PhoneRegion: "DE"})
	b.Must(err)
	provider, err := b.Server.Providers.Create(ctx, b.Workspace,
		providers.NewProvider{ID: lemma.NewID(), Name: "sms", Kind: "scripted", Channel: lemma.SMS})
	b.Must(err)
	b.people, b.provider, b.template = people.ID, provider.ID, b.NewTemplate(message.Content{Channel: lemma.SMS, Text: smsLink})
	_, b.token, err = b.Workspaces.CreateKey(ctx, b.Workspace,
		workspaces.NewKey{ID: lemma.NewID(), Name: "t", Scopes: []string{workspaces.Admin}})
	b.Must(err)
	b.Must(b.StartWorkers(context.WithoutCancel(ctx)))
	t.Cleanup(func() { _ = b.Stop() })
	return b
}

// post returns the status and the text of an answer.
func (b *texting) post(path string, in any) (int, string) {
	b.T.Helper()
	body, err := json.Marshal(in)
	b.Must(err)
	r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+b.token)
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	b.API.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// campaign makes a draft.
func (b *texting) campaign() uuid.UUID {
	b.T.Helper()
	c, err := b.Campaigns.Create(b.T.Context(), b.Workspace, campaigns.NewCampaign{ID: lemma.NewID(), Name: "c", AudienceID: b.people,
		TemplateID: b.template, ProviderID: b.provider, TemplateErrorLimit: new(1.0)})
	b.Must(err)
	return c.ID
}

const tooLong = "the text has 11 SMS segments; must have at most 10"

// A preview counts as failed what the campaign skips.
func TestAPreviewCountsTheSegmentsOfRealLinks(t *testing.T) {
	b := startTexting(t)
	id := b.campaign()
	p, err := b.Campaigns.Preview(t.Context(), b.Workspace, id)
	b.Must(err)
	if p.Rendered != 2 || p.Failed != 1 || p.Faults[0].ProfileKeys[0] != "long" || !strings.Contains(p.Faults[0].Error, tooLong) {
		t.Fatalf("%d of %d failed: %+v", p.Failed, p.Rendered, p.Faults)
	}
	_, err = b.Campaigns.Send(t.Context(), b.Workspace, id, uuid.Nil)
	b.Must(err)
	sent := b.got.next(t, 1)["+4930123401"].Text
	if shown := p.Sample[0].Text; len(shown) != len(sent) || message.SegmentsOf(shown) != message.SegmentsOf(sent) ||
		!strings.Contains(shown, " "+publicURL+"/u/sample0") {
		t.Errorf("shown: %q, sent: %q", shown, sent)
	}
	b.Eventually("the campaign to complete", func() bool {
		c, err := b.Campaigns.Get(t.Context(), b.Workspace, id)
		b.Must(err)
		return c.Status == campaigns.Completed && c.Counts.Sent == 1 && c.Counts.SkippedBy["template_error"] == 1
	})
}

// What is accepted can be sent, and what is too long with the link is refused.
func TestADirectNotificationIsCheckedWithTheLengthOfItsLink(t *testing.T) {
	b := startTexting(t)
	request := func(n int) any {
		return map[string]any{"to": map[string]any{"address": "+4930123401"}, "data": map[string]any{"fill": strings.Repeat("x", n)},
			"template_id": lemma.FormatID(lemma.PrefixTemplate, b.template), "provider_id": lemma.FormatID(lemma.PrefixProvider, b.provider)}
	}
	if status, body := b.post("/v1/notifications", request(b.fits+1)); status != 422 || !strings.Contains(body, tooLong) {
		t.Errorf("%d %s", status, body)
	}
	if status, body := b.post("/v1/notifications", request(b.fits)); status != 202 {
		t.Fatalf("%d %s", status, body)
	}
	if sent := b.got.next(t, 1)["+4930123401"].Text; len(sent) != 1530 {
		t.Errorf("%d characters were sent", len(sent))
	}
}

// Renders, tests of a provider and simulations refuse what is too long with the link.
func TestShownMessagesHaveTheLengthOfRealLinks(t *testing.T) {
	b := startTexting(t)
	template, provider := lemma.FormatID(lemma.PrefixTemplate, b.template), lemma.FormatID(lemma.PrefixProvider, b.provider)
	definition, err := json.Marshal(map[string]any{"audience_id": lemma.FormatID(lemma.PrefixAudience, b.people), "start": "sms",
		"triggers": []any{map[string]any{"type": "event", "event": "e"}}, "recurrence": map[string]any{"policy": "once"},
		"nodes": map[string]any{"end": map[string]any{"type": "exit"},
			"sms": map[string]any{"type": "send", "channel": "sms", "next": "end", "provider_id": provider, "template_id": template}}})
	b.Must(err)
	flow, err := b.Flows.Create(t.Context(), b.Workspace, flows.NewFlow{ID: lemma.NewID(), Name: "f", Definition: definition})
	b.Must(err)
	for name, post := range map[string]func(profile string, n int) (int, string){
		"render": func(_ string, n int) (int, string) {
			return b.post("/v1/templates/"+template+"/render", map[string]any{"data": map[string]any{"fill": strings.Repeat("x", n)}})
		},
		"test": func(_ string, n int) (int, string) {
			return b.post("/v1/providers/"+provider+"/test", map[string]any{"to": "+4930123401", "template_id": template,
				"data": map[string]any{"fill": strings.Repeat("x", n)}})
		},
		"simulate": func(profile string, _ int) (int, string) {
			return b.post("/v1/flows/"+lemma.FormatID(lemma.PrefixFlow, flow.ID)+"/versions/1/simulate",
				map[string]any{"profile_key": profile, "trigger": map[string]any{"event": "e"}})
		},
	} {
		if status, body := post("fits", b.fits); status != 200 || strings.Contains(body, "segments;") {
			t.Errorf("%s: %d %s", name, status, body)
		}
		if _, body := post("long", b.fits+1); !strings.Contains(body, tooLong) {
			t.Errorf("%s, too long: %s", name, body)
		}
	}
	if sent := b.got.next(t, 1)["+4930123401"].Text; len(sent) != 1530 {
		t.Errorf("the test has sent %d characters", len(sent))
	}
}

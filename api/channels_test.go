package api

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"
)

// Each channel has its own shape of a template, in requests and in answers.
func TestTemplatesOfEachChannel(t *testing.T) {
	b := setup(t)
	for channel, c := range map[string]struct{ content, version, rendered object }{
		"email": {object{"subject": "Hi {{ a }}", "html": "<b>{{ a }}</b>", "text": "{{ a }}"},
			object{"subject": "Hi {{ a }}", "html": "<b>{{ a }}</b>", "text": "{{ a }}"},
			object{"subject": "Hi <€>", "html": "<b>&lt;€&gt;</b>", "text": "<€>"}},
		"sms": {object{"text": "{{ a }}"}, object{"text": "{{ a }}"},
			object{"text": "<€>", "segments": object{"encoding": "gsm7", "characters": 4.0, "count": 1.0, "per_segment": 160.0}}},
		"push": {object{"title": "{{ a }}", "body": "b", "data": object{"x": "{{ a }}"}},
			object{"title": "{{ a }}", "body": "b", "link": "", "data": object{"x": "{{ a }}"}},
			object{"title": "<€>", "body": "b", "link": "", "data": object{"x": "<€>"}}},
	} {
		c.content["channel"], c.version["channel"], c.rendered["channel"] = channel, channel, channel
		b.do("POST", "/v1/templates/validate", c.content).is(200)
		c.content["name"] = channel
		made := b.do("POST", "/v1/templates", c.content).is(201)
		delete(c.content, "name")
		if made.text("channel") != channel {
			t.Errorf("%s: %s", channel, made.body)
		}
		path := "/v1/templates/" + made.id()
		again := b.do("POST", path+"/versions", c.content).is(201)
		for _, got := range []answered{again, b.do("GET", path+"/versions/1", nil).is(200)} {
			for _, common := range []string{"template_id", "version", "variables", "created_at"} {
				delete(got.json, common)
			}
			if diff := cmp.Diff(c.version, got.json); diff != "" {
				t.Errorf("%s: %s", channel, diff)
			}
		}
		rendered := b.do("POST", path+"/render", object{"data": object{"a": "<€>"}}).is(200)
		for _, common := range []string{"version", "profile_key", "address"} {
			delete(rendered.json, common)
		}
		if diff := cmp.Diff(c.rendered, rendered.json); diff != "" {
			t.Errorf("%s: %s", channel, diff)
		}
		b.do("GET", path+"/versions", nil).is(200)
	}
}

func TestContentsThatAreNotOfTheirChannel(t *testing.T) {
	b := setup(t)
	b.do("POST", "/v1/templates", object{"name": "a", "channel": "sms", "subject": "s"}).fault(422, "/subject", "unknown_field").
		fault(422, "/text", "required")
	b.do("POST", "/v1/templates", object{"name": "a", "channel": "push", "text": "t"}).fault(422, "/text", "unknown_field").
		fault(422, "/body", "required")
	b.do("POST", "/v1/templates", object{"name": "a", "text": "t"}).fault(422, "/subject", "required")
	b.do("POST", "/v1/templates", object{"name": "a", "channel": "fax", "text": "t"}).fault(422, "/channel", "not_allowed")
	b.do("POST", "/v1/templates", object{"name": "a", "channel": 1, "text": "t"}).fault(422, "/channel", "wrong_type")
	b.do("POST", "/v1/templates", []int{1}).fault(422, "", "wrong_type")
	b.do("POST", "/v1/templates", object{"name": "a", "channel": "push", "body": "{{ a b }}", "data": object{"x": "{% no %}"}}).
		fault(422, "/body", "syntax").fault(422, "/data/x", "tag_not_allowed")
	sms := b.do("POST", "/v1/templates", object{"name": "a", "channel": "sms", "text": "t"}).is(201)
	b.do("POST", "/v1/templates/"+sms.id()+"/versions", object{"subject": "s", "text": "t"}).fault(422, "/channel", "wrong_channel")
	b.do("POST", "/v1/templates/"+sms.id()+"/versions", object{"channel": "push", "body": "t"}).fault(422, "/channel", "wrong_channel")
}

// A provider, an audience and a campaign of another channel than email.
func TestACampaignOverSMS(t *testing.T) {
	b := setup(t)
	w := b.world()
	b.deps.Providers.OnChannel(func(kind string) []lemma.Channel {
		if kind == "null" {
			return []lemma.Channel{lemma.Push, lemma.SMS}
		}
		return []lemma.Channel{lemma.Email}
	})
	none := object{"name": "a", "kind": "null", "config": object{}}
	if got := b.do("POST", "/v1/providers", none).is(201); got.text("channel") != "push" {
		t.Errorf("the default channel: %s", got.body)
	}
	none["name"], none["channel"] = "b", "email"
	b.do("POST", "/v1/providers", none).fault(422, "/channel", "wrong_channel")
	none["channel"] = "sms"
	provider := b.do("POST", "/v1/providers", none).is(201)
	people := object{"name": "Phones", "data_source_id": w.source, "key_column": "id",
		"sql": "select id, '030 12340' || right(id, 1) as phone, name from customers"}
	b.do("POST", "/v1/audiences", people).fault(422, "/email_column", "required")
	people["phone_column"], people["phone_region"] = "phone", "XX"
	b.do("POST", "/v1/audiences", people).fault(422, "/phone_region", "invalid_region")
	people["phone_region"] = "DE"
	aud := b.do("POST", "/v1/audiences", people).is(201)
	if aud.json["email_column"] != nil || aud.text("phone_region") != "DE" {
		t.Errorf("%s", aud.body)
	}
	b.do("PATCH", "/v1/audiences/"+aud.id(), object{"phone_region": nil}).is(200)
	b.do("PATCH", "/v1/audiences/"+aud.id(), object{"phone_region": "AT", "phone_column": nil}).fault(422, "/email_column", "required")
	b.do("PATCH", "/v1/audiences/"+aud.id(), object{"phone_region": "DE"}).is(200)
	counts := b.do("GET", "/v1/audiences/"+aud.id()+"/counts", nil).is(200)
	b.do("GET", "/v1/audiences/"+aud.id()+"/counts?channel=push", nil).fault(400, "?channel", "wrong_channel")
	if counts.json["sendable"] != 6.0 {
		t.Errorf("%s", counts.body)
	}
	template := b.do("POST", "/v1/templates", object{"name": "sms", "channel": "sms", "text": "Hi {{ name }}"}).is(201)
	in := w.newCampaign(object{"template_id": template.id(), "provider_id": provider.id(), "audience_id": aud.id(), "from": nil,
		"reply_to": nil, "headers": nil})
	b.do("POST", "/v1/campaigns", w.newCampaign(object{"template_id": template.id()})).fault(422, "/from", "wrong_channel")
	b.do("POST", "/v1/campaigns", w.newCampaign(object{"from": nil})).fault(422, "/from", "required")
	in["provider_id"] = w.provider
	b.do("POST", "/v1/campaigns", in).fault(422, "/provider_id", "wrong_channel")
	in["provider_id"] = provider.id()
	c := b.do("POST", "/v1/campaigns", in).is(201)
	if c.text("channel") != "sms" || c.json["from"] != nil {
		t.Errorf("%s", c.body)
	}
	preview := b.do("GET", "/v1/campaigns/"+c.id()+"/preview", nil).is(200)
	sample := preview.json["sample"].([]any)[0].(object)
	if sample["channel"] != "sms" || sample["segments"].(object)["count"] != 1.0 || sample["subject"] != nil {
		t.Errorf("%v", sample)
	}
	b.do("POST", "/v1/campaigns/"+c.id()+"/send", nil).is(202)
	id, _ := lemma.ParseID(lemma.PrefixCampaign, c.id())
	_, err := b.deps.Campaigns.Fanout(context.Background(), b.Workspace, id)
	b.Must(err)
	for query, want := range map[string]int{"channel=sms": 6, "channel=push": 0,
		"campaign_id=" + c.id() + "&address=" + url.QueryEscape("+49 30 123401"): 1} {
		found := b.do("GET", "/v1/notifications?"+query, nil).is(200)
		if data := found.json["data"].([]any); len(data) != want || want > 0 && data[0].(object)["channel"] != "sms" {
			t.Errorf("%s: %s", query, found.body)
		}
	}
	b.do("GET", "/v1/notifications?channel=fax", nil).is(400)
}

// The notifications of a browser are found by its subscription in any spelling, and by the endpoint.
func TestNotificationsOfASubscription(t *testing.T) {
	b := setup(t)
	campaign, id := b.fannedOut(b.world())
	b.Exec(`update contents set channel = 'push' where workspace_id = $1`, b.Workspace)
	const endpoint, keys = `https://push.example/a_b/%c?x=1&y=2`, `"keys":{"auth":"s","p256dh":"k"}`
	ask := func(address string) int {
		t.Helper()
		found := b.do("GET", "/v1/notifications?campaign_id="+campaign+"&address="+url.QueryEscape(address), nil).is(200)
		return len(found.json["data"].([]any))
	}
	for _, stored := range []string{`{"endpoint":"` + endpoint + `",` + keys + `}`,
		`{"expirationTime":null,` + keys + `,"endpoint":"` + strings.NewReplacer("/", `\/`, "&", `\u0026`).Replace(endpoint) + `"}`} {
		b.Exec(`update notifications set address = $1
			where origin_id = $2 and address = (select min(address) from notifications where origin_id = $2)`, stored, id)
		for address, want := range map[string]int{stored: 1, endpoint: 1, `{ "endpoint": "` + endpoint + `", ` + keys + `}`: 1,
			strings.ReplaceAll(endpoint, "_", "-"): 0, endpoint + "2": 0, "s": 0} {
			if got := ask(address); got != want {
				t.Errorf("stored %s: %d notifications to %s, want %d", stored, got, address, want)
			}
		}
		b.Exec(`update notifications set address = 'other' where address = $1`, stored)
	}
}

package message

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"

	"github.com/google/uuid"
)

// The link of the recipient is rendered in every text and header, whatever the data has
// under its name. It is no column that an audience must have.
func TestUnsubscribeURL(t *testing.T) {
	t.Parallel()
	c, err := Compile(uuid.Nil, Content{Subject: "Hi {{ name }}",
		HTML: `<a href="{{ unsubscribe_url }}">x</a> {% if unsubscribe_url %}y{% endif %}`,
		Text: "{{ unsubscribe_url }}"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"name"}, c.Variables()); diff != "" || !c.Unsubscribes() {
		t.Errorf("variables: %s", diff)
	}
	if c, err = c.WithHeaders(SentHeaders(lemma.Email, false, map[string]string{"X-Key": "{{ key }}"})); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"key", "name"}, c.Variables()); diff != "" {
		t.Errorf("variables with headers: %s", diff)
	}
	const url = "https://lemma.example/u/AQ-_"
	for _, payload := range []string{`{"key":"k","name":"Ada"}`, `{"key":"k","name":"Ada","unsubscribe_url":"https://evil.example"}`,
		`{"unsubscribe_url":["https://evil.example"],"key":"k","name":"Ada","list":[1]}`} {
		text, headers, err := c.RenderMessage(payload, url)
		if err != nil {
			t.Fatal(err)
		}
		want := Content{Subject: "Hi Ada", HTML: `<a href="` + url + `">x</a> y`, Text: url}
		text.Channel = ""
		if diff := cmp.Diff(want, text); diff != "" {
			t.Error(payload, diff)
		}
		if diff := cmp.Diff([][2]string{{"List-Unsubscribe", "<" + url + ">"}, {"List-Unsubscribe-Post", "List-Unsubscribe=One-Click"},
			{"X-Key", "k"}}, headers); diff != "" {
			t.Error(payload, diff)
		}
	}
	if text, err := c.Render(`{}`); err != nil || !strings.Contains(text.HTML, SampleUnsubscribeURL("")) {
		t.Errorf("shown: %+v, %v", text, err)
	}
}

func TestHeadersOfOneClick(t *testing.T) {
	t.Parallel()
	both := map[string]string{"List-Unsubscribe": "<{{ unsubscribe_url }}>", "List-Unsubscribe-Post": "List-Unsubscribe=One-Click"}
	others, own := maps.Clone(both), map[string]string{"list-unsubscribe": "<mailto:a@b.example>"}
	others["X-A"] = "1"
	for name, c := range map[string]struct{ own, want map[string]string }{
		"none": {nil, both}, "others": {map[string]string{"X-A": "1"}, others}, "their own": {own, own},
		"only half of the two": {map[string]string{"list-unsubscribe-post": "x"}, both},
	} {
		if diff := cmp.Diff(c.want, SentHeaders(lemma.Email, false, c.own)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if diff := cmp.Diff(c.own, SentHeaders(lemma.Email, true, c.own)); diff != "" {
			t.Errorf("%s, transactional: %s", name, diff)
		}
		if diff := cmp.Diff(c.own, SentHeaders(lemma.SMS, false, c.own)); diff != "" {
			t.Errorf("%s, SMS: %s", name, diff)
		}
	}
}

// A name that the template assigns is its own.
func TestAnAssignedUnsubscribeURL(t *testing.T) {
	t.Parallel()
	c, err := Compile(uuid.Nil, Content{Subject: "x", Text: `{% assign unsubscribe_url = "mine" %}{{ unsubscribe_url }}`})
	if err != nil {
		t.Fatal(err)
	}
	if text, _ := c.Render(`{}`); text.Text != "mine" || c.Unsubscribes() {
		t.Errorf("%q", text.Text)
	}
}

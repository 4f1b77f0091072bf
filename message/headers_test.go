package message

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"

	"github.com/google/uuid"
)

func withHeaders(t *testing.T, headers map[string]string) (*Compiled, error) {
	t.Helper()
	made, err := Compile(uuid.Nil, Content{Subject: "Hi {{ key | default: 'you' }}", Text: "t {% assign x = key %}{{ x }}"})
	if err != nil {
		t.Fatal(err)
	}
	return made.WithHeaders(headers)
}

func TestHeadersAreRendered(t *testing.T) {
	t.Parallel()
	h, err := withHeaders(t, map[string]string{
		"X-Plain": "a < b", "X-Name": " {{ name }} ", "List-Unsubscribe": "<https://shop.example/u?k={{ key | url_encode }}&n=1>",
		"X-Vip": "{% if vip %}yes{% endif %}", "X-Tags": "{% for t in tags %}{{ t }} {% endfor %}", "X-Empty": "",
		"X-Braces": `{"a":{"b":1}}`,
	})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"key", "name", "tags", "vip"}, h.Variables()); d != "" {
		t.Error(d)
	}
	for payload, want := range map[string][][2]string{
		`{"name":"Ann & Bo <x>","key":"a/b","vip":true,"tags":["x","y"]}`: {
			{"List-Unsubscribe", "<https://shop.example/u?k=a%2Fb&n=1>"}, {"X-Braces", `{"a":{"b":1}}`}, {"X-Empty", ""},
			{"X-Name", "Ann & Bo <x>"},
			{"X-Plain", "a < b"}, {"X-Tags", "x y"}, {"X-Vip", "yes"}},
		`{"name":null,"key":"é"}`: {
			{"List-Unsubscribe", "<https://shop.example/u?k=%C3%A9&n=1>"}, {"X-Braces", `{"a":{"b":1}}`}, {"X-Empty", ""},
			{"X-Plain", "a < b"}},
		// Data is never read as a template.
		`{"name":"{{ key }}","key":"1"}`: {
			{"List-Unsubscribe", "<https://shop.example/u?k=1&n=1>"}, {"X-Braces", `{"a":{"b":1}}`}, {"X-Empty", ""},
			{"X-Name", "{{ key }}"}, {"X-Plain", "a < b"}},
	} {
		for range 2 { // as attempt 2 does
			_, got, err := h.RenderMessage(payload, "")
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s: %s", payload, d)
			}
		}
	}
}

// A value that would break the header of a mail is an error of the row.
func TestHeadersThatCannotBeSent(t *testing.T) {
	t.Parallel()
	h, err := withHeaders(t, map[string]string{"X-Name": "{{ name }}"})
	if err != nil {
		t.Fatal(err)
	}
	for name, payload := range map[string]string{
		"CRLF":     `{"name":"a\r\nBcc: b@shop.example"}`,
		"LF":       `{"name":"a\n b"}`,
		"CR":       `{"name":"a\rb"}`,
		"last LF":  `{"name":"a\n"}`,
		"NUL":      `{"name":"a\u0000b"}`,
		"too long": `{"name":"` + strings.Repeat("é", MaxHeader+1) + `"}`,
		"no JSON":  `[]`,
	} {
		_, got, err := h.RenderMessage(payload, "")
		var e *lemma.Error
		if !errors.As(err, &e) || e.Code != "template_error" || got != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		} else if name != "no JSON" && e.Fields[0].Pointer != "/headers/X-Name" {
			t.Errorf("%s: at %s", name, e.Fields[0].Pointer)
		}
	}
	if _, got, err := h.RenderMessage(`{"name":"`+strings.Repeat("é", MaxHeader)+`"}`, ""); err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestHeaderFaultsHaveAPlace(t *testing.T) {
	t.Parallel()
	_, err := withHeaders(t, map[string]string{"X-A": "{{ name", "X-B": "ok {{ name }}", "X-C": "{% include 'x' %}",
		"X/D~": "{{ 'now' | date: '%Y' }}", "X-E": strings.Repeat("a", MaxHeader+1)})
	var e *lemma.Error
	if !errors.As(err, &e) || e.Kind != lemma.Invalid {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range e.Fields {
		got[f.Pointer] = f.Code
	}
	want := map[string]string{"/headers/X-A": "unclosed", "/headers/X-C": "tag_not_allowed", "/headers/X~1D~0": "clock",
		"/headers/X-E": "too_large"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// Headers without Liquid cost nothing for each recipient.
func TestHeadersWithoutLiquidAreShared(t *testing.T) {
	t.Parallel()
	h, err := withHeaders(t, map[string]string{"X-B": "2", "X-A": "}} 1 %}"})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([][2]string{{"X-A", "}} 1 %}"}, {"X-B", "2"}}, h.fixed); d != "" {
		t.Error(d)
	}
	if _, got, err := h.RenderMessage("{}", ""); err != nil || &got[0] != &h.fixed[0] {
		t.Errorf("%v, %v", got, err)
	}
	if h, err = withHeaders(t, nil); err != nil {
		t.Fatal(err)
	}
	if _, got, err := h.RenderMessage("{}", ""); got != nil || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

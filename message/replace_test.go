package message

import (
	"errors"
	"strings"
	"testing"

	"lemma"

	"github.com/google/uuid"
)

func TestReplaced(t *testing.T) {
	t.Parallel()
	content := Content{Subject: "Hello {{ name }}", HTML: `<html><body class="x"><p>News</p></body></html>`}
	c, err := Compile(uuid.Nil, content)
	if err != nil {
		t.Fatal(err)
	}
	other, err := c.Replaced(Replacement{Subject: "{{ first }}, look", Preheader: "Only for {{ first }}"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := other.Render(`{"first": "A<b"}`)
	if err != nil || got.Subject != "A<b, look" || strings.Contains(got.Text, "Only") ||
		!strings.HasPrefix(got.HTML, `<html><body class="x"><div style="display:none;`) ||
		!strings.Contains(got.HTML, `">Only for A&lt;b</div><p>`) {
		t.Errorf("%v: %+v", err, got)
	}
	if v := other.Variables(); len(v) != 1 || v[0] != "first" {
		t.Errorf("the variables are %v", v)
	}
	if same, err := c.Replaced(Replacement{}); same != c || err != nil {
		t.Error("nothing to replace, and another content")
	}
	sms, err := Compile(uuid.Nil, Content{Channel: lemma.SMS, Text: "Hi"})
	if err != nil {
		t.Fatal(err)
	}
	for name, try := range map[string]struct {
		of      *Compiled
		r       Replacement
		pointer string
	}{
		"Liquid of a subject":   {c, Replacement{Subject: "{{ name"}, "/subject"},
		"Liquid of a preheader": {c, Replacement{Preheader: "{{ name"}, "/preheader"},
		"subject of an SMS":     {sms, Replacement{Subject: "x"}, "/subject"},
		"preheader of an SMS":   {sms, Replacement{Preheader: "x"}, "/preheader"},
	} {
		_, err := try.of.Replaced(try.r)
		var e *lemma.Error
		if !errors.As(err, &e) || len(e.Fields) == 0 || e.Fields[0].Pointer != try.pointer {
			t.Errorf("%s: %v", name, err)
		}
	}
}

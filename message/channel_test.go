package message

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"
)

func TestRenderEachChannel(t *testing.T) {
	t.Parallel()
	payload := `{"name":"<A & B>","id":7,"link":" myapp://orders/7 "}`
	for _, c := range []struct{ content, want Content }{
		{Content{Channel: lemma.SMS, Text: "Hi {{ name }}"}, Content{Channel: lemma.SMS, Text: "Hi <A & B>"}},
		{Content{Channel: lemma.Push, Text: "Order {{ id }}"}, Content{Channel: lemma.Push, Text: "Order 7"}},
		{Content{Channel: lemma.Push, Subject: "{{ name }}", Text: "Order {{ id }}", Link: "{{ link }}",
			Data: map[string]string{"order": "{{ id }}", "a/b": "x"}},
			Content{Channel: lemma.Push, Subject: "<A & B>", Text: "Order 7", Link: "myapp://orders/7",
				Data: map[string]string{"order": "7", "a/b": "x"}}},
	} {
		got, err := compiled(t, c.content).Render(payload)
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%v %s", err, diff)
		}
	}
}

func TestCheckEachChannel(t *testing.T) {
	t.Parallel()
	members := map[string]string{}
	for i := range MaxMembers + 1 {
		members[fmt.Sprint("m", i)] = ""
	}
	for what, c := range map[string]struct {
		content Content
		want    string
	}{
		"an SMS":                {Content{Channel: lemma.SMS, Text: "{{ a }}"}, ""},
		"an SMS without a text": {Content{Channel: lemma.SMS, Text: " "}, "/text 0:0 required"},
		"an SMS with a subject": {Content{Channel: lemma.SMS, Text: "t", Subject: "s"}, "/subject 0:0 unknown_field"},
		"an SMS with HTML":      {Content{Channel: lemma.SMS, Text: "t", HTML: "h"}, "/html 0:0 unknown_field"},
		"an SMS with a fault":   {Content{Channel: lemma.SMS, Text: "{{ a b }}"}, "/text 1:4 syntax"},
		"an SMS of 11 segments": {Content{Channel: lemma.SMS, Text: strings.Repeat("я", 671)}, "/text 0:0 too_large"},
		"a push":                {Content{Channel: lemma.Push, Text: "t"}, ""},
		"a push without a body": {Content{Channel: lemma.Push, Subject: "s"}, "/body 0:0 required"},
		"a push with HTML":      {Content{Channel: lemma.Push, Text: "t", HTML: "h"}, "/html 0:0 unknown_field"},
		"a title of two lines":  {Content{Channel: lemma.Push, Text: "t", Subject: "a\nb"}, "/title 1:2 line_break"},
		"a link to the web":     {Content{Channel: lemma.Push, Text: "t", Link: "https://shop.example/{{ name }}"}, ""},
		"a link in an app":      {Content{Channel: lemma.Push, Text: "t", Link: "myapp://x"}, ""},
		"a relative link":       {Content{Channel: lemma.Push, Text: "t", Link: "/offers"}, "/link 0:0 invalid"},
		"a link with a space":   {Content{Channel: lemma.Push, Text: "t", Link: "https://shop.example/a b"}, "/link 0:0 invalid"},
		"a fault in a value of the data": {Content{Channel: lemma.Push, Text: "t", Data: map[string]string{"a/b": "{{ a b }}"}},
			"/data/a~1b 1:4 syntax"},
		"a member without a name":           {Content{Channel: lemma.Push, Text: "t", Data: map[string]string{"": "x"}}, "/data/ 0:0 invalid"},
		"too many members":                  {Content{Channel: lemma.Push, Text: "t", Data: members}, "/data 0:0 too_large"},
		"an email with a link":              {Content{Subject: "s", Text: "t", Link: "https://shop.example"}, "/link 0:0 unknown_field"},
		"a channel that there is not":       {Content{Channel: "fax", Text: "t"}, "/channel 0:0 not_allowed"},
		"an email whose channel is spelled": {Content{Channel: lemma.Email, Subject: "s", Text: "t"}, ""},
	} {
		if got := strings.Join(faultsOf(t, c.content), ","); !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}

// Whatever opens the link of a push gets no script, no content and no file, also if a
// variable has it. An app has a scheme of its own.
func TestSchemesOfTheLinkOfAPush(t *testing.T) {
	t.Parallel()
	for link, want := range map[string]bool{
		"https://shop.example/a?b#c": true, "HTTP://shop.example": true, "myapp://offers": true, "com.shop.app:/offers": true,
		"intent://offers#Intent;scheme=myapp;end": true, "mailto:ada@shop.example": true, "tel:+4930123": true, "javascriptapp://x": true,
		"javascript:alert(1)": false, "JaVaScRiPt:alert(1)": false, " javascript:alert(1)": false, "\u00a0javascript:alert(1)": false,
		"java\tscript:alert(1)": false, "java\nscript:alert(1)": false, "\x01javascript:alert(1)": false, "java\u200bscript:alert(1)": false,
		"javascript :alert(1)": false, "javascript&colon;alert(1)": false, "%6aavascript:alert(1)": false, "javascript://x/%0aalert(1)": false,
		"data:text/html,x": false, "DATA:text/html;base64,eA": false, "vbscript:x": false, "livescript:x": false,
		"blob:https://shop.example/1":       false,
		"filesystem:https://shop.example/1": false, "file:///etc/passwd": false, "about:blank": false, "view-source:https://shop.example": false,
		"jar:https://shop.example!/": false, "https:///offers": false, "https:offers": false, "//shop.example": false, ":x": false,
	} {
		saved := len(faultsOf(t, Content{Channel: lemma.Push, Text: "t", Link: link})) == 0
		payload, err := json.Marshal(map[string]string{"link": link})
		if err != nil {
			t.Fatal(err)
		}
		_, err = compiled(t, Content{Channel: lemma.Push, Text: "t", Link: "{{ link }}"}).Render(string(payload))
		if rendered := err == nil; saved != want || rendered != want {
			t.Errorf("%q: saved %v, rendered %v, want %v", link, saved, rendered, want)
		}
	}
}

func TestRenderedTextsThatAChannelCannotCarry(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		content Content
		want    string
	}{
		"an SMS that is empty":    {Content{Channel: lemma.SMS, Text: "{{ empty_text }}"}, "/text"},
		"a body that is empty":    {Content{Channel: lemma.Push, Text: "{{ empty_text }}"}, "/body"},
		"a title of two lines":    {Content{Channel: lemma.Push, Text: "t", Subject: "{{ lines }}"}, "/title"},
		"a link that is a word":   {Content{Channel: lemma.Push, Text: "t", Link: "{{ word }}"}, "/link"},
		"a link that is empty":    {Content{Channel: lemma.Push, Text: "t", Link: "{{ empty_text }}"}, ""},
		"data of several lines":   {Content{Channel: lemma.Push, Text: "t", Data: map[string]string{"a": "{{ lines }}"}}, ""},
		"data that is too long":   {Content{Channel: lemma.Push, Text: "t", Data: map[string]string{"a": "{{ long }}"}}, "/data/a"},
		"a subject that is empty": {Content{Subject: "{{ empty_text }}", Text: "t"}, "/subject"},
	} {
		_, err := compiled(t, c.content).Render(`{"empty_text":" ","lines":"a\nb","word":"offers","long":"` + strings.Repeat("x", MaxSubject+1) +
			`"}`)
		got := ""
		if wrong, ok := errors.AsType[*lemma.Error](err); ok {
			got = wrong.Fields[0].Pointer
		}
		if got != c.want {
			t.Errorf("%s: %v, want a fault at %q", what, err, c.want)
		}
	}
}

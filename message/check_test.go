package message

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
)

// faultsOf returns the faults of Check as lines of "pointer line:column code".
func faultsOf(t *testing.T, c Content) []string {
	t.Helper()
	_, err := Check(uuid.Nil, c)
	if err == nil {
		return nil
	}
	var refused *lemma.Error
	if !errors.As(err, &refused) || refused.Kind != lemma.Invalid {
		t.Fatalf("Check: %v is not a fault of the request", err)
	}
	var lines []string
	for _, f := range refused.Fields {
		lines = append(lines, fmt.Sprintf("%s %d:%d %s", f.Pointer, f.Line, f.Column, f.Code))
		if len(f.Detail) < 10 {
			t.Errorf("%s: %q does not help", f.Pointer, f.Detail)
		}
	}
	return lines
}

func TestCheckHTML(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		html string
		want string // "line:column code", empty if it is accepted
	}{
		"plain text is a template":            {"Hello", ""},
		"a name stands for a value":           {"Hello {{ first_name }}", ""},
		"a name may hold a dash":              {"Hello {{ first-name }}", ""},
		"filters follow with their arguments": {`{{ a | default: "friend" | truncate: 10, "..." }}`, ""},
		"a default may let false stand":       {`{{ a | default: "x", allow_false: true }}`, ""},
		"a comment may hold anything":         {"{% comment %}{{ {% if %}{% endcomment %}", ""},
		"what is raw may hold anything":       {"{% raw %}{{ {% if {{ a b }}{% endraw %}", ""},
		"braces of a style sheet are text":    {"<style>@media x{.a{width:100%}}</style>", ""},
		"a tag may go over lines":             {"{% if a\n and b %}x{% endif %}", ""},
		"white space may be taken away":       {"{%- if a -%} x {{- b -}} {%- endif -%}", ""},
		"a case has branches":                 {`{% case a %} {% when "x", "y" %}1{% else %}2{% endcase %}`, ""},
		"nested loops": {"{% for a in b limit: 3 %}{% for c in a.d %}{{ forloop.index }}" +
			"{% endfor %}{% endfor %}", ""},
		"conditions may be grouped":                    {"{% if (a or b) and c %}x{% endif %}", ""},
		"line breaks of data become markup at the end": {"{{ a | strip | newline_to_br }}", ""},
		"words without a connection do not parse":      {"ab\n {{ a b }}", "2:5 syntax"},
		"an empty condition":                           {"{% if %}x{% endif %}", "1:1 syntax"},
		"two comparisons in a row":                     {"{% if a == b == c %}x{% endif %}", "1:7 syntax"},
		"a quote that is not closed":                   {`{{ a | default: "x }}`, "1:17 syntax"},
		"a quote with braces in it":                    {`{{ "}}" }}`, "1:4 syntax"},
		"a number that no machine holds":               {"{{ 99999999999999999999 }}", "1:4 syntax"},
		"a name with an arrow":                         {"{{ a→b }}", "1:4 syntax"},
		"a statement smuggled into an expression":      {"{{ %assign a = 1 }}", "1:4 syntax"},
		"a loop smuggled into an expression":           {"{% if %loop a in b %}{% endif %}", "1:7 syntax"},
		"a space before the colon":                     {`{{ a | default : "x" }}`, "1:16 syntax"},
		"an unknown filter":                            {"ä {{ a | shout }}", "1:10 filter_unknown"},
		"a filter that shows the program":              {"{{ a | inspect }}", "1:8 filter_unknown"},
		"a filter that lets markup through":            {"{{ a | safe }}", "1:8 filter_not_allowed"},
		"a filter in a condition":                      {"{% if a | nope %}{% endif %}", "1:11 filter_unknown"},
		"too many arguments":                           {"{{ a | upcase: 1 }}", "1:8 arguments"},
		"too few arguments":                            {"{{ a | replace: 'x' }}", "1:8 arguments"},
		"an argument by an unknown name":               {"{{ a | default: 'x', strict: true }}", "1:22 arguments"},
		"markup before another filter":                 {"{{ a | newline_to_br | upcase }}", "1:8 filter_order"},
		"markup in an assigned name":                   {"{% assign a = b | newline_to_br %}", "1:19 filter_order"},
		"an unknown tag":                               {"{% shout %}", "1:1 tag_not_allowed"},
		"a tag that reads a file":                      {`{% include "x" %}`, "1:1 tag_not_allowed"},
		"a tag that reads another template":            {`{% render "x" %}`, "1:1 tag_not_allowed"},
		"a layout":                                     {`{% layout "x" %}`, "1:1 tag_not_allowed"},
		"a capture, which grows without bound":         {"{% capture a %}x{% endcapture %}", "1:1 tag_not_allowed 1:17 tag_not_allowed"},
		"our own tag":                                  {"{% lemma_step %}", "1:1 tag_not_allowed"},
		"a value that is not closed":                   {"x {{ a", "1:3 unclosed"},
		"a value that is broken over lines":            {"{{ a\n| upcase }}", "1:1 unclosed"},
		"a tag that is not closed":                     {"x\n{% if a", "2:1 unclosed"},
		"a tag without a name":                         {"{% %}", "1:1 unclosed"},
		"a condition that is not closed":               {"{% if a %}x", "1:1 unclosed"},
		"a comment that is not closed":                 {"a {% comment %} b", "1:3 unclosed"},
		"a raw that is not closed":                     {"a {% raw %} b", "1:3 unclosed"},
		"an end too many":                              {"x{% endif %}", "1:2 unexpected"},
		"ends that cross": {"{% if a %}{% for b in c %}{% endif %}{% endfor %}",
			"1:11 unclosed 1:38 unexpected"},
		"an else alone":              {"{% else %}", "1:1 unexpected"},
		"an else with a condition":   {"{% if a %}1{% else if b %}2{% endif %}", "1:20 syntax"},
		"a branch after else":        {"{% if a %}1{% else %}2{% elsif b %}3{% endif %}", "1:23 unreachable"},
		"a second else":              {"{% if a %}1{% else %}2{% else %}3{% endif %}", "1:23 unreachable"},
		"text before the first when": {"{% case a %}x{% when 1 %}y{% endcase %}", "1:13 unreachable"},
		"a break outside of a loop":  {"{% break %}", "1:1 unexpected"},
		"a cycle outside of a loop":  {`{% cycle "a", "b" %}`, "1:1 unexpected"},
		"a range in a loop":          {"{% for i in (1..9) %}x{% endfor %}", "1:15 range"},
		"a range in a value":         {"{{ (1..9) | size }}", "1:6 range"},
		"three nested loops": {"{% for a in x %}{% for b in a %}{% for c in b %}{% endfor %}{% endfor %}{% endfor %}",
			"1:33 too_deep"},
		"blocks without end inside each other": {strings.Repeat("{% if a %}", 21) + strings.Repeat("{% endif %}", 21),
			"1:201 too_deep"},
		"an unknown way to loop":         {"{% for a in b cols: 2 %}{% endfor %}", "1:15 syntax"},
		"a loop over nothing":            {"{% for a %}{% endfor %}", "1:8 syntax"},
		"and mixed with or":              {"{% if a and b or c %}x{% endif %}", "1:15 ambiguous"},
		"a word of another dialect":      {"{% if a == blank %}x{% endif %}", "1:12 reserved"},
		"forloop outside of a loop":      {"{{ forloop.index }}", "1:4 unexpected"},
		"forloop as a whole":             {"{% for a in b %}{{ forloop }}{% endfor %}", "1:20 syntax"},
		"forloop as a name of one's own": {"{% assign forloop = 1 %}", "1:11 reserved"},
		"an assignment to a part":        {"{% assign a.b = 1 %}", "1:11 syntax"},
		"the clock":                      {`{{ "now" | date: "%Y" }}`, "1:4 clock"},
		"a NUL":                          {"a\x00b", "1:2 control_character"},
		"what is not UTF-8":              {"a\xff", "1:1 encoding"},
		"a source that is too large":     {strings.Repeat("x", MaxSource+1), "1:1 too_large"},
		"too many values":                {strings.Repeat("{{a}}", MaxTags+1), "1:1 too_large"},
		"too many filters":               {"{{ a" + strings.Repeat("|strip", MaxFilters+1) + "}}", "1:1 too_large"},
		"many faults at once": {"{{ a b }}\n{{ a | nope }}\n{% if %}",
			"1:4 syntax 2:8 filter_unknown 3:1 syntax 3:1 unclosed"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var want []string
			for fields := strings.Fields(test.want); len(fields) > 0; fields = fields[2:] {
				want = append(want, "/html "+fields[0]+" "+fields[1])
			}
			got := faultsOf(t, Content{Subject: "s", HTML: test.html, Text: "t"})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCheckContent(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		content Content
		want    []string
	}{
		"a subject and HTML are enough":      {Content{Subject: "s", HTML: "<p>h</p>"}, nil},
		"a subject and a text are enough":    {Content{Subject: "s", Text: "t"}, nil},
		"no text":                            {Content{}, []string{"/subject 0:0 required", "/html 0:0 required"}},
		"a blank subject":                    {Content{Subject: "  ", Text: "t"}, []string{"/subject 0:0 required"}},
		"a subject of two lines":             {Content{Subject: "a\nb", Text: "t"}, []string{"/subject 1:2 line_break"}},
		"a header smuggled into the subject": {Content{Subject: "a\r\nBcc: b@example.com", Text: "t"}, []string{"/subject 1:2 line_break"}},
		"a NUL in the subject":               {Content{Subject: "a\x00", Text: "t"}, []string{"/subject 1:2 control_character"}},
		"a subject that is too long": {Content{Subject: strings.Repeat("x", MaxSubject+1), Text: "t"},
			[]string{"/subject 1:1 too_large"}},
		"faults of all three": {Content{Subject: "{{ a b }}", HTML: "{% nope %}", Text: "\n{{ a"},
			[]string{"/subject 1:4 syntax", "/html 1:1 tag_not_allowed", "/text 2:1 unclosed"}},
		"faults of the HTML are reported once": {Content{Subject: "s", HTML: "<p>{% nope %}"}, []string{"/html 1:4 tag_not_allowed"}},
		"HTML that no text can be made from": {Content{Subject: "s", HTML: "<style>{% if a %}</style>x{% endif %}"},
			[]string{"/text 0:0 text_not_made"}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, faultsOf(t, test.content)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestVariables(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		html string
		want []string
	}{
		"no variable":     {"x", []string{}},
		"one name, twice": {"{{ a }}{{ a | upcase }}", []string{"a"}},
		"in arguments":    {"{{ a | default: b | append: c }}", []string{"a", "b", "c"}},
		"in conditions": {"{% if a and b == 'b' %}{% elsif c %}{% endif %}{% unless d %}{% endunless %}",
			[]string{"a", "b", "c", "d"}},
		"in branches": {"{% case a %}{% when b %}{% when 'x' or c %}{% endcase %}",
			[]string{"a", "b", "c"}},
		"in loops and their modifiers": {"{% for x in a limit: b offset: c %}{{ x }}{% endfor %}",
			[]string{"a", "b", "c"}},
		"in brackets":                    {"{{ a[b] }}", []string{"a", "b"}},
		"a part is not a variable":       {"{{ a.b.c }}", []string{"a"}},
		"a text is not a variable":       {`{{ "a" | append: 'b' }}`, []string{}},
		"words of the language are none": {"{% if true and nil %}{% endif %}{{ false }}", []string{}},
		"the loop's own name is none, but only there": {"{% for x in a %}{{ x }}{{ forloop.first }}{% endfor %}{{ x }}",
			[]string{"a", "x"}},
		"nor is it one of else":                 {"{% for x in a %}{% else %}{{ x }}{% endfor %}", []string{"a", "x"}},
		"an assigned name is none from then on": {"{{ b }}{% assign b = a %}{{ b }}{% assign c = b %}{{ c }}", []string{"a", "b"}},
		"what is assigned from itself is one":   {"{% assign a = a | upcase %}", []string{"a"}},
		"nothing in comments and raw":           {"{% comment %}{{ a }}{% endcomment %}{% raw %}{{ b }}{% endraw %}", []string{}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			got, err := Check(uuid.Nil, Content{Subject: "s", HTML: test.html, Text: "t"})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestVariablesOfAllThree(t *testing.T) {
	t.Parallel()
	got, err := Check(uuid.Nil, Content{Subject: "{{ c }}", HTML: "{{ b }}", Text: "{{ a }}{{ c }}"})
	if diff := cmp.Diff([]string{"a", "b", "c"}, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

package message

import (
	"fmt"
	"html"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// numbersWritten are JSON numbers and the form that all texts have them in.
var numbersWritten = []struct{ number, want string }{
	{"1234567.5", "1234567.5"}, {"10000000.0", "10000000"}, {"1e21", "1000000000000000000000"}, {"0.30000000000000004", "0.30000000000000004"},
	{"-5", "-5"}, {"-5.0", "-5"}, {"1e-7", "0.0000001"}, {"-0.0", "0"}, {"-1e6", "-1000000"}, {"1e15", "1000000000000000"},
	{"12345678901234567890", "12345678901234567890"}, {"9007199254740993", "9007199254740993"}, {"7", "7"}, {"2.50", "2.5"},
}

// numberTexts has for each filter a template that writes the number n, and the text
// that it makes from the form. Of filters that
// compute (nil), the printed result and its text for a filter are compared.
var numberTexts = map[string]struct {
	template string
	want     func(form string) string
}{
	"default": {"{{ n | default: 3 }} {{ missing | default: n }}", twice},
	"json": {"{{ n | json | remove: q }} {{ l | json | remove: q }} {{ o | json | remove: q }}",
		func(form string) string { return form + " [" + form + "," + form + "] {n:" + form + "}" }},
	"size": {"{{ n | size }}", func(form string) string { return fmt.Sprint(len(form)) }},
	"date": {"{{ '2026-01-02' | date: n }}", itself},

	"pluralize": {"{{ 1 | pluralize: n, 'x' }} {{ 2 | pluralize: 'x', n }}", twice},
	"append":    {"{{ n | append: '' }} {{ '' | append: n }}", twice}, "prepend": {"{{ n | prepend: '' }} {{ '' | prepend: n }}", twice},
	"capitalize": {"{{ n | capitalize }}", itself}, "downcase": {"{{ n | downcase }}", itself}, "upcase": {"{{ n | upcase }}", itself},
	"escape": {"{{ n | escape }}", itself}, "escape_once": {"{{ n | escape_once }}", itself},
	"handle": {"{{ n | handle }}", handled}, "handleize": {"{{ n | handleize }}", handled},
	"newline_to_br": {"{{ n | newline_to_br }}", itself}, "strip": {"{{ n | strip }}", itself}, "lstrip": {"{{ n | lstrip }}", itself},
	"rstrip": {"{{ n | rstrip }}", itself}, "strip_html": {"{{ n | strip_html }}", itself},
	"strip_newlines": {"{{ n | strip_newlines }}", itself},
	"remove":         {"{{ n | remove: 'e' }}[{{ text | remove: n }}]", alone},
	"remove_first":   {"{{ n | remove_first: 'e' }}[{{ text | remove_first: n }}]", alone},
	"remove_last":    {"{{ n | remove_last: 'e' }}[{{ text | remove_last: n }}]", alone},
	"replace":        {"{{ n | replace: 'e', 'E' }} {{ text | replace: text, n }}", twice},
	"replace_first":  {"{{ n | replace_first: 'e', 'E' }} {{ text | replace_first: n, n }}", twice},
	"replace_last":   {"{{ n | replace_last: 'e', 'E' }} {{ text | replace_last: n, n }}", twice},
	"slice":          {"{{ n | slice: 0, 99 }}", itself},
	"split":          {"{{ n | split: 'e' | join: '!' }}[{{ text | split: n | size }}]", func(form string) string { return form + "[0]" }},
	"truncate":       {"{{ n | truncate: 99 }} {{ 'x' | truncate: 0, n }}", twice},
	"truncatewords":  {"{{ n | truncatewords: 99 }}{{ 'x y' | truncatewords: 1, n }}", func(form string) string { return form + "x" + form }},
	"url_encode":     {"{{ n | url_encode }}", itself}, "url_decode": {"{{ n | url_decode }}", itself},

	"abs": {"{% assign m = n | abs %}{{ m }} {{ m | append: '' }}", nil}, "ceil": {"{{ 1.5 | ceil | append: '' }}", nil},
	"floor": {"{{ 1.5 | floor | append: '' }}", nil}, "round": {"{% assign m = n | round: 1 %}{{ m }} {{ m | append: '' }}", nil},
	"at_least":   {"{% assign m = n | at_least: n %}{{ m }} {{ m | append: '' }}", nil},
	"at_most":    {"{% assign m = n | at_most: n %}{{ m }} {{ m | append: '' }}", nil},
	"plus":       {"{% assign m = n | plus: 1000000.5 %}{{ m }} {{ m | append: '' }}", nil},
	"minus":      {"{% assign m = n | minus: 1000000.5 %}{{ m }} {{ m | append: '' }}", nil},
	"times":      {"{% assign m = n | times: -0.0 %}{{ m }} {{ m | append: '' }}", nil},
	"divided_by": {"{% assign m = n | divided_by: 1.0 %}{{ m }} {{ m | append: '' }}", nil},
	"modulo":     {"{% assign m = n | modulo: 1000000000 %}{{ m }} {{ m | append: '' }}", nil},

	"compact": {"{{ l | compact | join }}", twice}, "concat": {"{{ l | concat: l | join | replace: ' ', '' }}", nil},
	"first": {"{{ l | first | append: '' }}", itself}, "last": {"{{ l | last | append: '' }}", itself},
	"join": {"{{ l | join }}[{{ '1,2' | split: ',' | join: n }}]", func(form string) string { return form + " " + form + "[1" + form + "2]" }},
	"map":  {"{{ list | map: 'n' | join }} {{ list | map: n | join }}", twice}, "reverse": {"{{ l | reverse | join }}", twice},
	"sort": {"{{ l | sort | join }}[{{ list | sort: n | size }}]", func(form string) string { return form + " " + form + "[1]" }},
	"sort_natural": {"{{ l | sort_natural | join }}[{{ list | sort_natural: n | size }}]",
		func(form string) string { return form + " " + form + "[1]" }},
	"sum":   {"{% assign m = list | sum: n %}{{ m }} {{ m | append: '' }}", nil},
	"uniq":  {"{{ l | uniq | join }}", itself},
	"where": {"{{ list | where: n | map: 'n' | join }} {{ list | where: 'n', n | map: 'n' | join }}", twice},
}

func itself(form string) string { return form }
func twice(form string) string  { return form + " " + form }
func alone(form string) string  { return form + "[]" }

func handled(form string) string {
	return strings.Trim(strings.NewReplacer(".", "-").Replace(form), "-")
}

// A number has one form in all texts: {{ n }}, and every filter that takes or makes it.
func TestNumbersHaveOneForm(t *testing.T) {
	t.Parallel()
	for name := range dialectFilters {
		made, ok := numberTexts[name]
		if !ok {
			t.Errorf("the filter %s is not in the table", name)
			continue
		}
		for _, x := range numbersWritten {
			data := fmt.Sprintf(`{"n":%s,"l":[%[1]s,%[1]s],"o":{"n":%[1]s},"text":%q,"q":"\"","list":[{"n":%[1]s,%[2]q:%[1]s}]}`, x.number, x.want)
			got := rendered(t, made.template, data)
			want := got
			if made.want != nil {
				want = made.want(x.want)
			} else if printed, filtered, both := strings.Cut(got, " "); both {
				want = twice(filtered)
				got = twice(printed)
			}
			if got != want || strings.Contains(got, "e+") || strings.Contains(got, "e-") {
				t.Errorf("%s of %s makes %q, want %q", name, x.number, got, want)
			}
		}
	}
}

// rendered returns a template as HTML, which must be equal to it as plain text.
func rendered(t *testing.T, template, data string) string {
	t.Helper()
	c, err := Compile(uuid.Nil, Content{Subject: "s", HTML: template, Text: template})
	if err != nil {
		t.Fatal(template, err)
	}
	same(t, c, data)
	made, err := c.Render(data)
	if err != nil {
		t.Fatal(template, data, err)
	}
	if html.UnescapeString(made.HTML) != made.Text {
		t.Errorf("%s with %s makes %q in HTML and %q in a text", template, data, made.HTML, made.Text)
	}
	return made.Text
}

// A number that neither an integer nor a double holds is a text, as docs/reference/templates.md
// has it: no digit is lost, and JSON has it in quotes.
func TestNumbersThatAreTexts(t *testing.T) {
	t.Parallel()
	for _, n := range []string{"9223372036854775808", "-12345678901234567890", "1234567890.12345678901234567890", "1e400"} {
		data := fmt.Sprintf(`{"n":%s,"o":{"n":%[1]s},"l":[%[1]s]}`, n)
		got := rendered(t, "{{ n }} {{ n | json }} {{ o | json }} {{ l | json }} {% if n > 5 or n < 5 %}compared{% endif %}", data)
		if want := fmt.Sprintf(`%s "%[1]s" {"n":"%[1]s"} ["%[1]s"] `, n); got != want {
			t.Errorf("%s makes %q, want %q", n, got, want)
		}
	}
	if got := rendered(t, "{{ n | json }} {{ o | json }}", `{"n":9223372036854775807,"o":{"n":-9223372036854775808}}`); got !=
		`9223372036854775807 {"n":-9223372036854775808}` {
		t.Errorf("the largest whole numbers make %q", got)
	}
}

// Conditions, lists, objects and tags have numbers in the form of {{ n }}.
func TestNumbersOutsideOfFilters(t *testing.T) {
	t.Parallel()
	for template, want := range map[string]string{
		"{{ n }}": "#", "{{ 'x' }}{{ l }}": "x##",
		"{{ l | append: '' }}":                                                       "##",
		"{% for x in l %}{{ x }} {% endfor %}":                                       "# # ",
		"{% assign x = n %}{{ x }}":                                                  "#",
		"{% if text contains n %}yes{% endif %}":                                     "yes",
		"{% if text contains o.n and true %}yes{% endif %}":                          "yes",
		"{% if text contains l[0] %}yes{% endif %}":                                  "yes",
		"{% unless text contains n %}{% else %}yes{% endunless %}":                   "yes",
		"{% if false %}{% elsif text contains n %}yes{% endif %}":                    "yes",
		"{% for x in l %}{% if text contains x %}y{% endif %}{% endfor %}":           "yy",
		"{% if l contains n %}yes{% endif %}":                                        "yes",
		"{% assign x = n | append: '' %}{% if x == text %}yes{% endif %}":            "yes",
		"{% assign x = n | append: '' %}{% case x %}{% when text %}yes{% endcase %}": "yes",
		"{{ l | json }}": "[#,#]", "{{ o | json }}": "{n:#}", "{{ o | append: '' }}": "{n:#}",
	} {
		for _, x := range numbersWritten {
			data := fmt.Sprintf(`{"n":%s,"l":[%[1]s,%[1]s],"o":{"n":%[1]s},"text":%q}`, x.number, x.want)
			got := strings.ReplaceAll(rendered(t, template, data), `"`, "") // a number of 20 digits is a text
			if want := strings.ReplaceAll(want, "#", x.want); got != want {
				t.Errorf("%s with %s makes %q, want %q", template, x.number, got, want)
			}
		}
	}
	for template, want := range map[string]string{
		"{% if 'from 10000000 on' contains 10000000.0 %}yes{% endif %}": "yes", "{{ 1000000.5 | append: ' EUR' }}": "1000000.5 EUR",
		"{% if 'a <b>' contains \"b\" and '1000000' contains n %}yes{% endif %}": "yes", "{{ -4 | modulo: 2 }}": "0",
	} {
		if got := rendered(t, template, `{"n":1e6}`); got != want {
			t.Errorf("%s makes %q, want %q", template, got, want)
		}
	}
}

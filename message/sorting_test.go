package message

import (
	"testing"

	"github.com/google/uuid"
)

// Lists are sorted as Liquid sorts them: null last, equal elements in their order.
func TestSorting(t *testing.T) {
	t.Parallel()
	const data = `{"n":[5,null,3,4,1],"t":["d",null,"c","B",null,"a"],"m":[2,"10",1.5],"x":[1,"a"],"y":[true,false],"e":[],"z":null,
		"o":[{"n":"A","v":30},{"n":"B","v":null},{"n":"C","v":10},{"n":"D"},{"n":"E","v":10}],"big":["12345678901234567890.2",1234567]}`
	for source, want := range map[string]string{
		"{{ n | sort | json }}":                                     "[1,3,4,5,null]",
		"{{ n | sort | first }} {{ n | compact | sort | last }}":    "1 5",
		"{{ t | sort | json }}":                                     `["B","a","c","d",null,null]`,
		"{{ t | sort_natural | json }}":                             `["a","B","c","d",null,null]`,
		"{{ m | sort | json }}":                                     `[1.5,2,"10"]`,
		"{{ big | sort | first }} {{ e | sort | size }}":            "1234567 0",
		`{{ o | sort: "v" | map: "n" | join: "" }}`:                 "CEABD",
		`{{ o | sort_natural: "n" | map: "n" | join: "" }}`:         "ABCDE",
		`{% assign c = o | sort: "v" | first %}{{ c.n }}`:           "C",
		`{{ z | sort | size }}`:                                     "0",
		`{{ "2026-03-01,2026-01-01" | split: "," | sort | first }}`: "2026-01-01",
	} {
		c, err := Compile(uuid.Nil, Content{Subject: "s", Text: source})
		if err != nil {
			t.Fatal(source, err)
		}
		if made, err := c.Render(data); err != nil || made.Text != want {
			t.Errorf("%s: %q, %v, want %q", source, made.Text, err, want)
		}
	}
	for _, source := range []string{"{{ x | sort | json }}", "{{ y | sort | json }}", `{{ o | sort | json }}`} {
		c, err := Compile(uuid.Nil, Content{Subject: "s", Text: source})
		if err != nil {
			t.Fatal(source, err)
		}
		if made, err := c.Render(data); err == nil {
			t.Errorf("%s: %q", source, made.Text)
		}
	}
}

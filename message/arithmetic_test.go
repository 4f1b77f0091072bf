package message

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// Filters compute as Liquid does: in decimals, whole numbers by whole ones.
func TestArithmetic(t *testing.T) {
	t.Parallel()
	const data = `{"price":19.99,"one":1.10,"b":4.35,"tenth":0.1,"balance":-7.5,"delta":-7,"n":7,"text":" 12.5 ","nothing":null,"word":"abc",
		"great":9223372036854775807,"long":"1234567890.12345678901","huge":1e308,"list":[0.1,0.2,"3",null,"x"],"items":[{"p":1.10},{"p":2.20}]}`
	for template, want := range map[string]string{
		"{{ price | divided_by: 2 }}":                     "9.995",
		"{{ price | times: 90 | divided_by: 100 }}":       "17.991",
		"{{ one | times: 3 }}":                            "3.3",
		"{{ b | times: 100 }}":                            "435",
		"{{ tenth | plus: 0.2 }}":                         "0.3",
		"{{ one | minus: 1 }}":                            "0.1",
		"{{ 2.0 | divided_by: 4 }}":                       "0.5",
		"{{ 0.0725 | times: 100 }}":                       "7.25",
		"{{ 1 | divided_by: 3.0 }}":                       "0.3333333333333333",
		"{{ n | divided_by: 2 }}":                         "3",
		"{{ delta | divided_by: 2 }}":                     "-4",
		"{{ delta | modulo: 3 }}":                         "2",
		"{{ n | modulo: -3 }}":                            "-2",
		"{{ balance | modulo: 2 }}":                       "0.5",
		"{{ balance | round }}":                           "-8",
		"{{ 2.5 | round }}":                               "3",
		"{{ price | round: 1 }}":                          "20",
		"{{ 1.005 | round: 2 }}":                          "1.01",
		"{{ 155 | round: -1 }}":                           "160",
		"{{ balance | ceil }} {{ balance | floor }}":      "-7 -8",
		"{{ balance | abs }} {{ great | abs }}":           "7.5 9223372036854775807",
		"{{ great | ceil }} {{ great | round }}":          "9223372036854775807 9223372036854775807",
		"{{ text | plus: 1 }} {{ text | divided_by: 5 }}": "13.5 2.5",
		"{{ long | plus: 0 | minus: 1234567890 }}":        "0.1234567",
		"{{ nothing | plus: 1 }} {{ word | plus: 1 }}":    "1 1",
		"{{ list | sum }} {{ items | sum: 'p' }}":         "3.3 3.3",
		"{{ n | divided_by: 0.5 }}":                       "14",
		// A decimal remains one, whatever its value, unless it is rounded to a whole number.
		"{{ 10 | times: 0.9 | round: 2 | divided_by: 2 }}":   "4.5",
		"{{ 149.0 | round: -1 | divided_by: 100 }}":          "1",
		"{{ -7.0 | abs | divided_by: 2 }}":                   "3.5",
		"{{ n | round: 2 | abs | divided_by: 2 }}":           "3",
		"{{ 7.2 | round | divided_by: 2 }}":                  "3",
		"{{ 7.2 | floor | divided_by: 2 }} {{ 6.2 | ceil }}": "3 7",
	} {
		if got := rendered(t, template, data); got != want {
			t.Errorf("%s makes %s, want %s", template, got, want)
		}
	}
	begun := time.Now()
	tiny := `{"list":["3.7e-999990"` + strings.Repeat(`,"4.8e-999970"`, 500) + `,1]}`
	if got := rendered(t, "{{ list | sum }}", tiny); got != "1" || time.Since(begun) > time.Second {
		t.Errorf("%s after %s", got, time.Since(begun))
	}
	for template, want := range map[string]string{
		"{{ n | divided_by: 0 }}": "divided by zero", "{{ n | modulo: nothing }}": "divided by zero", "{{ word | round }}": "must be a number",
		"{{ huge | times: huge }}": "too great", "{{ n | divided_by: word }}": "must be a number", "{{ list | abs }}": "must be a number",
	} {
		if err := unrendered(t, template, data); !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", template, err, want)
		}
	}
}

// unrendered is the error of a template.
func unrendered(t *testing.T, template, data string) error {
	t.Helper()
	c, err := Compile(uuid.Nil, Content{Subject: "s", Text: template})
	if err != nil {
		t.Fatal(template, err)
	}
	if _, err = c.Render(data); err == nil {
		t.Fatal(template, "is rendered")
	}
	return err
}

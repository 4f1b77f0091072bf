package message

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// A comparison cannot be interrupted, so its number and size are bounded.
func TestComparingIsBounded(t *testing.T) {
	t.Parallel()
	tree := "[" + strings.Repeat("["+strings.Repeat("1,", 989)+"1],", 9)
	payload := `{"a":` + tree + `[1]],"b":` + tree + `[2]],"s":"` + strings.Repeat("a", 120_000) + `","t":"` + strings.Repeat("a", 60_000) +
		`b"}`
	for _, source := range []string{
		"{% if " + strings.Repeat("a == b or ", MaxCompared) + "false %}x{% endif %}",
		strings.Repeat("{% if a == b %}x{% endif %}", MaxCompared),
		"{% case a %}" + strings.Repeat("{% when b, b %}", MaxCompared/2) + "{% endcase %}",
		"{% if " + strings.Repeat(`"x" contains b or `, MaxCompared) + "false %}x{% endif %}",
		"{% if " + strings.Repeat("s contains t or ", MaxCompared) + "false %}x{% endif %}",
		"{% for x in a %}{% if " + strings.Repeat("a == b or ", MaxCompared) + "false %}x{% endif %}{% endfor %}",
		"{% assign c = a %}{% for x in a %}{% if " + strings.Repeat("c == b or ", MaxCompared) + "false %}x{% endif %}{% endfor %}",
	} {
		c, err := Compile(uuid.Nil, Content{Subject: "s", Text: source + "."})
		if err != nil {
			t.Errorf("%.60s: %v", source, err)
			continue
		}
		fastest := time.Hour
		for range 2 { // a pause of the machine may exhaust one of them
			start := time.Now()
			_, _ = c.Render(payload) // it may fail by its time limit
			fastest = min(fastest, time.Since(start))
		}
		t.Logf("%.60s %s", source, fastest)
		if fastest > 15*MaxTime {
			t.Errorf("%.60s took %s", source, fastest)
		}
		if _, err := Compile(uuid.Nil, Content{Subject: "s", Text: source + "{% if a == b %}{% endif %}"}); err == nil {
			t.Errorf("%.60s: one comparison more was accepted", source)
		}
	}
	many := Content{Subject: "s", Text: strings.Repeat(`{% if a == "x" or a > 1 %}{% endif %}`, MaxCompared)}
	if _, err := Check(uuid.Nil, many); err != nil {
		t.Errorf("comparisons with literals: %v", err)
	}
}

func TestValuesOfTheDataAreCounted(t *testing.T) {
	t.Parallel()
	list := "[" + strings.Repeat("1,", 998) + "1]"
	for n, good := range map[int]bool{19: true, 21: false} {
		lists := strings.TrimSuffix(strings.Repeat(list+",", n), ",")
		c, err := Compile(uuid.Nil, Content{Subject: "s", Text: "{{ a | size }}"})
		if err != nil {
			t.Fatal(err)
		}
		for _, payload := range []string{`{"a": [` + lists + `]}`, `{"a": [[` + lists + `], {}]}`} {
			if _, err := c.Render(payload); (err == nil) != good {
				t.Errorf("%d lists of 999: %v", n, err)
			}
		}
	}
}

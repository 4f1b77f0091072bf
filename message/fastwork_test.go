package message

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// The fast path leaves texts to the engine whose filters or comparisons read much: only the engine has a
// slot of processors and a limit of time.
func TestMuchWorkIsLeftToTheEngine(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 30_000)
	for source, fast := range map[string]bool{
		`{{ a | capitalize }}`: true,
		`{% if a` + strings.Repeat(" | capitalize", 2) + ` %}x{% endif %}y`:           false,
		`{{ a` + strings.Repeat(" | upcase", 3) + ` }}`:                               false,
		`{{ a` + strings.Repeat(" | strip", 4) + ` }}`:                                true,
		`{{ a` + strings.Repeat(" | strip", 5) + ` }}`:                                false,
		strings.Repeat(`{% if a contains "x" %}x{% endif %}`, 5) + "y":                false,
		strings.Repeat(`{{ b | upcase | capitalize | append: b | default: b }}`, 200): true,
	} {
		c, err := Compile(uuid.Nil, Content{Subject: "Hi", Text: source})
		if err != nil {
			t.Fatal(err)
		}
		p := c.parts[len(c.parts)-1]
		values := make([]value, len(c.variables))
		if err := read(values, c.variables, `{"a":`+strconv.Quote(long)+`,"b":"Ada Lovelace"}`); err != nil {
			t.Fatal(err)
		}
		if p.fast == nil {
			t.Fatalf("%.60s has no fast path", source)
		}
		if got := p.fast.render(&output{}, values); got != fast {
			t.Errorf("%.60s: %v", source, got)
		}
	}
}

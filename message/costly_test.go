package message

import (
	"errors"
	"strings"
	"testing"
	"time"

	"lemma"

	"github.com/google/uuid"
)

// A text with many faults is checked as fast as others, although the line
// of each is counted from the beginning, and there may be 100,000.
func TestCheckingIsBounded(t *testing.T) {
	t.Parallel()
	fill := func(unit string) string { return strings.Repeat(unit, MaxSource/len(unit)) }
	nested := func(begin, inner, end string, n int) string {
		return "{{ " + strings.Repeat(begin, n) + inner + strings.Repeat(end, n) + " }}"
	}
	for _, source := range []string{
		fill("{{|}}"), fill("{{"), fill("{%"), fill("é{{"), fill("{%if%}"), fill("{%for%}"), fill("{%endif%}"), fill("{%else%}"),
		fill("{{a|b}}"),
		fill("{% if a %}"), fill("{% case a %}x"), fill("{{a[a[a["),
		nested("a[", "1", "]", 80_000), nested("(", "a.b", ".c)", 40_000), "{{ a" + strings.Repeat(".b", 100_000) + " }}",
		"{{ " + strings.Repeat("a.b and ", 30_000) + "a }}",
	} {
		start := time.Now()
		_, err := Check(uuid.Nil, Content{Subject: "s", HTML: source})
		took := time.Since(start)
		var faults *lemma.Error
		if !errors.As(err, &faults) || len(faults.Fields) == 0 || len(faults.Fields) > maxFaults+MaxBlocks+10 {
			t.Errorf("%.20q: %.100v", source, err)
		}
		if took > 15*time.Second {
			t.Errorf("%.20q took %s", source, took)
		}
		t.Logf("%.20q %s", source, took)
	}
}

// If the last part of a name is missing, each part is evaluated.
func TestMissingMembersAreBounded(t *testing.T) {
	t.Parallel()
	name, payload := "a"+strings.Repeat(".b", MaxParts), `{"a":`+strings.Repeat(`{"b":`, MaxParts-1)+"{}"+strings.Repeat("}", MaxParts)
	c, err := Compile(uuid.Nil, Content{Subject: "s", Text: "{{ " + name + " }}"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Render(payload); err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("%v", err)
	}
	for _, more := range []string{name + ".b", name + "[0]", "a" + strings.Repeat("['b']", MaxParts+1)} {
		if _, err := Check(uuid.Nil, Content{Subject: "s", Text: "{% if " + more + " %}{% endif %}"}); err == nil {
			t.Errorf("%.40s was accepted", more)
		}
	}
}

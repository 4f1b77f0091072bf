package message

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/osteele/liquid/parser"

	"lemma"
)

// ends are where the engine finds that Liquid ends.
func ends(source string) (all []int) {
	at := 0
	for _, t := range parser.Scan(source, parser.SourceLoc{}, nil) {
		at += len(t.Source)
		if t.Type != parser.TextTokenType && t.Source != "" {
			all = append(all, at)
		}
	}
	return all
}

// What is found to be closed is closed for the engine, and what is not is not.
func TestEndsOfLiquid(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	pieces := []string{"{{", "}}", "{%", "%}", "{", "}", "%", "-", " ", "\n", "a", "if x", "{{ a }}", "{% b %}", "{% raw %}", "\t", "é"}
	for range 400_000 {
		var b strings.Builder
		for range random.IntN(12) {
			b.WriteString(pieces[random.IntN(len(pieces))])
		}
		source := b.String()
		l := newLiquid(source)
		var got []int
		for at := 0; at < len(source); {
			if end, _, closed := l.end(at); closed {
				got, at = append(got, end), end
			} else {
				at++
			}
		}
		want := ends(source)
		if !slices.Equal(got, want) {
			t.Fatalf("%q: %v, want %v", source, got, want)
		}
	}
}

// Sources that take the engine seconds are refused before it reads them, and what is usual is not.
func TestSourcesThatAreSlowToScan(t *testing.T) {
	page := strings.Repeat("<p>{{ name }}, {% if a %}{{ b | upcase }}{% endif %}</p>", 3_000) // on one line
	for source, slow := range map[string]bool{
		strings.Repeat("{% raw %}{{{% endraw %}", 3_000):                       true,
		strings.Repeat("{% comment %}{{{% endcomment %}", 3_000):               true,
		strings.Repeat("{% if x %}{{", 6_000):                                  true,
		strings.Repeat("{% a {{x}}", 6_000):                                    true,
		strings.Repeat("{{ }}{%\n", 9_000):                                     false,
		strings.Repeat("{% raw %}{{{% endraw %}\n", 9_000):                     false,
		strings.Repeat("{{", 100_000):                                          false,
		strings.Repeat("{% ", 80_000):                                          false,
		page:                                                                   false,
		page + "{% raw %}{{{% endraw %}" + page[:1_000] + "{{" + page[:1_000]:  false,
		"{% raw %}{{ name }}{% endraw %}" + page + strings.Repeat("{{x}}", 99): false,
	} {
		if isSlowToScan(source) != slow {
			t.Errorf("%.40q of %d bytes: %d are read", source, len(source), scanned(source))
		}
		_, err := Check(uuid.New(), Content{Subject: "x", HTML: source})
		found := false
		if e, ok := errors.AsType[*lemma.Error](err); ok {
			found = slices.ContainsFunc(e.Fields, func(f lemma.Field) bool { return strings.Contains(f.Detail, "too many \"{{\"") })
		}
		if found != slow {
			t.Errorf("%.40q is refused: %t: %v", source, found, err)
		}
	}
}

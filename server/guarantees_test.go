package server

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma/sender"
	"lemma/sender/wire"
)

// The first table of docs/guarantees.md is that of the carriers.
func TestGuaranteesAreThoseOfTheCarriers(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "|---|---|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	documented := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\| (.*) \\|$").FindAllStringSubmatch(table, -1) {
		documented[row[1]] = row[2]
	}
	kinds := map[string]string{}
	for _, k := range kindsOf(wire.Operator{}) {
		kinds[k.Name] = guaranteesOf(k)
	}
	if diff := cmp.Diff(kinds, documented); diff != "" {
		t.Errorf("carriers (-) and docs/guarantees.md (+):\n%s", diff)
	}
}

// guaranteesOf is the row of a kind. TestBounds of package api has the words.
func guaranteesOf(k sender.Kind) string {
	channels, word, events, asked := []string{}, "`twice`", "no", "no"
	for _, c := range k.Carried() {
		channels = append(channels, string(c))
	}
	switch can := k.Capabilities; {
	case can.IdempotencyKey:
		word = "`once`"
	case can.Collapse:
		word = "`replaced`"
	}
	if k.Receiver != nil {
		events = "if configured"
	}
	if k.Capabilities.Lookup {
		asked = "yes"
	}
	return strings.Join([]string{strings.Join(channels, ", "), word, events, asked}, " | ")
}

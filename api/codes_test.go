package api

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docs/reference/errors.md explains exactly the codes that the sources have.
func TestErrorCodesAreExplained(t *testing.T) {
	t.Parallel()
	const page = "docs/reference/errors.md"
	explained := explainedCodes(t, "../"+page)
	have := sourceCodes(t)
	for _, code := range slices.Sorted(maps.Keys(have)) {
		if !explained[code] {
			t.Errorf("%s does not explain %s, which is at %s", page, code, strings.Join(have[code][:min(3, len(have[code]))], ", "))
		}
	}
	for _, code := range slices.Sorted(maps.Keys(explained)) {
		if len(have[code]) == 0 {
			t.Errorf("%s explains %s, which no source has", page, code)
		}
	}
}

var (
	firstCell = regexp.MustCompile("(?m)^\\| (`[^|]*`) \\|")
	quoted    = regexp.MustCompile("`([a-z][a-z_]*)`")
)

// explainedCodes are the codes in the first cells of the tables of a page.
func explainedCodes(t *testing.T, path string) map[string]bool {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]bool{}
	for _, cell := range firstCell.FindAllStringSubmatch(string(page), -1) {
		for _, code := range quoted.FindAllStringSubmatch(cell[1], -1) {
			codes[code[1]] = true
		}
	}
	return codes
}

// The codes beyond the limits of docs/reference/limits.md are explained.
func TestCodesOfLimitsAreExplained(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/reference/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	explained := explainedCodes(t, "../docs/reference/errors.md")
	noCodes := []string{"status_reason", "truncated", "first_at", "last_at", "topic_id", "last", "after", "other_addresses", "limit",
		"next_cursor"}
	for _, cell := range regexp.MustCompile(`(?m)\| ([^|]*) \|$`).FindAllStringSubmatch(string(page), -1) {
		for _, code := range quoted.FindAllStringSubmatch(cell[1], -1) {
			if !explained[code[1]] && !slices.Contains(noCodes, code[1]) {
				t.Errorf("docs/reference/limits.md names %s, which docs/reference/errors.md does not explain", code[1])
			}
		}
	}
}

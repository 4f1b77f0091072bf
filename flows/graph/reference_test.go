package graph

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The examples in docs/reference/conditions.md compile, and its functions exist.
func TestConditionsOfTheReferenceCompile(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/reference/conditions.md")
	if err != nil {
		t.Fatal(err)
	}
	quoted := regexp.MustCompile("`([^`\n]+)`")
	checked := 0
	for _, m := range quoted.FindAllStringSubmatch(string(page), -1) {
		if !regexp.MustCompile(`^(has\(|trigger\.properties.* (>|<|!=)|events\.bought\.times|now - |timestamp\()`).MatchString(m[1]) {
			continue
		}
		mustCompile(t, shopColumns, m[1])
		checked++
	}
	if checked < 7 {
		t.Errorf("only %d examples were found", checked)
	}
	_, table, _ := strings.Cut(string(page), "\n## Functions\n")
	table, _, _ = strings.Cut(table, "\n- ")
	names := map[string]bool{"orValue": true, "optional": true, "has": true, "in": true} // of the optional library, of macros
	common, err := base()
	if err != nil {
		t.Fatal(err)
	}
	for name := range common.Functions() {
		names[name] = true
	}
	for _, macro := range common.Macros() {
		names[macro.Function()] = true
	}
	for _, m := range regexp.MustCompile("`([a-zA-Z_]+)`").FindAllStringSubmatch(table, -1) {
		if !names[m[1]] {
			t.Errorf("docs/reference/conditions.md has the function %s, which does not exist", m[1])
		}
	}
}

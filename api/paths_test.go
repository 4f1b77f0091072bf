package api

import (
	"os"
	"strings"
	"testing"
)

// Each path that people and carriers call without a key is in the list of public paths.
func TestPublicPathsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/reference/settings.md")
	if err != nil {
		t.Fatal(err)
	}
	for path := range contract().Paths.Map() {
		first, _, deeper := strings.Cut(path[1:], "/")
		if deeper && first != "v1" && !strings.Contains(string(text), "| `/"+first+"/` |") {
			t.Errorf("docs/reference/settings.md does not name /%s/", first)
		}
	}
}

package message

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// docs/reference/templates.md has every filter with its number of arguments.
func TestFiltersAreExplained(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/reference/templates.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "\n## Filters\n")
	text, _, _ = strings.Cut(text, "\n- ")
	have := map[string]string{}
	for _, m := range regexp.MustCompile("`([a-z_]+)`(?: \\(([0-9 to]+))?").FindAllStringSubmatch(text, -1) {
		have[m[1]] = m[2]
	}
	want := map[string]string{}
	for name, a := range dialectFilters {
		if a.most > 0 {
			want[name], _, _ = strings.Cut(a.String(), " argument")
		} else {
			want[name] = ""
		}
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("docs/reference/templates.md does not have the filters (-want +have):\n%s", diff)
	}
}

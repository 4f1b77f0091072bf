package api

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"
)

// docs/reference/node-types.md has the fields of every node type, as openapi.yaml has them.
func TestNodeTypesAreExplained(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/reference/node-types.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string][]string{}
	for _, section := range strings.Split(string(page), "\n## ")[1:] {
		title, text, _ := strings.Cut(section, "\n")
		for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(text, -1) {
			sections[strings.Trim(title, "`")] = append(sections[strings.Trim(title, "`")], row[1])
		}
	}
	want := map[string][]string{"All types": {"type", "name", "description", "layout"}}
	for kind, ref := range contract().Components.Schemas["FlowNode"].Value.Discriminator.Mapping {
		fields := maps.Clone(contract().Components.Schemas[ref.Ref[strings.LastIndex(ref.Ref, "/")+1:]].Value.Properties)
		maps.DeleteFunc(fields, func(name string, _ *openapi3.SchemaRef) bool { return slices.Contains(want["All types"], name) })
		want[kind] = slices.Sorted(maps.Keys(fields))
	}
	for title := range sections {
		slices.Sort(sections[title])
	}
	slices.Sort(want["All types"])
	if diff := cmp.Diff(want, sections); diff != "" {
		t.Errorf("docs/reference/node-types.md does not have the fields of openapi.yaml (-want +have):\n%s", diff)
	}
}

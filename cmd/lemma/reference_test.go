package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
)

// docs/reference/cli.md has every command with its arguments and flags, in the
// words of its help. After a change, put the part that the test prints below its
// heading "Commands".
func TestCommandsAreExplained(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/reference/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	_, have, _ := strings.Cut(string(page), "\n## Commands\n")
	want := commandReference(t)
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("docs/reference/cli.md does not fit the commands (-want +have):\n%s\nwhat it must have below Commands:\n%s", diff, want)
	}
}

// commandReference describes the commands as cli.md has them. Settings and --json,
// which many commands have, are left out.
func commandReference(t *testing.T) string {
	t.Helper()
	parser, err := kong.New(&commands{}, kong.Name("lemma"), kong.Resolvers(&variables{env: func(string) (string, bool) { return "", false }}))
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	_ = kong.Visit(parser.Model, func(v kong.Visitable, next kong.Next) error {
		if node, ok := v.(*kong.Node); ok && node.Leaf() && !node.Hidden {
			text.WriteString(commandSection(node))
		}
		return next(nil)
	})
	return text.String()
}

func commandSection(node *kong.Node) string {
	var text strings.Builder
	usage := "lemma " + node.Path()
	rows := ""
	row := func(name, help string, required bool) {
		if required {
			help = "Required. " + help
		}
		rows += fmt.Sprintf("| `%s` | %s |\n", name, help)
	}
	for _, a := range node.Positional {
		usage += " " + a.Summary()
		row(a.Summary(), a.Help, a.Required)
	}
	for _, f := range node.Flags {
		if f.Name != "json" {
			row(f.String(), f.Help, f.Required)
		}
	}
	fmt.Fprintf(&text, "\n### `%s`\n\n%s\n", usage, node.Help)
	if rows != "" {
		fmt.Fprintf(&text, "\n| argument or flag | meaning |\n|---|---|\n%s", rows)
	}
	return text.String()
}

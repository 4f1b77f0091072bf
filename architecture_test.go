package lemma_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// standalone are the packages that do not even import lemma.
var standalone = []string{"lemma", "dial", "slots", "cache", "migrations", "dev/postgres", "dev/catcher", "dev/sink", "dev/shop", "pgtest"}

// forTests are the packages that only tests may import.
var forTests = []string{"pgtest", "pgtest/shop", "sender/sendertest", "sender/ses/sns/snstest", "flows/flowstest",
	"processors/processorstest"}

// testLibraries may not be linked into the program.
var testLibraries = regexp.MustCompile(`^(testing|net/http/httptest|github\.com/google/go-cmp|github\.com/stretchr)(/|$)`)

// vague names do not describe what a package contains.
var vague = []string{"util", "utils", "common", "helper", "helpers", "misc", "base", "shared", "internal", "pkg",
	"model", "models", "types", "service", "services", "store"}

// goPackage is a package as `go list` describes it.
type goPackage struct {
	ImportPath, Name, Doc, Dir string
	Imports, GoFiles           []string
}

func (r goPackage) name() string { return short(r.ImportPath) }

func short(importPath string) string { return strings.TrimPrefix(importPath, "lemma/") }

func packages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Name,Doc,Dir,Imports,GoFiles", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var r goPackage
		if err := d.Decode(&r); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
}

func report(t *testing.T, faults []string) {
	t.Helper()
	for _, f := range faults {
		t.Error(f)
	}
}

func TestArchitecture(t *testing.T) {
	t.Parallel()
	all := packages(t)
	if len(all) < 5 {
		t.Fatalf("go list found only %d packages", len(all))
	}
	report(t, importFaults(all))
	report(t, nameFaults(all))
	report(t, testingFaults(all))
}

// The table of packages in the README is complete.
func TestREADMEListsEveryPackage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range packages(t) {
		name := r.name()
		if name != "lemma" && !strings.HasPrefix(name, "dev/") && !strings.Contains(string(text), "\n| `"+name+"` | ") {
			t.Errorf("README.md does not list %s", name)
		}
	}
}

// importFaults are imports that mayImport does not list.
func importFaults(all []goPackage) (faults []string) {
	for _, r := range all {
		allowed, known := mayImport[r.name()]
		if !known {
			faults = append(faults, r.name()+" is not listed in mayImport")
			continue
		}
		for _, i := range r.Imports {
			if i != "lemma" && !strings.HasPrefix(i, "lemma/") {
				continue
			}
			switch to := short(i); {
			case to == "lemma" && !slices.Contains(standalone, r.name()):
			case slices.Contains(allowed, to):
			case slices.Contains(allowed, "*") && !slices.Contains(forTests, to):
			default:
				faults = append(faults, fmt.Sprintf("%s may not import %s", r.name(), to))
			}
		}
	}
	return faults
}

// nameFaults are packages without a package doc, or with a vague name.
func nameFaults(all []goPackage) (faults []string) {
	for _, r := range all {
		if r.Doc == "" {
			faults = append(faults, r.name()+" has no package doc: begin it with the guarantee that it gives")
		}
		for part := range strings.SplitSeq(r.name(), "/") {
			if slices.Contains(vague, part) {
				faults = append(faults, fmt.Sprintf("%s: %q does not describe what the package contains", r.name(), part))
			}
		}
	}
	return faults
}

// testingFaults are imports of test libraries outside tests.
func testingFaults(all []goPackage) (faults []string) {
	for _, r := range all {
		for _, i := range r.Imports {
			if testLibraries.MatchString(i) && !slices.Contains(forTests, r.name()) {
				faults = append(faults, fmt.Sprintf("%s imports %s outside its tests", r.name(), i))
			}
		}
	}
	return faults
}

func TestOnlyTheOwnerWritesATable(t *testing.T) {
	t.Parallel()
	for _, r := range packages(t) {
		if r.name() == "pgtest" || r.name() == "flows/flowstest" { // they make rows for tests
			continue
		}
		for _, file := range r.GoFiles {
			source, err := os.ReadFile(filepath.Join(r.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			report(t, writeFaults(r.name(), path.Join(r.name(), file), source))
		}
	}
}

var writes = regexp.MustCompile(`(?i)\b(insert\s+into|update|delete\s+from|truncate|merge\s+into|copy)\s+` +
	`(?:table\s+)?(?:only\s+)?"?([a-z_]+)`)

// writeFaults are statements in a file that write to a table of another package.
func writeFaults(pkg, file string, source []byte) (faults []string) {
	tree, err := parser.ParseFile(token.NewFileSet(), file, source, 0)
	if err != nil {
		return []string{err.Error()}
	}
	check := func(verb, table string) {
		owners, known := mayWrite[table]
		if known && !slices.Contains(strings.Fields(owners[pkg]), verb) {
			faults = append(faults, fmt.Sprintf("%s: %s may not %s %s", file, pkg, verb, table))
		}
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			for _, m := range writes.FindAllStringSubmatch(text(n), -1) {
				check(strings.ToLower(strings.Fields(m[1])[0]), strings.ToLower(m[2]))
			}
		case *ast.CompositeLit: // pgx.Identifier{"batches"} is what CopyFrom inserts into
			if s, ok := n.Type.(*ast.SelectorExpr); ok && s.Sel.Name == "Identifier" && len(n.Elts) > 0 {
				if lit, ok := n.Elts[len(n.Elts)-1].(*ast.BasicLit); ok {
					check("insert", text(lit))
				}
			}
		}
		return true
	})
	return faults
}

// text is the value of a string literal; empty for other literals.
func text(lit *ast.BasicLit) string {
	s, err := strconv.Unquote(lit.Value)
	if err != nil || lit.Kind != token.STRING {
		return ""
	}
	return s
}

// Every table has an owner, and every owned table exists.
func TestEveryTableHasAnOwner(t *testing.T) {
	t.Parallel()
	schema, err := os.ReadFile("migrations/schema.sql")
	if errors.Is(err, fs.ErrNotExist) {
		t.Fatal("migrations/schema.sql is missing: make schema")
	}
	if err != nil {
		t.Fatal(err)
	}
	created := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^create table (\w+) \(`).FindAllStringSubmatch(string(schema), -1) {
		created[m[1]] = true
		if mayWrite[m[1]] == nil {
			t.Errorf("the table %s has no owner", m[1])
		}
	}
	for table := range mayWrite {
		if !created[table] {
			t.Errorf("mayWrite has the table %s, which does not exist", table)
		}
	}
}

// The checks above find faults.
func TestArchitectureRulesFindFaults(t *testing.T) {
	t.Parallel()
	one := func(name, doc string, imports ...string) []goPackage {
		return []goPackage{{ImportPath: name, Doc: doc, Imports: imports}}
	}
	write := func(pkg, source string) []string { return writeFaults(pkg, "x.go", []byte("package x; "+source)) }
	for name, c := range map[string]struct {
		faults []string
		want   string
	}{
		"an import that is not listed":  {importFaults(one("lemma/campaigns", "", "lemma/sender")), "campaigns may not import sender"},
		"an import of the root package": {importFaults(one("lemma", "", "lemma/events")), "lemma may not import events"},
		"a package that is not listed":  {importFaults(one("lemma/extra", "")), "not listed"},
		"pgtest in the program":         {importFaults(one("lemma/cmd/lemma", "", "lemma/pgtest")), "cmd/lemma may not import pgtest"},
		"flowstest in the program": {
			importFaults(one("lemma/api", "", "lemma/flows/flowstest")), "api may not import flows/flowstest"},
		"no doc":                 {nameFaults(one("lemma/events", "")), "no package doc"},
		"a vague name":           {nameFaults(one("lemma/events/utils", "x")), "does not describe"},
		"testing in the program": {testingFaults(one("lemma/api", "", "testing")), "imports testing"},
		"go-cmp in the program":  {testingFaults(one("lemma/api", "", "github.com/google/go-cmp/cmp")), "go-cmp"},
		"an update of a table for inserts": {
			write("sender", "const q = `update attempts set final = true`"), "sender may not update attempts",
		},
		"a delete from a table for inserts": {
			write("sender", "const q = `DELETE\n from only notifications`"), "sender may not delete notifications",
		},
		"a table of another package": {
			write("api", `var q = "with a as (insert into batches (id) values (1)) select 1"`), "api may not insert batches",
		},
		"a table of another package, by COPY": {
			write("campaigns", `var q = pgx.Identifier{"attempts"}`), "campaigns may not insert attempts",
		},
	} {
		if len(c.faults) != 1 || !strings.Contains(c.faults[0], c.want) {
			t.Errorf("%s: %q", name, c.faults)
		}
	}
	if f := write("sender", "const q = `insert into attempts (a) values (1) on conflict do nothing; select 1 for update`"); len(f) != 0 {
		t.Errorf("an allowed statement is refused: %q", f)
	}
}

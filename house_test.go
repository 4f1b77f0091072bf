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

// mayImport is the plan of the house: which rooms the code of a room may
// import. Everybody may import lemma; whoever is not in the plan does not exist.
var mayImport = map[string][]string{
	"lemma":             {},
	"secrets":           {},
	"workspaces":        {},
	"providers":         {"secrets"},
	"dial":              {},
	"audience":          {"secrets", "dial"},
	"webhooks":          {"secrets", "dial"},
	"message":           {},
	"events":            {},
	"notifications":     {"events"},
	"campaigns":         {"notifications", "audience", "message", "providers"},
	"flows":             {"flows/graph", "notifications", "audience", "message", "providers", "webhooks"},
	"flows/graph":       {},
	"sender":            {"notifications", "events", "message", "providers"},
	"sender/smtp":       {"sender", "dial"},
	"sender/sendertest": {"sender"},
	"api":               {"workspaces", "providers", "audience", "message", "notifications", "events", "campaigns", "flows", "flows/graph", "webhooks"},
	"migrations":        {},
	"dev/postgres":      {},
	"dev/catcher":       {},
	"dev/sink":          {},
	"dev/shop":          {},
	"pgtest":            {"migrations", "dev/postgres"},
	"client":            {},
	"chaos":             {}, // only tests
	"cmd/lemma":         {"*"},
}

// apart are the rooms that know nothing of ours, not even lemma.
var apart = []string{"lemma", "dial", "migrations", "dev/postgres", "dev/catcher", "dev/sink", "dev/shop", "pgtest"}

// forTests are the rooms that only tests may import.
var forTests = []string{"pgtest", "sender/sendertest"}

// testLibraries have no business in the program.
var testLibraries = regexp.MustCompile(`^(testing|net/http/httptest|github\.com/google/go-cmp|github\.com/stretchr)(/|$)`)

// vague names say nothing about what is inside.
var vague = []string{"util", "utils", "common", "helper", "helpers", "misc", "base", "shared", "internal", "pkg", "model", "models", "types", "service", "services", "store"}

// mayWrite says who writes which table and how. What is only inserted into is
// a ledger: nothing in it ever changes.
var mayWrite = map[string]map[string]string{
	"workspaces":        {"workspaces": "insert"},
	"api_keys":          {"workspaces": "insert update"},
	"idempotency_keys":  {"api": "insert update delete"},
	"data_sources":      {"audience": "insert update delete"},
	"audiences":         {"audience": "insert update delete"},
	"templates":         {"message": "insert update delete"},
	"template_versions": {"message": "insert"},
	"providers":         {"providers": "insert update delete"},
	"webhook_endpoints": {"webhooks": "insert update delete"},
	"outbox":            {"webhooks": "insert update delete"},
	"flows":             {"flows": "insert update delete"},
	"flow_versions":     {"flows": "insert update delete"}, // delete: drafts
	"flow_log":          {"flows": "insert"},
	"flow_listeners":    {"flows": "insert delete"},
	"flow_uses":         {"flows": "insert delete"},
	"flow_turns":        {"flows": "insert update"},
	"flow_moves":        {"flows": "insert update"},
	"flow_polls":        {"flows": "insert update delete"},
	"flow_origins":      {"flows": "insert"},
	"flow_node_counts":  {"flows": "insert update"},
	"trigger_events":    {"flows": "insert update delete"}, // update: it had its turn later than it was written
	"enrollments":       {"flows": "insert update", "cmd/lemma": "insert"},
	"enrollment_steps":  {"flows": "insert update"}, // update: a person is erased
	"refusals":          {"flows": "insert delete"},
	"provider_meters":   {"providers": "insert update", "sender": "insert update"},
	"campaigns":         {"campaigns": "insert update delete"},
	"campaign_requests": {"campaigns": "insert"},
	"fanouts":           {"campaigns": "insert update"},
	"contents":          {"campaigns": "insert", "flows": "insert"},
	"notifications": {"notifications": "insert update", // update: a person is erased
		"cmd/lemma": "insert"}, // cmd: what bench measures against
	"batches":         {"notifications": "insert update", "sender": "insert update", "cmd/lemma": "insert"},
	"attempts":        {"sender": "insert", "cmd/lemma": "insert"},
	"batch_log":       {"sender": "insert"},
	"provider_events": {"events": "insert"},
	"resolutions":     {"notifications": "insert"},
	"fanout_chunks":   {"notifications": "insert"},
}

// room is a package as `go list` describes it.
type room struct {
	ImportPath, Name, Doc, Dir string
	Imports, GoFiles           []string
}

func (r room) name() string { return short(r.ImportPath) }

func short(importPath string) string { return strings.TrimPrefix(importPath, "lemma/") }

func rooms(t *testing.T) []room {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Name,Doc,Dir,Imports,GoFiles", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []room
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var r room
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

func TestHouse(t *testing.T) {
	t.Parallel()
	all := rooms(t)
	if len(all) < 5 {
		t.Fatalf("go list found only %d rooms", len(all))
	}
	report(t, planFaults(all))
	report(t, nameFaults(all))
	report(t, testingFaults(all))
}

// planFaults are imports that the plan does not have.
func planFaults(all []room) (faults []string) {
	for _, r := range all {
		allowed, known := mayImport[r.name()]
		if !known {
			faults = append(faults, r.name()+" is not in the plan of the house")
			continue
		}
		for _, i := range r.Imports {
			if i != "lemma" && !strings.HasPrefix(i, "lemma/") {
				continue
			}
			switch to := short(i); {
			case to == "lemma" && !slices.Contains(apart, r.name()):
			case slices.Contains(allowed, to):
			case slices.Contains(allowed, "*") && !slices.Contains(forTests, to):
			default:
				faults = append(faults, fmt.Sprintf("%s may not import %s", r.name(), to))
			}
		}
	}
	return faults
}

// nameFaults are packages with an empty or missing introduction, or a name
// that says nothing.
func nameFaults(all []room) (faults []string) {
	for _, r := range all {
		if r.Doc == "" {
			faults = append(faults, r.name()+" has no package doc: begin it with the promise that it keeps")
		}
		for _, part := range strings.Split(r.name(), "/") {
			if slices.Contains(vague, part) {
				faults = append(faults, fmt.Sprintf("%s: %q does not say what is inside", r.name(), part))
			}
		}
	}
	return faults
}

// testingFaults are test libraries in code that is not for tests.
func testingFaults(all []room) (faults []string) {
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
	for _, r := range rooms(t) {
		if r.name() == "pgtest" { // its Workspace is a factory for tests
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

var writes = regexp.MustCompile(`(?i)\b(insert\s+into|update|delete\s+from|truncate|merge\s+into|copy)\s+(?:table\s+)?(?:only\s+)?"?([a-z_]+)`)

// writeFaults are statements in a file that write to what is not theirs to write.
func writeFaults(room, file string, source []byte) (faults []string) {
	tree, err := parser.ParseFile(token.NewFileSet(), file, source, 0)
	if err != nil {
		return []string{err.Error()}
	}
	check := func(verb, table string) {
		owners, known := mayWrite[table]
		if known && !slices.Contains(strings.Fields(owners[room]), verb) {
			faults = append(faults, fmt.Sprintf("%s: %s may not %s %s", file, room, verb, table))
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

// text is what a string literal says; empty for other literals.
func text(lit *ast.BasicLit) string {
	s, err := strconv.Unquote(lit.Value)
	if err != nil || lit.Kind != token.STRING {
		return ""
	}
	return s
}

// Every table has an owner, and every owned table is there.
func TestEveryTableHasAnOwner(t *testing.T) {
	t.Parallel()
	schema, err := os.ReadFile("migrations/schema.sql")
	if errors.Is(err, fs.ErrNotExist) {
		t.Fatal("migrations/schema.sql is missing: make schema")
	}
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^create table (\w+) \(`).FindAllStringSubmatch(string(schema), -1) {
		there[m[1]] = true
		if mayWrite[m[1]] == nil {
			t.Errorf("nobody owns the table %s", m[1])
		}
	}
	for table := range mayWrite {
		if !there[table] {
			t.Errorf("there is no table %s", table)
		}
	}
}

// The checks above find what they are there to find.
func TestHouseRulesBite(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		faults []string
		want   string
	}{
		"an import against the plan":  {planFaults([]room{{ImportPath: "lemma/campaigns", Imports: []string{"lemma/sender"}}}), "campaigns may not import sender"},
		"the root knows somebody":     {planFaults([]room{{ImportPath: "lemma", Imports: []string{"lemma/events"}}}), "lemma may not import events"},
		"an unknown room":             {planFaults([]room{{ImportPath: "lemma/extra"}}), "not in the plan"},
		"the program uses pgtest":     {planFaults([]room{{ImportPath: "lemma/cmd/lemma", Imports: []string{"lemma/pgtest"}}}), "cmd/lemma may not import pgtest"},
		"no doc":                      {nameFaults([]room{{ImportPath: "lemma/events"}}), "no package doc"},
		"a vague name":                {nameFaults([]room{{ImportPath: "lemma/events/utils", Doc: "x"}}), "does not say"},
		"testing in the program":      {testingFaults([]room{{ImportPath: "lemma/api", Imports: []string{"testing"}}}), "imports testing"},
		"go-cmp in the program":       {testingFaults([]room{{ImportPath: "lemma/api", Imports: []string{"github.com/google/go-cmp/cmp"}}}), "go-cmp"},
		"a ledger is changed":         {writeFaults("sender", "x.go", []byte("package x; const q = `update attempts set final = true`")), "sender may not update attempts"},
		"a ledger is deleted from":    {writeFaults("sender", "x.go", []byte("package x; const q = `DELETE\n from only notifications`")), "sender may not delete notifications"},
		"another room's table":        {writeFaults("api", "x.go", []byte(`package x; var q = "with a as (insert into batches (id) values (1)) select 1"`)), "api may not insert batches"},
		"another room's table copied": {writeFaults("campaigns", "x.go", []byte(`package x; var q = pgx.Identifier{"attempts"}`)), "campaigns may not insert attempts"},
	} {
		if len(c.faults) != 1 || !strings.Contains(c.faults[0], c.want) {
			t.Errorf("%s: %q", name, c.faults)
		}
	}
	if f := writeFaults("sender", "x.go", []byte("package x; const q = `insert into attempts (a) values (1) on conflict do nothing; select 1 for update`")); len(f) != 0 {
		t.Errorf("an allowed statement is refused: %q", f)
	}
}

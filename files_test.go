package lemma_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// maxFileLines is the most lines of a Go file.
const maxFileLines = 400

func TestFilesAreShort(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".go" {
			return err
		}
		source, err := os.ReadFile(file)
		if n := strings.Count(string(source), "\n"); n > maxFileLines {
			t.Errorf("%s has %d lines, at most %d are allowed: split it by topic", file, n, maxFileLines)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Files that the program writes can contain addresses or secrets: only its own user
// may read them.
func TestFilesAreForTheirOwnerOnly(t *testing.T) {
	t.Parallel()
	for _, r := range packages(t) {
		r.eachFile(t, modeFaults)
	}
}

// modeFaults are the places in a file that create a file with another mode than 0600.
func modeFaults(file string, source []byte) (faults []string) {
	tree, err := parser.ParseFile(token.NewFileSet(), file, source, 0)
	if err != nil {
		return []string{err.Error()}
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		function, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || fmt.Sprint(function.X) != "os" {
			return true
		}
		switch function.Sel.Name {
		case "Create":
			faults = append(faults, file+": os.Create makes files that others can read: use os.OpenFile with 0o600")
		case "OpenFile", "WriteFile":
			mode, ok := call.Args[len(call.Args)-1].(*ast.BasicLit)
			if !ok || !slices.Contains([]string{"0o600", "0"}, mode.Value) {
				faults = append(faults, fmt.Sprintf("%s: os.%s must have the mode 0o600", file, function.Sel.Name))
			}
		}
		return true
	})
	return faults
}

func TestModeRuleFindsFaults(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]int{
		`package x; import "os"; var f, _ = os.Create("x")`:                       1,
		`package x; import "os"; var f, _ = os.OpenFile("x", os.O_CREATE, 0o644)`: 1,
		`package x; import "os"; var f, _ = os.OpenFile("x", os.O_CREATE, mode)`:  1,
		`package x; import "os"; var f, _ = os.OpenFile("x", os.O_CREATE, 0o600)`: 0,
		`package x; import "os"; var f, _ = os.OpenFile("x", os.O_RDONLY, 0)`:     0,
		`package x; import "os"; var err = os.WriteFile("x", nil, 0o640)`:         1,
		`package x; import "os"; var err = os.MkdirAll("x", 0o755)`:               0,
		`package x; import "os"; var f, _ = os.CreateTemp("", "x")`:               0,
	} {
		if faults := modeFaults("x.go", []byte(source)); len(faults) != want {
			t.Errorf("%s: %q", source, faults)
		}
	}
}

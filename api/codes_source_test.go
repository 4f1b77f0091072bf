package api

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	// codeName matches parameters, results, fields and variables that hold a code: Code, exitReason.
	codeName = regexp.MustCompile(`(?i)(^code|code$|reason$|^blocked$)`)
	codeForm = regexp.MustCompile(`^[a-z][a-z_]+$`)
	sqlCode  = regexp.MustCompile(`reason = '([a-z_]+)'`)
	jsonCode = regexp.MustCompile(`"code":"([a-z_]+)"`)
)

// codeConstants are the constants that are codes although their names do not
// begin with Code or Reason, by file. A renamed one is missed on the page's side.
var codeConstants = map[string]*regexp.Regexp{
	"error.go": regexp.MustCompile(`.`),
	"flows/enrollment/status.go": regexp.MustCompile(
		`^(Exit[A-Z]|Already|Filtered|ConditionError|IsPaused|NotLive|NoProfile|InvalidKey|MissingField)`),
	"flows/execution/act.go":      regexp.MustCompile(`^(Already|TooLarge)`),
	"flows/execution/simulate.go": regexp.MustCompile(`^NoTrigger$`),
	"notifications/reasons.go":    regexp.MustCompile(`.`),
	"notifications/insert.go":     regexp.MustCompile(`.`),
	"address/address.go":          regexp.MustCompile(`^(Missing|Invalid|TooMany)$`),
	"campaigns/lease.go":          regexp.MustCompile(`^queued$`),
	"sender/outcome.go":           regexp.MustCompile(`^(first|unknown$|refused$)`),
}

// notCodes match the patterns and are in no answer.
var notCodes = []string{
	"kept",                     // a label of lemma_rechecks_total
	"reason", "blocked_reason", // query parameters
}

// withoutAnswers are folders whose codes no answer of the API has.
var withoutAnswers = []string{"client", "cmd", "dev", "chaos", "pgtest", "specs", "docs", "flows/flowstest", "sender/sendertest"}

// sourceCodes collects the codes that answers of the API have, with their places:
// string literals given to a parameter, a field, a variable or a result that holds
// a code, constants, the reasons of notifications in SQL, and enumerations of openapi.yaml.
func sourceCodes(t *testing.T) map[string][]string {
	t.Helper()
	c := &codes{files: token.NewFileSet(), parameters: map[string][]int{}, found: map[string][]string{}}
	sources := c.parse(t, "..")
	for _, f := range sources {
		c.each(f, c.declaration)
	}
	for _, f := range sources {
		c.each(f, c.use)
	}
	c.migrations(t, "../migrations")
	c.contract()
	for _, code := range notCodes {
		delete(c.found, code)
	}
	return c.found
}

type codes struct {
	files      *token.FileSet
	file       string           // the one that is read now
	parameters map[string][]int // by the name of a function: the positions of its parameters that are codes
	found      map[string][]string
}

func (c *codes) parse(t *testing.T, root string) []*ast.File {
	t.Helper()
	var all []*ast.File
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		name := filepath.ToSlash(strings.TrimPrefix(file, root+string(filepath.Separator)))
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != root && (strings.HasPrefix(d.Name(), ".") || slices.Contains(withoutAnswers, name)):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(c.files, name, source, parser.SkipObjectResolution)
		all = append(all, f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (c *codes) each(f *ast.File, visit func(ast.Node)) {
	c.file = c.files.Position(f.Pos()).Filename
	ast.Inspect(f, func(n ast.Node) bool {
		visit(n)
		return true
	})
}

// function is the key of a function in parameters. Names that are not exported
// belong to their package.
func (c *codes) function(name string) string {
	if ast.IsExported(name) {
		return name
	}
	return path.Dir(c.file) + "." + name
}

// declaration records functions with parameters that hold a code.
func (c *codes) declaration(n ast.Node) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		key := c.function(n.Name.Name)
		c.parameters[key] = append(c.parameters[key], codePositions(n.Type.Params)...)
	case *ast.AssignStmt: // fault := func(pointer, code string) ...
		for i, right := range n.Rhs {
			if f, ok := right.(*ast.FuncLit); ok {
				key := c.function(lastName(n.Lhs[i]))
				c.parameters[key] = append(c.parameters[key], codePositions(f.Type.Params)...)
			}
		}
	}
}

func codePositions(list *ast.FieldList) []int {
	var positions []int
	if list == nil {
		return nil
	}
	i := 0
	for _, field := range list.List {
		for _, name := range field.Names {
			if lastName(field.Type) == "string" && codeName.MatchString(name.Name) {
				positions = append(positions, i)
			}
			i++
		}
	}
	return positions
}

func (c *codes) use(n ast.Node) {
	switch n := n.(type) {
	case *ast.BasicLit:
		for _, pattern := range []*regexp.Regexp{sqlCode, jsonCode} {
			for _, m := range pattern.FindAllStringSubmatch(n.Value, -1) {
				c.add(m[1], n.Pos())
			}
		}
	case *ast.CallExpr:
		for _, i := range c.parameters[c.function(lastName(n.Fun))] {
			if i < len(n.Args) {
				c.literal(n.Args[i])
			}
		}
	case *ast.CompositeLit:
		c.unkeyed(n)
	case *ast.KeyValueExpr:
		c.value(n.Key, n.Value)
	case *ast.ValueSpec:
		for i, value := range n.Values {
			c.value(n.Names[i], value)
		}
	case *ast.AssignStmt:
		for i := range min(len(n.Lhs), len(n.Rhs)) {
			c.value(n.Lhs[i], n.Rhs[i])
		}
	case *ast.FuncDecl:
		c.results(n)
	}
}

// unkeyed collects the code of a mail.Rule and a refusal, which is their first or
// second field.
func (c *codes) unkeyed(l *ast.CompositeLit) {
	switch lastName(l.Type) {
	case "Rule", "refusal":
		for _, e := range l.Elts[:min(2, len(l.Elts))] {
			c.literal(e)
		}
	}
}

// results collects what a function with a named result for a code returns.
func (c *codes) results(f *ast.FuncDecl) {
	positions := codePositions(f.Type.Results)
	if f.Body == nil || len(positions) == 0 {
		return
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if r, ok := n.(*ast.ReturnStmt); ok {
			for _, i := range positions {
				if i < len(r.Results) {
					c.literal(r.Results[i])
				}
			}
		}
		return true
	})
}

func (c *codes) value(name, value ast.Expr) {
	text := lastName(name)
	constants := codeConstants[c.file]
	switch {
	case codeName.MatchString(text), strings.HasPrefix(text, "Code"), strings.HasPrefix(text, "Reason"):
		c.literal(value)
	case constants != nil && constants.MatchString(text):
		c.literal(value)
	case text == "refusals": // the table of SMTP replies
		ast.Inspect(value, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok {
				c.literal(l)
			}
			return true
		})
	}
}

func (c *codes) literal(e ast.Expr) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING && codeForm.MatchString(text) {
			c.add(text, e.Pos())
		}
	case *ast.CallExpr: // cmp.Or(code, "other"), string(code)
		for _, argument := range e.Args {
			c.literal(argument)
		}
	}
}

func (c *codes) add(code string, at token.Pos) {
	c.found[code] = append(c.found[code], c.files.Position(at).String())
}

var (
	reasonCase = regexp.MustCompile(`(?s)case\s(?:[^;]*?)end as reason`)
	thenCode   = regexp.MustCompile(`then '([a-z_]+[a-z])'`)
	thenJoined = regexp.MustCompile(`then '([a-z_]+_)' \|\| outcome`)
)

// migrations collects the reasons that the view of notifications derives.
func (c *codes) migrations(t *testing.T, folder string) {
	t.Helper()
	names, err := filepath.Glob(folder + "/0*.sql")
	if err != nil || len(names) == 0 {
		t.Fatal("no migrations", err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, reason := range reasonCase.FindAllString(string(text), -1) {
			reason = reason[strings.LastIndex(reason, "case\n"):]
			for _, m := range thenCode.FindAllStringSubmatch(reason, -1) {
				c.found[m[1]] = append(c.found[m[1]], name)
			}
			for _, m := range thenJoined.FindAllStringSubmatch(reason, -1) {
				for _, outcome := range []string{"rejected", "refused", "skipped"} { // of a second attempt
					c.found[m[1]+outcome] = append(c.found[m[1]+outcome], name)
				}
			}
		}
	}
}

// contract collects the enumerations of reasons in openapi.yaml.
func (c *codes) contract() {
	schemas := contract().Components.Schemas
	for name, schema := range schemas {
		if strings.HasSuffix(name, "Reason") {
			c.enumerated(schema.Value.Enum)
		}
	}
	c.enumerated(schemas["Explanation"].Value.Properties["waiting"].Value.Properties["for"].Value.Enum)
}

func (c *codes) enumerated(values []any) {
	for _, v := range values {
		if text, ok := v.(string); ok {
			c.found[text] = append(c.found[text], "openapi.yaml")
		}
	}
}

// lastName is the last name of an expression: Code of e.Code.
func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.StarExpr:
		return lastName(e.X)
	}
	return ""
}

package graph

import (
	"regexp"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
)

// unequal is the checker's message about two values of different types that are compared with ==, != or in.
var unequal = regexp.MustCompile(`^found no matching overload for '(_==_|_!=_|@in)' applied to '\(([^,]*), ([^,]*)\)'`)

var numbers = map[string]bool{"int": true, "uint": true, "double": true, "wrapper(int)": true, "wrapper(double)": true}

// check type-checks an expression. CEL orders numbers of different types, but allows ==, != and in for two of
// one type only. Here they compare numbers by value as well: the left one is checked as a value of any type.
// The checker reports 100 faults at a time; Err, which writes all of them as a text, would take far longer.
func check(env *cel.Env, parsed *cel.Ast) (*cel.Ast, *cel.Issues) {
	for {
		checked, issues := env.Check(parsed)
		if len(issues.Errors()) == 0 || !asAnyType(parsed.NativeRep(), comparedNumbers(issues)) {
			return checked, issues
		}
	}
}

// comparedNumbers are the ids of comparisons that fail only since their numbers have different types.
func comparedNumbers(issues *cel.Issues) map[int64]bool {
	ids := map[int64]bool{}
	for _, e := range issues.Errors() {
		found := unequal.FindStringSubmatch(e.Message)
		if found != nil && numbers[found[2]] && numbers[compared(found[1], found[3])] {
			ids[e.ExprID] = true
		}
	}
	return ids
}

// compared is the type of the values that an operator compares with the first operand: for in, those of a list.
func compared(operator, second string) string {
	if operator != operators.In {
		return second
	}
	inList, isList := strings.CutPrefix(second, "list(")
	if !isList {
		return ""
	}
	return strings.TrimSuffix(inList, ")")
}

// asAnyType writes dyn() around the first operand of some calls. It reports whether it has changed anything.
func asAnyType(parsed *ast.AST, ids map[int64]bool) bool {
	if len(ids) == 0 {
		return false
	}
	next := ast.MaxID(parsed)
	factory := ast.NewExprFactory()
	ast.PostOrderVisit(parsed.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if !ids[e.ID()] {
			return
		}
		operand := e.AsCall().Args()[0]
		inner := factory.CopyExpr(operand)
		inner.RenumberIDs(func(id int64) int64 {
			if id != operand.ID() {
				return id
			}
			return next
		})
		parsed.SourceInfo().SetOffsetRange(next, offsets(parsed, operand.ID()))
		operand.SetKindCase(factory.NewCall(operand.ID(), overloads.TypeConvertDyn, inner))
		next++
	}))
	return true
}

func offsets(parsed *ast.AST, id int64) ast.OffsetRange {
	at, _ := parsed.SourceInfo().GetOffsetRange(id)
	return at
}

package graph

import (
	"maps"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
)

// The time of the type checker grows with the third power of the depth of a type, and a
// type may double with each step, as by map(x, {x: x}): a condition of 250 bytes would
// occupy a process for ever. So the types of an expression are bounded before the check.

// maxTypeWeight bounds the lists, maps, optional values and types of which a type is made.
const maxTypeWeight = 12

// weights are bounds on the weights of types.
type weights struct {
	names    map[string]int // that macros define
	heaviest ast.Expr       // the first that exceeds maxTypeWeight; nil: none
}

// tooDeep returns the first part of an expression whose type may weigh too much, or nil.
func tooDeep(parsed *cel.Ast) ast.Expr {
	w := weights{names: map[string]int{}}
	w.of(parsed.NativeRep().Expr())
	return w.heaviest
}

func (w *weights) of(e ast.Expr) int {
	n := w.measure(e)
	if n > maxTypeWeight && w.heaviest == nil {
		w.heaviest = e
	}
	return min(n, maxTypeWeight+1)
}

func (w *weights) measure(e ast.Expr) int {
	switch e.Kind() {
	case ast.IdentKind:
		return w.names[e.AsIdent()]
	case ast.SelectKind:
		return w.of(e.AsSelect().Operand())
	case ast.CallKind:
		return w.call(e.AsCall())
	case ast.ListKind:
		return 1 + w.most(e.AsList().Elements())
	case ast.MapKind:
		key, value := 0, 0
		for _, entry := range e.AsMap().Entries() {
			key, value = max(key, w.of(entry.AsMapEntry().Key())), max(value, w.of(entry.AsMapEntry().Value()))
		}
		return 1 + key + value
	case ast.ComprehensionKind:
		return w.comprehension(e.AsComprehension())
	}
	return 0
}

func (w *weights) most(all []ast.Expr) (n int) {
	for _, e := range all {
		n = max(n, w.of(e))
	}
	return n
}

// call: the type of a result is at most that of an argument, except for the functions that
// wrap it.
func (w *weights) call(call ast.CallExpr) int {
	n := w.most(call.Args())
	if call.IsMemberFunction() {
		n = max(n, w.of(call.Target()))
	}
	if wraps(call.FunctionName()) {
		n++
	}
	return n
}

// wraps reports whether the result of a function contains its argument. optional.of is a
// member in what is parsed, and one name in what macros make.
func wraps(function string) bool {
	return function == "type" || strings.HasPrefix(strings.TrimPrefix(function, "optional."), "of")
}

func (w *weights) comprehension(c ast.ComprehensionExpr) int {
	outer := map[string]int{}
	for _, name := range []string{c.AccuVar(), c.IterVar(), c.IterVar2()} {
		outer[name] = w.names[name]
	}
	rng := w.of(c.IterRange())
	w.names[c.AccuVar()] = w.of(c.AccuInit())
	w.names[c.IterVar()], w.names[c.IterVar2()] = rng, rng
	w.of(c.LoopCondition())
	w.names[c.AccuVar()] = max(w.names[c.AccuVar()], w.of(c.LoopStep()))
	n := w.of(c.Result())
	maps.Copy(w.names, outer)
	return n
}

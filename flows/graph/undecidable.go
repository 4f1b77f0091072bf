package graph

import (
	"slices"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
)

// sameOperands are the operators that require a timestamp or a duration on both sides, and
// accept anything else.
var sameOperands = []string{operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals,
	operators.Equals, operators.NotEquals, operators.Add, operators.Subtract}

// undecidable finds a property beside a timestamp or a duration. The checker accepts it,
// but properties are JSON, which has neither, so that no event could decide the condition.
func (r *reading) undecidable(call ast.CallExpr) {
	args := call.Args()
	if len(args) != 2 || !slices.Contains(sameOperands, call.FunctionName()) {
		return
	}
	for i, arg := range args {
		if !r.isProperty(arg) {
			continue
		}
		switch other := r.types(args[1-i].ID()); {
		case other.IsExactType(cel.TimestampType):
			r.faultAt(arg, "expression_type", "a property is never a timestamp: write timestamp(...) around it")
		case other.IsExactType(cel.DurationType):
			r.faultAt(arg, "expression_type", "a property is never a duration: write duration(...) around it")
		}
	}
}

// isProperty recognises an access to properties of an event.
func (r *reading) isProperty(e ast.Expr) bool {
	if r.types(e.ID()).Kind() != types.DynKind {
		return false
	}
	for {
		var operand ast.Expr
		switch {
		case e.Kind() == ast.SelectKind && !e.AsSelect().IsTestOnly():
			operand = e.AsSelect().Operand()
		case e.Kind() == ast.CallKind && e.AsCall().FunctionName() == operators.Index:
			operand = e.AsCall().Args()[0]
		default:
			return false
		}
		if operand.Kind() == ast.SelectKind && r.types(operand.ID()).Kind() == types.MapKind { // of properties or last
			return true
		}
		e = operand
	}
}

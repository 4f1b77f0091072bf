package graph

import (
	"fmt"
	"slices"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"

	"lemma"
)

// reading is what an expression reads, found in one pass.
type reading struct {
	info      *ast.SourceInfo
	types     func(id int64) *types.Type // of an expression
	known     map[string]string          // columns; nil: not known
	hints     *hints
	variables map[string]bool
	columns   map[string]bool
	events    map[string]bool
	names     map[string]bool // fields and texts that it spells out
	whole     bool            // the profile as a whole, or by a computed name
	faults    []lemma.Field

	patterns int // bytes of memory of its patterns
}

func (c *compiler) read(checked *cel.Ast) reading {
	native := checked.NativeRep()
	r := reading{
		info: native.SourceInfo(), types: native.GetType, known: c.world.columns, hints: c.hints,
		variables: map[string]bool{}, columns: map[string]bool{}, events: map[string]bool{}, names: map[string]bool{},
	}
	r.visit(native.Expr(), nil, 0)
	return r
}

func (r *reading) fault(line, column int, code, format string, args ...any) {
	r.faults = append(r.faults, lemma.Field{Code: code, Detail: fmt.Sprintf(format, args...), Line: line, Column: column})
}

func (r *reading) faultAt(e ast.Expr, code, format string, args ...any) {
	place := r.info.GetStartLocation(e.ID())
	r.fault(place.Line(), place.Column()+1, code, format, args...)
}

// visit goes through an expression. local are the names that macros define, which hide
// variables; nested is its depth in macros.
func (r *reading) visit(e ast.Expr, local []string, nested int) {
	if variable, field, ok := r.access(e, local); ok {
		r.variable(e, variable, field)
		return
	}
	switch e.Kind() {
	case ast.IdentKind:
		r.ident(e, local)
	case ast.LiteralKind:
		r.literal(e)
	case ast.SelectKind:
		r.names[e.AsSelect().FieldName()] = true
		r.visit(e.AsSelect().Operand(), local, nested)
	case ast.CallKind:
		r.constant(e.AsCall())
		r.undecidable(e.AsCall())
		r.call(e.AsCall(), local, nested)
	case ast.ListKind:
		for _, item := range e.AsList().Elements() {
			r.visit(item, local, nested)
		}
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			r.visit(entry.AsMapEntry().Key(), local, nested)
			r.visit(entry.AsMapEntry().Value(), local, nested)
		}
	case ast.StructKind:
		r.faultAt(e, "expression_type", "an expression makes no objects of type %s", e.AsStruct().TypeName())
	case ast.ComprehensionKind:
		r.comprehension(e, local, nested)
	}
}

// access recognises profile.x, profile["x"], profile.?x and profile[?"x"], and the same on
// events. A computed name is no access.
func (r *reading) access(e ast.Expr, local []string) (variable, field string, ok bool) {
	var operand ast.Expr
	switch e.Kind() {
	case ast.SelectKind:
		operand, field = e.AsSelect().Operand(), e.AsSelect().FieldName()
	case ast.CallKind:
		call := e.AsCall()
		switch call.FunctionName() {
		case operators.Index, operators.OptIndex, operators.OptSelect:
		default:
			return "", "", false
		}
		name, isText := call.Args()[1], false
		if name.Kind() == ast.LiteralKind {
			var s types.String
			s, isText = name.AsLiteral().(types.String)
			field = string(s)
		}
		if !isText {
			return "", "", false
		}
		operand = call.Args()[0]
	default:
		return "", "", false
	}
	if operand.Kind() != ast.IdentKind || slices.Contains(local, operand.AsIdent()) {
		return "", "", false
	}
	variable = operand.AsIdent()
	return variable, field, variable == "profile" || variable == "events"
}

// variable records a field of profile or events.
func (r *reading) variable(e ast.Expr, variable, field string) {
	r.variables[variable], r.names[field] = true, true
	if variable == "events" {
		r.events[field] = true
		return
	}
	if _, exists := r.known[field]; r.known != nil && !exists {
		r.faultAt(e, "unknown_column", "the audience has no column %s%s", field, hint(r.hints, field, r.known))
	}
	r.columns[field] = true
}

// ident records a variable that is read as a whole.
func (r *reading) ident(e ast.Expr, local []string) {
	name := e.AsIdent()
	if slices.Contains(local, name) {
		return
	}
	switch name {
	case "events":
		r.faultAt(e, "expression_type", "name the event, as in events.bought or events[\"cart left\"]: only those that are named are read")
	case "profile":
		r.whole = true
	}
	r.variables[name] = true
}

func (r *reading) literal(e ast.Expr) {
	if s, ok := e.AsLiteral().(types.String); ok {
		r.names[string(s)] = true
	}
}

func (r *reading) call(call ast.CallExpr, local []string, nested int) {
	if call.IsMemberFunction() {
		r.visit(call.Target(), local, nested)
	}
	for _, arg := range call.Args() {
		r.visit(arg, local, nested)
	}
}

func (r *reading) comprehension(e ast.Expr, local []string, nested int) {
	c := e.AsComprehension()
	if nested == maxNesting {
		r.faultAt(e, "expression_cost", "exists, all, map and the like may be nested %d deep", maxNesting)
		return
	}
	r.visit(c.IterRange(), local, nested)
	r.visit(c.AccuInit(), local, nested)
	inner := append(slices.Clone(local), c.AccuVar())
	r.visit(c.Result(), inner, nested)
	inner = append(inner, c.IterVar(), c.IterVar2())
	r.visit(c.LoopCondition(), inner, nested+1)
	r.visit(c.LoopStep(), inner, nested+1)
}

package graph

import (
	"math"
	"math/big"
	"strconv"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/decls"
	"cel.dev/cel-go/common/env"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/stdlib"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// CEL compares numbers of different types but does not compute with them:
// trigger.properties.total * 2 > 3 would pass the checker and fail for every value. Here
// it computes: with doubles as soon as one operand is a double, and exactly where whole
// numbers beyond 2^53 are involved.

// operation is an arithmetic operator, for numbers of one type and of several.
type operation struct {
	name    string // of its overloads
	trait   int
	alike   func(l, r ref.Val) ref.Val
	doubles func(l, r float64) float64
	whole   func(z, l, r *big.Int) *big.Int
}

var operations = map[string]operation{
	operators.Add: {"add", traits.AdderType, func(l, r ref.Val) ref.Val { return l.(traits.Adder).Add(r) },
		func(l, r float64) float64 { return l + r }, (*big.Int).Add},
	operators.Subtract: {"subtract", traits.SubtractorType, func(l, r ref.Val) ref.Val { return l.(traits.Subtractor).Subtract(r) },
		func(l, r float64) float64 { return l - r }, (*big.Int).Sub},
	operators.Multiply: {"multiply", traits.MultiplierType, func(l, r ref.Val) ref.Val { return l.(traits.Multiplier).Multiply(r) },
		func(l, r float64) float64 { return l * r }, (*big.Int).Mul},
	operators.Divide: {"divide", traits.DividerType, func(l, r ref.Val) ref.Val { return l.(traits.Divider).Divide(r) },
		func(l, r float64) float64 { return l / r }, (*big.Int).Quo},
	operators.Modulo: {"modulo", traits.ModderType, func(l, r ref.Val) ref.Val { return l.(traits.Modder).Modulo(r) },
		math.Mod, (*big.Int).Rem},
}

// mixed are the pairs of types of numbers that CEL itself has no arithmetic for.
var mixed = [][2]*cel.Type{{cel.IntType, cel.DoubleType}, {cel.DoubleType, cel.IntType}, {cel.UintType, cel.DoubleType},
	{cel.DoubleType, cel.UintType}, {cel.IntType, cel.UintType}, {cel.UintType, cel.IntType}}

// standard is CEL's library with arithmetic on all numbers.
func standard() []cel.EnvOption {
	subset := env.NewLibrarySubset()
	var options []cel.EnvOption
	for _, f := range stdlib.Functions() {
		if op, ours := operations[f.Name()]; ours {
			subset.AddExcludedFunctions(env.NewFunction(f.Name()))
			options = append(options, op.function(f))
		}
	}
	return append([]cel.EnvOption{cel.StdLib(cel.StdLibSubset(subset))}, options...)
}

// function declares CEL's overloads, and the pairs that CEL lacks.
func (op operation) function(f *decls.FunctionDecl) cel.EnvOption {
	var all []cel.FunctionOpt
	for _, o := range f.OverloadDecls() {
		all = append(all, cel.Overload(o.ID(), o.ArgTypes(), o.ResultType()))
	}
	pairs := mixed
	if op.name == "modulo" { // CEL has none for doubles
		pairs = append([][2]*cel.Type{{cel.DoubleType, cel.DoubleType}}, mixed...)
	}
	for _, p := range pairs {
		result := cel.DoubleType
		if p[0] != cel.DoubleType && p[1] != cel.DoubleType {
			result = cel.DynType // int or uint, whichever holds the result
		}
		all = append(all, cel.Overload(op.name+"_"+p[0].TypeName()+"_"+p[1].TypeName(), p[:], result))
	}
	return cel.Function(f.Name(), append(all, cel.SingletonBinaryBinding(op.compute))...)
}

// compute is the operation on two values of any types.
func (op operation) compute(l, r ref.Val) ref.Val {
	isDouble := l.Type() == types.DoubleType || r.Type() == types.DoubleType
	switch {
	case isDouble && op.name == "modulo" && isNumber(l) && isNumber(r):
	case l.Type() == r.Type(), !isNumber(l), !isNumber(r):
		if !l.Type().HasTrait(op.trait) {
			return types.MaybeNoSuchOverloadErr(l)
		}
		return op.alike(l, r)
	}
	left, leftWhole := wholeOf(l)
	right, rightWhole := wholeOf(r)
	switch {
	case isDouble && (!leftWhole || !rightWhole || op.name == "divide" || small(left) && small(right)):
		return op.inDoubles(l, r)
	case right.Sign() == 0 && (op.name == "divide" || op.name == "modulo"):
		return types.NewErr("division by zero")
	}
	return fits(op.whole(new(big.Int), left, right))
}

func (op operation) inDoubles(l, r ref.Val) ref.Val {
	left, right := l.ConvertToType(types.DoubleType).(types.Double), r.ConvertToType(types.DoubleType).(types.Double)
	if right == 0 && (op.name == "divide" || op.name == "modulo") {
		return types.NewErr("division by zero")
	}
	return types.Double(op.doubles(float64(left), float64(right)))
}

func isNumber(v ref.Val) bool {
	t := v.Type()
	return t == types.DoubleType || t == types.IntType || t == types.UintType
}

// wholeOf returns a whole number exactly.
func wholeOf(v ref.Val) (n *big.Int, whole bool) {
	switch v := v.(type) {
	case types.Int:
		return big.NewInt(int64(v)), true
	case types.Uint:
		return new(big.Int).SetUint64(uint64(v)), true
	case types.Double:
		if f := float64(v); f == math.Trunc(f) && math.Abs(f) < exactly {
			return big.NewInt(int64(f)), true
		}
	}
	return nil, false
}

// small reports whether a double holds the number and its neighbours.
func small(n *big.Int) bool { return n.IsInt64() && n.Int64() < exactly && n.Int64() > -exactly }

// fits returns a whole number in the type that holds it.
func fits(n *big.Int) ref.Val {
	switch {
	case n.IsInt64():
		return types.Int(n.Int64())
	case n.IsUint64():
		return types.Uint(n.Uint64())
	}
	return types.NewErr("integer overflow")
}

// decimals makes string() write a double as templates do: CEL would write the number
// 1234567 of a property as 1.234567e+06.
func decimals() cel.EnvOption {
	write := func(v ref.Val) ref.Val {
		f, ok := v.(types.Double)
		if !ok {
			return types.MaybeNoSuchOverloadErr(v)
		}
		if f == 0 {
			f = 0 // of negative zero
		}
		return types.String(strconv.FormatFloat(float64(f), 'f', -1, 64))
	}
	return cel.Function(overloads.TypeConvertString,
		cel.Overload(overloads.DoubleToString, []*cel.Type{cel.DoubleType}, cel.StringType, cel.UnaryBinding(write)))
}

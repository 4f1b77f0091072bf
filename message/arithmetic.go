package message

import (
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/osteele/liquid/values"
)

// The filters that compute do so as Liquid does, in decimals: the engine's would lose the decimals of
// a price that is divided by a whole number, and show the errors of doubles. Of two whole numbers,
// divided_by and modulo round down; round rounds away from zero. What is not finite in decimals has
// the digits of a double.
//
// https://shopify.github.io/liquid/filters/divided_by/
var arithmetic = map[string]any{
	"plus":       func(a, b any) (any, error) { return compute(numberOrZero(a), numberOrZero(b), (*big.Rat).Add) },
	"minus":      func(a, b any) (any, error) { return compute(numberOrZero(a), numberOrZero(b), (*big.Rat).Sub) },
	"times":      func(a, b any) (any, error) { return compute(numberOrZero(a), numberOrZero(b), (*big.Rat).Mul) },
	"divided_by": func(a, b any) (any, error) { return divide(a, b, quotient) },
	"modulo":     func(a, b any) (any, error) { return divide(a, b, remainder) },
	"sum":        sum,
	"abs":        func(a any) (any, error) { return change(a, (*big.Rat).Abs, false) },
	"ceil":       func(a any) (any, error) { return change(a, ceil, true) },
	"floor":      func(a any) (any, error) { return change(a, floor, true) },
	"round":      round,
}

const (
	errNoNumber  = refused("the value must be a number")
	errByZero    = refused("a number cannot be divided by zero")
	errTooGreat  = refused("the result is too great")
	mostDigits   = 400 // of a text that is taken as a number: more than a double has
	mostDecimals = 350 // to which a number is rounded
)

// exact is a number of a template.
type exact struct {
	*big.Rat
	whole bool // an integer, whose results are integers
}

// numberOf is a number, a text of one, or nil, which is 0.
func numberOf(v any) (exact, error) {
	switch v := v.(type) {
	case nil:
		return exact{new(big.Rat), true}, nil
	case int:
		return exact{new(big.Rat).SetInt64(int64(v)), true}, nil
	case int64:
		return exact{new(big.Rat).SetInt64(v), true}, nil
	case float64:
		if math.IsInf(v, 0) || math.IsNaN(v) {
			return exact{}, errNoNumber
		}
		r, _ := new(big.Rat).SetString(decimal(v))
		return exact{r, false}, nil
	case decimalNumber:
		return numberOf(float64(v))
	case string:
		return ofText(strings.TrimSpace(v))
	}
	return exact{}, errNoNumber
}

func ofText(s string) (exact, error) {
	if n, err := strconv.Atoi(s); err == nil {
		return numberOf(n)
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || len(s) > mostDigits || math.IsInf(f, 0) || math.IsNaN(f) || strings.ContainsAny(s, "xXpP_") {
		return exact{}, errNoNumber
	}
	if f == 0 { // also 1e-999999, of which a Rat would have a million digits
		return exact{new(big.Rat), false}, nil
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return exact{}, errNoNumber
	}
	return exact{r, r.IsInt() && !strings.ContainsAny(s, ".eE")}, nil
}

// numberOrZero is a number; of what is none, 0.
func numberOrZero(v any) exact {
	n, err := numberOf(v)
	if err != nil {
		return exact{new(big.Rat), true}
	}
	return n
}

// result is a number for the engine.
func (n exact) result() (any, error) {
	if n.whole && n.Num().IsInt64() {
		return int(n.Num().Int64()), nil
	}
	f, _ := n.Float64()
	if math.IsInf(f, 0) {
		return nil, errTooGreat
	}
	return f, nil
}

func compute(a, b exact, f func(z, x, y *big.Rat) *big.Rat) (any, error) {
	return exact{f(new(big.Rat), a.Rat, b.Rat), a.whole && b.whole}.result()
}

func divide(a, b any, f func(a, b exact) exact) (any, error) {
	x, err := numberOf(a)
	if err != nil {
		return nil, err
	}
	y, err := numberOf(b)
	switch {
	case err != nil:
		return nil, err
	case y.Sign() == 0:
		return nil, errByZero
	}
	return f(x, y).result()
}

func quotient(a, b exact) exact {
	q := exact{new(big.Rat).Quo(a.Rat, b.Rat), a.whole && b.whole}
	if q.whole {
		q.Rat = floor(new(big.Rat), q.Rat)
	}
	return q
}

// remainder has the sign of the divisor.
func remainder(a, b exact) exact {
	q := floor(new(big.Rat), new(big.Rat).Quo(a.Rat, b.Rat))
	return exact{q.Sub(a.Rat, q.Mul(q, b.Rat)), a.whole && b.whole}
}

func change(a any, f func(z, x *big.Rat) *big.Rat, makesWhole bool) (any, error) {
	n, err := numberOf(a)
	if err != nil {
		return nil, err
	}
	return exact{f(new(big.Rat), n.Rat), n.whole || makesWhole}.result()
}

// floor sets z to the greatest integer that is not above x.
func floor(z, x *big.Rat) *big.Rat {
	return z.SetInt(new(big.Int).Div(x.Num(), x.Denom())) // Euclidean: the denominator is positive
}

func ceil(z, x *big.Rat) *big.Rat { return z.Neg(floor(z, z.Neg(x))) }

func round(a any, places func(int) int) (any, error) {
	n, err := numberOf(a)
	digits := places(0)
	if err != nil || digits > mostDecimals {
		return a, err
	}
	scale := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(min(max(digits, -digits), mostDecimals))), nil))
	if digits < 0 {
		scale.Inv(scale)
	}
	half := big.NewRat(1, 2)
	r := new(big.Rat).Mul(new(big.Rat).Abs(n.Rat), scale)
	r = floor(r, r.Add(r, half))
	if r.Quo(r, scale); n.Sign() < 0 {
		r.Neg(r)
	}
	return exact{r, n.whole || digits < 1}.result()
}

// sum adds the elements of a list, or a member of each.
func sum(list []any, member func(string) string) (any, error) {
	total := exact{new(big.Rat), true}
	name := member("")
	for _, item := range list {
		if name != "" {
			item = values.ValueOf(item).PropertyValue(values.ValueOf(name)).Interface()
		}
		n := numberOrZero(item)
		total.Add(total.Rat, n.Rat)
		total.whole = total.whole && n.whole
	}
	return total.result()
}

package message

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"strings"
)

const errNoOrder = refused("the elements of the list have no order: they must be numbers, or texts")

// sortBy is the filter sort, as Liquid has it: null comes last, equal elements stay in their order, and
// what cannot be compared is an error. Texts of numbers beside numbers are numbers, since a long decimal
// of a column is a text. The engine's filter does not sort a list with a null.
//
// https://shopify.github.io/liquid/filters/sort/
func sortBy(list []any, key any) ([]any, error) {
	keys, err := sortKeys(list, key, func(v any) any { return v })
	if err != nil {
		return nil, err
	}
	return inOrder(list, keys), nil
}

// sortNaturally is the filter sort_natural: texts in any case, and the texts of other values.
func sortNaturally(list []any, key any) ([]any, error) {
	keys, err := sortKeys(list, key, func(v any) any { return strings.ToLower(asText(v)) })
	if err != nil {
		return nil, err
	}
	return inOrder(list, keys), nil
}

// sortKey is what an element is sorted by.
type sortKey struct {
	missing bool
	number  *big.Rat // nil: a text
	text    string
}

// sortKeys are the keys of elements, or of their members with a name.
func sortKeys(list []any, name any, form func(any) any) ([]sortKey, error) {
	found, numbers := make([]any, len(list)), false
	for i, v := range list {
		if name != nil {
			v = memberOf(v, fmt.Sprint(name))
		}
		if v != nil {
			found[i] = form(v)
		}
		_, computed := found[i].(decimalNumber)
		numbers = numbers || computed || isNumeric(found[i])
	}
	keys := make([]sortKey, len(list))
	for i, v := range found {
		switch text, isText := v.(string); {
		case v == nil:
			keys[i].missing = true
		case numbers:
			n, err := numberOf(v)
			if err != nil {
				return nil, errNoOrder
			}
			keys[i].number = n.Rat
		case isText:
			keys[i].text = text
		default:
			return nil, errNoOrder
		}
	}
	return keys, nil
}

func memberOf(v any, name string) any {
	switch o := v.(type) {
	case object:
		return o[name]
	case map[string]any:
		return o[name]
	}
	return nil
}

func inOrder(list []any, keys []sortKey) []any {
	places := make([]int, len(list))
	for i := range places {
		places[i] = i
	}
	slices.SortStableFunc(places, func(i, j int) int {
		a, b := keys[i], keys[j]
		switch {
		case a.missing || b.missing:
			return cmp.Compare(btoi(a.missing), btoi(b.missing))
		case a.number != nil:
			return a.number.Cmp(b.number)
		}
		return strings.Compare(a.text, b.text)
	})
	sorted := make([]any, len(list))
	for to, from := range places {
		sorted[to] = list[from]
	}
	return sorted
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

package graph

import (
	"strings"
	"testing"
	"time"
)

// The types of a condition are bounded before they are checked: a small condition may have
// a type that is too large to be compared.
func TestDeepTypesAreRefused(t *testing.T) {
	t.Parallel()
	r := strings.Repeat
	for _, expression := range []string{
		"[1]" + r(".map(x, {x: x})", 20) + ".size() > 0",
		"[1]" + r(".map(x, [x, [x]])", 20) + ".size() > 0",
		"[[1]]" + r(".map(x, [x, x])", 60) + ".size() > 0",
		"[{'a': 1}]" + r(".map(x, {'a': x, 'b': x})", 40) + ".size() > 0",
		r("[1, 2].map(x, ", 90) + "x" + r(")", 90) + ".size() > 0",
		"optional.of(1)" + r(".optMap(x, {x: x})", 20) + ".hasValue()",
		r("optional.of(", 90) + "1" + r(")", 90) + ".hasValue()",
		r("[", 90) + "1" + r("]", 90) + ".size() > 0",
		r("{1: ", 90) + "1" + r("}", 90) + ".size() > 0",
		r("type(", 90) + "1" + r(")", 90) + " == int",
	} {
		begun := time.Now()
		_, _, faults := newCompiler(nil).compile(enrolling, "", expression)
		if len(faults) != 1 || faults[0].Code != "expression_cost" || faults[0].Line != 1 {
			t.Errorf("%.60s: %.200v", expression, faults)
		}
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("%.60s took %s", expression, took)
		}
	}
}

// What is not refused is checked in little time, also when it fills the whole condition.
func TestAllowedTypesAreCheckedFast(t *testing.T) {
	t.Parallel()
	r := strings.Repeat
	fill := func(part, last string) string { return r(part, (MaxExpression-len(last))/len(part)) + last }
	eight := r("[", 8) + "1" + r("]", 8)
	for _, expression := range []string{
		"trigger.properties.a.map(x, {'a': [x]}).exists(x, x.a == [1]) || " + eight + " == trigger.properties.deep",
		"optional.of(1).optMap(x, x + 1).orValue(2) == 2 && type(1) == int",
		fill(r("[", 11)+"1"+r("]", 11)+".size() > 0 || ", "true"),
		fill(r("{1: ", 11)+"1"+r("}", 11)+".size() > 0 || ", "true"),
		fill("[1].map(x, [x]).map(x, {1: [x]}).map(x, [[x]]).map(x, [x]).exists(x, true) || ", "true"),
		fill(r("optional.of(", 11)+"1"+r(")", 11)+".hasValue() || ", "true"),
		fill("['a'].map(x, x + x).exists(x, x == 'a') || ", "true"),
	} {
		fastest := time.Hour
		for range 3 { // the machine may pause in one of them
			begun := time.Now()
			if _, _, faults := newCompiler(nil).compile(enrolling, "", expression); len(faults) > 0 {
				t.Fatalf("%.60s: %.200v", expression, faults)
			}
			fastest = min(fastest, time.Since(begun))
		}
		t.Logf("%.60s %s", expression, fastest)
		if fastest > 3*time.Second {
			t.Errorf("%.60s took %s", expression, fastest)
		}
	}
}

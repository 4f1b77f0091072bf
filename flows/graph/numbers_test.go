package graph

import (
	"fmt"
	"regexp"
	"testing"
)

var variable = regexp.MustCompile(`\b([ab])\b`)

// Two ids beyond 2^53 are one as doubles; as conditions see them they are two.
func TestLargeNumbersAreReadExactly(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		a, b, expression string
		want             bool
	}{
		{"9007199254740993", "9007199254740992", `a == b`, false},
		{"9007199254740993", "9007199254740992", `a > b && b < a && a != b`, true},
		{"9007199254740993", "9007199254740993", `a == b && a in [b]`, true},
		{"-9007199254740993", "-9007199254740992", `a == b`, false},
		{"9007199254740993", "9007199254740992", `a >= 9007199254740993`, true},
		{"9007199254740993", "9007199254740992", `b >= 9007199254740993`, false},
		{"9007199254740992", "9007199254740991", `a == 9007199254740992 && b == 9007199254740991`, true},
		{"9223372036854775808", "9223372036854775807", `a == b`, false},
		{"18446744073709551615", "18446744073709551614", `a == b`, false},
		{"18446744073709551615", "9223372036854775807", `a > b && a > 10 && a > 10.5 && a == 18446744073709551615u`, true},
		{"9007199254740993", "9007199254740992", `[b].exists(n, n == a)`, false},
		{"9007199254740993", "10", `a > b && b < a && a > 1.5`, true},
		// As they were, so that one can go on to compute with them.
		{"10", "10.5", `a + b == 20.5 && a * 2.0 == 20.0 && a < b`, true},
		{"9007199254740991", "-9007199254740991", `a + b == 0.0 && a / 2.0 > 1.0`, true},
		{"1e17", "100000000000000000", `a == b && a * 2.0 > 1.0`, true},
		{"0.12345678901234567", "1234567890123456.7", `a + b > 0.0`, true},
	} {
		expression := variable.ReplaceAllString(one.expression, "trigger.properties.$1")
		vars := Vars{Trigger: object(t, fmt.Sprintf(`{"properties": {"a": %s, "b": %s}}`, one.a, one.b)), Now: noon}
		if got, err := mustCompile(t, nil, expression).Eval(vars); got != one.want || err != nil {
			t.Errorf("%s with %s and %s: %v, %v; want %v", one.expression, one.a, one.b, got, err, one.want)
		}
	}
}

func TestNumbersBeyond64BitsAreNotRead(t *testing.T) {
	t.Parallel()
	for _, n := range []string{"18446744073709551616", "-9223372036854775809", "123456789012345678901234567890"} {
		vars := Vars{Trigger: object(t, fmt.Sprintf(`{"properties": {"n": %s, "m": 1}}`, n)), Now: noon}
		_, err := mustCompile(t, nil, `trigger.properties.n == trigger.properties.n`).Eval(vars)
		if want := "a whole number has more than 64 bits: send such an id as a text"; err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", n, err, want)
		}
		if yes, err := mustCompile(t, nil, `trigger.properties.m == 1 && has(trigger.properties.n)`).Eval(vars); !yes || err != nil {
			t.Errorf("beside %s: %v, %v", n, yes, err)
		}
	}
}

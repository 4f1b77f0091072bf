package graph

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

var variable = regexp.MustCompile(`\b([ab])\b`)

// Two ids beyond 2^53 are equal as doubles; conditions distinguish them.
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
		// Unchanged, so that conditions can compute with them.
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

// The spelling of a number decides nothing: numbers in properties, which are doubles or
// large whole numbers, work together with those of the expression.
func TestNumbersOfDifferentTypesWorkTogether(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		a, b, expression string
		want             bool
	}{
		{"2", "0", `a * 2 > 3`, true},
		{"1.5", "0", `2 * a == 3`, true},
		{"1.5", "0", `a * 2 == 3.0 && a + 1 == 2.5 && 1 - a == -0.5 && a / 3 == 0.5 && 3 / a == 2`, true},
		{"5", "0", `a / 2 == 2.5`, true},
		{"7", "0", `a % 2 == 1 && 15 % a == 1`, true},
		{"7.5", "0", `a % 2 == 1.5`, true},
		{"10", "3", `a + b == 13 && a - b == 7 && a * b == 30 && a % b == 1`, true},
		{"10", "3", `a * 2u == 20 && 2u * a == 20 && (a + b) * 2 - 1 == 25`, true},
		{"10", "3", `size([a, b]) * a == 20 && -a + 1 == -9`, true},
		// Exact beyond 2^53, as in comparisons.
		{"9007199254740993", "1",
			`a + 1 == 9007199254740994 && a - 1 == 9007199254740992 && a + b == 9007199254740994 && b + a == 9007199254740994`, true},
		{"9007199254740993", "2", `a * b == 18014398509481986 && a % b == 1`, true},
		{"9007199254740993", "0.5", `a + b >= 9007199254740992 && a * b > 1`, true},
		{"18446744073709551615", "1", `a - 1 == 18446744073709551614u && a - b == 18446744073709551614u &&
			a / 5 == 3689348814741910323 && 0 - (a - 18446744073709551614u) == -1`, true},
		{"18446744073709551615", "9223372036854775807", `a - b == 9223372036854775808u && b - a < 0`, true},
	} {
		expression := variable.ReplaceAllString(one.expression, "trigger.properties.$1")
		vars := Vars{Trigger: object(t, fmt.Sprintf(`{"properties": {"a": %s, "b": %s}}`, one.a, one.b)), Now: noon}
		if got, err := mustCompile(t, nil, expression).Eval(vars); got != one.want || err != nil {
			t.Errorf("%s with %s and %s: %v, %v; want %v", one.expression, one.a, one.b, got, err, one.want)
		}
	}
	columns := []Column{{"age", "integer"}, {"balance", "number"}}
	for _, expression := range []string{
		`profile.age * 1.5 == 60.0`, `profile.balance + 1 == 3.5`, `profile.age + profile.balance == 42.5`,
		`profile.age / 3 == 13 && profile.age / 3.0 > 13`,
		`profile.age * trigger.properties.n == 80 && trigger.properties.n * profile.age == 80`,
		`profile.balance * 2 == 5 && 5 == profile.balance * 2 && profile.balance != 2 && !(profile.balance == 2)`,
		`40.0 == profile.age && profile.age - 37.5 == profile.balance && profile.age != profile.balance && !(profile.balance == profile.age)`,
		`[2, 40].exists(n, n == profile.age) && !(5 == profile.balance) && 40.0 == profile.?age.orValue(1)`,
		`profile.age == 40.0 && profile.age != 40.5 && profile.age == profile.balance + 37.5 && profile.age == 40u`,
		`profile.balance * 2 in [4, 5] && !(profile.balance in [2, 3]) && profile.age in [40.0] && 1u in [1]`,
		`(profile.balance * 2 == 5) == (profile.age == 40.0) && (profile.age == 40.0 ? 'yes' : 'no') == 'yes'`,
		`[1, 2].exists(n, n * 1.25 == profile.balance && n == profile.balance - 0.5 && profile.balance == n + 0.5 && n in [2.0])`,
	} {
		vars := Vars{Profile: object(t, `{"age": 40, "balance": 2.5}`), Trigger: object(t, `{"properties": {"n": 2}}`), Now: noon}
		if got, err := mustCompile(t, columns, expression).Eval(vars); !got || err != nil {
			t.Errorf("%s: %v, %v", expression, got, err)
		}
	}
}

// The checker reports 100 faults at a time, and there may be more comparisons.
func TestManyNumbersOfDifferentTypes(t *testing.T) {
	t.Parallel()
	expression := strings.Repeat(`profile.balance==5||`, 101) + `profile.balance==2.5`
	got, err := mustCompile(t, []Column{{"balance", "number"}}, expression).Eval(Vars{Profile: object(t, `{"balance": 2.5}`), Now: noon})
	if !got || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

// A number and a list are compared with in only.
func TestNumbersAndLists(t *testing.T) {
	t.Parallel()
	for _, expression := range []string{`profile.balance == [1, 2]`, `profile.balance != [1]`, `profile.balance in 5`} {
		_, _, faults := newCompiler([]Column{{"balance", "number"}}).compile(everywhere, "/if", expression)
		if len(faults) != 1 || !strings.Contains(faults[0].Detail, "number (double)") {
			t.Errorf("%s: %v", expression, faults)
		}
	}
}

func TestArithmeticThatCannotBeDone(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]string{
		`trigger.properties.a / 0 > 1`:                         "a number is divided by zero",
		`trigger.properties.a % 0 > 1`:                         "a number is divided by zero",
		`trigger.properties.big * 2 > 1`:                       "a number is too large",
		`trigger.properties.big + 1 > 1`:                       "a number is too large",
		`trigger.properties.text * 2 > 1`:                      "a value is null, or of a type that the expression cannot take there",
		`trigger.properties.a + trigger.properties.text > 'x'`: "a value is null, or of a type that the expression cannot take there",
		`trigger.properties.none * 2 > 1`:                      "a value is null, or of a type that the expression cannot take there",
	} {
		vars := Vars{Trigger: object(t, `{"properties": {"a": 1, "big": 18446744073709551615, "text": "x", "none": null}}`), Now: noon}
		if got, err := mustCompile(t, nil, expression).Eval(vars); got || err == nil || err.Error() != want {
			t.Errorf("%s: %v, %v; want %s", expression, got, err, want)
		}
	}
}

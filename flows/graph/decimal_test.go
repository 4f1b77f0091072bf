package graph

import (
	"encoding/json"
	"testing"
)

// string() writes a number as templates do, of a property, a column and a literal.
func TestConditionsWriteNumbersAsDecimals(t *testing.T) {
	t.Parallel()
	for number, want := range map[string]string{
		"1234567": "1234567", "1234567.5": "1234567.5", "10000000.0": "10000000", "1e21": "1000000000000000000000",
		"0.30000000000000004": "0.30000000000000004", "-5": "-5", "1e-7": "0.0000001", "-0.0": "0", "9007199254740993": "9007199254740993",
	} {
		vars := Vars{Trigger: map[string]any{"properties": map[string]any{"n": json.Number(number), "text": want}},
			Profile: map[string]any{"score": json.Number(number)}, Now: noon}
		for _, expression := range []string{
			`string(trigger.properties.n) == trigger.properties.text`, `string(profile.score) == trigger.properties.text || profile.score > 9e15`,
			`trigger.properties.text.startsWith(string(trigger.properties.n + 0.0)) || trigger.properties.n > 9e15`,
			`string(1234567.5) == "1234567.5" && string(7) == "7" && string(true) == "true" && string(now).startsWith("20")`,
		} {
			if holds, err := mustCompile(t, shopColumns, expression).Eval(vars); !holds || err != nil {
				t.Errorf("%s of %s: %v, %v", expression, number, holds, err)
			}
		}
	}
}

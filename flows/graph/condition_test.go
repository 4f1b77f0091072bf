package graph

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var shopColumns = []Column{
	{"city", "text"}, {"age", "integer"}, {"score", "number"}, {"vip", "boolean"}, {"seen_at", "timestamp"},
	{"born", "date"}, {"address", "json"}, {"kind", "other"}, {"first name", "text"}, {"zone", "text"},
}

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// object decodes as callers do: numbers keep their spelling.
func object(t testing.TB, text string) map[string]any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var v map[string]any
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func shopVars(t testing.TB) Vars {
	return Vars{
		Profile: object(t, `{"city": "Kyiv", "age": 41, "score": 2.5, "vip": true, "seen_at": "2026-11-20T10:00:00.5+02:00", "born": "1985-03-04",
			"address": {"zip": "04070", "floors": [1, 2, 3]}, "kind": "(1,2)", "first name": "Olha", "zone": null}`),
		Trigger: object(t, `{"name": "signed_up", "source_id": "e1", "at": "2026-11-21T09:00:00Z", "properties":
			{"total": 10, "plan": "pro", "items": [{"sku": "a", "n": 2}, {"sku": "b", "n": 0.5}], "off": false, "none": null}}`),
		Event: object(t, `{"name": "bought", "source_id": "e2", "at": "2026-11-21T11:00:00Z", "properties": {"order": "o1"}}`),
		Events: map[string]any{
			"opened": object(t,
				`{"times": 2, "first_at": "2026-11-21T09:30:00Z", "last_at": "2026-11-21T10:30:00Z", "last": {"total": 3}}`),
			"cart left": map[string]any{"times": 1, "first_at": noon, "last_at": noon, "last": map[string]any{"total": 60.5}},
		},
		Now: noon,
	}
}

// everywhere can read all variables.
var everywhere = place{"a test", []string{"profile", "trigger", "events", "event", "now"}}

func mustCompile(t testing.TB, columns []Column, expression string) *Condition {
	t.Helper()
	c, _, faults := newCompiler(columns).compile(everywhere, "/if", expression)
	if len(faults) > 0 {
		t.Fatalf("%s: %+v", expression, faults)
	}
	return c
}

func TestConditionsAnswer(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]bool{
		`profile.city == "Kyiv"`:                                             true,
		`profile.city != "Kyiv"`:                                             false,
		`profile.city == null`:                                               false,
		`profile.zone == null`:                                               true,
		`profile.zone == "UTC"`:                                              false,
		`has(profile.city) && !has(profile.zone)`:                            true,
		`profile.?zone.orValue("UTC") == "UTC"`:                              true,
		`profile.?city.orValue("") == "Kyiv"`:                                true,
		`profile["first name"] == "Olha"`:                                    true,
		"profile.`first name` == 'Olha'":                                     true,
		`profile[?"zone"].orValue("x") == "x"`:                               true,
		`profile[trigger.properties.plan == "pro" ? "city" : "x"] == "Kyiv"`: true,
		`profile.age > 40 && profile.age + 1 == 42`:                          true,
		`profile.age > 40.5`:                                                 true,
		`profile.score * 2.0 >= 5`:                                           true,
		`profile.vip`:                                                        true,
		`profile.vip == true`:                                                true,
		`profile.seen_at < now && now - profile.seen_at > duration("24h")`:   true,
		`profile.seen_at != null`:                                            true,
		`profile.born.getFullYear() == 1985 && profile.born.getHours() == 0`: true,
		`profile.address.zip == "04070"`:                                     true,
		`has(profile.address.street)`:                                        false,
		`profile.address.floors.exists(f, f > 2)`:                            true,
		`profile.city in ["Kyiv", "Lviv"]`:                                   true,
		`profile.kind == "(1,2)"`:                                            true,
		`trigger.name == "signed_up" && trigger.source_id == "e1"`:           true,
		`trigger.at < now`:                                                   true,
		`trigger.properties.total >= 10`:                                     true,
		`trigger.properties.total * 2.0 == 20.0`:                             true,
		`trigger.properties.items.exists(i, i.sku == "b" && i.n < 1)`:        true,
		`trigger.properties.items.all(i, i.n > 1)`:                           false,
		`trigger.properties.items.filter(i, i.sku == "a").size() == 1`:       true,
		`trigger.properties.?coupon.orValue("") == ""`:                       true,
		`has(trigger.properties.coupon)`:                                     false,
		`!has(trigger.properties.no) || trigger.properties.no != "x"`:        true,
		`trigger.properties.?no.orValue("free") != "x"`:                      true,
		`trigger.properties.none == null`:                                    true,
		`!trigger.properties.off`:                                            true,
		`trigger.properties.off`:                                             false,
		`events.bought.times == 0`:                                           true,
		`has(events.bought)`:                                                 false,
		`has(events.opened)`:                                                 true,
		`events.bought.last_at == null`:                                      true,
		`events.opened.times >= 2 && events.opened.last.total == 3`:          true,
		`events.opened.last_at > now - duration("24h")`:                      true,
		`events["cart left"].last.total > 50.0`:                              true,
		`events["cart left"].last_at == now`:                                 true,
		`has(events.bought.last.total)`:                                      false,
		`event.name == "bought" && event.properties.order == "o1"`:           true,
		`event.at > trigger.at`:                                              true,
		`[1, 2].exists(profile, profile == 2)`:                               true,
		`"x".matches("^x$") || 1 / 0 == 1`:                                   true,
	} {
		got, err := mustCompile(t, shopColumns, expression).Eval(shopVars(t))
		if err != nil || got != want {
			t.Errorf("%s: got %v, %v; want %v", expression, got, err, want)
		}
	}
}

func TestConditionsOnUnknownColumns(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]bool{
		`profile.city == "Kyiv"`:                true,
		`profile.zone == null`:                  true,
		`has(profile.city) && !has(profile.no)`: true,
		`profile.?zone.orValue("UTC") == "UTC"`: true,
		`profile.age > 40`:                      true,
		`profile.vip`:                           true,
		`timestamp(profile.seen_at) < now`:      true,
		`profile["first name"] == "Olha"`:       true,
	} {
		got, err := mustCompile(t, nil, expression).Eval(shopVars(t))
		if err != nil || got != want {
			t.Errorf("%s: got %v, %v; want %v", expression, got, err, want)
		}
	}
}

func TestConditionsThatAreUndecidable(t *testing.T) {
	t.Parallel()
	vars := shopVars(t)
	vars.Profile["age"], vars.Profile["born"], vars.Profile["seen_at"] = "secret", "secret", "secret"
	vars.Trigger["properties"].(map[string]any)["secret"] = "secret"
	for expression, want := range map[string]string{
		`profile.zone.startsWith("E")`:                               "a value is null, or of a type that the expression cannot take there",
		`profile.age > 1`:                                            "age holds no whole number of 64 bits",
		`profile.born < now`:                                         "born holds no date YYYY-MM-DD",
		`profile.seen_at < now`:                                      "seen_at holds no timestamp in RFC 3339",
		`trigger.properties.coupon == "x"`:                           "there is no coupon",
		`trigger.properties[trigger.properties.secret + "x"] == "x"`: "a name is not there; ask with has() or .? first",
		`int(trigger.properties.secret) == 1`:                        "a value cannot be converted",
		`timestamp(trigger.properties.secret) < now`:                 "a value cannot be converted",
		`duration(trigger.properties.secret) < duration("1s")`:       "a value cannot be converted",
		`trigger.properties.secret`:                                  "the answer is neither true nor false",
		`trigger.properties.none`:                                    "the answer is neither true nor false",
		`1 / (trigger.properties.items.size() - 2) == 1`:             "a number is divided by zero",
		`trigger.properties.items[7].n == 1`:                         "a list has no such item",
		`trigger.at.getHours(trigger.properties.secret) == 1`:        "a value is no time zone",
		`9223372036854775807 + int(trigger.properties.total) == 1`:   "a number is too large",
		`trigger.properties.items[trigger.properties.secret].n == 1`: "it cannot be evaluated with these values",
		`trigger.properties.?coupon.value() == "x"`:                  "an optional value is not there; use orValue",
	} {
		c, _, faults := newCompiler(shopColumns).compile(everywhere, "/if", expression)
		if len(faults) > 0 {
			t.Errorf("%s: %v", expression, faults)
			continue
		}
		got, err := c.Eval(vars)
		if got || err == nil || err.Error() != want {
			t.Errorf("%s: got %v, %v; want %s", expression, got, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error quotes data: %v", expression, err)
		}
	}
}

func TestConditionsThatDoNotTypeCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		p          place
		expression string
		code       string
		line, col  int
		detail     string
	}{
		{branching, `profile.city ==`, "expression_syntax", 1, 16, ""},
		{branching, "true &&\n  profile.city > 3", "expression_type", 2, 16, `">" cannot take a text`},
		{branching, `profile.town == "x"`, "unknown_column", 1, 8, "no column town"},
		{branching, `profile["town"] == "x"`, "unknown_column", 1, 8, "no column town"},
		{branching, `has(profile.town)`, "unknown_column", 1, 4, "no column town"},
		{branching, `profile.?town.orValue(1) == 1`, "unknown_column", 1, 8, "no column town"},
		{branching, `profile.city`, "expression_type", 0, 0, `not a text`},
		{branching, `1 + 1`, "expression_type", 0, 0, `not a whole number`},
		{branching, `event.name == "x"`, "expression_type", 1, 1, "event cannot be read in a branch, only profile, trigger, events, now"},
		{onEvent, `profile.city == "x"`, "expression_type", 1, 1, "profile cannot be read in a condition on an event"},
		{enrolling, `events.bought.times == 0`, "expression_type", 1, 1, "events cannot be read"},
		{branching, `trigger.total == 1`, "expression_type", 1, 8, `there is no field total`},
		{branching, `events.bought.count == 1`, "expression_type", 1, 14, `there is no field count`},
		{branching, `events[trigger.name].times == 1`, "expression_type", 1, 1, "name the event"},
		{branching, `customer.city == "x"`, "expression_type", 1, 1, `there is no customer`},
		{branching, `[1].all(a, [1].all(b, [1].all(c, true)))`, "expression_cost", 1, 0, "2 deep"},
		{branching, `profile.city.matches(trigger.properties.pattern)`, "expression_cost", 1, 0, "written in the expression"},
		{branching, `profile.city.matches("a" + "b")`, "expression_cost", 1, 0, "written in the expression"},
		{branching, `matches(trigger.name, trigger.source_id)`, "expression_cost", 1, 0, "written in the expression"},
		{branching, `profile.city.matches("(a?){1000}")`, "expression_cost", 1, 0, "1000 are allowed"},
		{branching, `profile.city.matches("` + strings.Repeat("a{1000}", 500) + `")`, "expression_cost", 1, 0, "has some 1"},
		{branching, `profile.city.matches("((a{10}){10}){10,}bcdef(gh){999}")`, "expression_cost", 1, 0, "has some "},
		{branching, `trigger.properties.when > now`, "expression_type", 1, 0, "a property is never a timestamp: write timestamp(...)"},
		{onEvent, `now - event.properties.when > duration("1h")`, "expression_type", 1, 0, "never a timestamp"},
		{onEvent, `event.properties.a[0].b == trigger.at`, "expression_type", 1, 0, "never a timestamp"},
		{branching, `now - trigger.at < events.bought.last["for"]`, "expression_type", 1, 0,
			"a property is never a duration: write duration(...)"},
		{branching, `google.protobuf.StringValue{value: "x"} == "x"`, "expression_type", 1, 0, "no objects"},
		{branching, `profile_row{city: "x"} == profile`, "expression_type", 1, 0, "no objects"},
		{branching, strings.Repeat("(", 3000) + "true" + strings.Repeat(")", 3000), "too_long", 0, 0, ""},
		{branching, strings.Repeat("(", 1500) + "true" + strings.Repeat(")", 1500), "expression_syntax", 0, 0, "nested too deep"},
	} {
		_, _, faults := newCompiler(shopColumns).compile(c.p, "/if", c.expression)
		if len(faults) == 0 {
			t.Errorf("%.80s: no fault", c.expression)
			continue
		}
		f := faults[0]
		if f.Pointer != "/if" || f.Code != c.code || !strings.Contains(f.Detail, c.detail) ||
			c.line > 0 && f.Line != c.line || c.col > 0 && f.Column != c.col {
			t.Errorf("%.80s: got %+v, want %+v", c.expression, f, c)
		}
	}
}

func TestUsesOfConditions(t *testing.T) {
	t.Parallel()
	c, read, faults := newCompiler(shopColumns).compile(branching, "", `
		profile.city == "x" && profile["age"] > 1 && (has(profile.vip) || profile.?zone.hasValue()) &&
		events.bought.times == 0 && events["cart left"].times == 0 && trigger.properties.items.exists(profile, profile.sku == profile.address)`)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	want := Uses{Profile: true, Trigger: true, Events: []string{"bought", "cart left"}}
	if d := cmp.Diff(want, c.Uses()); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"age", "city", "vip", "zone"}, sorted(read.columns)); d != "" || read.whole {
		t.Error(d, read.whole)
	}
	_, read, _ = newCompiler(shopColumns).compile(branching, "", `profile[trigger.name] == "x"`)
	if !read.whole {
		t.Error("a computed name reads all columns")
	}
}

func TestConditionsAreStopped(t *testing.T) {
	t.Parallel()
	items := make([]any, 3000)
	for i := range items {
		items[i] = float64(i)
	}
	vars := Vars{Trigger: map[string]any{"properties": map[string]any{"items": items}}, Now: noon}
	c := mustCompile(t, nil, `trigger.properties.items.all(a, trigger.properties.items.all(b, a + b >= 0.0))`)
	began := time.Now()
	_, err := c.Eval(vars)
	if err == nil || err.Error() != "it takes too long to evaluate" {
		t.Errorf("got %v", err)
	}
	t.Logf("stopped after %s", time.Since(began))
	c = mustCompile(t, nil, `trigger.properties.items.exists(a, a == 1999.0)`)
	if yes, err := c.Eval(vars); !yes || err != nil {
		t.Errorf("2,000 items cannot be checked: %v, %v", yes, err)
	}
}

func BenchmarkEval(b *testing.B) {
	c := mustCompile(b, shopColumns, `profile.city == "Kyiv" && trigger.properties.total >= 10 && events.bought.times == 0`)
	vars := shopVars(b)
	b.ReportAllocs()
	for b.Loop() {
		if yes, err := c.Eval(vars); !yes || err != nil {
			b.Fatal(err)
		}
	}
}

package graph

import (
	"fmt"
	"strings"
	"testing"
)

func TestFaultsOfExpressionsAreSentences(t *testing.T) {
	t.Parallel()
	const ofDurations = "it is no duration: the units are h, m and s, as in duration('48h') or duration('1h30m')"
	for expression, want := range map[string]string{
		`profile.city ==`:    `1:16 it ends too early`,
		`(profile.vip`:       `1:13 ')' is missing at the end`,
		`profile.vip ? true`: `1:19 it ends too early: ':' is missing`,
		`profile.vip)`:       `1:12 ")" is not allowed here`,
		`profile.city = "x"`: `1:14 "=" has no meaning here: write == to compare`,
		"profile.vip &&\n  trigger.source_id = 'x'":        `2:21 "=" has no meaning here: write == to compare`,
		`profile.city === "x"`:                             `1:16 "=" has no meaning here`,
		`profile.vip and profile.vip`:                      `1:13 "and" has no meaning here: write && for and`,
		`profile.vip OR profile.vip`:                       `1:13 "OR" has no meaning here: write || for or`,
		`not profile.vip`:                                  `1:5 "not" has no meaning here: write ! for not`,
		`not(profile.vip)`:                                 `1:4 "not" has no meaning here: write ! for not`,
		`profile.vip & profile.vip`:                        `1:13 "&" has no meaning here: write it twice`,
		`profile.city == 'x`:                               `1:17 the text that begins here is not closed`,
		`now - trigger.at > duration('2d')`:                `1:29 ` + ofDurations + `; write duration('48h')`,
		`false && (now - trigger.at > duration("2 days"))`: `1:39 ` + ofDurations + `; write duration('48h')`,
		`now > timestamp('2026-13-01')`:                    `1:17 it is no timestamp as in RFC 3339: timestamp('2026-01-31T09:00:00Z')`,
		`profile.city.matches('(')`:                        "1:22 it is no regular expression: missing closing ): `(`",
		`profile.age > "5"`: `1:13 ">" cannot take a whole number (int) and a text; convert one: int(text), double(text) or ` +
			`string(number)`,
		`profile.seen_at > "2026-01-01"`: `1:17 ">" cannot take a timestamp and a text; write the text as ` +
			`timestamp('2026-01-31T09:00:00Z')`,
		`now - trigger.at > 5`: `1:18 ">" cannot take a duration and a whole number (int); write a span as duration('48h'), with the units h, ` +
			`m and s`,
		`now > timestamp(5.0)`: `1:16 "timestamp" cannot take a number (double); write ` +
			`timestamp('2026-01-31T09:00:00Z')`,
		`now - trigger.at > duration('P2DT3H')`: `1:29 ` + ofDurations + `; write duration('51h')`,
		`profile.city && true`: `1:8 &&, || and ! need a bool, not a text: compare it with something, as in x != ` +
			`null`,
		`profile.city`: `0:0 must be true or false, not a text: compare it with something, as in x != ` +
			`null`,
		`profile.cty == 'x'`:   `1:8 the audience has no column cty; did you mean city?`,
		`profile.zebra == 'x'`: `1:8 the audience has no column zebra`,
		`proflie.city == 'x'`:  `1:1 there is no proflie; did you mean profile?`,
		`profile.city == Kyiv`: `1:17 there is no Kyiv; a text is written in quotes, and profile, trigger, now can be ` +
			`read`,
		`profile.city.startswith('x')`: `1:24 there is no startswith; did you mean startsWith?`,
		`trigger.propertys.x == 1`:     `1:8 there is no field propertys; did you mean properties?`,
		`trigger.total > 5`: `1:8 there is no field total; the event's own fields are in its properties, as in ` +
			`trigger.properties.total`,
		`count(profile.address) > 2`: `1:6 "count" has no meaning here: events.NAME.times counts events, size(list) how long ` +
			`a list is`,
		`today() > now`: `1:6 "today" has no meaning here: now is the instant of the evaluation, such as profile.seen_at > now - ` +
			`duration('24h')`,
		`now() > trigger.at`:                          `1:4 "now" has no meaning here: now is a variable, without parentheses`,
		`profile.city is not null`:                    `1:14 "is" has no meaning here: write == null or != null`,
		`profile.city == NULL`:                        `1:17 "NULL" has no meaning here: write null`,
		`profile.age <> 5`:                            `1:14 "<>" has no meaning here: write != for not equal`,
		`profile.age in (1,2)`:                        `1:18 a list is written in brackets, as in profile.city in ["Kyiv", "Lviv"]`,
		"profile.vip &&\n  {{ profile.city }} == 'x'": `2:3 an expression is no template: write profile.city without {{ and }}`,
		`has(profile)`:                                `1:5 has() asks whether a field is there, as in has(profile.city)`,
		`foo.bar.baz()`: `1:1 there is no foo; a text is written in quotes, and profile, trigger, now can be ` +
			`read`,
		`event.properties.x == 1`:                           `1:1 event cannot be read in a trigger's condition, only profile, trigger, now`,
		strings.Repeat("(", 400) + strings.Repeat(")", 400): `0:0 parentheses and the like are nested too deep, more than 100 levels`,
	} {
		_, _, faults := newCompiler(shopColumns).compile(enrolling, "/if", expression)
		if len(faults) != 1 {
			t.Errorf("%.60s: %+v", expression, faults)
			continue
		}
		if got := fmt.Sprintf("%d:%d %s", faults[0].Line, faults[0].Column, faults[0].Detail); got != want {
			t.Errorf("%.60s: %s, want %s", expression, got, want)
		}
	}
	for _, expression := range []string{`now - trigger.at > duration('1h30m')`, `now - trigger.at > duration(trigger.source_id)`,
		`now > timestamp("2026-01-31T09:00:00+02:00")`, `profile.city.matches("^[a-z]+$")`} {
		if _, _, faults := newCompiler(shopColumns).compile(enrolling, "/if", expression); len(faults) > 0 {
			t.Errorf("%s: %+v", expression, faults)
		}
	}
}

func TestTooShortNamesTheMinimum(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ from, to, want string }{
		{`"P3D", "next"`, `"-P1D", "next"`, "must be longer than PT0S"},
		{`"P3D", "next"`, `"PT0S", "next"`, "must be longer than PT0S"},
		{`"PT1H"`, `"PT10S"`, "must be at least PT1M"},
		{`"-P3D"`, `"-P401D"`, "must go back at most 400 days"},
	} {
		_, err := Compile([]byte(strings.Replace(welcome, c.from, c.to, 1)), ourFlow, Facts{Columns: shopColumns})
		if got := faultsIn(t, err); len(got) != 1 || got[0].Detail != c.want {
			t.Errorf("%s: %+v, want %s", c.to, got, c.want)
		}
	}
}

package graph

import (
	"fmt"
	"strings"
	"testing"
)

func TestWhatIsWrongWithAnExpressionIsASentence(t *testing.T) {
	t.Parallel()
	const ofDurations = "it is no duration: the units are h, m and s, as in duration('48h') or duration('1h30m')"
	for expression, want := range map[string]string{
		`profile.city ==`:                                   `1:16 it ends too early`,
		`(profile.vip`:                                      `1:13 ')' is missing at the end`,
		`profile.vip ? true`:                                `1:19 it ends too early: ':' is missing`,
		`profile.vip)`:                                      `1:12 ")" cannot stand here`,
		`profile.city = "x"`:                                `1:14 "=" has no meaning here: write == to compare`,
		"profile.vip &&\n  trigger.id = 'x'":                `2:14 "=" has no meaning here: write == to compare`,
		`profile.city === "x"`:                              `1:16 "=" has no meaning here`,
		`profile.vip and profile.vip`:                       `1:13 "and" has no meaning here: write && for and`,
		`profile.vip OR profile.vip`:                        `1:13 "OR" has no meaning here: write || for or`,
		`not profile.vip`:                                   `1:5 "not" has no meaning here: write ! for not`,
		`not(profile.vip)`:                                  `1:4 "not" has no meaning here: write ! for not`,
		`profile.vip & profile.vip`:                         `1:13 "&" has no meaning here: write it twice`,
		`profile.city == 'x`:                                `1:17 the text that begins here is not closed`,
		`now - trigger.at > duration('2d')`:                 `1:29 ` + ofDurations,
		`false && (now - trigger.at > duration("2 days"))`:  `1:39 ` + ofDurations,
		`now > timestamp('2026-13-01')`:                     `1:17 it is no timestamp as in RFC 3339: timestamp('2026-01-31T09:00:00Z')`,
		`profile.city.matches('(')`:                         "1:22 it is no regular expression: missing closing ): `(`",
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
	for _, expression := range []string{`now - trigger.at > duration('1h30m')`, `now - trigger.at > duration(trigger.id)`, `now > timestamp("2026-01-31T09:00:00+02:00")`, `profile.city.matches("^[a-z]+$")`} {
		if _, _, faults := newCompiler(shopColumns).compile(enrolling, "/if", expression); len(faults) > 0 {
			t.Errorf("%s: %+v", expression, faults)
		}
	}
}

func TestTooShortSaysHowShort(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ from, to, want string }{
		{`"P3D", "next"`, `"-P1D", "next"`, "it is too short: it has to be longer than PT0S"},
		{`"P3D", "next"`, `"PT0S", "next"`, "it is too short: it has to be longer than PT0S"},
		{`"PT1H"`, `"PT10S"`, "it is too short: at least a minute, PT1M"},
		{`"-P3D"`, `"-P401D"`, "it goes back more than 400 days"},
	} {
		_, err := Compile([]byte(strings.Replace(welcome, c.from, c.to, 1)), ourFlow, Facts{Columns: shopColumns})
		if got := faultsIn(t, err); len(got) != 1 || got[0].Detail != c.want {
			t.Errorf("%s: %+v, want %s", c.to, got, c.want)
		}
	}
}

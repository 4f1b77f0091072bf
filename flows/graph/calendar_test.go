package graph

import (
	"strings"
	"testing"
	"time"

	"lemma"
)

func zoneNamed(t testing.TB, name string) *time.Location {
	t.Helper()
	zone, err := lemma.Zone(name)
	if err != nil {
		t.Fatal(name)
	}
	return zone
}

func TestUntil(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ what, node, now, profile, want string }{
		{"later today", `"time": "09:00", "zone": "Europe/Kyiv"`, "2026-11-21T06:00:00Z", `{}`, "2026-11-21T07:00:00Z"},
		{"exactly now", `"time": "09:00", "zone": "Europe/Kyiv"`, "2026-11-21T07:00:00Z", `{}`, "2026-11-21T07:00:00Z"},
		{"tomorrow", `"time": "09:00", "zone": "Europe/Kyiv"`, "2026-11-21T07:00:00.001Z", `{}`, "2026-11-22T07:00:00Z"},
		{"in UTC", `"time": "09:00:30"`, "2026-11-21T07:00:00Z", `{}`, "2026-11-21T09:00:30Z"},
		{"in the profile's zone", `"time": "09:00", "zone": "UTC", "zone_column": "zone"`, "2026-11-21T00:00:00Z",
			`{"zone": "America/New_York"}`, "2026-11-21T14:00:00Z"},
		{"the profile has no zone", `"time": "09:00", "zone": "Europe/Kyiv", "zone_column": "zone"`, "2026-11-21T00:00:00Z",
			`{"zone": null}`, "2026-11-21T07:00:00Z"},
		{"the profile has a wrong zone", `"time": "09:00", "zone": "Europe/Kyiv", "zone_column": "zone"`, "2026-11-21T00:00:00Z",
			`{"zone": "Local"}`, "2026-11-21T07:00:00Z"},
		{"the profile's today is another day than ours", `"time": "09:00", "zone_column": "zone"`, "2026-11-20T23:30:00Z",
			`{"zone": "Pacific/Auckland"}`,
			"2026-11-21T20:00:00Z"},

		{"next Monday", `"weekdays": ["mon"]`, "2026-11-21T12:00:00Z", `{}`, "2026-11-23T00:00:00Z"},
		{"Monday at nine", `"weekdays": ["mon", "wed"], "time": "09:00"`, "2026-11-23T10:00:00Z", `{}`, "2026-11-25T09:00:00Z"},
		{"a week on", `"weekdays": ["mon"], "time": "09:00"`, "2026-11-23T09:00:01Z", `{}`, "2026-11-30T09:00:00Z"},
		{"today is the day", `"weekdays": ["sat"], "time": "12:00"`, "2026-11-21T12:00:00Z", `{}`, "2026-11-21T12:00:00Z"},

		{"in a gap", `"time": "02:30", "zone": "Europe/Berlin"`, "2026-03-29T00:00:00Z", `{}`, "2026-03-29T01:00:00Z"},
		{"the gap is over", `"time": "02:30", "zone": "Europe/Berlin"`, "2026-03-29T01:00:01Z", `{}`, "2026-03-30T00:30:00Z"},
		{"twice, the first", `"time": "02:30", "zone": "Europe/Berlin"`, "2026-10-25T00:00:00Z", `{}`, "2026-10-25T00:30:00Z"},
		{"twice, the second does not count", `"time": "02:30", "zone": "Europe/Berlin"`, "2026-10-25T00:45:00Z", `{}`,
			"2026-10-26T01:30:00Z"},
		{"a day without midnight", `"weekdays": ["sun"], "zone": "America/Sao_Paulo"`, "2018-11-03T12:00:00Z", `{}`,
			"2018-11-04T03:00:00Z"},

		{"a date", `"date_column": "born", "zone": "Europe/Kyiv"`, "2026-11-21T12:00:00Z", `{"born": "2026-12-24"}`,
			"2026-12-23T22:00:00Z"},
		{"a date at nine", `"date_column": "born", "time": "09:00", "zone": "Europe/Kyiv"`, "2026-11-21T12:00:00Z",
			`{"born": "2026-12-24"}`, "2026-12-24T07:00:00Z"},
		{"three days before", `"date_column": "born", "time": "09:00", "offset": "-P3D"`, "2026-11-21T12:00:00Z",
			`{"born": "2026-12-24"}`, "2026-12-21T09:00:00Z"},
		{"days of the calendar over a change of the clocks",
			`"date_column": "born", "time": "09:00", "offset": "-P1D", "zone": "Europe/Berlin"`,
			"2026-01-01T00:00:00Z", `{"born": "2026-03-29"}`, "2026-03-28T08:00:00Z"},
		{"a day and a half before", `"date_column": "born", "offset": "-P1DT12H"`, "2026-11-21T12:00:00Z", `{"born": "2026-12-24"}`,
			"2026-12-22T12:00:00Z"},
		{"a date that is past", `"date_column": "born"`, "2026-11-21T12:00:00Z", `{"born": "2026-11-21"}`, "2026-11-21T12:00:00Z"},
		{"a date that is long past", `"date_column": "born", "time": "09:00"`, "2026-11-21T12:00:00Z", `{"born": "1985-03-04"}`,
			"2026-11-21T12:00:00Z"},
		{"a date on a weekend", `"date_column": "born", "time": "09:00", "weekdays": ["mon", "tue", "wed", "thu", "fri"]`,
			"2026-11-16T12:00:00Z", `{"born": "2026-11-21"}`, "2026-11-23T09:00:00Z"},
		{"a past date on another weekday", `"date_column": "born", "time": "09:00", "weekdays": ["mon"]`, "2026-11-21T12:00:00Z",
			`{"born": "2026-01-01"}`, "2026-11-21T12:00:00Z"},
		{"this very instant, on another weekday", `"date_column": "born", "time": "12:00", "weekdays": ["mon"]`, "2026-11-21T12:00:00Z",
			`{"born": "2026-11-21"}`, "2026-11-21T12:00:00Z"},
		{"later today, on another weekday", `"date_column": "born", "time": "12:00", "weekdays": ["mon"]`, "2026-11-21T11:59:59Z",
			`{"born": "2026-11-21"}`, "2026-11-23T12:00:00Z"},
		{"its day with the offset is past", `"date_column": "born", "offset": "-P3D", "weekdays": ["mon"]`, "2026-11-21T12:00:00Z",
			`{"born": "2026-11-24"}`, "2026-11-21T12:00:00Z"},
		{"a past instant on another weekday", `"date_column": "seen_at", "weekdays": ["mon"]`, "2026-11-21T12:00:00Z",
			`{"seen_at": "2026-11-21T10:15:00Z"}`, "2026-11-21T12:00:00Z"},
		{"a date on a weekday", `"date_column": "born", "time": "09:00", "weekdays": ["thu"]`, "2026-11-21T12:00:00Z",
			`{"born": "2026-12-24"}`, "2026-12-24T09:00:00Z"},
		{"an instant", `"date_column": "seen_at", "zone": "Europe/Kyiv"`, "2026-11-21T12:00:00Z",
			`{"seen_at": "2026-11-22T10:15:00.5+01:00"}`, "2026-11-22T09:15:00.5Z"},
		{"an instant and two hours", `"date_column": "seen_at", "offset": "PT2H"`, "2026-11-21T12:00:00Z",
			`{"seen_at": "2026-11-22T10:15:00Z"}`, "2026-11-22T12:15:00Z"},
		{"nine on the instant's local day", `"date_column": "seen_at", "time": "09:00", "zone": "Pacific/Auckland"`,
			"2026-11-20T00:00:00Z", `{"seen_at": "2026-11-21T23:00:00Z"}`, "2026-11-21T20:00:00Z"},
		{"a date in a text", `"date_column": "city"`, "2026-11-21T12:00:00Z", `{"city": " 2026-12-24 "}`, "2026-12-24T00:00:00Z"},

		{"no date", `"date_column": "born"`, "2026-11-21T12:00:00Z", `{"born": null}`, "column born has no date"},
		{"nine years ahead", `"date_column": "born"`, "2026-11-21T12:00:00Z", `{"born": "2035-11-21"}`, "2035-11-21T00:00:00Z"},
		{"a date that stands for never", `"date_column": "born"`, "2026-11-21T12:00:00Z", `{"born": "9999-12-31"}`,
			"column born holds a date that is more than 10 years ahead"},
		{"beyond what can be written", `"date_column": "born", "offset": "P300D"`, "2026-11-21T12:00:00Z",
			`{"born": "9999-12-31T23:59:59Z"}`, "column born holds a date that is more than 10 years ahead"},
		{"infinity", `"date_column": "born"`, "2026-11-21T12:00:00Z", `{"born": "infinity"}`,
			"column born holds no date that can be read: YYYY-MM-DD or RFC 3339"},
		{"before infinity", `"date_column": "born"`, "2026-11-21T12:00:00Z", `{"born": "-infinity"}`,
			"column born holds no date that can be read: YYYY-MM-DD or RFC 3339"},
		{"before Christ", `"date_column": "born"`, "2026-11-21T12:00:00Z", `{"born": "0044-03-15 BC"}`,
			"column born holds no date that can be read: YYYY-MM-DD or RFC 3339"},
		{"the first day of all", `"date_column": "born", "offset": "-P3D"`, "2026-11-21T12:00:00Z", `{"born": "0001-01-01"}`,
			"2026-11-21T12:00:00Z"},
		{"no column", `"date_column": "born"`, "2026-11-21T12:00:00Z", `{}`, "column born has no date"},
		{"no such day", `"date_column": "born"`, "2026-11-21T12:00:00Z", `{"born": "2026-02-30"}`,
			"column born holds no date that can be read: YYYY-MM-DD or RFC 3339"},
	} {
		text := `{"audience_id": "a", "recurrence": {"policy": "once"}, "start": "w", "nodes": {"w": {"type": "wait_until", ` + c.node +
			`, "next": "x"}, "x": {"type": "exit"}}}`
		node, _ := compileText(t, text).Node("w")
		now, err := time.Parse(time.RFC3339Nano, c.now)
		if err != nil {
			t.Fatal(err)
		}
		got, err := node.Until(now, object(t, c.profile))
		answer := got.UTC().Format(time.RFC3339Nano)
		if err != nil {
			answer = err.Error()
		}
		if answer != c.want {
			t.Errorf("%s: got %s, want %s", c.what, answer, c.want)
		}
	}
	if _, err := (&Compiled{ID: "x"}).Until(noon, nil); err == nil {
		t.Error("a node without a time has a deadline")
	}
}

func TestParseDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"P3D": "72h0m0s", "PT2H30M": "2h30m0s", "P1W": "168h0m0s", "-P3D": "-72h0m0s", "P1DT12H": "36h0m0s", "PT0.5S": "500ms",
		"PT1.000000001S": "1.000000001s",
		"P1W2D":          "216h0m0s", "PT90M": "1h30m0s", "PT0S": "0s", "P00D": "0s",
	} {
		if got, err := ParseDuration(text); err != nil || got.String() != want {
			t.Errorf("%s: got %s, %v; want %s", text, got, err, want)
		}
	}
	for text, want := range map[string]error{
		"": errDuration, "P": errDuration, "PT": errDuration, "P1DT": errDuration, "3D": errDuration, "p3d": errDuration, "P3": errDuration,
		"PD": errDuration, "P 3D": errDuration,
		"+P3D": errDuration, "--P3D": errDuration, "P-3D": errDuration, "P1.5D": errDuration, "PT1.5H": errDuration, "PT1.S": errDuration,
		"PT.5S": errDuration, "PT1.0000000001S": errDuration,
		"PT1.5.5S": errDuration, "PT1M1H": errDuration, "P1D1W": errDuration, "P1D1D": errDuration, "PT1H T": errDuration, "P1H": errDuration,
		"PT1D": errDuration, "P١D": errDuration,
		"P1Y": errCalendar, "P1M": errCalendar, "P1Y2DT3H": errCalendar,
		"P99999999999999999999D": errTooLong, "P106752D": errTooLong, "P15250W": errTooLong, "P106751DT24H": errTooLong,
	} {
		if got, err := ParseDuration(text); err != want {
			t.Errorf("%s: got %s, %v; want %v", text, got, err, want)
		}
	}
}

func FuzzParseDuration(f *testing.F) {
	for _, text := range []string{"P3D", "-PT2H30M1.5S", "P1W", "P1Y"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := ParseDuration(text); err == nil && (d < 0) != strings.HasPrefix(text, "-") && d != 0 {
			t.Errorf("%q is %s", text, d)
		}
	})
}

func BenchmarkUntil(b *testing.B) {
	w := &when{clock: clock{9, 0, 0}, hasClock: true, zone: zoneNamed(b, "Europe/Kyiv"), zoneColumn: "zone"}
	c := &Compiled{when: w}
	profile := map[string]any{"zone": "America/New_York"}
	for b.Loop() {
		_, _ = c.Until(noon, profile)
	}
}

package message

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/osteele/tuesday"
)

// The result of a filter is bounded before it is made. The limit is checked in the
// memory that a rendering takes.
func TestResultsOfFiltersAreBounded(t *testing.T) {
	numbers := "[" + strings.TrimSuffix(strings.Repeat("-1.7976931348623157e+308,", 990), ",") + "]"
	data := `{"d":"2024-01-31","s":"` + strings.Repeat("<", 30_000) + `","l":[[` +
		strings.TrimSuffix(strings.Repeat(numbers+",", 8), ",") + `]]}`
	double := "{% assign x = l %}" + strings.Repeat("{% assign x = x | concat: x %}", 9)
	date := func(unit string, n int) string { return `{{ d | date: "` + strings.Repeat(unit, n) + `" }}` }
	for source, want := range map[string]string{
		date("%5-%1000000A", 60):                "/html date: " + errDateWidth.Error(),
		date("%99A", 16_000):                    "/html date: " + errLong.Error(),
		date("%%%-%^0100d", 1):                  "/html date: " + errDateWidth.Error(),
		date("%99999999999999999999999Y", 1):    "/html date: " + errDateWidth.Error(),
		double + "{{ x | json | size }}":        "/html concat: " + errManyValues.Error(),
		double + "{{ x | join | size }}":        "/html concat: " + errManyValues.Error(),
		double + "{{ x | append: 'x' | size }}": "/html concat: " + errManyValues.Error(),
		double + "{{ x }}":                      "/html concat: " + errManyValues.Error(),
		"{{ s | url_encode }}":                  "/html url_encode: " + errLong.Error(),
	} {
		c := Content{Subject: "s", HTML: source, Text: "t"}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got := fault(t, c, data)
		runtime.ReadMemStats(&after)
		if got != want {
			t.Errorf("%.60q: %s, want %s", source, got, want)
		}
		if made := after.TotalAlloc - before.TotalAlloc; made > 32<<20 {
			t.Errorf("%.60q allocates %d MB", source, made>>20)
		}
	}
}

// FuzzDateFormat compares the bound of checkFormat with what is formatted.
func FuzzDateFormat(f *testing.F) {
	for _, s := range []string{
		"%a, %b %d, %y", "%5-%1000A", "%%%-0100d", "%::z%:::z%099Z", "%c%+%v", "%0_^#99N", "%EY%Od%99Ec", "%\x00%", "%-99s%000099Q",
	} {
		f.Add(s, int64(1<<40))
	}
	f.Fuzz(func(t *testing.T, format string, seconds int64) {
		if checkFormat(format) != nil {
			return
		}
		made, err := tuesday.Strftime(format, time.Unix(seconds, 999_999_999).UTC())
		if err != nil {
			t.Fatalf("%q: %v", format, err)
		}
		if bound := len(format) + maxField*strings.Count(format, "%"); len(made) > bound || bound > MaxString {
			t.Errorf("%q: %d bytes, bound %d", format, len(made), bound)
		}
	})
}

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"lemma"
)

// The zone of a record's time is that of the process.
func TestTimesOfTheLogAreInUTC(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 7, 31, 23, 30, 0, 0, time.FixedZone("ODD", -(5*3600+45*60)))
	for _, format := range []string{"text", "json"} {
		var out strings.Builder
		record := slog.NewRecord(at, slog.LevelInfo, "m", 0)
		record.Add("due", at.Add(time.Hour))
		if err := (Config{LogFormat: format}).logger(&out).Handler().Handle(t.Context(), record); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), "2026-08-01T05:15:00") || !strings.Contains(out.String(), "2026-08-01T06:15:00") ||
			strings.Contains(out.String(), "05:45") {
			t.Errorf("%s: %s", format, out.String())
		}
	}
}

// No text is so long that a server or a client could fill the disk with it. The stack of a panic
// is longer than others.
func TestTextsOfTheLogAreBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ü", mostPanic)
	for _, format := range []string{"text", "json"} {
		for name, c := range map[string]struct {
			value any
			most  int
		}{
			"a text": {long, mostText}, "an error": {errors.New(long), mostText},
			"a panic": {fmt.Errorf("work: %w", &lemma.Panic{Value: "x", Stack: []byte(long)}), mostPanic},
		} {
			var out strings.Builder
			(Config{LogFormat: format}).logger(&out).Info("m", "value", c.value, "short", errors.New("brief"), "n", 17)
			if n := out.Len(); n > c.most+300 || n < c.most || !strings.Contains(out.String(), "brief") || !strings.Contains(out.String(), "17") {
				t.Errorf("%s of %s: %d bytes", name, format, n)
			}
		}
	}
}

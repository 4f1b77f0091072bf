package main

import (
	"log/slog"
	"strings"
	"testing"
	"time"
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

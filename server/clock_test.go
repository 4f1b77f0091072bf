package server

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"lemma/pgtest"
)

// A process whose clock is not that of the database warns when it starts.
func TestAStartWarnsOfAWrongClock(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	for _, ahead := range []time.Duration{0, 2 * time.Hour, -2 * time.Hour} {
		if ahead != 0 {
			pgtest.SetClock(t, pool, time.Now().Add(-ahead))
		}
		found, err := Skew(t.Context(), pool)
		must(t, err)
		if (found - ahead).Abs() > time.Minute {
			t.Errorf("%s ahead instead of %s", found, ahead)
		}
		var log bytes.Buffer
		(&Server{Pool: pool, log: slog.New(slog.NewTextHandler(&log, nil))}).WarnOfSkew(t.Context())
		if strings.Contains(log.String(), "clocks") != (ahead != 0) {
			t.Errorf("%s ahead: %q", ahead, log.String())
		}
	}
}

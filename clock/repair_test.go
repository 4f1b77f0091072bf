package clock

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"lemma/pgtest"
)

// What a repair changes is logged and counted by its table. One that fails does not stop the
// others.
func TestRepairsAreLoggedAndCounted(t *testing.T) {
	t.Parallel()
	pool, registry := pgtest.DB(t), prometheus.NewRegistry()
	m := NewMetrics(registry)
	pgtest.Exec(t, pool, `create table waits (at timestamptz)`)
	pgtest.Exec(t, pool, `insert into waits values (now()), (now() + interval '1 year'), (now() + interval '1 year')`)
	repairs := []Repair{
		{"broken", func(context.Context) (int64, error) { return 0, errors.New("an error") }},
		Update(pool, "waits", `update waits set at = now() where at > now() + $1::interval`, Slack),
	}
	for run, want := range []string{"table=waits rows=2", ""} {
		var log bytes.Buffer
		err := Run(t.Context(), repairs, slog.New(slog.NewTextHandler(&log, nil)), m)
		if err == nil || !strings.Contains(err.Error(), "broken") {
			t.Errorf("run %d: the error is %v", run, err)
		}
		if !strings.Contains(log.String(), want) || (log.Len() == 0) != (want == "") {
			t.Errorf("run %d: the log is %q", run, log.String())
		}
	}
	found, err := registry.Gather()
	if err != nil || len(found) != 1 || len(found[0].GetMetric()) != 1 || found[0].GetMetric()[0].GetCounter().GetValue() != 2 ||
		found[0].GetMetric()[0].GetLabel()[0].GetValue() != "waits" {
		t.Errorf("the metrics are %v, %v", found, err)
	}
}

package clock

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"lemma"
	"lemma/loop"
)

// Slack is how much further ahead than its bound a time must be to be repaired. It covers
// processes with other settings.
const Slack = time.Minute

// Repair changes times of a table that are further ahead than any that Lemma sets: they were
// written while the clock of the database was ahead, and it was set back since. What waits for
// such a time becomes due. A lease ends after the longest time that its holder may have, as if
// it were renewed by the repair, so that no holder that still works loses it early.
type Repair struct {
	Table string
	Run   func(ctx context.Context) (rows int64, err error)
}

// Update returns a repair by one statement, which affects the rows that it repairs.
func Update(pool *pgxpool.Pool, table, sql string, args ...any) Repair {
	return Repair{table, func(ctx context.Context) (int64, error) {
		tag, err := pool.Exec(ctx, sql, args...)
		return tag.RowsAffected(), err
	}}
}

// Metrics count repairs. The names are documented in docs/reference/metrics.md.
type Metrics struct{ repaired *prometheus.CounterVec }

// NewMetrics registers the metrics; with nil they are not exported.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_clock_repairs_total",
		Help: "Rows with times further ahead than any that Lemma sets, since the clock of the database was set back, by table."},
		[]string{"table"})}
	if r != nil {
		r.MustRegister(m.repaired)
	}
	return m
}

// Run runs each repair once, and logs and counts what it has changed. One that fails does
// not stop the others.
func Run(ctx context.Context, repairs []Repair, log *slog.Logger, m *Metrics) error {
	return loop.Each(ctx, repairs, func(r Repair) error {
		rows, err := r.Run(ctx)
		if rows > 0 {
			m.repaired.WithLabelValues(r.Table).Add(float64(rows))
			log.WarnContext(ctx, "times that are too far ahead are repaired: the clock of the database was set back, or a rate was raised",
				"table", r.Table, "rows", rows)
		}
		return lemma.Wrap(err, "repair times of %s that are too far ahead", r.Table)
	})
}

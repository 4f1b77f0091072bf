package campaigns

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
)

// An event has the time of the begin of its transaction, which may end long after the cut-off.
func TestAnEvaluationWaitsForOpenTransactions(t *testing.T) {
	b := setup(t, 200, func(cfg *Config) { cfg.CutOffGrace = time.Nanosecond })
	c, it := b.sampled(ab())
	for _, ago := range []string{"1 second", "55 seconds"} {
		b.Exec(`update iterations set cut_off_at = now() - $2::interval where id = $1`, it.ID, ago)
		b.evaluate()
		b.Must(b.Evaluate(context.Background(), b.Workspace, it.ID))
		if got := b.iteration(c); got.Status != IterationRunning {
			t.Errorf("%s after the cut-off it is %s", ago, got.Status)
		}
	}
	b.Exec(`update iterations set cut_off_at = now() - interval '1 minute' where id = $1`, it.ID)
	b.evaluate()
	if got := b.iteration(c); got.Verdict == nil {
		t.Errorf("a minute after the cut-off it is %s", got.Status)
	}
}

// A campaign has ended when its last part has: the fan-out, a batch, or a decision of a person.
func TestWhenACampaignHasEnded(t *testing.T) {
	for name, c := range map[string]struct {
		last string // makes all else months old
	}{
		"the decision is the last": {`update fanouts set finished_at = now() - interval '3 months'`},
		"the fan-out is the last":  {`update iteration_log set at = now() - interval '3 months'`},
	} {
		t.Run(name, func(t *testing.T) {
			b := experiments(t, 20)
			e := ab()
			e.SamplePercent = 100
			sent, it := b.sampled(e)
			_, err := b.StopIteration(context.Background(), b.Workspace, it.ID, uuid.Nil)
			b.Must(err)
			b.Exec(`update batches set finished_at = now() - interval '3 months'`)
			b.Exec(c.last)
			if n := b.settle(); n != 1 {
				t.Fatalf("%d campaigns were completed", n)
			}
			b.WantCount(1, `select count(*) from campaigns where id = $1 and finished_at > now() - interval '1 minute'`, sent.ID)
		})
	}
}

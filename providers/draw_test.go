package providers_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

func (b bundle) draw(t testing.TB, id uuid.UUID, n int, rate float64, burst time.Duration) (time.Duration, bool) {
	t.Helper()
	wait, ok, err := b.room.Draw(t.Context(), b.ws, id, n, rate, burst)
	if err != nil {
		t.Fatal(err)
	}
	return wait, ok
}

func TestDraw(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.create(t, nil).ID
	if wait, ok := b.draw(t, id, 100, 10, time.Second); !ok || wait != 0 {
		t.Errorf("the first draw: %s, %v", wait, ok)
	}
	wait, ok := b.draw(t, id, 1, 10, time.Second) // paid off in 10 s, of which 1 s may stand open
	if ok || wait < 8*time.Second || wait > 9*time.Second {
		t.Errorf("the second draw: %s, %v, want to wait for just under 9 s", wait, ok)
	}
	if _, ok := b.draw(t, id, 1, 10, 11*time.Second); !ok {
		t.Error("a draw within its burst was refused")
	}
}

// An hour of silence is no credit for an hour's letters.
func TestSilenceIsNotSaved(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.create(t, nil).ID
	if _, err := b.pool.Exec(t.Context(), "update provider_meters set next_free_at = now() - interval '1 hour' where workspace_id = $1", b.ws); err != nil {
		t.Fatal(err)
	}
	b.draw(t, id, 1000, 100, 0)
	if wait, ok := b.draw(t, id, 1, 100, 0); ok || wait < 9*time.Second {
		t.Errorf("after an hour of silence and 10 s worth of letters: %s, %v", wait, ok)
	}
}

func TestProvidersHaveTheirOwnMeters(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one, other := b.create(t, nil).ID, b.create(t, nil).ID
	b.draw(t, one, 1000, 1, 0)
	if _, ok := b.draw(t, other, 1, 1, 0); !ok {
		t.Error("one provider's rate held up another")
	}
}

func TestWhatIsNotADrawIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.create(t, nil).ID
	for _, d := range []struct {
		n     int
		rate  float64
		burst time.Duration
	}{{0, 1, 0}, {-1, 1, 0}, {1, 0, 0}, {1, -1, 0}, {1, 1, -time.Second}} {
		if _, _, err := b.room.Draw(t.Context(), b.ws, id, d.n, d.rate, d.burst); err == nil {
			t.Errorf("%+v was taken", d)
		}
	}
}

// Nodes that draw as fast as they can never get more than the rate allows over
// the time by the database's clock, however they interleave.
func TestNodesTogetherNeverExceedTheRate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.create(t, nil).ID
	const rate, each, burst, nodes = 500.0, 5, 20 * time.Millisecond, 4
	begin := b.clock(t)
	drawn := make([]int, nodes)
	var wait sync.WaitGroup
	for node := range nodes {
		wait.Go(func() {
			for range 100 {
				if _, ok := b.draw(t, id, each, rate, burst); ok {
					drawn[node] += each
				}
			}
		})
	}
	wait.Wait()
	took := b.clock(t).Sub(begin)
	total := 0
	for _, n := range drawn {
		total += n
	}
	if most := rate*(took+burst).Seconds() + each; total == 0 || float64(total) > most {
		t.Errorf("%d letters in %s, at most %.0f are allowed", total, took, most)
	}
}

// Two draws that meet: the second waits for the first and then sees what it did.
func TestADrawSeesTheOneThatItWaitedFor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.create(t, nil).ID
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // it is over by then
	if _, err := tx.Exec(t.Context(), "update provider_meters set next_free_at = now() + interval '1 minute' where workspace_id = $1 and provider_id = $2", b.ws, id); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		wait time.Duration
		ok   bool
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		wait, ok, err := b.room.Draw(t.Context(), b.ws, id, 1, 1, 0)
		answered <- answer{wait, ok, err}
	}()
	b.untilSomebodyWaits(t)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := <-answered; a.err != nil || a.ok || a.wait < 30*time.Second {
		t.Errorf("it got %s, %v, %v; the minute that it waited behind was not seen", a.wait, a.ok, a.err)
	}
}

func (b bundle) clock(t testing.TB) (now time.Time) {
	t.Helper()
	if err := b.pool.QueryRow(t.Context(), "select clock_timestamp()").Scan(&now); err != nil {
		t.Fatal(err)
	}
	return now
}

// untilSomebodyWaits returns once a statement in this database waits for a lock.
func (b bundle) untilSomebodyWaits(t testing.TB) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		var waiting bool
		err := b.pool.QueryRow(t.Context(), "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')").Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
		if waiting {
			return
		}
	}
	t.Fatal("nobody waited")
}

func BenchmarkDraw(b *testing.B) {
	bundle := setup(b)
	id := bundle.create(b, nil).ID
	for b.Loop() {
		bundle.draw(b, id, 1, 1e6, time.Hour)
	}
}

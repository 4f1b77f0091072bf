package providers_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/providers"
)

func (b bundle) acquire(t testing.TB, id uuid.UUID, n int, rate float64, burst time.Duration) (time.Duration, bool) {
	t.Helper()
	wait, ok, err := b.accounts.Acquire(t.Context(), b.Workspace, id, n, rate, burst)
	if err != nil {
		t.Fatal(err)
	}
	return wait, ok
}

func TestAcquire(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.create(t, nil).ID
	if wait, ok := b.acquire(t, id, 100, 10, time.Second); !ok || wait != 0 {
		t.Errorf("the first tokens: %s, %v", wait, ok)
	}
	wait, ok := b.acquire(t, id, 1, 10, time.Second) // the tokens are used up in 10 s, and 1 s of burst is allowed
	if ok || wait < 8*time.Second || wait > 9*time.Second {
		t.Errorf("the next token: %s, %v, want to wait for just under 9 s", wait, ok)
	}
	if _, ok := b.acquire(t, id, 1, 10, 11*time.Second); !ok {
		t.Error("a token within the burst was refused")
	}
}

// Unused time adds no tokens.
func TestUnusedTimeAddsNoTokens(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.create(t, nil).ID
	b.Exec("update provider_meters set next_free_at = now() - interval '1 hour' where workspace_id = $1",
		b.Workspace)
	b.acquire(t, id, 1000, 100, 0)
	if wait, ok := b.acquire(t, id, 1, 100, 0); ok || wait < 9*time.Second {
		t.Errorf("after an unused hour and the tokens of 10 s: %s, %v", wait, ok)
	}
}

// A changed rate holds for the next token, whatever was acquired at the one before. A change of
// something else ends no wait.
func TestAChangedRateEndsTheWaitOfTheOneBefore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	slow, fast, name := 0.001, 10.0, "renamed"
	id := b.create(t, func(n *providers.NewProvider) { n.RatePerSecond = &slow }).ID
	for _, step := range []struct {
		patch           providers.Patch
		atMost, atLeast time.Duration
	}{
		{providers.Patch{Name: &name, RatePerSecond: &slow}, time.Hour, 900 * time.Second},
		{providers.Patch{RatePerSecond: &fast}, 100 * time.Millisecond, 0},
		{providers.Patch{RatePerSecond: &slow}, 1000 * time.Second, 0},
		{providers.Patch{NoRate: true}, 0, 0},
	} {
		b.Exec("update provider_meters set next_free_at = now() + interval '1000 s' where provider_id = $1", id)
		_, err := b.accounts.Update(t.Context(), b.Workspace, id, nil, step.patch)
		b.Must(err)
		var wait float64
		b.Must(b.Pool.QueryRow(t.Context(), "select extract(epoch from next_free_at - now())::float8 from provider_meters where provider_id = $1",
			id).Scan(&wait))
		if d := time.Duration(wait * float64(time.Second)); d > step.atMost || d < step.atLeast-100*time.Second {
			t.Errorf("%+v: the next token waits for %s", step.patch, d)
		}
	}
}

func TestProvidersHaveTheirOwnMeters(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one, other := b.create(t, nil).ID, b.create(t, nil).ID
	b.acquire(t, one, 1000, 1, 0)
	if _, ok := b.acquire(t, other, 1, 1, 0); !ok {
		t.Error("the rate of one provider delayed another")
	}
}

func TestInvalidArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.create(t, nil).ID
	for _, d := range []struct {
		n     int
		rate  float64
		burst time.Duration
	}{{0, 1, 0}, {-1, 1, 0}, {1, 0, 0}, {1, -1, 0}, {1, 1, -time.Second}} {
		if _, _, err := b.accounts.Acquire(t.Context(), b.Workspace, id, d.n, d.rate, d.burst); err == nil {
			t.Errorf("%+v was accepted", d)
		}
	}
}

// Processes that acquire as fast as they can never exceed the rate, by the clock of
// the database.
func TestProcessesTogetherNeverExceedTheRate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.create(t, nil).ID
	const rate, each, burst, processes = 500.0, 5, 20 * time.Millisecond, 4
	begin := b.clock(t)
	acquired := make([]int, processes)
	var wait sync.WaitGroup
	for process := range processes {
		wait.Go(func() {
			for range 100 {
				if _, ok := b.acquire(t, id, each, rate, burst); ok {
					acquired[process] += each
				}
			}
		})
	}
	wait.Wait()
	took := b.clock(t).Sub(begin)
	total := 0
	for _, n := range acquired {
		total += n
	}
	if most := rate*(took+burst).Seconds() + each; total == 0 || float64(total) > most {
		t.Errorf("%d tokens in %s, want at most %.0f", total, took, most)
	}
}

// Of two calls at once the second waits for the first, and then sees its update.
func TestAcquireSeesTheUpdateThatItWaitedFor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.create(t, nil).ID
	tx, err := b.Pool.Begin(t.Context())
	b.Must(err)
	defer tx.Rollback(t.Context()) // it has been committed
	if _, err := tx.Exec(t.Context(),
		"update provider_meters set next_free_at = now() + interval '1 minute' where workspace_id = $1 and provider_id = $2", b.Workspace,
		id); err != nil {
		t.Fatal(err)
	}
	type result struct {
		wait time.Duration
		ok   bool
		err  error
	}
	returned := make(chan result, 1)
	go func() {
		wait, ok, err := b.accounts.Acquire(t.Context(), b.Workspace, id, 1, 1, 0)
		returned <- result{wait, ok, err}
	}()
	b.WaitForLocks(1)
	b.Must(tx.Commit(t.Context()))
	if a := <-returned; a.err != nil || a.ok || a.wait < 30*time.Second {
		t.Errorf("got %s, %v, %v, want a wait of a minute", a.wait, a.ok, a.err)
	}
}

func (b bundle) clock(t testing.TB) (now time.Time) {
	t.Helper()
	if err := b.Pool.QueryRow(t.Context(), "select clock_timestamp()").Scan(&now); err != nil {
		t.Fatal(err)
	}
	return now
}

func BenchmarkAcquire(b *testing.B) {
	bundle := setup(b)
	id := bundle.create(b, nil).ID
	for b.Loop() {
		bundle.acquire(b, id, 1, 1e6, time.Hour)
	}
}

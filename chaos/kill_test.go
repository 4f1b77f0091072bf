package chaos

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// In a campaign, all four workers are killed while the audience is read and a message waits
// for its answer, and then one of them again and again at a random moment.
func TestKilledWorkersLoseNoNotification(t *testing.T) {
	t.Parallel()
	h := setup(t)
	kills := h.kills(4)
	size := max(kills*perKill, 6_000)
	people := h.largeCustomer(size)
	workers, random := h.startWorkers(3), h.random()

	release := h.mail.holdAfter(t, 50)
	id := h.send(people)
	h.killDuringCall(&h.mail.answers, workers, func() {
		h.WantCount(1, `select count(*) from fanouts where finished_at is null and leased_by is not null`)
		people.proxy.thaw()
	})
	h.mail.slow(10 * time.Millisecond)
	release()

	h.killDuringCampaign(workers, killPoints(random, kills-1, size*9/10), random)
	h.completed(id)
	if sum := h.verify(people, id); sum.Unknown == 0 {
		t.Error("no kill left an unknown outcome: nothing was tested")
	}
}

// killDuringCampaign kills one worker after another at those numbers of messages.
func (h *env) killDuringCampaign(workers []*worker, points []int, random *rand.Rand) {
	h.t.Helper()
	for _, out := range points {
		h.waitForMessages(out)
		workers[random.IntN(len(workers))].kill()
		h.startAgain(workers)
	}
}

// random is seeded by LEMMA_CHAOS_SEED, or randomly without it, and logs its seed.
func (h *env) random() *rand.Rand {
	h.t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("LEMMA_CHAOS_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		h.Must(err)
	}
	h.t.Logf("LEMMA_CHAOS_SEED=%d repeats these random numbers", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// killPoints are n ordered random numbers below most.
func killPoints(random *rand.Rand, n, most int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = random.IntN(most)
	}
	slices.Sort(all)
	return all
}

// lock executes a statement that locks, and keeps the lock until unlock is called.
func (h *env) lock(sql string, args ...any) (unlock func()) {
	h.t.Helper()
	tx, err := h.Pool.Begin(h.t.Context())
	h.Must(err)
	_, err = tx.Exec(h.t.Context(), sql, args...)
	h.Must(err)
	h.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return func() { h.Must(tx.Rollback(h.t.Context())) }
}

// endSessions ends the sessions that wait for a lock, as Postgres does when it finds that
// their process has crashed.
func (h *env) endSessions() {
	h.t.Helper()
	h.Exec(`select pg_terminate_backend(pid) from pg_locks where not granted and database = (select oid from pg_database
		where datname = current_database())`)
}

package chaos

import (
	"fmt"
	"sync"
	"time"
)

// Leases and timeouts of workers are longer than a test, so that none expires because a
// machine is slow. Those of a killed worker end at once. Tests of the time itself
// set short ones: LEMMA_LEASE.

// killed are the workers of an installation that were killed.
type killed struct {
	mu      sync.Mutex
	workers []string // patterns of their tokens of batches
	last    time.Time
	expired time.Time // when leases were ended last
}

func (k *killed) add(w *worker) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.workers, k.last, k.expired = append(k.workers, tokensOf(w)), time.Now(), time.Time{}
}

// tokensOf is the pattern of a worker's tokens of batches.
func tokensOf(w *worker) string { return fmt.Sprintf("%%.%d.%%", w.cmd.Process.Pid) }

// pids are the patterns of all killed workers.
func (k *killed) pids() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.workers
}

// due returns when the last worker was killed, ten times a second.
func (k *killed) due() (last time.Time, due bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if due = time.Since(k.expired) > 100*time.Millisecond; due {
		k.expired = time.Now()
	}
	return k.last, due
}

// expireKilled ends the leases of killed workers: those of batches by their token, and others
// if they began before the last kill. It runs repeatedly, since Postgres may execute the
// claim of a killed worker late. It also ends those of rows whose outcome a running worker
// does not know, since nobody holds these.
func (h *env) expireKilled() {
	h.t.Helper()
	last, due := h.killed.due()
	if !due {
		return
	}
	h.Exec(`update batches b set lease_until = now() where status = 'leased' and lease_until > now() + interval '1 minute' and exists (
		select from batch_log l where l.workspace_id = b.workspace_id and l.batch_id = b.id and l.event = 'unresolved')`)
	if last.IsZero() {
		return
	}
	h.Exec(`update batches set lease_until = now() - interval '1 second'
		where status = 'leased' and lease_until > now() + interval '1 minute' and leased_by like any ($1)`, h.killed.pids())
	h.Exec(`update fanouts set lease_until = now() - interval '1 second'
		where finished_at is null and lease_until > now() and lease_until < $1::timestamptz + interval '30 seconds'`, last)
	h.Exec(`update flow_shards set lease_until = now() - interval '1 second'
		where lease_until > now() and lease_until < $1::timestamptz + interval '60 seconds'`, last)
	// Workers lock messages in another order than this statement, so waiting for them could be a
	// deadlock. What is locked now is freed by the next call.
	h.Exec(`update outbox o set lease_until = now(), due_at = now() from (
			select workspace_id, id from outbox
			where status = 'pending' and lease_until > now() and lease_until < $1::timestamptz + interval '60 seconds'
			for update skip locked) free
		where o.workspace_id = free.workspace_id and o.id = free.id`, last)
}

// leasedByKilled counts the batches that killed workers have still.
func (h *env) leasedByKilled() int {
	h.t.Helper()
	return h.Count(`select count(*) from batches where status = 'leased' and leased_by like any ($1)`, h.killed.pids())
}

// makeAllDue makes everything due that waits for a time.
func (h *env) makeAllDue() {
	h.t.Helper()
	h.Exec(`update batches set due_at = now() where status = 'ready' and due_at > now()`)
	h.Exec(`update provider_meters set open_until = now() where open_until > now()`)
	h.Exec(`update fanouts set retry_at = now() where retry_at > now()`)
	h.Exec(`update river_job set state = 'available', scheduled_at = now() where state in ('scheduled', 'retryable')`)
}

// expireFanoutLease ends the lease of a fan-out and runs the sweep, which enqueues it.
func (h *env) expireFanoutLease() {
	h.t.Helper()
	h.Exec(`update fanouts set lease_until = now() - interval '1 second' where lease_until > now() and finished_at is null`)
	_, err := h.campaigns.Sweep(h.t.Context())
	h.Must(err)
}

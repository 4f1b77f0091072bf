package chaos

import (
	"context"
	"fmt"
	"time"

	"lemma/pgtest"
)

// longestWait is how long a condition may take. A machine may be slow; only a failure takes so
// long.
const longestWait = 4 * time.Minute

// eventually waits until a condition holds. Meanwhile the leases of killed workers end.
func (h *env) eventually(what string, is func() bool) {
	h.t.Helper()
	defer h.logFailure()
	pgtest.Eventually(h.t, longestWait, what, func() bool {
		if is() {
			return true
		}
		h.expireKilled()
		return false
	})
}

// waitForLock waits until a session waits for a lock.
func (h *env) waitForLock(what string) {
	h.t.Helper()
	h.eventually(what, func() bool { return pgtest.LockWaits(h.t, h.Pool) > 0 })
}

// waitForMessages waits until the mail server has n messages.
func (h *env) waitForMessages(n int) {
	h.t.Helper()
	h.eventually(fmt.Sprintf("%d messages are sent", n), func() bool { return h.mail.received() >= n })
}

// waitForCalls waits until no batch is being called.
func (h *env) waitForCalls() {
	h.t.Helper()
	h.eventually("all calls have ended", func() bool { return h.Count(`select count(*) from batches where status = 'leased'`) == 0 })
}

// waitForEnd waits until everything has ended, without shorter back-offs.
func (h *env) waitForEnd() {
	h.t.Helper()
	h.eventually("everything has ended", func() bool {
		return h.Count(`select count(*) from enrollments where status = 'active'`) == 0 &&
			h.Count(`select count(*) from batches where status in ('ready', 'leased')`) == 0 &&
			h.Count(`select count(*) from campaigns where status <> 'completed'`) == 0
	})
}

// logFailure logs once what a failed test has not finished.
func (h *env) logFailure() {
	if h.t.Failed() {
		h.stateLogged.Do(h.logState)
	}
}

// states are queries that show, each in a text, why something has not ended.
var states = []struct{ name, sql string }{
	{"campaigns", `select id, status, status_reason, status_detail, paused_at, finished_at from campaigns`},
	{"flows", `select id, status, status_reason, status_detail, paused_at, resumed_at, catch_up_until from flows`},
	{"fan-outs", `select campaign_id, runs, leased_by, lease_until, retry_at, finished_at, source_failures from fanouts`},
	{"batches", `select count(*), status, gate, attempt, sum(size) as size, min(due_at) as first_due, max(due_at) as last_due,
		leased_by, min(lease_until) as lease_until from batches group by status, gate, attempt, leased_by`},
	{"attempts", `select count(*), attempt, outcome, basis, reason from attempts group by attempt, outcome, basis, reason`},
	{"enrollments", `select count(*), flow_id, node, status, blocked_reason, min(resume_at) as first_due, max(resume_at) as last_due
		from enrollments group by flow_id, node, status, blocked_reason`},
	{"shard leases", `select flow_id, shard, leased_by, lease_until, retry_at, worked_at from flow_shards
		where leased_by is not null or retry_at > now()`},
	{"circuits", `select * from provider_meters`},
	{"watermarks", `select * from provider_watermarks`},
	{"events to send", `select count(*), status, min(due_at) as first_due, max(lease_until) as lease_until from outbox group by status`},
	{"jobs", `select count(*), kind, queue, state, min(scheduled_at) as first_due from river_job group by kind, queue, state`},
	{"last of the log of batches", `select * from (select l.at, l.batch_id, l.event, l.token, l.until, l.detail
		from batch_log l order by l.at desc limit 40) l order by l.at`},
}

// logState logs what is decided, what waits, until when, and for what.
func (h *env) logState() {
	h.t.Logf("the database's time is %s; killed: %v", h.text(`select now()::text`), h.killed.pids())
	for _, s := range states {
		h.t.Logf("%s:\n%s", s.name, h.text(`select coalesce(string_agg(jsonb_strip_nulls(to_jsonb(t))::text, e'\n'), 'none') from (`+s.sql+`) t`))
	}
}

// text is the result of a query, or its error.
func (h *env) text(sql string) (text string) {
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	if err := h.Pool.QueryRow(ctx, sql).Scan(&text); err != nil {
		return err.Error()
	}
	return text
}

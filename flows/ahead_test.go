package flows_test

import (
	"strings"
	"testing"
	"time"

	"lemma/flows"
)

func (b *bundle) repair() (rows int64) {
	b.T.Helper()
	for _, r := range b.Repairs() {
		n, err := r.Run(bg)
		b.Must(err)
		rows += n
	}
	return rows
}

// Times of shards, moves and polls that are further ahead than any that Lemma sets by the
// present clock are repaired, and others are kept.
func TestTimesOfFlowsThatAreTooFarAheadAreRepaired(t *testing.T) {
	b := setup(t, 2)
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"audience","every":"P30D"}],"recurrence":{"policy":"once"},"start":"w",
		"nodes":{"w":{"type":"delay","for":"P1D","next":"e"},"e":{"type":"exit"}}}`)
	b.PublishNext(flow, `{"audience_id":"$audience","triggers":[{"type":"audience","every":"P30D"}],"recurrence":{"policy":"once"},"start":"w",
		"nodes":{"w":{"type":"delay","for":"P2D","next":"e"},"e":{"type":"exit"}}}`, flows.InFlight{Mode: "move"})
	for name, c := range map[string]struct {
		table, set, want string
		rows             int64
	}{
		"a shard that is retried": {"flow_shards", `next_due_at = '-infinity', retry_at = now() + interval '1 day',
			worked_at = now() + interval '1 day'`, `retry_at <= now() and worked_at <= now()`, 4},
		"a shard that is retried soon": {"flow_shards", `next_due_at = '-infinity', retry_at = now() + interval '30 seconds',
			worked_at = now()`, `retry_at > now() + interval '10 seconds'`, 0},
		"a lease of a shard": {"flow_shards", `retry_at = now(), leased_by = 'x', lease_until = now() + interval '1 day'`,
			`lease_until between now() + interval '1 minute' and now() + interval '3 minutes' and leased_by = 'x'`, 4},
		"a move": {"flow_moves", `finished_at = null, retry_at = now() + interval '1 day'`, `retry_at <= now()`, 1},
		"a lease of a move": {"flow_moves", `finished_at = null, retry_at = now(), leased_by = 'x', lease_until = now() + interval '1 day'`,
			`lease_until between now() + interval '1 minute' and now() + interval '3 minutes' and leased_by = 'x'`, 1},
		"a poll of a wrong clock": {"flow_polls", `last_at = now() + interval '1 day', next_at = now() + interval '31 days'`,
			`next_at <= now() and last_at <= now()`, 1},
		"a poll with a long period": {"flow_polls", `last_at = now() - interval '1 day', next_at = now() + interval '29 days'`,
			`next_at > now() + interval '28 days'`, 0},
		"a poll that failed": {"flow_polls", `last_at = now(), failures = 3, next_at = now() + interval '1 day'`, `next_at <= now()`, 1},
		"a poll that failed now": {"flow_polls", `failures = 3, next_at = now() + interval '12 minutes'`,
			`next_at > now() + interval '11 minutes'`, 0},
		"a poll that was not made": {"flow_polls", `last_at = null, failures = 0, next_at = now() + interval '1 day'`, `next_at <= now()`, 1},
		"a lease of a poll": {"flow_polls", `next_at = now(), leased_by = 'x', lease_until = now() + interval '1 day'`,
			`lease_until between now() + interval '1 minute' and now() + interval '3 minutes' and leased_by = 'x'`, 1},
		"the end of a pause": {"flows", `resumed_at = now() + interval '1 day', catch_up_until = now() + interval '1 day 1 hour'`,
			`resumed_at <= now() and catch_up_until between now() + interval '59 minutes' and now() + interval '61 minutes'`, 1},
	} {
		b.Exec(`update ` + c.table + ` set ` + c.set)
		if n := b.repair(); n != c.rows {
			t.Errorf("%s: %d rows are repaired, want %d", name, n, c.rows)
		}
		b.WantCount(0, `select count(*) from `+c.table+` where (`+c.want+`) is not true`)
		b.Exec(`update flow_shards set leased_by = null, lease_until = null, retry_at = now(), worked_at = now()`)
		b.Exec(`update flow_moves set finished_at = now(), leased_by = null, lease_until = null`)
		b.Exec(`update flow_polls set leased_by = null, lease_until = null, next_at = now(), last_at = now(), failures = 0`)
	}
}

// Enrollments that are blocked for longer than they can be are retried. A delay, whose length
// is chosen, is kept.
func TestBlockedEnrollmentsThatAreTooFarAheadAreRetried(t *testing.T) {
	b := setup(t, 3, func(c *flows.Config) { c.BackOff, c.MaxBackOff = time.Second, time.Minute })
	b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"w",
		"nodes":{"w":{"type":"delay","for":"P1D","next":"e"},"e":{"type":"exit"}}}`)
	for _, who := range []string{"c1", "c2", "c3"} {
		b.RecordEvent(who, "go")
	}
	b.Settle()
	b.Exec(`update enrollments set blocked_reason = 'source_unavailable', resume_at = now() + interval '1 day' where profile_key = 'c1'`)
	b.Exec(`update enrollments set blocked_reason = 'source_unavailable', resume_at = now() + interval '50 minutes' where profile_key = 'c2'`)
	b.Exec(`update flow_shards set next_due_at = 'infinity'`)
	if n := b.repair(); n != 1 {
		t.Errorf("%d rows are repaired", n)
	}
	b.WantCount(1, `select count(*) from enrollments where profile_key = 'c1' and resume_at <= now()`)
	b.WantCount(1, `select count(*) from enrollments e join flow_shards t on t.flow_id = e.flow_id and t.shard = e.shard
		where profile_key = 'c1' and next_due_at <= now()`)
	b.WantCount(2, `select count(*) from enrollments where profile_key <> 'c1' and resume_at > now() + interval '49 minutes'`)
}

// An enrollment that was blocked when its delay was over waits for a longer delay after a move,
// and is not retried before.
func TestABlockedEnrollmentWhoseDelayAMoveLengthens(t *testing.T) {
	b := setup(t, 1)
	const text = `{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"w",
		"nodes":{"w":{"type":"delay","for":"P1D","next":"e"},"e":{"type":"exit"}}}`
	flow := b.Live(text)
	b.RecordEvent("c1", "go")
	b.Settle()
	b.Exec(`update enrollments set blocked_reason = 'condition_time', failures = 3, resume_at = now() + interval '10 minutes'`)
	b.PublishNext(flow, strings.Replace(text, "P1D", "P30D", 1), flows.InFlight{Mode: "move"})
	b.FinishMoves()
	if n := b.repair(); n != 0 {
		t.Errorf("%d rows are repaired", n)
	}
	b.WantCount(1, `select count(*) from enrollments where blocked_reason is null and failures = 0 and resume_at > now() + interval '28 days'`)
}

package webhooks

import (
	"testing"

	"lemma/eventsout"
	"lemma/pgtest"
)

// Messages and events that wait for a time that is further ahead than any that Lemma sets by
// the present clock are due, and leases end soon. Other times are kept.
func TestTimesOfMessagesThatAreTooFarAheadAreRepaired(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e, _ := b.endpoint("/")
	b.write(b.message(e))
	b.subscriber("/", Subscription{Types: []string{eventsout.CampaignStarted}})
	b.record(b.started())
	for _, c := range []struct {
		what, table, set, want string
		rows                   int64
	}{
		{"a message", "outbox", `due_at = now() + interval '1 day'`, `due_at <= now()`, 1},
		{"a retry", "outbox", `waits = true, due_at = now() + interval '70 minutes'`, `due_at > now() + interval '1 hour'`, 0},
		{"a retry that is too far ahead", "outbox", `waits = true, due_at = now() + interval '1 day'`, `due_at <= now()`, 1},
		{"a lease", "outbox", `waits = false, leased_by = 'x', due_at = now() + interval '1 minute', lease_until = now() + interval '1 minute'`,
			`due_at > now() and lease_until = due_at`, 0},
		{"a lease that is too far ahead", "outbox", `due_at = now() + interval '1 day', lease_until = now() + interval '1 day'`,
			`due_at between now() + interval '1 minute' and now() + interval '3 minutes' and lease_until = due_at and leased_by = 'x'`, 1},
		{"an event", "events_out", `aside_until = now() + interval '1 hour'`, `aside_until > now()`, 0},
		{"an event that is too far ahead", "events_out", `aside_until = now() + interval '1 day'`, `aside_until is null`, 1},
	} {
		b.Exec(`update ` + c.table + ` set ` + c.set)
		var rows int64
		for _, r := range b.Repairs() {
			n, err := r.Run(t.Context())
			b.Must(err)
			rows += n
		}
		if rows != c.rows {
			t.Errorf("%s: %d rows are repaired, want %d", c.what, rows, c.rows)
		}
		if n := pgtest.One[int](t, b.Pool, `select count(*) from `+c.table+` where `+c.want); n != 1 {
			t.Errorf("%s: it is not as it is wanted", c.what)
		}
	}
}

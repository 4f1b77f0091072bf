package chaos

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/pgtest"
)

// While a campaign is paused, profiles opt out, leave the audience or change their
// address. After the resume they are skipped with the reason, and all others get
// their message.
func TestAResumeSkipsProfilesThatOptedOut(t *testing.T) {
	t.Parallel()
	h := setup(t)
	people := h.customer(3000)
	h.mail.slow(10 * time.Millisecond)
	h.startWorkers(1, "LEMMA_RECHECK_AFTER=1s")
	release := h.mail.holdAfter(t, 200)
	id := h.send(people)
	h.waitForHeld(&h.mail.answers)
	_, err := h.campaigns.Pause(t.Context(), h.Workspace, id, uuid.Nil)
	h.Must(err)
	release()
	h.waitForCalls()
	before := h.mail.received()

	people.ExecDB(`update people set opted_out = true where id % 10 = 1`)
	people.ExecDB(`delete from people where id % 10 = 2`)
	people.ExecDB(`update people set email = 'new' || id || '@shop.example' where id % 10 = 3`)
	changed := pgtest.One[time.Time](h.T, h.Pool, `select now()`)
	h.eventually("all batches, and what was read of the audience, are older than a second", func() bool {
		return h.Count(`select count(*) from batches where created_at > now() - interval '1 second'`) == 0 &&
			h.Count(`select count(*) where now() > $1::timestamptz + interval '2 seconds'`, changed) == 1
	})
	resumed := pgtest.One[time.Time](h.T, h.Pool, `select now()`)
	h.mail.slow(0)
	_, err = h.campaigns.Resume(t.Context(), h.Workspace, id, uuid.Nil)
	h.Must(err)
	h.completed(id)

	b := h.campaign(id).Counts
	t.Logf("%d messages before the pause, %d in all; skipped %v", before, h.mail.received(), b.SkippedBy)
	for reason, digit := range map[string]int{"unsubscribed_since": 1, "left_audience": 2, "address_changed": 3} {
		if b.SkippedBy[reason] == 0 {
			t.Errorf("no profile was skipped as %s", reason)
		}
		h.WantCount(0, `select count(*) from notification_status 
			where reason = $1 and profile_key::int % 10 <> $2`, reason, digit)
	}
	h.WantCount(0, `select count(*) from notification_status 
		where status = 'sent' and profile_key::int % 10 in (1, 2, 3) and ended_at > $1`, resumed)
	if b.Audience != b.Sent+b.Skipped || !b.Balanced || int(b.Sent) != h.mail.received() {
		t.Errorf("%+v, and %d messages", b, h.mail.received())
	}
}

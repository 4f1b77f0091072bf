package chaos

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

// People opt out, leave and move while a campaign is paused. After the resume
// none of them is written to, each has the reason, and all others get their mail.
func TestAResumeHeedsWhoOptedOutMeanwhile(t *testing.T) {
	h := build(t)
	people := h.customer(3000)
	h.post.slow(10 * time.Millisecond)
	h.startWorkers(1, append(h.unhurried(), "LEMMA_RECHECK_AFTER=1s")...)
	id := h.send(people)
	h.lettersOut(200, 20*time.Second)
	_, err := h.campaigns.Pause(t.Context(), h.ws, id, uuid.Nil)
	h.must(err)
	h.until(20*time.Second, "nothing is being called", func() bool { return h.count(`select count(*) from batches where status = 'leased'`) == 0 })
	before := h.post.taken()

	h.run(people.pool, `update people set opted_out = true where id % 10 = 1`)
	h.run(people.pool, `delete from people where id % 10 = 2`)
	h.run(people.pool, `update people set email = 'new' || id || '@shop.example' where id % 10 = 3`)
	h.until(20*time.Second, "all have waited for a second", func() bool {
		return h.count(`select count(*) from batches where created_at > now() - interval '1 second'`) == 0
	})
	var resumed time.Time
	h.must(h.pool.QueryRow(t.Context(), `select now()`).Scan(&resumed))
	h.post.slow(0)
	_, err = h.campaigns.Resume(t.Context(), h.ws, id, uuid.Nil)
	h.must(err)
	h.completed(id, 60*time.Second)

	b := h.campaign(id).Counts
	t.Logf("%d mails before the pause, %d in all; skipped %v", before, h.post.taken(), b.SkippedBy)
	for reason, digit := range map[string]int{"unsubscribed_since": 1, "left_audience": 2, "address_changed": 3} {
		if b.SkippedBy[reason] == 0 {
			t.Errorf("nobody was skipped as %s", reason)
		}
		if n := h.count(`select count(*) from notification_status where reason = $1 and profile_key::int % 10 <> $2`, reason, digit); n != 0 {
			t.Errorf("%d were skipped as %s without cause", n, reason)
		}
	}
	if n := h.count(`select count(*) from notification_status where status = 'sent' and profile_key::int % 10 in (1, 2, 3) and ended_at > $1`, resumed); n != 0 {
		t.Errorf("%d mails went to people after they had opted out, left or moved", n)
	}
	if b.Audience != b.Sent+b.Skipped || !b.Balanced || int(b.Sent) != h.post.taken() {
		t.Errorf("%+v, and %d mails", b, h.post.taken())
	}
}

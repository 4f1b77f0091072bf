package direct

import (
	"testing"
	"time"

	"lemma/pgtest"
)

// A content is of the month of its notifications, so that it can be deleted with them: the
// same content in another month is another row, also from the cache.
func TestAContentIsOfTheMonthOfItsNotifications(t *testing.T) {
	b := setup(t)
	d := b.process()
	later := time.Now().Add(20 * 24 * time.Hour)
	for _, at := range []time.Time{time.Now(), time.Now().AddDate(0, -1, -3)} {
		for range 2 {
			r := b.request("", func(r *Request) { r.SendAt = &later })
			r.ID = pgtest.IDAt(at)
			b.send(d, r, accepted)
		}
	}
	b.WantCount(2, `select count(*) from contents`)
	b.WantCount(4, `select count(*) from batches b join contents c on c.workspace_id = b.workspace_id and c.id = b.content_id
		where substr(uuid_send(c.id), 1, 6) = substr(uuid_send(b.origin_id), 1, 6)`)
}

// A process that has stored a content stores it again when its row is missing, as after a
// failover to a standby that lacks the last commits: its notifications are sent.
func TestAContentThatWasLostIsStoredAgain(t *testing.T) {
	b := setup(t)
	d := b.process()
	b.send(d, b.request(""), accepted)
	b.Exec(`delete from contents`)
	b.send(d, b.request(""), accepted)
	b.WantCount(1, `select count(*) from contents`)
	b.work(b.sender())
	b.WantCount(2, `select count(*) from notification_status where status = 'sent'`)
}

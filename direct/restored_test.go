package direct

import (
	"os"
	"regexp"
	"testing"

	"lemma/sender"
)

// The SQL of docs/guides/restore-a-backup.md: direct notifications that cannot be cancelled after a restore, since a worker
// had their batch or they wait for their second attempt, are listed, and are not sent.
func TestDirectNotificationsExpireAfterARestore(t *testing.T) {
	b := setup(t)
	page, err := os.ReadFile("../docs/guides/restore-a-backup.md")
	b.Must(err)
	blocks := regexp.MustCompile("(?s)```sql\n(.*?);\n *```").FindAllStringSubmatch(string(page), -1)
	d, s := b.process(), b.sender()
	held := b.send(d, b.request("held"), accepted)
	b.Exec(`update batches set status = 'leased', leased_by = 'w', lease_until = now() - interval '1 minute'`)
	b.scripted(sender.Unknown)
	again := b.send(d, b.request("again", twice), accepted)
	b.work(s)
	b.reap(s) // both leases have expired
	b.WantCount(1, `select count(*) from batches where attempt = 2 and status = 'ready'`)
	b.Exec(`update batches set status = 'leased', leased_by = 'w', lease_until = now() - interval '1 minute'
		where status = 'ready' and attempt = 1`)
	calls := b.calls()
	b.WantCount(2, `select count(*) from (`+blocks[0][1]+`) n`)
	b.Exec(blocks[1][1])
	b.reap(s)
	b.work(s)
	if made := b.calls() - calls; made > 0 {
		t.Errorf("%d calls", made)
	}
	for of, want := range map[string]string{held.Key.String(): "skipped", again.Key.String(): "orphaned"} {
		b.WantCount(1, `select count(*) from notification_status where key = $1 and status = $2`, of, want)
	}
}

package sender

import (
	"testing"

	"lemma/notifications"
)

// A commit fails for good while a window waits for its rate: the rows whose
// outcomes it held are neither open nor ended, so that only the reaper may give
// the batch back.
func TestABatchIsNotGivenBackAfterACommitThatFailed(t *testing.T) {
	b := setup(t)
	b.Exec(`update providers set rate_per_second = 10 where workspace_id = $1`, b.Workspace)
	refs := b.insert(10, 10, 2)
	s := b.sender()
	at(s, "committing", 2, func() {
		b.Exec(`alter table batches rename to gone`)
		at(s, "committing", 1, func() { b.Exec(`alter table gone rename to batches`) })
	})
	if _, err := s.Work(bg, refs[0]); err == nil {
		t.Fatal("the commit did not fail")
	}
	s.Hook = nil
	b.Exec(`alter table if exists gone rename to batches`)
	b.Exec(`update providers set rate_per_second = null where workspace_id = $1`, b.Workspace)
	b.reap(s)
	b.makeDue()
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 10})
	b.wantCalledOnce(10)
}

package sender

import (
	"testing"

	"lemma"
	"lemma/notifications"
	"lemma/providers"
)

// The provider of an archived flow may be deleted, but not while a batch of the flow
// has not ended.
func TestAProviderStaysUntilItsBatchesHaveEnded(t *testing.T) {
	b := setup(t)
	refs := b.insert(10, 10, 2)
	accounts := providers.New(b.Pool, nil, nil)
	refused := func(when string) {
		t.Helper()
		if err := accounts.Delete(bg, b.Workspace, b.provider); lemma.KindOf(err) != lemma.Conflict {
			t.Fatalf("deleted while a batch is %s: %v", when, err)
		}
	}
	s := b.sender()
	refused("ready")
	at(s, "called", 1, func() { refused("leased") })
	for i := range 10 {
		b.carrier.then[addressOf(i)] = []Outcome{Unknown}
	}
	if _, err := s.Work(bg, refs[0]); err != nil {
		t.Fatal(err)
	}
	b.reap(s)
	refused("to be retried")
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 10})
	if err := accounts.Delete(bg, b.Workspace, b.provider); err != nil {
		t.Error(err)
	}
}

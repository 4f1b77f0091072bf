package enrollment

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"lemma"
)

// Workspaces are served round-robin, a shard is queued once, and polling all shards comes
// first.
func TestTheWakerIsFairToWorkspaces(t *testing.T) {
	t.Parallel()
	b := NewWaker()
	busy, other := lemma.NewID(), lemma.NewID()
	for range 2 {
		for range 5 {
			b.WakeShards(map[Shard]bool{{busy, lemma.NewID(), 0}: true})
		}
		b.WakeShards(map[Shard]bool{{other, uuid.Nil, 1}: true})
	}
	b.WakeAll()
	var order []string
	for where, ok := b.Next(); ok; where, ok = b.Next() {
		order = append(order, map[uuid.UUID]string{busy: "busy", other: "other", uuid.Nil: "everywhere"}[where.Workspace])
	}
	want := "everywhere busy other" + strings.Repeat(" busy", 9)
	if got := strings.Join(order, " "); got != want {
		t.Errorf("%s, not %s", got, want)
	}
	if len(b.known)+len(b.shards)+len(b.workspaces) != 0 {
		t.Errorf("%d are still known", len(b.known))
	}
	for range maxShards + 1 {
		b.WakeShards(map[Shard]bool{{busy, lemma.NewID(), 0}: true})
	}
	if where, ok := b.Next(); !ok || where != (Shard{}) || len(b.known) != maxShards {
		t.Errorf("%d are known", len(b.known))
	}
}

package sender

import (
	"testing"

	"github.com/google/uuid"

	"lemma"
	"lemma/cache"
	"lemma/notifications"
)

// A provider and a content that another server had are not used, also if it had a later version
// of the provider.
func TestPreparedKeepsToAHistory(t *testing.T) {
	b := setup(t)
	refs := b.insert(30, 30, 2)
	type another struct{ Carrier }
	s := b.senderOf(Kind{Name: "scripted", Open: func(Account) (Carrier, error) { return &another{b.carrier}, nil }})
	var h cache.History
	s.Follow(&h)
	h.Continue("a")
	c, err := s.Claim(bg, refs[0])
	b.Must(err)
	carrier, content, err := s.prepare(bg, c)
	b.Must(err)
	for _, version := range []int{c.version, c.version - 1} {
		if same, d, err := s.prepare(bg, c); err != nil || same != carrier || d != content {
			t.Errorf("the same server: %v", err)
		}
		b.Exec(`update providers set version = $1`, version)
		c.version = version
		h.Continue("server with version " + string(rune('0'+version)))
		other, d, err := s.prepare(bg, c)
		b.Must(err)
		if other == carrier || d == content || b.keptVersion(s, c) != version {
			t.Errorf("version %d: what another server had is used", version)
		}
		carrier, content = other, d
	}
}

// keptVersion is that of the account of the carrier that is kept for a claim.
func (b *bundle) keptVersion(s *Sender, c *claim) int {
	kept, _ := s.cache.carriers.Get(c.providerID)
	return kept.version
}

// Carriers of providers that are used no more are not kept for ever, and those of one workspace
// evict no others.
func TestCarriersAreBounded(t *testing.T) {
	b := setup(t)
	s := b.sender()
	kept := func(workspace uuid.UUID, bytes int) uuid.UUID {
		c := &claim{Ref: notifications.Ref{WorkspaceID: workspace}, providerID: lemma.NewID()}
		s.cache.put(s.cache.carriers.Now(), c, opened{1, b.carrier}, carrierBytes+bytes)
		return c.providerID
	}
	other := kept(lemma.NewID(), 0)
	first := kept(b.Workspace, 0)
	var last uuid.UUID
	for range 1_000 {
		last = kept(b.Workspace, 128<<10)
	}
	for id, want := range map[uuid.UUID]bool{other: true, first: false, last: true} {
		if _, is := s.cache.carriers.Get(id); is != want {
			t.Errorf("a carrier is kept: %v", is)
		}
	}
	if n := s.cache.carriers.Bytes(); n > 2*carriersShare {
		t.Errorf("%d bytes of carriers", n)
	}
	s.Close()
	if n := s.cache.carriers.Bytes(); n != 0 {
		t.Errorf("%d bytes of carriers after the end", n)
	}
}

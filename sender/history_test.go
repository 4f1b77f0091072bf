package sender

import (
	"testing"

	"lemma/cache"
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
		if other == carrier || d == content || s.cache.carriers[c.providerID].version != version {
			t.Errorf("version %d: what another server had is used", version)
		}
		carrier, content = other, d
	}
}

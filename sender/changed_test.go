package sender

import (
	"context"
	"testing"

	"lemma/notifications"
)

// byVersion is the carrier of a version of its provider.
type byVersion struct {
	Carrier
	version int
	sent    map[int]int // messages by version
}

func (v *byVersion) Send(ctx context.Context, all []Message) []Receipt {
	v.sent[v.version] += len(all)
	return v.Carrier.Send(ctx, all)
}

// A change of a provider holds from the next window on, also for a batch that is being sent: the window in progress ends
// with the earlier one, and nobody is called twice.
func TestAChangedProviderIsUsedFromTheNextWindowOn(t *testing.T) {
	b := setup(t)
	ref := b.insert(40, 40, 2)[0]
	sent := map[int]int{}
	s := b.senderOf(Kind{Name: "scripted", Open: func(a Account) (Carrier, error) { return &byVersion{b.carrier, a.Version, sent}, nil }},
		func(c *Config) { c.MaxWindow = 10 })
	called := 0
	s.Hook = func(_ context.Context, point string, _ notifications.Ref) {
		if point == "called" {
			if called++; called == 1 {
				b.Exec(`update providers set version = version + 1`)
			}
		}
	}
	for range 2 {
		_, err := s.Work(t.Context(), ref)
		b.Must(err)
	}
	b.wantCounts(notifications.Counts{Sent: 40})
	if sent[1] != 10 || sent[2] != 30 || len(sent) != 2 {
		t.Errorf("messages by version: %v", sent)
	}
	for i := range 40 {
		if n := b.carrier.called(addressOf(i)); n != 1 {
			t.Errorf("%s was called %d times", addressOf(i), n)
		}
	}
}

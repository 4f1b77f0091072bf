package sender

import (
	"context"
	"strings"
	"testing"

	"lemma/links"
	"lemma/notifications"
	"lemma/pgtest"
	"lemma/tracking"
	"lemma/workspaces"
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

// A window that was called with credentials that were replaced meanwhile, and refused, does not pause its campaign.
func TestRefusalsOfReplacedCredentialsDoNotPause(t *testing.T) {
	b := setup(t)
	ref := b.insert(20, 20, 2)[0]
	b.carrier.fail(noPassword)
	s := b.sender(hasty)
	s.Hook = func(_ context.Context, point string, _ notifications.Ref) {
		if point == "opened" {
			b.Exec(`update providers set version = version + 1`)
		}
	}
	_, err := s.Work(t.Context(), ref)
	b.Must(err)
	if len(b.paused) > 0 {
		t.Errorf("paused: %v", b.paused)
	}
	b.WantCount(0, `select count(*) from provider_meters where opened_at is not null or failures > 0`)
	s.Hook = nil
	b.carrier.fail(nil)
	b.makeDue()
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 20})
}

// Links lead where the workspace's tracking URL, or the public URL, is when a message is rendered, also for a batch that
// is being sent.
func TestAChangedURLIsUsedFromTheNextWindowOn(t *testing.T) {
	for name, change := range map[string]func(b *bundle, url *string){
		"tracking URL": func(b *bundle, _ *string) { b.Exec(`update workspaces set tracking_url = 'https://new.example'`) },
		"public URL":   func(_ *bundle, url *string) { *url = "https://new.example" },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			ref := b.insert(40, 40, 2)[0]
			url := "https://old.example"
			s := b.sender(func(c *Config) { c.MaxWindow = 10 })
			track := func() { // without what it has in memory for 10 s
				s.tracking = tracking.New(tracking.Deps{Pool: b.Pool, Links: links.New(b.Pool, pgtest.Box(t), nil),
					Workspaces: workspaces.New(b.Pool), PublicURL: func() string { return url }})
			}
			track()
			called := 0
			s.Hook = func(_ context.Context, point string, _ notifications.Ref) {
				if point == "called" {
					if called++; called == 1 {
						change(b, &url)
						track()
					}
				}
			}
			for range 2 {
				_, err := s.Work(t.Context(), ref)
				b.Must(err)
			}
			old, changed := 0, 0
			for i := range 40 {
				sent := b.carrier.sent[addressOf(i)]
				if len(sent) != 1 {
					t.Fatalf("%s: %d messages", addressOf(i), len(sent))
				}
				if strings.Contains(sent[0].HTML, "https://old.example/o/") {
					old++
				}
				if strings.Contains(sent[0].HTML, "https://new.example/o/") {
					changed++
				}
			}
			if old != 10 || changed != 30 {
				t.Errorf("%d with the old URL, %d with the new one", old, changed)
			}
		})
	}
}

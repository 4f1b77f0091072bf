package server

import (
	"log/slog"
	"net/url"
	"strings"
	"testing"

	"lemma/pgtest/shop"
	"lemma/sender/wire"
)

// A worker without LEMMA_PUBLIC_URL makes the links of the installation, also after a change.
func TestAWorkerWithoutTheSettingMakesLinks(t *testing.T) {
	m := startMailing(t)
	process := func(publicURL string) *Server {
		s, err := New(Deps{Pool: m.Fixture.Pool, Box: m.Box, Log: slog.New(slog.DiscardHandler)},
			Config{PublicURL: publicURL, Sources: shop.Local, Carriers: wire.Operator{AllowPrivate: true}})
		m.Must(err)
		m.Must(s.Settings.Sync(t.Context()))
		return s
	}
	worker := process("")
	m.Must(m.Settings.Sync(t.Context()))
	m.Sender = worker.Sender
	for _, want := range []string{publicURL, "https://new.example"} {
		if want != publicURL {
			process(want)
		}
		origin := m.campaign(nil)
		m.Must(worker.Settings.Sync(t.Context()))
		mails := m.work(origin)
		if len(mails) != 2 {
			t.Fatalf("sent: %v", mails)
		}
		for to, mail := range mails {
			link, err := url.Parse(strings.Trim(mail.Header.Get("List-Unsubscribe"), "<>"))
			if err != nil || "https://"+link.Host != want {
				t.Errorf("%s: %s, %v, want under %s", to, link, err, want)
			}
		}
	}
	if !worker.Tracking.On() {
		t.Error("nothing is tracked")
	}
}

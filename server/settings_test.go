package server

import (
	"encoding/json"
	"log/slog"
	"net/mail"
	"slices"
	"strings"
	"testing"

	"lemma"
	"lemma/direct"
	"lemma/message"
	"lemma/pgtest/shop"
	"lemma/sender/wire"
)

// A worker without LEMMA_PUBLIC_URL makes the links of the installation, also after a change.
func TestAWorkerWithoutTheSettingMakesLinks(t *testing.T) {
	m := startMailing(t)
	m.trackedTemplate(message.Content{})
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
		m.wantLinks(m.work(origin), 2, want)
		sent, err := m.Direct.Send(t.Context(), m.Workspace, direct.Request{ID: lemma.NewID(), // its content is cached
			To: direct.To{Address: "ada@shop.example"}, TemplateID: &m.Template, ProviderID: &m.Provider, Topic: &m.topic,
			Email: direct.Envelope{FromEmail: "news@shop.example"}, Data: map[string]json.RawMessage{"name": json.RawMessage(`"Ada"`)}})
		m.Must(err)
		m.wantLinks(m.work(sent.Notification.OriginID), 1, want)
	}
}

// wantLinks checks that all links of mails, and their images, are under a URL.
func (m *mailing) wantLinks(mails map[string]*mail.Message, n int, want string) {
	m.T.Helper()
	if len(mails) != n {
		m.T.Fatalf("sent: %v", mails)
	}
	for to, one := range mails {
		html := htmlOf(m.T, one)
		links := []string{strings.Trim(one.Header.Get("List-Unsubscribe"), "<>")}
		for _, found := range slices.Concat(hrefs.FindAllStringSubmatch(html, -1), pixels.FindAllStringSubmatch(html, -1)) {
			links = append(links, found[1])
		}
		if len(links) != 4 || slices.ContainsFunc(links, func(link string) bool { return !strings.HasPrefix(link, want+"/") }) {
			m.T.Errorf("%s: %v, want all under %s", to, links, want)
		}
	}
}

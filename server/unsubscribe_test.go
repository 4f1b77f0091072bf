package server

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-msgauth/dkim"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/campaigns"
	"lemma/dev/catcher"
	"lemma/flows"
	"lemma/message"
	"lemma/notifications"
	"lemma/pgtest"
	"lemma/pgtest/shop"
	"lemma/providers"
	"lemma/sender/wire"
	"lemma/suppression"
)

const publicURL = "https://lemma.shop.example"

// mailing is a process without workers, whose campaigns arrive at a mail catcher.
type mailing struct {
	*shop.Fixture
	*Server
	catcher *catcher.Catcher
	dns     string // record of the DKIM key
	topic   uuid.UUID
}

func startMailing(t *testing.T) *mailing {
	t.Helper()
	t.Parallel()
	m := &mailing{Fixture: shop.New(pgtest.NewShop(t, `create table people (id text, email text, name text, unsubscribe_url text)`,
		`insert into people values ('1', 'Ada@shop.example', 'Ada', 'https://evil.example'), ('2', 'bob@shop.example', 'Bob', null)`),
		shop.Local, nil)}
	var err error
	m.Server, err = New(Deps{Pool: m.Fixture.Pool, Box: m.Box, Log: slog.New(slog.DiscardHandler)},
		Config{PublicURL: publicURL, Sources: shop.Local, Carriers: wire.Operator{AllowPrivate: true}})
	m.Must(err)
	m.catcher, err = catcher.Start(catcher.Options{})
	m.Must(err)
	t.Cleanup(m.catcher.Close)
	m.Fill(`select * from people`)
	topic, err := suppression.New(m.Fixture.Pool).CreateTopic(t.Context(), m.Workspace, suppression.NewTopic{ID: lemma.NewID(), Name: "News"})
	m.Must(err)
	m.topic = topic.ID
	m.Template = m.NewTemplate(message.Content{Subject: "News", HTML: `<a href="{{ unsubscribe_url }}">off</a>`})
	m.signed()
	return m
}

// signed makes a provider that signs.
func (m *mailing) signed() {
	m.T.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	m.Must(err)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	m.Must(err)
	m.dns = "v=DKIM1; k=ed25519; p=" + base64.StdEncoding.EncodeToString(public)
	host, port, _ := net.SplitHostPort(m.catcher.Addr())
	config := `{"host":"` + host + `","port":` + port + `,"tls":"none","dkim":{"domain":"shop.example","selector":"s1"}}`
	secret, _ := json.Marshal(map[string]string{"dkim_private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))})
	p, err := m.Server.Providers.Create(m.T.Context(), m.Workspace,
		providers.NewProvider{ID: lemma.NewID(), Name: "signed", Kind: "smtp", Config: json.RawMessage(config), Secrets: secret})
	m.Must(err)
	m.Provider = p.ID
}

// campaign makes one and fans it out.
func (m *mailing) campaign(change func(*campaigns.NewCampaign)) uuid.UUID {
	m.T.Helper()
	n := campaigns.NewCampaign{ID: lemma.NewID(), Name: uuid.NewString(), AudienceID: m.Audience, TemplateID: m.Template,
		ProviderID: m.Provider, FromName: "Shop", FromEmail: "news@shop.example", TopicID: &m.topic}
	if change != nil {
		change(&n)
	}
	_, err := m.Campaigns.Create(m.T.Context(), m.Workspace, n)
	m.Must(err)
	_, err = m.Campaigns.Send(m.T.Context(), m.Workspace, n.ID, uuid.Nil)
	m.Must(err)
	_, err = m.Campaigns.Fanout(m.T.Context(), m.Workspace, n.ID)
	m.Must(err)
	return n.ID
}

// work sends what is ready of a campaign, and returns the new mails by recipient.
func (m *mailing) work(origin uuid.UUID) map[string]*mail.Message {
	m.T.Helper()
	before := len(m.catcher.Ledger())
	for _, id := range pgtest.Column[uuid.UUID](m.T, m.Fixture.Pool,
		`select id from batches where origin_id = $1 and status = 'ready'`, origin) {
		_, err := m.Sender.Work(m.T.Context(), notifications.Ref{WorkspaceID: m.Workspace, OriginID: origin, BatchID: id})
		m.Must(err)
	}
	mails := map[string]*mail.Message{}
	for _, e := range m.catcher.Ledger()[before:] {
		raw, _ := m.catcher.Source(e.N)
		m.checkSigned(raw)
		parsed, err := mail.ReadMessage(bytes.NewReader(raw))
		m.Must(err)
		mails[e.Recipient] = parsed
	}
	return mails
}

// checkSigned checks the signature of a mail, and that it covers the headers of one-click
// unsubscription if there are any.
func (m *mailing) checkSigned(raw []byte) {
	m.T.Helper()
	found, err := dkim.VerifyWithOptions(bytes.NewReader(raw), &dkim.VerifyOptions{
		LookupTXT: func(string) ([]string, error) { return []string{m.dns}, nil }})
	if err != nil || len(found) != 1 || found[0].Err != nil {
		m.T.Fatalf("DKIM: %v, %+v", err, found)
	}
	for _, name := range []string{"list-unsubscribe", "list-unsubscribe-post"} {
		there := bytes.Contains(bytes.ToLower(raw), []byte("\n"+name+":"))
		if signed := slices.ContainsFunc(found[0].HeaderKeys, func(k string) bool { return strings.EqualFold(k, name) }); signed != there {
			m.T.Errorf("%s: sent %v, signed %v", name, there, signed)
		}
	}
}

// click is what a mail client does with the headers of a mail (RFC 8058, 3.2).
func (m *mailing) click(one *mail.Message) int {
	m.T.Helper()
	link := one.Header.Get("List-Unsubscribe")
	if one.Header.Get("List-Unsubscribe-Post") != "List-Unsubscribe=One-Click" || !strings.HasPrefix(link, "<"+publicURL+"/u/") {
		m.T.Fatalf("headers %v", one.Header)
	}
	return m.request("POST", strings.Trim(link, "<>"), "List-Unsubscribe=One-Click")
}

func (m *mailing) request(method, url, body string) int {
	r := httptest.NewRequestWithContext(m.T.Context(), method, strings.TrimPrefix(url, publicURL), strings.NewReader(body))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	m.API.ServeHTTP(w, r)
	return w.Code
}

// A recipient clicks in one mail, and the next one of the same topic, whose notification
// is written already, does not call them. Their link is theirs, under DKIM, and in the body.
func TestARecipientUnsubscribesByOneClick(t *testing.T) {
	m := startMailing(t)
	first := m.work(m.campaign(nil))
	ada, bob := first["Ada@shop.example"], first["bob@shop.example"]
	if ada == nil || bob == nil || ada.Header.Get("List-Unsubscribe") == bob.Header.Get("List-Unsubscribe") {
		t.Fatalf("%v", first)
	}
	body, err := io.ReadAll(ada.Body)
	m.Must(err)
	link := strings.Trim(ada.Header.Get("List-Unsubscribe"), "<>")
	if text := strings.ReplaceAll(string(body), "=\r\n", ""); !strings.Contains(text, link) || strings.Contains(text, "evil") {
		t.Errorf("the body: %s", text)
	}
	second := m.campaign(nil) // its notifications are written
	for range 3 {             // a scanner follows the links
		if code := m.request("GET", link, ""); code != http.StatusOK {
			t.Fatalf("GET: %d", code)
		}
	}
	if code := m.click(ada); code != http.StatusOK {
		t.Fatalf("one click: %d", code)
	}
	got := m.work(second)
	if got["bob@shop.example"] == nil || len(got) != 1 {
		t.Errorf("after the click: %v", got)
	}
	other := m.work(m.campaign(func(n *campaigns.NewCampaign) { n.TopicID = nil }))
	if len(other) != 2 {
		t.Errorf("without the topic: %v", other)
	}
	if code := m.click(other["bob@shop.example"]); code != http.StatusOK { // from everything
		t.Fatalf("one click: %d", code)
	}
	if got := m.work(m.campaign(nil)); len(got) != 0 {
		t.Errorf("after both clicks: %v", got)
	}
}

// Transactional messages, and those with a List-Unsubscribe of their own, get no headers.
func TestMessagesWithoutOneClick(t *testing.T) {
	m := startMailing(t)
	own := "<mailto:off@shop.example>"
	for want, change := range map[string]func(*campaigns.NewCampaign){
		"":  func(n *campaigns.NewCampaign) { n.Transactional, n.TopicID = true, nil },
		own: func(n *campaigns.NewCampaign) { n.Headers = map[string]string{"list-unsubscribe": own} },
	} {
		mails := m.work(m.campaign(change))
		if len(mails) != 2 {
			t.Errorf("%d mails", len(mails))
		}
		for to, one := range mails {
			got := []string{one.Header.Get("List-Unsubscribe"), one.Header.Get("List-Unsubscribe-Post")}
			if diff := cmp.Diff([]string{want, ""}, got); diff != "" {
				t.Errorf("%s: %s", to, diff)
			}
		}
	}
}

// Without a public URL nothing is sent that its recipients could not unsubscribe from.
func TestMarketingNeedsAPublicURL(t *testing.T) {
	m := startMailing(t)
	ctx := t.Context()
	running := m.campaign(nil)
	draft, err := m.Campaigns.Create(ctx, m.Workspace, campaigns.NewCampaign{ID: lemma.NewID(), Name: "draft", AudienceID: m.Audience,
		TemplateID: m.Template, ProviderID: m.Provider, FromEmail: "news@shop.example"})
	m.Must(err)
	bare, err := New(Deps{Pool: m.Fixture.Pool, Box: m.Box, Log: slog.New(slog.DiscardHandler)},
		Config{Sources: shop.Local, Carriers: wire.Operator{AllowPrivate: true}})
	m.Must(err)
	refused := func(err error, pointer string) {
		t.Helper()
		var e *lemma.Error
		if !errors.As(err, &e) || len(e.Fields) != 1 || e.Fields[0].Code != "public_url_missing" || e.Fields[0].Pointer != pointer {
			t.Errorf("%+v", err)
		}
	}
	_, err = bare.Campaigns.Send(ctx, m.Workspace, draft.ID, uuid.Nil)
	refused(err, "/transactional")
	_, err = bare.Campaigns.Schedule(ctx, m.Workspace, draft.ID, time.Now().Add(time.Hour), uuid.Nil)
	refused(err, "/transactional")
	_, err = bare.Campaigns.Preview(ctx, m.Workspace, draft.ID)
	refused(err, "/transactional")
	_, err = bare.Campaigns.Update(ctx, m.Workspace, draft.ID, nil, campaigns.Patch{Transactional: new(true)})
	m.Must(err)
	_, err = bare.Campaigns.Send(ctx, m.Workspace, draft.ID, uuid.Nil)
	refused(err, "/template_id") // it uses the link
	plain := m.NewTemplate(message.Content{Subject: "x", Text: "x"})
	_, err = bare.Campaigns.Update(ctx, m.Workspace, draft.ID, nil, campaigns.Patch{TemplateID: &plain})
	m.Must(err)
	_, err = bare.Campaigns.Send(ctx, m.Workspace, draft.ID, uuid.Nil)
	m.Must(err)

	varied := campaigns.NewCampaign{ID: lemma.NewID(), Name: "varied", AudienceID: m.Audience, TemplateID: plain, ProviderID: m.Provider,
		FromEmail: "news@shop.example", Transactional: true, Experiment: &campaigns.Experiment{SamplePercent: 100,
			Variants: []campaigns.Variant{{Name: "a", Weight: 50}, {Name: "b", Weight: 50, TemplateID: &m.Template}}}}
	_, err = bare.Campaigns.Create(ctx, m.Workspace, varied)
	m.Must(err)
	_, err = bare.Campaigns.Send(ctx, m.Workspace, varied.ID, uuid.Nil)
	refused(err, "/experiment/variants/1/template_id")

	m.Sender = bare.Sender // what was fanned out before pauses
	if got := m.work(running); len(got) != 0 {
		t.Errorf("sent: %v", got)
	}
	if now, err := m.Campaigns.Get(ctx, m.Workspace, running); err != nil || now.Status != campaigns.Paused ||
		!strings.Contains(now.StatusDetail, "LEMMA_PUBLIC_URL") {
		t.Errorf("%s: %s, %v", now.Status, now.StatusDetail, err)
	}
}

// A send node of marketing is a fault of its version. The link is no column of the audience.
func TestSendNodesNeedAPublicURL(t *testing.T) {
	m := startMailing(t)
	ctx := t.Context()
	node := map[string]any{"type": "send", "channel": "email", "next": "end", "provider_id": lemma.FormatID(lemma.PrefixProvider, m.Provider),
		"template_id": lemma.FormatID(lemma.PrefixTemplate, m.Template)}
	definition, _ := json.Marshal(map[string]any{"audience_id": lemma.FormatID(lemma.PrefixAudience, m.Audience), "start": "mail",
		"recurrence": map[string]any{"policy": "once"}, "defaults": map[string]any{"from": map[string]any{"email": "news@shop.example"}},
		"nodes": map[string]any{"mail": node, "end": map[string]any{"type": "exit"}}})
	f, err := m.Flows.Create(ctx, m.Workspace, flows.NewFlow{ID: lemma.NewID(), Name: "f", Definition: definition})
	m.Must(err)
	if v, err := m.Flows.Validate(ctx, m.Workspace, f.ID, 1); err != nil || !v.Valid || slices.Contains(v.Columns, message.UnsubscribeURL) {
		t.Errorf("%+v, %v", v, err)
	}
	bare := newServer(t, m.Fixture.Pool, Config{Sources: shop.Local})
	v, err := bare.Flows.Validate(ctx, m.Workspace, f.ID, 1)
	if err != nil || len(v.Faults) != 1 || v.Faults[0].Pointer != "/nodes/mail/transactional" || v.Faults[0].Code != "public_url_missing" {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := bare.Flows.Publish(ctx, m.Workspace, f.ID, 1, nil, flows.InFlight{Mode: "stay"}, nil); lemma.KindOf(err) != lemma.Invalid {
		t.Errorf("published: %v", err)
	}
}

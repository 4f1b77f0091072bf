package server

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma/campaigns"
	"lemma/message"
	"lemma/notifications"
	"lemma/pgtest"
)

var (
	hrefs  = regexp.MustCompile(`href="([^"]*)"`)
	pixels = regexp.MustCompile(`<img src="([^"]*)"`)
)

// htmlOf is the HTML of a mail.
func htmlOf(t testing.TB, m *mail.Message) string {
	t.Helper()
	body, err := io.ReadAll(m.Body)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("=\r\n", "", "=\n", "", "=3D", "=").Replace(string(body))
	_, text, found := strings.Cut(text, "Content-Type: text/html")
	if !found {
		t.Fatalf("no HTML: %s", body)
	}
	return text
}

func (m *mailing) get(method, url string) *http.Response {
	r := httptest.NewRequest(method, strings.TrimPrefix(url, publicURL), nil)
	r.Header.Set("User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0")
	w := httptest.NewRecorder()
	m.API.ServeHTTP(w, r)
	return w.Result()
}

func (m *mailing) trackedTemplate(c message.Content) {
	c.Subject, c.HTML = "News", `<a href="https://shop.example/?name={{ name }}&amp;x=1">shop</a> <a href="{{ unsubscribe_url }}">off</a>`
	m.Template = m.NewTemplate(c)
}

// A campaign is opened and clicked: the API has the numbers, and the link to
// unsubscribe is not tracked.
func TestOpensAndClicksOfACampaign(t *testing.T) {
	m := startMailing(t)
	m.trackedTemplate(message.Content{})
	id := m.campaign(nil)
	mails := m.work(id)
	html := htmlOf(t, mails["Ada@shop.example"])
	found, pixel := hrefs.FindAllStringSubmatch(html, -1), pixels.FindStringSubmatch(html)
	if len(found) != 2 || len(pixel) != 2 || !strings.HasPrefix(found[0][1], publicURL+"/c/") ||
		!strings.HasPrefix(found[1][1], publicURL+"/u/") || !strings.HasPrefix(pixel[1], publicURL+"/o/") {
		t.Fatalf("%s", html)
	}
	if got := m.get("GET", found[0][1]); got.StatusCode != http.StatusFound ||
		got.Header.Get("Location") != "https://shop.example/?name=Ada&x=1" {
		t.Errorf("%d %v", got.StatusCode, got.Header)
	}
	if got := m.get("GET", pixel[1]); got.StatusCode != http.StatusOK {
		t.Errorf("%d", got.StatusCode)
	}
	m.Exec(`update attempts set at = at - interval '1 hour'`)
	_, err := m.Tracking.Apply(t.Context(), 0)
	m.Must(err)
	all, err := m.Server.Ledger.CountsOf(t.Context(), m.Workspace, []uuid.UUID{id})
	m.Must(err)
	want := notifications.Engagement{Opens: 1, UniqueOpens: 1, Clicks: 1, UniqueClicks: 1}
	if d := cmp.Diff(want, all[id].Engagement); d != "" {
		t.Error(d)
	}
	links, err := m.Campaigns.Links(t.Context(), m.Workspace, id)
	m.Must(err)
	wanted := []campaigns.Link{{URL: "https://shop.example/?name={{ name }}&amp;x=1", Clicks: 1}}
	if d := cmp.Diff(wanted, links); d != "" {
		t.Error(d)
	}
	m.checkTimeline(id)
}

// checkTimeline checks that the explanation of the notification has the click and the open.
func (m *mailing) checkTimeline(id uuid.UUID) {
	m.T.Helper()
	key := pgtest.One[uuid.UUID](m.T, m.Fixture.Pool, `select key from engagements where origin_id = $1`, id)
	e, err := m.Server.Ledger.Explain(m.T.Context(), m.Workspace, id, key)
	m.Must(err)
	var got []string
	for _, s := range e.Steps {
		if s.Event == "opened" || s.Event == "clicked" {
			got = append(got, s.Event+" "+s.Data["link"])
		}
	}
	if d := cmp.Diff([]string{"clicked 0", "opened "}, got); d != "" {
		m.T.Error(d)
	}
}

func TestWhatIsNotTracked(t *testing.T) {
	m := startMailing(t)
	for name, c := range map[string]struct {
		message.Content
		change func(*campaigns.NewCampaign)
		want   string
	}{
		"off":           {message.Content{TrackOpens: message.Off, TrackClicks: message.Off}, nil, ""},
		"opens only":    {message.Content{TrackClicks: message.Off}, nil, "o"},
		"transactional": {message.Content{}, func(n *campaigns.NewCampaign) { n.Transactional, n.TopicID = true, nil }, ""},
		"transactional, clicks on": {message.Content{TrackClicks: message.On},
			func(n *campaigns.NewCampaign) { n.Transactional, n.TopicID = true, nil }, "c"},
	} {
		m.trackedTemplate(c.Content)
		html, got := htmlOf(t, m.work(m.campaign(c.change))["Ada@shop.example"]), ""
		for _, what := range []string{"o", "c"} {
			if strings.Contains(html, publicURL+"/"+what+"/") {
				got += what
			}
		}
		if got != c.want {
			t.Errorf("%s: tracks %q: %s", name, got, html)
		}
	}
}

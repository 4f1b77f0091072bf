package unsubscribe_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/net/html"

	"lemma"
	"lemma/links"
	"lemma/pgtest"
	"lemma/secrets"
	"lemma/suppression"
	"lemma/unsubscribe"
	"lemma/workspaces"
)

const publicURL = "https://lemma.shop.example"

type fixture struct {
	t            *testing.T
	pool         *pgxpool.Pool
	box          *secrets.Box
	ws           uuid.UUID
	suppressions *suppression.Suppressions
	workspaces   *workspaces.Workspaces
	links        *links.Links
	pages        *unsubscribe.Pages
	host         string // of the requests; empty: that of no workspace
}

func setup(t *testing.T) *fixture {
	t.Helper()
	t.Parallel()
	pool := pgtest.DB(t)
	f := &fixture{t: t, pool: pool, box: pgtest.Box(t), ws: pgtest.Workspace(t, pool), suppressions: suppression.New(pool),
		workspaces: workspaces.New(pool)}
	f.links = links.New(pool, f.box, nil)
	f.pages = unsubscribe.New(unsubscribe.Deps{Pool: pool, Links: f.links, Suppressions: f.suppressions, Workspaces: f.workspaces,
		PublicURL: func() string { return publicURL }})
	return f
}

const ada = "ada@example.com"

// path is the path of a link of Ada's in a message of a topic.
func (f *fixture) path(ws, topic uuid.UUID) string {
	f.t.Helper()
	return f.pathOf("Ada@Example.com", ws, topic)
}

// pathOf is the path of a link of a recipient.
func (f *fixture) pathOf(address string, ws, topic uuid.UUID) string {
	f.t.Helper()
	urls, err := f.pages.URLs(f.t.Context(), ws, unsubscribe.Content{Channel: lemma.Email, TopicID: topic, CreatedAt: time.Now()})
	if err != nil {
		f.t.Fatal(err)
	}
	path, ok := strings.CutPrefix(urls.Of(lemma.NewID(), lemma.NewID(), address), publicURL)
	if !ok {
		f.t.Fatal("the link does not begin with the public URL")
	}
	return path
}

func (f *fixture) topic(name string) uuid.UUID {
	f.t.Helper()
	made, err := f.suppressions.CreateTopic(f.t.Context(), f.ws,
		suppression.NewTopic{ID: lemma.NewID(), Name: name, Description: "<b>" + name})
	if err != nil {
		f.t.Fatal(err)
	}
	return made.ID
}

// answer is a response, and its document if it is a page.
type answer struct {
	*http.Response
	body string
	page *html.Node
}

func (f *fixture) send(method, path, kind, body string) answer {
	f.t.Helper()
	r := httptest.NewRequestWithContext(f.t.Context(), method, path, strings.NewReader(body))
	if f.host != "" {
		r.Host = f.host
	}
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	w := httptest.NewRecorder()
	f.pages.ServeHTTP(w, r)
	got := w.Result()
	text, err := io.ReadAll(got.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	a := answer{Response: got, body: string(text)}
	if strings.HasPrefix(got.Header.Get("Content-Type"), "text/html") {
		if a.page, err = html.Parse(strings.NewReader(a.body)); err != nil {
			f.t.Fatal(err)
		}
	}
	return a
}

func (f *fixture) get(path string) answer { f.t.Helper(); return f.send("GET", path, "", "") }

func (f *fixture) post(path string, form url.Values) answer {
	f.t.Helper()
	return f.send("POST", path, "application/x-www-form-urlencoded", form.Encode())
}

// form returns what a browser sends for a button of a page.
func (a answer) form(t *testing.T, button string) url.Values {
	t.Helper()
	for _, form := range all(a.page, "form") {
		values := url.Values{}
		pressed := false
		for _, in := range all(form, "input") {
			if attr(in, "type") == "hidden" || has(in, "checked") {
				values.Add(attr(in, "name"), attr(in, "value"))
			}
		}
		for _, b := range all(form, "button") {
			if attr(b, "value") == button {
				values.Set(attr(b, "name"), button)
				pressed = true
			}
		}
		if pressed {
			return values
		}
	}
	t.Fatalf("no button %s in %s", button, a.body)
	return nil
}

func all(n *html.Node, tag string) (found []*html.Node) {
	for d := range n.Descendants() {
		if d.Type == html.ElementNode && d.Data == tag {
			found = append(found, d)
		}
	}
	return found
}

func attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func has(n *html.Node, name string) bool {
	for _, a := range n.Attr {
		if a.Key == name {
			return true
		}
	}
	return false
}

// causes are why Ada's address is not sent to.
func (f *fixture) causes(ws, topic uuid.UUID) (causes []string) {
	f.t.Helper()
	found, err := suppression.Check(f.t.Context(), f.pool, ws, suppression.Message{Channel: lemma.Email, TopicID: topic}, []string{ada})
	if err != nil {
		f.t.Fatal(err)
	}
	for _, s := range found {
		causes = append(causes, s.Cause)
	}
	return causes
}

// rows are all rows that a request can change.
func (f *fixture) rows() string {
	f.t.Helper()
	return pgtest.One[string](f.t, f.pool, `
		select coalesce((select string_agg(s::text, ';' order by s::text) from suppressions s), '') || '|' ||
			coalesce((select string_agg(t::text, ';' order by t::text) from topic_unsubscribes t), '')`)
}

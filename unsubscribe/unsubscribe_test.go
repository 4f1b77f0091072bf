package unsubscribe_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/links"
	"lemma/pgtest"
	"lemma/suppression"
	"lemma/unsubscribe"
	"lemma/workspaces"
)

// A GET changes nothing, however often a scanner sends it. Nor does a HEAD.
func TestReadingChangesNothing(t *testing.T) {
	f := setup(t)
	f.topic("News")
	path := f.path(f.ws, uuid.Nil)
	before := f.rows()
	for i := range 100 {
		method := "GET"
		if i%10 == 0 {
			method = "HEAD"
		}
		if got := f.send(method, path+"?List-Unsubscribe=One-Click&action=none", "", ""); got.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %s", method, got.StatusCode, got.body)
		}
	}
	if diff := cmp.Diff(before, f.rows()); diff != "" {
		t.Error(diff)
	}
}

// One click unsubscribes from the topic of the message, and from all marketing if it has
// none. The form has either type (RFC 8058, 3.1). A repetition changes nothing.
func TestOneClick(t *testing.T) {
	f := setup(t)
	pgtest.Subscribe(t, f.pool, f.ws, "notification.unsubscribed")
	news, offers := f.topic("News"), f.topic("Offers")
	var multi bytes.Buffer
	w := multipart.NewWriter(&multi)
	if err := errors.Join(w.WriteField("List-Unsubscribe", "One-Click"), w.Close()); err != nil {
		t.Fatal(err)
	}
	const plain = "List-Unsubscribe=One-Click"
	for name, c := range map[string]struct{ kind, body string }{
		"urlencoded": {"application/x-www-form-urlencoded", plain}, "no type": {"", plain},
		"multipart": {w.FormDataContentType(), multi.String()},
	} {
		pgtest.Exec(t, f.pool, `delete from suppressions`)
		pgtest.Exec(t, f.pool, `delete from topic_unsubscribes`)
		pgtest.Exec(t, f.pool, `delete from tracking_queue`)
		for range 2 {
			got := f.send("POST", f.path(f.ws, news), c.kind, c.body)
			if got.StatusCode != http.StatusOK || got.body != "Unsubscribed.\n" || got.Header.Get("Location") != "" || len(got.Cookies()) > 0 {
				t.Fatalf("%s: %d %q %v", name, got.StatusCode, got.body, got.Header)
			}
		}
		if n := pgtest.One[int](t, f.pool, `select count(*) from tracking_queue where type = 'unsubscribed'`); n != 1 {
			t.Errorf("%s: %d messages are counted", name, n)
		}
		if diff := cmp.Diff([]string{suppression.UnsubscribedTopic}, f.causes(f.ws, news)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if got := f.causes(f.ws, offers); got != nil {
			t.Errorf("%s: another topic: %v", name, got)
		}
		for range 2 {
			f.send("POST", f.path(f.ws, uuid.Nil), c.kind, c.body)
		}
		if diff := cmp.Diff([]string{suppression.Unsubscribed}, f.causes(f.ws, offers)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if n := pgtest.One[int](t, f.pool, `select count(*) from suppressions`); n != 1 {
			t.Errorf("%s: %d suppressions", name, n)
		}
	}
	if got := f.causes(pgtest.Workspace(t, f.pool), news); got != nil {
		t.Error("another workspace:", got)
	}
	if n := pgtest.One[int](t, f.pool, `select count(*) from events_out where type = 'notification.unsubscribed' and count = 1`); n != 6 {
		t.Errorf("%d events of six changes", n)
	}
}

// A client that does not wait for the answer, as some that send the POST of one click, unsubscribes.
func TestClientsThatDoNotWait(t *testing.T) {
	f := setup(t)
	gone, hangUp := context.WithCancel(t.Context())
	hangUp()
	r := httptest.NewRequestWithContext(gone, http.MethodPost, f.path(f.ws, uuid.Nil), strings.NewReader("List-Unsubscribe=One-Click"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	f.pages.ServeHTTP(httptest.NewRecorder(), r)
	if got := f.causes(f.ws, uuid.Nil); len(got) != 1 {
		t.Errorf("suppressed by %q", got)
	}
}

// A form that changes nothing has no record in the audit log, however often it is sent.
func TestFormsWithoutAChangeAreNotRecorded(t *testing.T) {
	f := setup(t)
	news := f.topic("News")
	topic := []string{lemma.FormatID(lemma.PrefixTopic, news)}
	for _, form := range []url.Values{
		{"List-Unsubscribe": {"One-Click"}}, {"action": {"topics"}, "on": topic, "shown": topic},
		{"action": {"topics"}, "shown": topic}, {"action": {"none"}}, {"action": {"all"}},
	} {
		for range 3 {
			if got := f.post(f.path(f.ws, news), form); got.StatusCode != http.StatusOK {
				t.Fatal(got.body)
			}
		}
	}
	got := pgtest.Column[string](t, f.pool, `select action from audit_log order by at`)
	if diff := cmp.Diff([]string{"unsubscribe", "setTopics", "setTopics", "unsubscribe", "resubscribe"}, got); diff != "" {
		t.Error(diff)
	}
}

// The topic of a message may be deleted since: its link unsubscribes from everything.
func TestOneClickOfADeletedTopic(t *testing.T) {
	f := setup(t)
	news := f.topic("News")
	path := f.path(f.ws, news)
	if err := f.suppressions.DeleteTopic(t.Context(), f.ws, news); err != nil {
		t.Fatal(err)
	}
	if got := f.post(path, url.Values{"List-Unsubscribe": {"One-Click"}}); got.StatusCode != http.StatusOK {
		t.Fatal(got.body)
	}
	if diff := cmp.Diff([]string{suppression.Unsubscribed}, f.causes(f.ws, uuid.Nil)); diff != "" {
		t.Error(diff)
	}
}

// Every token that was not signed for this purpose is the same 404, and nothing changes.
func TestLinksThatAreRefused(t *testing.T) {
	f := setup(t)
	path := f.path(f.ws, uuid.Nil)
	signer, err := f.links.Signer(t.Context(), f.ws, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	foreign := f.path(pgtest.Workspace(t, f.pool), uuid.Nil)
	for what, wrong := range map[string]string{
		"none": "/u/", "cut": path[:len(path)-1], "longer": path + "A", "forged": path[:80] + "x" + path[81:],
		"of another purpose":           unsubscribe.Path + signer.Sign(77, make([]byte, 65)),
		"of another form":              unsubscribe.Path + signer.Sign(links.Unsubscribe, make([]byte, 64)),
		"of a channel that is none":    unsubscribe.Path + signer.Sign(links.Unsubscribe, bytes.Repeat([]byte{9}, 65)),
		"with the head of another one": foreign[:len(unsubscribe.Path)+25] + path[len(unsubscribe.Path)+25:],
	} {
		for _, got := range []answer{f.get(wrong), f.post(wrong, url.Values{"List-Unsubscribe": {"One-Click"}})} {
			if got.StatusCode != http.StatusNotFound || !strings.HasPrefix(got.body, "This link is not valid, or no longer valid.") {
				t.Errorf("%s: %d %q", what, got.StatusCode, got.body)
			}
		}
	}
	if got := f.rows(); got != "|" {
		t.Error(got)
	}
	if got := f.get(foreign); got.StatusCode != http.StatusOK {
		t.Error("the link of another workspace:", got.StatusCode)
	}
	pgtest.Exec(t, f.pool, `insert into tracking_hosts (host, workspace_id) values ('go.shop.example', $1)`, f.ws)
	f.host = "go.shop.example"
	if got := f.get(foreign); got.StatusCode != http.StatusNotFound {
		t.Error("that of another workspace under the host of this one:", got.StatusCode)
	}
	if got := f.get(path); got.StatusCode != http.StatusOK {
		t.Error("its own:", got.StatusCode)
	}
}

// A link goes on working when the key has been rotated.
func TestLinksOutliveRotation(t *testing.T) {
	f := setup(t)
	path := f.path(f.ws, uuid.Nil)
	for range 3 {
		if _, err := f.links.Rotate(t.Context(), f.ws, lemma.NewID()); err != nil {
			t.Fatal(err)
		}
	}
	pgtest.Exec(t, f.pool, `update link_keys set created_at = created_at - interval '1 hour' where number > 1`)
	if fresh := f.path(f.ws, uuid.Nil); fresh[:len(unsubscribe.Path)+4] == path[:len(unsubscribe.Path)+4] {
		t.Error("the new key does not sign")
	}
	if got := f.post(path, url.Values{"List-Unsubscribe": {"One-Click"}}); got.StatusCode != http.StatusOK {
		t.Error(got.StatusCode)
	}
	if len(f.causes(f.ws, uuid.Nil)) != 1 {
		t.Error("the old link did not unsubscribe")
	}
}

// The forms of the page set topics, unsubscribe from everything, and reverse that.
func TestPage(t *testing.T) {
	f := setup(t)
	news, offers := f.topic("News"), f.topic("Offers")
	path := f.path(f.ws, news)
	form := f.get(path).form(t, "topics")
	if len(form["on"]) != 2 || len(form["shown"]) != 2 {
		t.Fatalf("at first: %v", form)
	}
	late := f.topic("Later") // the form does not show it
	form["on"] = []string{lemma.FormatID(lemma.PrefixTopic, offers), "top_nothing", lemma.FormatID(lemma.PrefixTopic, lemma.NewID())}
	got := f.post(path, form)
	if got.StatusCode != http.StatusOK || !strings.Contains(got.body, "has been saved") {
		t.Fatalf("%d %s", got.StatusCode, got.body)
	}
	for topic, want := range map[uuid.UUID][]string{news: {suppression.UnsubscribedTopic}, offers: nil, late: nil} {
		if diff := cmp.Diff(want, f.causes(f.ws, topic)); diff != "" {
			t.Error(diff)
		}
	}
	if form := got.form(t, "topics"); len(form["on"]) != 2 || len(form["shown"]) != 3 {
		t.Errorf("saved: %v", form)
	}
	got = f.post(path, got.form(t, "none"))
	if !strings.Contains(got.body, "You are unsubscribed") || !cmp.Equal([]string{suppression.Unsubscribed}, f.causes(f.ws, offers)) {
		t.Errorf("all off: %s", got.body)
	}
	got = f.post(path, got.form(t, "all"))
	if strings.Contains(got.body, "You are unsubscribed") || f.causes(f.ws, offers) != nil {
		t.Errorf("back on: %s", got.body)
	}
	if diff := cmp.Diff([]string{suppression.UnsubscribedTopic}, f.causes(f.ws, news)); diff != "" {
		t.Error("a topic was changed:", diff)
	}
	form["on"] = form["shown"]
	f.post(path, form)
	if f.causes(f.ws, news) != nil {
		t.Error("the topic is not subscribed to again")
	}
	if got := f.post(path, url.Values{"action": {"everything"}}); got.StatusCode != http.StatusBadRequest {
		t.Error("an unknown action:", got.StatusCode)
	}
}

// The page removes no bounce, no complaint and no manual suppression, and states that
// nothing is sent.
func TestOtherSuppressionsStay(t *testing.T) {
	f := setup(t)
	for _, cause := range suppression.Causes {
		if _, _, err := f.suppressions.Add(t.Context(), f.ws,
			suppression.Entry{ID: lemma.NewID(), Channel: lemma.Email, Address: ada, Cause: cause}); err != nil {
			t.Fatal(err)
		}
	}
	path := f.path(f.ws, uuid.Nil)
	got := f.post(path, f.get(path).form(t, "all"))
	if !strings.Contains(got.body, "Nothing is sent to this address at present") {
		t.Error(got.body)
	}
	left := pgtest.One[string](t, f.pool, `select string_agg(cause, ' ' order by cause) from suppressions`)
	if left != "complaint hard_bounce manual soft_bounces token_unregistered" {
		t.Error(left)
	}
}

// A link has no address. The suppression has that of the notification, as long as it
// is known.
func TestAddresses(t *testing.T) {
	f := setup(t)
	urls, err := f.pages.URLs(t.Context(), f.ws, unsubscribe.Content{Channel: lemma.Email, CreatedAt: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]string{"Ada@Example.com": ada, "erased": "", "eve@example.com": ""} {
		origin, key := lemma.NewID(), lemma.NewID()
		pgtest.Exec(t, f.pool, `insert into notifications (workspace_id, origin_id, key, profile_key, address, batch_id, ordinal)
			values ($1, $2, $3, 'p', $4, $3, 1)`, f.ws, origin, key, address)
		path := strings.TrimPrefix(urls.Of(origin, key, ada), publicURL)
		if raw, _ := base64.RawURLEncoding.DecodeString(path[len(unsubscribe.Path):]); strings.Contains(strings.ToLower(string(raw)), "ada") {
			t.Error("the link has the address")
		}
		if shown := strings.Contains(f.get(path).body, "a•••@example.com"); shown != (want != "") {
			t.Errorf("%s: shown %v", address, shown)
		}
		f.post(path, url.Values{"List-Unsubscribe": {"One-Click"}})
		p, err := f.suppressions.Preferences(t.Context(), f.ws, lemma.Email, ada, uuid.Nil)
		if err != nil || len(p.Suppressions) != 1 || p.Suppressions[0].Address != want ||
			p.Suppressions[0].Detail != "one click in "+lemma.FormatNotificationID(origin, key) {
			t.Errorf("%s: %+v, %v", address, p.Suppressions, err)
		}
		pgtest.Exec(t, f.pool, `delete from suppressions`)
	}
}

// The page has the words and colours of its workspace, escaped, and a browser may apply
// only its own style.
func TestWordsAndColours(t *testing.T) {
	f := setup(t)
	f.topic(`"><script>alert(1)</script>`)
	evil := `</style><script>x</script>{{ .Style }}`
	if _, err := f.workspaces.Update(t.Context(), f.ws, nil, workspaces.Patch{Page: workspaces.PagePatch{Title: new(evil),
		Text:             new("one\ntwo" + evil),
		UnsubscribeLabel: new(evil), Color: new("#a03020"), Background: new("#101010"), Language: new("de")}}); err != nil {
		t.Fatal(err)
	}
	got := f.get(f.path(f.ws, uuid.Nil))
	if len(all(got.page, "script"))+len(all(got.page, "b"))+len(all(got.page, "a"))+len(all(got.page, "img")) != 0 {
		t.Errorf("markup: %s", got.body)
	}
	styles := all(got.page, "style")
	if len(styles) != 1 || attr(all(got.page, "html")[0], "lang") != "de" || all(got.page, "h1")[0].FirstChild.Data != evil {
		t.Fatalf("%s", got.body)
	}
	style := styles[0].FirstChild.Data
	for _, want := range []string{"background: #101010", "color: #ffffff", "border: .125rem solid #a03020"} {
		if !strings.Contains(style, want) {
			t.Errorf("no %q in %s", want, style)
		}
	}
	sum := sha256.Sum256([]byte(style))
	want := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
	if diff := cmp.Diff(want, got.Header.Get("Content-Security-Policy")); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]string{"Referrer-Policy": "no-referrer", "X-Robots-Tag": "noindex, nofollow",
		"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Set-Cookie": ""} {
		if got := got.Header.Get(name); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// A body that is too large changes nothing, and without the database the answer is 503.
func TestBodiesAndFailures(t *testing.T) {
	f := setup(t)
	path := f.path(f.ws, uuid.Nil)
	large := "List-Unsubscribe=One-Click&x=" + strings.Repeat("x", 70_000)
	for kind, body := range map[string]string{"application/x-www-form-urlencoded": large, "multipart/form-data": "x",
		"multipart/form-data; boundary=x": "--x\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n" + large, "": "%zz=1",
		"multipart/form-data; boundary=y": "--y\r\nContent-Disposition: form-data; name=\"List-Unsubscribe\"; x=" + strings.Repeat("x", 2000) +
			"\r\n\r\nOne-Click\r\n--y--\r\n",
		"multipart/form-data; boundary=x; x=" + strings.Repeat("x", 2000): "--x\r\nContent-Disposition: form-data; " +
			"name=\"List-Unsubscribe\"\r\n\r\nOne-Click\r\n--x--\r\n"} {
		if got := f.send("POST", path, kind, body); got.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %d", kind, got.StatusCode)
		}
	}
	if f.rows() != "|" {
		t.Error("a refused body changed something")
	}
	f.pool.Close()
	for _, got := range []answer{f.get(path), f.post(path, url.Values{"List-Unsubscribe": {"One-Click"}})} {
		if got.StatusCode != http.StatusServiceUnavailable || got.Header.Get("Retry-After") == "" {
			t.Errorf("without the database: %d", got.StatusCode)
		}
	}
}

// A forged token is refused without the database, and before the body is read.
func TestForgedTokensCostNoDatabaseAndNoBody(t *testing.T) {
	f := setup(t)
	path := f.path(f.ws, uuid.Nil)
	f.pool.Close()
	r := httptest.NewRequest(http.MethodPost, path[:60]+map[bool]string{true: "B", false: "A"}[path[60] == 'A']+path[61:], unread{t})
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	f.pages.ServeHTTP(w, r)
	if w.Code != http.StatusNotFound {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// unread is a body that must not be read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

// A server without a public URL makes no links.
func TestNoPublicURL(t *testing.T) {
	f := setup(t)
	pages := unsubscribe.New(unsubscribe.Deps{Pool: f.pool, Links: f.links, Suppressions: f.suppressions, Workspaces: f.workspaces})
	_, err := pages.URLs(t.Context(), f.ws, unsubscribe.Content{Channel: lemma.Email})
	if !errors.Is(err, unsubscribe.ErrNoPublicURL) || lemma.KindOf(err) != lemma.Invalid {
		t.Error(err)
	}
}

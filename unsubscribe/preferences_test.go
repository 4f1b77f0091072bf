package unsubscribe_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"lemma"
	"lemma/pgtest"
	"lemma/suppression"
	"lemma/unsubscribe"
)

// manyTopics makes two topics more than a page has. The topic of the message is the last
// by name.
func (f *fixture) manyTopics() (names []string, of map[string]string, message uuid.UUID) {
	of = map[string]string{}
	for i := range suppression.TopicsPerPage + 1 {
		name := fmt.Sprintf("A %03d", (i*7)%(suppression.TopicsPerPage+1)) // not created in this order
		names, of[lemma.FormatID(lemma.PrefixTopic, f.topic(name))] = append(names, name), name
	}
	message = f.topic("Zeta")
	of[lemma.FormatID(lemma.PrefixTopic, message)] = "Zeta"
	slices.Sort(names)
	return append([]string{"Zeta"}, names...), of, message
}

// The page shows the topic of the message first, then the others by name. It shows a bounded
// number, states which, and leads to the others.
func TestThePageOfManyTopics(t *testing.T) {
	f := setup(t)
	names, of, message := f.manyTopics()
	path := f.path(f.ws, message)
	for _, c := range []struct {
		query string
		names []string
		part  string
		links []string
	}{
		{"", names[:200], "Topics 1 to 200 of 202 are shown.", []string{"?page=2"}},
		{"?page=2", names[200:], "Topics 201 to 202 of 202 are shown.", []string{"?page=1"}},
		{"?page=0", names[:200], "Topics 1 to 200 of 202 are shown.", []string{"?page=2"}},
		{"?page=x", names[:200], "Topics 1 to 200 of 202 are shown.", []string{"?page=2"}},
	} {
		got := f.get(path + c.query)
		var shown []string
		for _, id := range got.form(t, "topics")["shown"] {
			shown = append(shown, of[id])
		}
		if diff := cmp.Diff(c.names, shown); diff != "" {
			t.Errorf("%s: %s", c.query, diff)
		}
		var links []string
		for _, a := range all(got.page, "a") {
			links = append(links, attr(a, "href"))
		}
		if diff := cmp.Diff(c.links, links); diff != "" || !strings.Contains(got.body, c.part) {
			t.Errorf("%s: %s %s", c.query, diff, got.body)
		}
	}
	past := f.get(path + "?page=9999999999999999999")
	if past.StatusCode != http.StatusOK || len(all(past.page, "fieldset")) != 0 {
		t.Errorf("a page that is none: %d", past.StatusCode)
	}
}

// A form of each page changes the topics that this page shows.
func TestFormsOfManyTopics(t *testing.T) {
	f := setup(t)
	_, of, message := f.manyTopics()
	path := f.path(f.ws, message)
	for page, want := range map[string]int{"": 200, "?page=2": 2} {
		form := f.get(path+page).form(t, "topics")
		form.Del("on")
		got := f.post(path+page, form)
		if got.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %s", page, got.StatusCode, got.body)
		}
		saved := got.form(t, "topics")
		if len(saved["on"]) != 0 || !cmp.Equal(saved["shown"], form["shown"]) || len(saved["shown"]) != want {
			t.Errorf("%s: %d of %d topics", page, len(saved["on"]), len(saved["shown"]))
		}
	}
	if n := pgtest.One[int](t, f.pool, `select count(*) from topic_unsubscribes`); n != len(of) {
		t.Errorf("%d of %d topics", n, len(of))
	}
}

// Topics that fit on the page are all of them: it has no links.
func TestThePageOfAllTopics(t *testing.T) {
	f := setup(t)
	for i := range suppression.TopicsPerPage - 1 {
		f.topic(fmt.Sprintf("A %03d", i))
	}
	got := f.get(f.path(f.ws, f.topic("Zeta")))
	if n := len(got.form(t, "topics")["shown"]); n != suppression.TopicsPerPage || len(all(got.page, "nav")) != 0 {
		t.Errorf("%d topics: %s", n, got.body)
	}
}

// Alternating changes of a link are bounded: subscribing again is refused after some in an
// hour, and unsubscribing never.
func TestAlternatingChanges(t *testing.T) {
	f := setup(t)
	registry := prometheus.NewRegistry()
	f.pages = unsubscribe.New(unsubscribe.Deps{Pool: f.pool, Links: f.links, Suppressions: f.suppressions, Workspaces: f.workspaces,
		PublicURL: func() string { return publicURL }, Metrics: unsubscribe.NewMetrics(registry)})
	news, offers := f.topic("News"), f.topic("Offers")
	path, other := f.path(f.ws, news), f.path(f.ws, news)
	id := lemma.FormatID(lemma.PrefixTopic, news)
	oneClick, on := url.Values{"List-Unsubscribe": {"One-Click"}}, url.Values{"action": {"topics"}, "shown": {id}, "on": {id}}
	records := func() int { return pgtest.One[int](t, f.pool, `select count(*) from audit_log`) }
	for i := range 40 {
		if got := f.post(path, oneClick); got.StatusCode != http.StatusOK {
			t.Fatalf("one click %d: %d", i, got.StatusCode)
		}
		if got, refused := f.post(path, on), i >= 10; refused != (got.StatusCode == http.StatusTooManyRequests) ||
			refused && (got.Header.Get("Retry-After") == "" || !strings.Contains(got.body, "subscribe again in an hour")) {
			t.Fatalf("subscribing again %d: %d %s", i, got.StatusCode, got.body)
		}
	}
	if n := records(); n != 21 {
		t.Errorf("%d records", n)
	}
	if diff := cmp.Diff([]string{suppression.UnsubscribedTopic}, f.causes(f.ws, news)); diff != "" {
		t.Error("a refused form subscribed:", diff)
	}
	both := url.Values{"action": {"topics"}, "shown": {id, lemma.FormatID(lemma.PrefixTopic, offers)}, "on": {id}}
	if got := f.post(path, both); got.StatusCode != http.StatusTooManyRequests || f.causes(f.ws, offers) == nil {
		t.Errorf("a form that does both: %d, %v", got.StatusCode, f.causes(f.ws, offers))
	}
	if got := f.post(path, url.Values{"action": {"none"}}); got.StatusCode != http.StatusOK {
		t.Error("unsubscribing from everything:", got.StatusCode)
	}
	if got := f.post(path, url.Values{"action": {"all"}}); got.StatusCode != http.StatusTooManyRequests {
		t.Error("subscribing to everything:", got.StatusCode)
	}
	if got := f.post(other, url.Values{"action": {"all"}}); got.StatusCode != http.StatusOK {
		t.Error("another link:", got.StatusCode)
	}
	if n := metric(t, registry, "lemma_resubscriptions_refused_total"); n != 32 {
		t.Errorf("%v refusals are counted", n)
	}
	pgtest.Exec(t, f.pool, `alter table audit_log disable trigger audit_log_append_only;
		update audit_log set at = at - interval '2 hours'; alter table audit_log enable trigger audit_log_append_only`)
	if got := f.post(path, on); got.StatusCode != http.StatusOK || f.causes(f.ws, news) != nil {
		t.Errorf("an hour later: %d %v", got.StatusCode, f.causes(f.ws, news))
	}
}

func metric(t *testing.T, registry *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// A recipient unsubscribes on the page from the topic of another message: it counts, and is reported. Saved again it is
// not.
func TestTheTopicOfAnotherMessage(t *testing.T) {
	f := setup(t)
	news, offers := f.topic("News"), f.topic("Offers")
	for _, of := range []uuid.UUID{news, uuid.Nil} {
		path := f.path(f.ws, of)
		form := f.get(path).form(t, "topics")
		form["on"] = []string{lemma.FormatID(lemma.PrefixTopic, news)}
		for range 2 {
			f.post(path, form)
		}
		if n := pgtest.One[int](t, f.pool, `select count(*) from tracking_queue where type = 'unsubscribed'`); n != 1 {
			t.Errorf("%d are counted", n)
		}
		pgtest.Exec(t, f.pool, `delete from tracking_queue`)
		form["on"] = form["shown"]
		f.post(path, form)
		if f.causes(f.ws, offers) != nil {
			t.Error("the topic is not subscribed to again")
		}
	}
}

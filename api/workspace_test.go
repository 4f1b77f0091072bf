package api

import (
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/unsubscribe"
)

// checkWorkspace changes the page of the workspace.
func (b *bundle) checkWorkspace() {
	b.T.Helper()
	if got := b.do("GET", "/v1/workspace", nil).is(200); got.header.Get("ETag") != `"1"` {
		b.T.Errorf("ETag %s", got.header.Get("ETag"))
	}
	page := object{"title": "News", "text": "one\ntwo", "unsubscribe_label": "Stop", "color": "#a03020", "background": "#101010",
		"language": "de"}
	b.do("PATCH", "/v1/workspace", object{"page": page}, header("If-Match", `"1"`)).is(200)
	changed := b.do("PATCH", "/v1/workspace", object{"page": object{"title": "", "language": "fr"}}, header("If-Match", `"2"`)).is(200)
	if got := changed.json["page"].(object); got["title"] != "" || got["text"] != "one\ntwo" || got["language"] != "fr" {
		b.T.Errorf("%s", changed.body)
	}
	b.do("PATCH", "/v1/workspace", object{"page": page}, header("If-Match", `"1"`)).is(412)
	changed = b.do("PATCH", "/v1/workspace", object{"tracking_url": "https://go.shop.example"}).is(200)
	if got := changed.json["page"].(object); got["language"] != "fr" || changed.text("tracking_url") != "https://go.shop.example" {
		b.T.Errorf("%s", changed.body)
	}
	if got := b.do("PATCH", "/v1/workspace", object{"tracking_url": ""}).is(200); got.json["tracking_url"] != nil {
		b.T.Errorf("%s", got.body)
	}
}

func TestPagesThatAreRefused(t *testing.T) {
	b := setup(t)
	for pointer, page := range map[string]object{
		"/page/title": {"title": "a\nb"}, "/page/text": {"text": "a\tb"}, "/page/unsubscribe_label": {"unsubscribe_label": "\a"},
	} {
		b.do("PATCH", "/v1/workspace", object{"page": page}).fault(422, pointer, "bad_format")
	}
	for _, page := range []object{{"color": "red"}, {"background": "#fff"}, {"color": "#1f5fbf; background: url(x)"}, {"language": "xx"},
		{"title": strings.Repeat("x", 101)}, {"text": strings.Repeat("é", 2001)}, {"script": "x"}, {}} {
		b.do("PATCH", "/v1/workspace", object{"page": page}).is(422)
	}
	for _, url := range []string{"http://go.shop.example", "https://go.shop.example/", "https://a@b.example", "https://", "go.shop.example",
		"https://go.shop.example?x", "https://go shop"} {
		b.do("PATCH", "/v1/workspace", object{"tracking_url": url}).fault(422, "/tracking_url", "bad_format")
	}
	if got := b.do("GET", "/v1/workspace", nil).is(200); got.header.Get("ETag") != `"1"` {
		t.Errorf("a refused page changed the workspace: %s", got.body)
	}
}

// checkUnsubscribe follows the link of a recipient.
func (b *bundle) checkUnsubscribe() {
	b.T.Helper()
	urls, err := b.pages.URLs(b.T.Context(), b.Workspace, unsubscribe.Content{Channel: lemma.Email, CreatedAt: time.Now()})
	b.Must(err)
	path := strings.TrimPrefix(urls.Of(lemma.NewID(), lemma.NewID(), "cy@example.com"), publicURL)
	b.do("GET", path, nil, header("Authorization", "")).is(200)
	b.do("POST", path, "List-Unsubscribe=One-Click", header("Authorization", ""),
		header("Content-Type", "application/x-www-form-urlencoded")).is(200)
	b.do("PUT", path, "", header("Authorization", "")).is(405)
	made := b.do("POST", "/v1/workspace/link_keys/rotate", nil).is(200)
	from, err := time.Parse(time.RFC3339, made.text("signs_from"))
	if err != nil || made.json["number"] != 2.0 || time.Until(from) < time.Minute {
		b.T.Errorf("%s", made.body)
	}
	b.do("GET", path, nil, header("Authorization", "")).is(200)
}

package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"

	"lemma/api/idempotency"
)

// A repeated request returns the version that it made, although another version followed.
func TestVersionDoneAgainBehindAnother(t *testing.T) {
	b := setup(t)
	path := "/v1/templates/" + b.do("POST", "/v1/templates", object{"name": "News", "subject": "s", "text": "t"}).is(201).id() + "/versions"
	in := object{"subject": "s2", "html": "<p>h</p>"}
	follow := func() { b.do("POST", path, object{"subject": "s3", "html": "<p>i</p>"}).is(201) }
	if got := b.twice(path, in, follow); got.json["version"] != 2.0 {
		t.Errorf("done again: %s", got.body)
	}
	if got := b.twice(path, in, follow, header("If-Match", `"3"`)); got.json["version"] != 4.0 {
		t.Errorf("done again with If-Match: %s", got.body)
	}
	b.WantCount(5, `select count(*) from template_versions`)
}

// A process hangs for longer than the lock, between claiming the key and its write. It
// continues after another request has answered. It must not make a second version, nor
// replace the token that the other request has returned.
func TestAHangingProcess(t *testing.T) {
	b := setup(t)
	s := &server{Deps: b.deps, Options: Options{}.withDefaults(), answers: idempotency.New(b.Pool)}
	template := b.do("POST", "/v1/templates", object{"name": "News", "subject": "s", "text": "t"}).is(201).id()
	admin, err := b.deps.Workspaces.Authenticate(t.Context(), b.token)
	b.Must(err)
	for path, test := range map[string]struct {
		body string
		do   action
		then func(answered)
	}{
		"/v1/api_keys": {`{"name":"CI","scopes":["campaigns:read"]}`, on(s.createKey), func(a answered) {
			b.do("GET", "/v1/campaigns", nil, as(a.text("token"))).is(200)
		}},
		"/v1/templates/" + template + "/versions": {`{"subject":"s2","html":"<p>h</p>"}`, on(s.createVersion), func(answered) {
			b.WantCount(2, `select count(*) from template_versions`)
		}},
	} {
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(test.body))
		route := chi.NewRouteContext()
		route.URLParams.Add("id", template)
		r = r.WithContext(context.WithValue(r.Context(), chi.RouteCtxKey, route))
		c := &call{request: r, key: admin, body: []byte(test.body)}
		held, _, err := s.answers.Claim(t.Context(), b.Workspace, path, fingerprint(c))
		b.Must(err)
		c.newID, c.attempt = held.ID(), held.Attempt
		b.Exec(`update idempotency_keys set locked_until = now() - interval '1 second' where key = $1`, path)
		got := b.do("POST", path, test.body, under(path)).is(201)
		_, _ = test.do.handle(t.Context(), c) // it continues before it detects that it has lost the key
		test.then(got)
	}
}

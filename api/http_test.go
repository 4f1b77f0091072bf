package api

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
)

// plain sends a request that is not checked against openapi.yaml.
func (b *bundle) plain(method, path string) *http.Response {
	r := httptest.NewRequest(method, path, nil)
	r.Header.Set("Authorization", "Bearer "+b.token)
	w := httptest.NewRecorder()
	b.server.ServeHTTP(w, r)
	return w.Result()
}

// HEAD is GET without the body (RFC 9110, 9.3.2).
func TestHead(t *testing.T) {
	b := setup(t)
	id := b.do("POST", "/v1/templates", object{"name": "News", "subject": "s", "text": "t"}).is(201).id()
	for _, path := range []string{"/healthz", "/readyz", "/openapi.yaml", "/docs", "/v1/templates", "/v1/templates/" + id} {
		get, head := b.plain("GET", path), b.plain("HEAD", path)
		if head.StatusCode != http.StatusOK || head.ContentLength > 0 || head.Header.Get("Etag") != get.Header.Get("Etag") ||
			head.Header.Get("Content-Type") != get.Header.Get("Content-Type") {
			t.Errorf("%s: %d %v", path, head.StatusCode, head.Header)
		}
	}
	if got := b.plain("HEAD", "/v1/templates/"+idLike("tpl_")); got.StatusCode != http.StatusNotFound {
		t.Errorf("an unknown id: %d", got.StatusCode)
	}
	if got := b.plain("POST", "/v1/workspace"); got.Header.Get("Allow") != "GET, HEAD, PATCH" {
		t.Errorf("Allow: %s", got.Header.Get("Allow"))
	}
}

// If-Match is a list of tags, and a weak one matches nothing (RFC 9110, 13.1.1).
func TestIfMatch(t *testing.T) {
	b := setup(t)
	path := "/v1/templates/" + b.do("POST", "/v1/templates", object{"name": "News", "subject": "s", "text": "t"}).is(201).id()
	for _, c := range []struct {
		tags []string
		want int
	}{
		{[]string{`"1"`}, 200}, {[]string{`"0", "1"`}, 200}, {[]string{`"0"`, `"1"`}, 200}, {[]string{`W/"1" , "1",`}, 200},
		{[]string{`"a,b", "1"`}, 200}, {[]string{`*`}, 200},
		{[]string{`W/"1"`}, 412}, {[]string{`"2", "3"`}, 412}, {[]string{`"x"`}, 412}, {[]string{`""`}, 412},
		{[]string{`1`}, 400}, {[]string{`"1`}, 400}, {[]string{`"1" "2"`}, 400}, {[]string{`w/"1"`}, 400}, {[]string{`*, "1"`}, 400},
	} {
		b.Exec(`update templates set revision = 1`)
		got := b.do("PATCH", path, object{"name": "News"}, func(r *http.Request) { r.Header["If-Match"] = c.tags })
		if got.status != c.want {
			t.Errorf("%q: %d %s", c.tags, got.status, got.body)
		}
	}
}

// A request with two Idempotency-Keys is refused.
func TestTwoIdempotencyKeys(t *testing.T) {
	b := setup(t)
	got := b.do("POST", "/v1/templates", object{"name": "News", "subject": "s", "text": "t"},
		func(r *http.Request) { r.Header["Idempotency-Key"] = []string{"a", "b"} }).is(400)
	if len(got.problem.Errors) != 1 || got.problem.Errors[0].Pointer != "Idempotency-Key:" || got.problem.Errors[0].Code != "repeated" {
		t.Errorf("%s", got.body)
	}
}

// While Postgres is unavailable, requests are answered with 503 and a Retry-After.
func TestPostgresAway(t *testing.T) {
	l := newEndpointTest(t)
	gone, err := pgxpool.New(context.Background(), "postgres://127.0.0.1:1/none?connect_timeout=2")
	l.Must(err)
	defer gone.Close()
	for name, fail := range map[string]func() error{
		"killed while it answers": func() error {
			_, err := l.Pool.Exec(context.Background(), `select pg_terminate_backend(pg_backend_pid())`)
			return err
		},
		"ended as idle": func() error {
			return pgx.BeginFunc(context.Background(), l.Pool, func(tx pgx.Tx) error {
				var backend int
				if err := tx.QueryRow(context.Background(), `
					select pg_backend_pid() from set_config('idle_in_transaction_session_timeout', '10ms', true)`).Scan(&backend); err != nil {
					return err
				}
				for there := true; there; { // until Postgres has ended it
					err := l.Pool.QueryRow(context.Background(), `select exists (select from pg_stat_activity where pid = $1)`, backend).Scan(&there)
					if err != nil {
						return err
					}
				}
				_, err := tx.Exec(context.Background(), `select 1`)
				return err
			})
		},
		"not reachable":         func() error { return gone.Ping(context.Background()) },
		"starting up":           func() error { return &pgconn.PgError{Code: "57P03"} },
		"deadlock":              func() error { return &pgconn.PgError{Code: "40P01"} },
		"no longer the primary": func() error { return &pgconn.PgError{Code: "25006"} },
		"no connection left":    func() error { return &pgconn.PgError{Code: "53300"} },
	} {
		got := l.post(name, func(*call) (any, error) {
			if err := fail(); err != nil {
				return nil, err
			}
			return nil, errors.New("it answered")
		})
		if got.status != 503 || got.header["Retry-After"] != "2" {
			t.Errorf("%s: %d %v %s", name, got.status, got.header, got.body)
		}
	}
	for name, err := range map[string]error{"a wrong statement": &pgconn.PgError{Code: "42601"},
		"a broken rule": &pgconn.PgError{Code: "23505"}, "our own": errors.New("oh"),
		"a package's": &lemma.Error{Kind: lemma.Internal}} {
		if got := l.post(name, func(*call) (any, error) { return nil, err }); got.status != 500 {
			t.Errorf("%s: %d", name, got.status)
		}
	}
}

// Notifications are found by any spelling of their canonical address.
func TestAddressesAreFoundInAnyCase(t *testing.T) {
	b := setup(t)
	w := b.world()
	campaign, _ := b.fannedOut(w)
	for _, typed := range []string{"ada@shop.example", "ADA@shop.example", "Ada@SHOP.example", "NOT AN address"} {
		got := b.do("GET", "/v1/notifications?campaign_id="+campaign+"&address="+url.QueryEscape(typed), nil).is(200)
		want := 2 // c1 and c5 have the same address
		if typed == "NOT AN address" {
			want = 1
		}
		if n := len(got.json["data"].([]any)); n != want {
			t.Errorf("%s: %d notifications instead of %d: %s", typed, n, want, got.body)
		}
	}
}

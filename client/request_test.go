package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
)

// fails answers by how some times, and then with success.
func fails(times int, how func(http.ResponseWriter)) func(int, http.ResponseWriter, *http.Request) {
	return func(try int, w http.ResponseWriter, _ *http.Request) {
		if try <= times {
			how(w)
			return
		}
		reply(w, http.StatusOK, map[string]any{"id": "flw_1"})
	}
}

func with(status int, code string, headers ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		refuse(w, status, code)
	}
}

func TestWhatIsMadeAgain(t *testing.T) {
	t.Parallel()
	get := func(ctx context.Context, c *Client) error { _, err := c.GetFlow(ctx, "flw_1"); return err }
	post := func(ctx context.Context, c *Client) error { _, err := c.PauseFlow(ctx, "flw_1"); return err }
	publish := func(ctx context.Context, c *Client) error {
		_, err := c.PublishFlowVersion(ctx, "flw_1", 1, InFlight{}, IfMatch(`"1"`))
		return err
	}
	unnamed := func(ctx context.Context, c *Client) error {
		_, err := c.PauseFlow(ctx, "flw_1", IdempotencyKey(""))
		return err
	}
	patch := func(ctx context.Context, c *Client) error {
		_, err := c.UpdateFlow(ctx, "flw_1", FlowPatch{})
		return err
	}
	guarded := func(ctx context.Context, c *Client) error {
		_, err := c.UpdateFlow(ctx, "flw_1", FlowPatch{}, IfMatch(`"1"`))
		return err
	}
	busy, throttled := with(http.StatusServiceUnavailable, "unavailable"), with(http.StatusTooManyRequests, "throttled")
	for name, c := range map[string]struct {
		do    func(context.Context, *Client) error
		how   func(http.ResponseWriter)
		times int
		tries int
		ok    bool
	}{
		"a read that is hung up on":               {get, hangUp, 2, 3, true},
		"a POST that is hung up on":               {post, hangUp, 2, 3, true},
		"a POST that the server is too busy for":  {post, busy, 2, 3, true},
		"a POST that is throttled":                {post, throttled, 2, 3, true},
		"a POST whose first try is still at work": {post, with(http.StatusConflict, "idempotency_in_progress"), 2, 3, true},
		"a proxy without a server": {post, func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) },
			2, 3, true},
		"a publish under If-Match, whose answer is kept":   {publish, hangUp, 1, 2, true},
		"a POST without a key may have been done":          {unnamed, hangUp, 1, 1, false},
		"a POST without a key that is throttled was not":   {unnamed, throttled, 1, 2, true},
		"a PATCH that is hung up on":                       {patch, hangUp, 1, 2, true},
		"a PATCH under If-Match would be refused as stale": {guarded, hangUp, 1, 1, false},
		"a refusal is the same each time":                  {post, with(http.StatusUnprocessableEntity, "invalid"), 1, 1, false},
		"a state that does not allow it":                   {post, with(http.StatusConflict, "invalid_status"), 1, 1, false},
		"our own fault":                                    {post, with(http.StatusInternalServerError, "internal"), 1, 1, false},
		"a server that never works":                        {post, busy, 99, 5, false},
		"a server that wants an hour": {post, with(http.StatusServiceUnavailable, "unavailable", "Retry-After", "3600"),
			99, 1, false},
		"a redirect, which could lead the key astray": {get,
			func(w http.ResponseWriter) { w.Header().Set("Location", "/x"); w.WriteHeader(http.StatusFound) }, 1, 1, false},
		"a page that is no Lemma's, with the status of one": {get, func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) },
			1, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, fails(c.times, c.how))
			err := c.do(t.Context(), s.client(t))
			if tries := len(s.requests()); tries != c.tries || (err == nil) != c.ok {
				t.Errorf("%d tries instead of %d: %v", tries, c.tries, err)
			}
			holdOneCall(t, s.requests())
		})
	}
}

// holdOneCall checks that all tries are the same request under the same key.
func holdOneCall(t *testing.T, tries []received) {
	t.Helper()
	for _, r := range tries {
		if r.header.Get("Idempotency-Key") != tries[0].header.Get("Idempotency-Key") || string(r.body) != string(tries[0].body) ||
			r.path != tries[0].path {
			t.Errorf("two tries differ: %+v and %+v", tries[0], r)
		}
		if r.header.Get("Authorization") != "Bearer lk_test" {
			t.Errorf("Authorization is %q", r.header.Get("Authorization"))
		}
	}
}

func TestEveryCallHasAKeyOfItsOwn(t *testing.T) {
	t.Parallel()
	s := serve(t, fails(0, nil))
	c := s.client(t)
	for range 2 {
		if _, err := c.PauseFlow(t.Context(), "flw_1"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.PauseFlow(t.Context(), "flw_1", IdempotencyKey("mine")); err != nil {
		t.Fatal(err)
	}
	r := s.requests()
	a, b, named := r[0].header.Get("Idempotency-Key"), r[1].header.Get("Idempotency-Key"), r[2].header.Get("Idempotency-Key")
	if a == "" || a == b || named != "mine" {
		t.Errorf("the keys are %q, %q and %q", a, b, named)
	}
}

// A number of 16 digits in a history keeps all of them.
func TestNumbersOfAHistoryKeepTheirDigits(t *testing.T) {
	t.Parallel()
	s := serve(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]any{"steps": []any{map[string]any{"data": map[string]any{"order": int64(9007199254740993)}}}})
	})
	h, err := s.client(t).GetEnrollmentHistory(t.Context(), "enr_1")
	if err != nil || len(h.Steps) != 1 || h.Steps[0].Data["order"] != json.Number("9007199254740993") {
		t.Errorf("%v, %v", h.Steps, err)
	}
}

func TestRetryAfterIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := serve(t, fails(1, with(http.StatusServiceUnavailable, "unavailable", "Retry-After", "1")))
	begun := time.Now()
	if _, err := s.client(t).GetFlow(t.Context(), "flw_1"); err != nil || time.Since(begun) < time.Second {
		t.Errorf("answered after %v: %v", time.Since(begun), err)
	}
}

func TestCancelEndsTheWait(t *testing.T) {
	t.Parallel()
	s := serve(t, fails(99, with(http.StatusServiceUnavailable, "unavailable", "Retry-After", "20")))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := s.client(t).GetFlow(ctx, "flw_1")
	if !errors.Is(err, context.DeadlineExceeded) || CodeOf(err) != "unavailable" {
		t.Errorf("the error is %v", err)
	}
}

// A 404 is no failure when the answer to an earlier try of the deletion was lost.
func TestDeleteIsDoneOnce(t *testing.T) {
	t.Parallel()
	gone := func(try int, w http.ResponseWriter, _ *http.Request) {
		if try == 1 {
			hangUp(w)
			return
		}
		refuse(w, http.StatusNotFound, "not_found")
	}
	if err := serve(t, gone).client(t).DeleteFlow(t.Context(), "flw_1"); err != nil {
		t.Errorf("the flow was deleted: %v", err)
	}
	never := func(_ int, w http.ResponseWriter, _ *http.Request) { refuse(w, http.StatusNotFound, "not_found") }
	if err := serve(t, never).client(t).DeleteFlow(t.Context(), "flw_1"); CodeOf(err) != "not_found" {
		t.Errorf("an unknown flow was deleted: %v", err)
	}
}

func TestProblemsNameTheField(t *testing.T) {
	t.Parallel()
	s := serve(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusUnprocessableEntity, Problem{Code: "invalid", Detail: "the request is not valid", RequestID: "req_1",
			Errors: []Fault{{Pointer: "/definition/nodes/a/next", Code: "unknown_node", Detail: "there is no node b"},
				{Pointer: "/sql", Detail: "must not be empty", Line: 2, Column: 3}}})
	})
	_, err := s.client(t).GetFlow(t.Context(), "flw_1")
	var p *Problem
	if !errors.As(err, &p) || p.Status != http.StatusUnprocessableEntity || len(p.Errors) != 2 || p.RequestID != "req_1" {
		t.Fatalf("the problem is %+v", err)
	}
	if text := err.Error(); !strings.Contains(text, "/definition/nodes/a/next: there is no node b") ||
		!strings.Contains(text, "/sql line 2 column 3: must not be empty") {
		t.Errorf("the error is %s", text)
	}
}

func TestIDsAreEscaped(t *testing.T) {
	t.Parallel()
	s := serve(t, fails(0, nil))
	if _, err := s.client(t).GetFlow(t.Context(), "a/b?c=d#e"); err != nil || s.requests()[0].path != "/v1/flows/a%2Fb%3Fc=d%23e" {
		t.Errorf("requests %s: %v", s.requests()[0].path, err)
	}
	if _, err := s.client(t).GetFlow(t.Context(), ""); err == nil || len(s.requests()) != 1 {
		t.Errorf("an empty id is sent: %v", err)
	}
}

// The limits of the server count what is sent: an escape of < has six bytes.
func TestBodiesAreNotEscaped(t *testing.T) {
	t.Parallel()
	s := serve(t, fails(0, nil))
	_, err := s.client(t).RecordEvent(t.Context(), NewEvent{ProfileKey: "a", Event: "b", Properties: json.RawMessage(`{"html":"<b>&"}`)})
	if got := string(s.requests()[0].body); err != nil || !strings.Contains(got, `"<b>&"`) {
		t.Errorf("sent %s: %v", got, err)
	}
}

// A link to a file has the public URL, which may lead elsewhere.
func TestFilesAreReadFromTheSameServer(t *testing.T) {
	t.Parallel()
	s := serve(t, fails(0, nil))
	file, err := ExportDownload{URL: "https://elsewhere.invalid/lemma/downloads/abc"}.Open(t.Context(), s.client(t))
	if err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	if got := s.requests()[0].path; got != "/downloads/abc" {
		t.Errorf("requests %s", got)
	}
}

func TestPublishHasNoDryRun(t *testing.T) {
	t.Parallel()
	s := serve(t, fails(0, nil))
	if _, err := s.client(t).PublishFlowVersion(t.Context(), "flw_1", 1, InFlight{}, DryRun()); err == nil || len(s.requests()) != 0 {
		t.Errorf("a plan would be read as a flow: %v", err)
	}
}

func TestInvalidServers(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"", "lemma.example.com", "ftp://lemma.example.com", "https://me:hunter2@lemma.example.com", "https://",
		"https://a/?b", "https://a:b:c"} {
		if _, err := New(server, "lk_x"); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", server, err)
		}
	}
	if _, err := New("https://lemma.example.com", ""); err == nil {
		t.Error("a client without a key")
	}
	for _, server := range []string{"https://a", "https://a/", "https://a/v1", "https://a/v1/"} {
		if c, err := New(server, "lk_x"); err != nil || c.base != "https://a" {
			t.Errorf("%q: %v", server, err)
		}
	}
}

// The first try makes a secret, and its answer is lost. That of the second has none.
func TestASecretThatWasLost(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(context.Context, *Client) (WebhookEndpoint, error){
		"create": func(ctx context.Context, c *Client) (WebhookEndpoint, error) {
			return c.CreateWebhookEndpoint(ctx, NewWebhookEndpoint{Name: "n", URL: "https://shop.example"})
		},
		"rotate": func(ctx context.Context, c *Client) (WebhookEndpoint, error) {
			return c.RotateWebhookEndpoint(ctx, "whe_1")
		},
	} {
		for _, lost := range []bool{true, false} {
			c := serve(t, func(try int, w http.ResponseWriter, _ *http.Request) {
				switch {
				case lost && try == 1:
					hangUp(w)
				case lost:
					w.Header().Set("Idempotent-Replayed", "true")
					reply(w, http.StatusCreated, map[string]any{"id": "whe_1", "secret": nil})
				default:
					reply(w, http.StatusCreated, map[string]any{"id": "whe_1", "secret": "whsec_1"})
				}
			}).client(t)
			e, err := call(t.Context(), c)
			if e.ID != "whe_1" || errors.Is(err, ErrSecretLost) != lost || (err != nil) != lost {
				t.Errorf("%s, lost: %t: %+v, %v", name, lost, e, err)
			}
		}
	}
}

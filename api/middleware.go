package api

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"lemma"
	"lemma/workspaces"
)

// requestInfo has what the access log records of a request, and what it holds.
type requestInfo struct {
	requestID string
	workspace string
	key       string
	replayed  bool
	held      []func() // called when the answer has been written
}

// release releases what the request holds.
func (t *requestInfo) release() {
	for _, leave := range t.held {
		leave()
	}
}

type requestInfoKey struct{}

func infoOf(ctx context.Context) *requestInfo {
	if t, ok := ctx.Value(requestInfoKey{}).(*requestInfo); ok {
		return t
	}
	return &requestInfo{}
}

func requestID(ctx context.Context) string { return infoOf(ctx).requestID }

// recordKey records the key of a request for the log.
func recordKey(ctx context.Context, key workspaces.Key) {
	t := infoOf(ctx)
	t.workspace = lemma.FormatID(lemma.PrefixWorkspace, key.WorkspaceID)
	t.key = lemma.FormatID(lemma.PrefixKey, key.ID)
}

// saneID matches request ids of callers that are logged.
var saneID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// identify gives every request an id, and every answer the id of its request.
func (s *server) identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("X-Request-Id")
		if !saneID.MatchString(id) {
			id = lemma.FormatID("req", lemma.NewID())
		}
		w.Header().Set("X-Request-Id", id)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestInfoKey{}, &requestInfo{requestID: id})))
	})
}

// hangUpGrace is how long the work for a request goes on after its client has hung up.
const hangUpGrace = time.Second

// outlast lets a request end although its client hangs up, unless it takes longer than a moment. A
// statement that ends with the request costs the connection to Postgres, and a new one is expensive
// for everybody: by hanging up, one client could cause hundreds in a second. Its slots are held until then.
func outlast(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancelCause(context.WithoutCancel(r.Context()))
		defer cancel(nil)
		defer context.AfterFunc(r.Context(), func() {
			timer := time.AfterFunc(hangUpGrace, func() { cancel(context.Cause(r.Context())) })
			context.AfterFunc(ctx, func() { timer.Stop() })
		})()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// log writes one line per request, with ids and the pattern of the route. It writes no
// query, which can contain an address, no body and no key.
func (s *server) log(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start, seen := time.Now(), &watched{ResponseWriter: w}
		next.ServeHTTP(seen, r)
		t := infoOf(r.Context())
		s.Log.InfoContext(r.Context(), requested,
			"request_id", t.requestID, "method", method(r), "route", chi.RouteContext(r.Context()).RoutePattern(),
			"id", pathID(r), "status", seen.status, "bytes", seen.bytes, "ms", float64(time.Since(start).Microseconds())/1000,
			"workspace", t.workspace, "key", t.key, "replayed", t.replayed)
	})
}

// method returns the request's method, cut if it is longer than any method in use.
func method(r *http.Request) string {
	if len(r.Method) > 10 {
		return "?"
	}
	return r.Method
}

// pathID returns the id in the path if it has the form of one.
func pathID(r *http.Request) string {
	id := chi.URLParam(r, "id")
	if !saneID.MatchString(id) {
		return ""
	}
	return id
}

// recover answers a panic with a 500 without details.
func (s *server) recover(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			what := recover()
			if what == nil {
				return
			}
			if err, ok := what.(error); ok && errors.Is(err, http.ErrAbortHandler) { // closes the connection
				panic(what)
			}
			s.fail(r, &lemma.Panic{Value: what, Stack: debug.Stack()}).write(w)
		}()
		next.ServeHTTP(w, r)
	})
}

// watched records the status and size of the answer.
type watched struct {
	http.ResponseWriter
	status, bytes int
}

// WriteHeader records the first status.
func (w *watched) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *watched) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += n
	return n, err
}

func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (s *server) noRoute(w http.ResponseWriter, r *http.Request) {
	s.fail(r, &refusal{status: http.StatusNotFound, code: "no_such_path",
		detail: "there is no such path; /docs/ lists those that there are"}).write(w)
}

// noMethod answers with the methods of the path (RFC 9110, 15.5.6).
func (s *server) noMethod(routes chi.Routes) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var allowed []string
		for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			if routes.Match(chi.NewRouteContext(), m, r.URL.Path) {
				allowed = append(allowed, m)
				if m == http.MethodGet {
					allowed = append(allowed, http.MethodHead)
				}
			}
		}
		s.fail(r, &refusal{status: http.StatusMethodNotAllowed, code: "method_not_allowed",
			detail: "this path has " + strings.Join(allowed, ", "), header: map[string]string{"Allow": strings.Join(allowed, ", ")}}).write(w)
	}
}

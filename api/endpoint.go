package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/uuid"

	"lemma/api/idempotency"
	"lemma/api/strict"
	"lemma/audience"
	"lemma/workspaces"
)

// route is one line of the table of routes.
type route struct {
	method, path string
	scopes       string // that a key must have, separated by spaces; empty: none
	status       int    // of success
	do           action
}

// endpoint is a route with its operation in the contract.
type endpoint struct {
	route
	operation *openapi3.Operation
}

// action carries out the requests of an endpoint.
type action struct {
	handle func(ctx context.Context, c *call) (any, error)
	writes bool // false: a POST that changes nothing, whose answer is not kept
	cost   cost // which slots it takes

	uploads bool // the body is CSV, which the handler reads

	// repeatable reports whether a request may run beside another one under the same
	// Idempotency-Key, because its source_id makes sure that it is recorded once.
	repeatable func(c *call) bool
}

// on makes an action of a handler from a request struct to a response struct. The request
// has been checked against the contract and the struct's tags before the handler runs, and
// call has the ids of the path.
func on[In, Out any](handle func(context.Context, *call, In) (Out, error)) action {
	return action{writes: true, handle: func(ctx context.Context, c *call) (any, error) {
		var in In
		for _, read := range []func() error{func() error { return c.bind(&in) }, c.readPath, c.readIfMatch} {
			if err := read(); err != nil {
				return nil, err
			}
		}
		return handle(audience.ForCaller(ctx, c.key.Has("audiences:query")), c, in)
	}}
}

// repeatable is an action whose requests for which is returns true may run twice at once.
func repeatable[In any](a action, is func(In) bool) action {
	a.repeatable = func(c *call) bool {
		var in In
		return c.bind(&in) == nil && is(in)
	}
	return a
}

// reads makes an action of the handler of a POST that changes nothing. Its answer, such as
// a rendered message, is not kept under an Idempotency-Key, where the erasure of a
// profile would not find it.
func reads[In, Out any](handle func(context.Context, *call, In) (Out, error)) action {
	a := on(handle)
	a.writes = false
	return a
}

// none is the request or the answer of an endpoint without a body.
type none struct{}

// call is one request to an endpoint.
type call struct {
	request *http.Request
	key     workspaces.Key     // of the request
	id      uuid.UUID          // in the path
	version int                // in the path
	ifMatch *int               // the version in If-Match; nil without one
	planned string             // what follows it, of a plan
	body    []byte             // checked JSON, or nothing
	newID   uuid.UUID          // for the row that the request creates; the same in each attempt
	attempt int                // from 1; counts attempts under the same Idempotency-Key that crashed or ended with a 5xx
	held    *idempotency.Claim // of the Idempotency-Key; nil without one
}

func (c *call) workspace() uuid.UUID { return c.key.WorkspaceID }

// bind fills a request struct from the body and checks its validate tags.
func (c *call) bind(in any) error {
	if _, nothing := in.(*none); nothing {
		return nil
	}
	if len(c.body) > 0 {
		if err := json.Unmarshal(c.body, in); err != nil {
			return strict.Unbindable(err)
		}
	}
	return validateTags(in)
}

// query returns the value of a query parameter, empty without one.
func (c *call) query(name string) string { return c.request.URL.Query().Get(name) }

// writes reports whether a call may change something.
func (c *call) writes(e endpoint) bool {
	return e.method != http.MethodGet && e.do.writes && !c.dryRun()
}

func (c *call) dryRun() bool { return c.query("dry_run") == "true" }

// need returns an error if the key lacks a scope beyond those of the endpoint.
func (c *call) need(scope string) error {
	if !c.key.Has(scope) {
		return missingScope(scope)
	}
	return nil
}

// A response struct implements these for parts of the response beyond its JSON.
type (
	tagged   interface{ etag() int }        // the version for If-Match
	planned  interface{ planned() string }  // what follows it in the ETag of a plan
	located  interface{ location() string } // the Location header
	redacted interface{ redact() any }      // the body that is kept for a replay
	special  interface{ status() int }      // another status than the endpoint's
)

// serve handles every request of /v1, in this order: API key, scopes, contract,
// Idempotency-Key, handler, answer. The body is read after authentication, and within the
// slots of the workspace.
func (s *server) serve(e endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		defer infoOf(r.Context()).release() // after a panic too
		s.answer(r, e).write(w)
	}
}

func (s *server) answer(r *http.Request, e endpoint) reply {
	if err := acceptable(r, e.operation); err != nil {
		return s.fail(r, err)
	}
	key, err := s.authenticate(r, e.scopes)
	if err != nil {
		return s.fail(r, err)
	}
	c := &call{request: r, key: key}
	if err := s.enterRequest(c); err != nil {
		return s.fail(r, err)
	}
	forget, err := s.read(c, e)
	if err != nil {
		return s.sendable(r.Context(), e, c, s.fail(r, err))
	}
	defer forget()
	// A request that changes something is completed even if its caller closes the
	// connection, so that the outcome does not depend on when. A request that only reads
	// ends soon after the connection: see outlast.
	ctx := r.Context()
	if c.writes(e) {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, done := context.WithTimeout(ctx, s.timeout(e, c))
	defer done()
	leave, err := s.enterWork(ctx, e, c)
	if err != nil {
		return s.fail(r, err)
	}
	defer leave()
	return s.sendable(ctx, e, c, s.once(ctx, e, c))
}

// perform calls the handler and renders the answer, with the copy that may be kept.
func (s *server) perform(ctx context.Context, e endpoint, c *call) (answer, kept reply) {
	out, answer, err := s.carryOut(ctx, e, c)
	if err != nil {
		answer = s.fail(c.request, err)
		return answer, answer
	}
	if secret, ok := out.(redacted); ok {
		kept = answer
		kept.body = encode(secret.redact())
		return answer, kept
	}
	return answer, answer
}

// carryOut calls the handler and renders what it returns, within the slots of its cost.
func (s *server) carryOut(ctx context.Context, e endpoint, c *call) (out any, answer reply, err error) {
	leave, err := s.enter(ctx, e.do.cost, c)
	if err != nil {
		return nil, reply{}, err
	}
	defer leave()
	leaveDatabase, err := s.enterDatabase(ctx, e.do.cost, c)
	if err != nil {
		return nil, reply{}, err
	}
	defer leaveDatabase()
	if out, err = e.do.handle(s.audited(ctx, e, c), c); err != nil {
		return nil, reply{}, err
	}
	return out, render(e.status, out), nil
}

// reply is an answer, ready to be written.
type reply struct {
	status int
	header map[string]string
	body   []byte
}

func render(status int, out any) reply {
	r := reply{status: status, header: map[string]string{}}
	if v, ok := out.(csvBody); ok {
		r.header["Content-Type"], r.body = "text/csv; charset=utf-8", v.text
		if v.next != "" {
			r.header["Link"] = "<" + v.next + `>; rel="next"`
		}
		return r
	}
	if v, ok := out.(special); ok && v.status() != 0 {
		r.status = v.status()
	}
	if v, ok := out.(tagged); ok {
		tag := strconv.Itoa(v.etag())
		if p, ok := out.(planned); ok && p.planned() != "" {
			tag += "-" + p.planned()
		}
		r.header["ETag"] = strconv.Quote(tag)
	}
	if v, ok := out.(located); ok && (r.status == http.StatusCreated || r.status == http.StatusAccepted) {
		r.header["Location"] = v.location()
	}
	if _, nothing := out.(none); !nothing {
		r.header["Content-Type"] = "application/json"
		r.body = encode(out)
	}
	return r
}

func encode(v any) []byte {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // this is no HTML, and templates are full of it
	if err := e.Encode(v); err != nil {
		panic("encode answer: " + err.Error()) // a fault of the response struct
	}
	return text.Bytes()
}

func (r reply) write(w http.ResponseWriter) {
	for name, value := range r.header {
		w.Header().Set(name, value)
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(r.status)
	_, _ = w.Write(r.body) // fails if the connection is closed
}

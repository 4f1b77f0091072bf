package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/audit"
	"lemma/blobs"
	"lemma/campaigns"
	"lemma/client"
	"lemma/direct"
	"lemma/exports"
	"lemma/flows"
	"lemma/flows/query"
	"lemma/hooks"
	"lemma/links"
	"lemma/pgtest"
	"lemma/pgtest/shop"
	"lemma/sender"
	"lemma/sender/gateway"
	"lemma/sender/smtp"
	"lemma/sender/wire"
	"lemma/suppression"
	"lemma/tracking"
	"lemma/unsubscribe"
	"lemma/webhooks"
	"lemma/workspaces"
)

// bundle is a server with two workspaces and a customer's database.
type bundle struct {
	*shop.Fixture
	deps     Deps
	pages    *unsubscribe.Pages
	tracking *tracking.Tracking
	server   http.Handler
	log      *syncBuffer
	token    string // an admin of the workspace
	other    string // an admin of another workspace
}

const publicURL = "https://lemma.shop.example"

func setup(t *testing.T, change ...func(*Options)) *bundle {
	t.Helper()
	return setupWith(t, audience.Options{AllowPrivate: true, AllowUnix: true}, change...)
}

// setupWith is setup with other rules for data sources.
func setupWith(t *testing.T, sources audience.Options, change ...func(*Options)) *bundle {
	t.Helper()
	t.Parallel()
	b := &bundle{Fixture: shop.New(pgtest.NewShop(t), sources, checkAccount), log: &syncBuffer{}}
	quiet := slog.New(slog.DiscardHandler)
	r := Deps{Pool: b.Pool, Workspaces: workspaces.New(b.Pool), Ledger: b.Ledger, Templates: b.Templates, Audiences: b.Audiences,
		Providers: b.Providers, Suppressions: suppression.New(b.Pool), Links: links.New(b.Pool, b.Box, nil)}
	b.pages = unsubscribe.New(unsubscribe.Deps{Pool: b.Pool, Links: r.Links, Suppressions: r.Suppressions, Workspaces: r.Workspaces,
		PublicURL: func() string { return publicURL }})
	r.Pages = b.pages
	b.tracking = tracking.New(tracking.Deps{Pool: b.Pool, Links: r.Links, Workspaces: r.Workspaces,
		PublicURL: func() string { return publicURL }, Log: quiet})
	r.Tracking = b.tracking
	r.Audit = audit.New(b.Pool)
	files, err := blobs.OpenFolder(t.TempDir())
	b.Must(err)
	r.Exports = exports.New(exports.Deps{Pool: b.Pool, Links: r.Links, Blobs: blobs.New(blobs.Deps{Pool: b.Pool, Store: files})},
		exports.Config{PublicURL: func() string { return publicURL }})
	r.Campaigns = campaigns.New(campaigns.Deps{Pool: b.Pool, Ledger: r.Ledger, Audiences: r.Audiences, Templates: r.Templates,
		Providers: r.Providers, Log: quiet}, campaigns.Config{})
	r.Webhooks = webhooks.New(webhooks.Deps{Pool: b.Pool, Box: b.Box, Log: quiet}, webhooks.Options{})
	r.Flows = flows.New(flows.Deps{Pool: b.Pool, Ledger: r.Ledger, Audiences: r.Audiences, Templates: r.Templates, Providers: r.Providers,
		Webhooks: r.Webhooks, Log: quiet}, flows.Config{})
	r.FlowReader = query.New(query.Deps{Pool: b.Pool, Flows: r.Flows, Ledger: r.Ledger, Audiences: r.Audiences, Webhooks: r.Webhooks})
	r.Direct = direct.New(direct.Deps{Pool: b.Pool, Ledger: r.Ledger, Templates: r.Templates, Providers: r.Providers, Audiences: r.Audiences,
		Log: quiet})
	r.Sender, err = sender.New(sender.Deps{Pool: b.Pool, Ledger: r.Ledger, Templates: r.Templates, Providers: r.Providers,
		Kinds: []sender.Kind{smtp.Kind(smtp.Options{AllowPrivate: true, ShowPrivate: true})}, Log: slog.New(slog.NewJSONHandler(b.log, nil))},
		sender.Config{})
	b.Must(err)
	r.Providers.OnReceive(func(_ string, _ lemma.Channel, _, secrets json.RawMessage) bool {
		return bytes.Contains(secrets, []byte("webhook_secret"))
	})
	r.Hooks = hooks.New(hooks.Deps{Pool: b.Pool, Providers: r.Providers, Kinds: []sender.Kind{gateway.Kind(wire.Operator{})},
		PublicURLs: func() []string { return []string{"https://lemma.example"} }, Log: quiet})
	b.deps = r
	o := Options{Connections: 64, Log: BoundedLog(slog.New(slog.NewJSONHandler(b.log, nil))), Metrics: http.HandlerFunc(metrics),
		Capabilities: func(kind string) Capabilities {
			return Capabilities{IdempotencyKey: kind == "null"}
		}}
	for _, c := range change {
		c(&o)
	}
	b.server = New(r, o)
	b.token = b.key(b.Workspace, workspaces.Admin)
	b.other = b.key(pgtest.Workspace(t, b.Pool), workspaces.Admin)
	return b
}

// in is the bundle for a subtest.
func (b *bundle) in(t *testing.T) *bundle {
	own, fixture := *b, *b.Fixture
	own.Fixture, fixture.T = &fixture, t
	return &own
}

// checkAccount validates as the carriers do.
func checkAccount(kind string, config, _ json.RawMessage) error {
	switch {
	case kind != "smtp" && kind != "null" && kind != "http":
		return lemma.Fault("/kind", "unknown_kind", "this server has no such carrier")
	case kind == "smtp" && !bytes.Contains(config, []byte(`"host"`)):
		return lemma.Fault("/config/host", "required", "must be the name of a server")
	}
	return nil
}

func metrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	_, _ = io.WriteString(w, "up 1\n")
}

// openShop creates the customer's database, with a profile for each reason to be skipped.
func (b *bundle) openShop() {
	b.T.Helper()
	b.OpenDB(`create table customers (id text, email text, name text, opted_out boolean not null default false)`,
		`insert into customers values
		('c1', 'ada@shop.example', 'Ada', false), ('c2', 'bob@shop.example', 'Bob', false), ('c3', null, 'Cy', false),
		('c4', 'not an address', 'Di', false), ('c5', 'ADA@shop.example', 'Ada again', false), ('c6', 'eve@shop.example', 'Eve', true)`)
}

func (b *bundle) key(ws uuid.UUID, scopes ...string) string {
	b.T.Helper()
	_, token, err := b.deps.Workspaces.CreateKey(context.Background(), ws, workspaces.NewKey{ID: lemma.NewID(), Name: "test", Scopes: scopes})
	b.Must(err)
	return token
}

// answered is an answer with its decoded body.
type answered struct {
	t       testing.TB
	what    string
	status  int
	header  http.Header
	body    []byte
	json    map[string]any
	problem client.Problem
}

// option changes a request before it is sent.
type option func(*http.Request)

func as(token string) option { return header("Authorization", "Bearer "+token) }

func header(name, value string) option {
	return func(r *http.Request) {
		if r.Header.Del(name); value != "" {
			r.Header.Set(name, value)
		}
	}
}

// do sends a request as an admin of ws, and checks the answer against openapi.yaml, and
// the request if it succeeds. body is JSON text or a value.
func (b *bundle) do(method, path string, body any, options ...option) answered {
	b.T.Helper()
	text := textOf(b.T, body)
	r := httptest.NewRequest(method, path, strings.NewReader(text))
	r.Header.Set("Authorization", "Bearer "+b.token)
	if text != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, o := range options {
		o(r)
	}
	again := r.Clone(r.Context())
	w := httptest.NewRecorder()
	b.server.ServeHTTP(w, r)
	a := answered{t: b.T, what: method + " " + path, status: w.Code, header: w.Header(), body: w.Body.Bytes()}
	again.Body = io.NopCloser(strings.NewReader(text))
	a.holdToContract(again)
	if strings.HasSuffix(a.header.Get("Content-Type"), "json") {
		_ = json.Unmarshal(a.body, &a.json)
		if a.status >= 400 {
			_ = json.Unmarshal(a.body, &a.problem)
		}
	}
	return a
}

func textOf(t testing.TB, body any) string {
	switch v := body.(type) {
	case nil:
		return ""
	case string:
		return v
	case []byte:
		return string(v)
	}
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var contractRouter = sync.OnceValue(func() routers.Router {
	r, err := gorillamux.NewRouter(contract().T)
	if err != nil {
		panic(err)
	}
	return r
})

var strictly = openapi3filter.Options{MultiError: true, IncludeResponseStatus: true,
	AuthenticationFunc:      openapi3filter.NoopAuthenticationFunc,
	SchemaValidationOptions: []openapi3.SchemaValidationOption{openapi3.EnableFormatValidation()}}

func init() {
	openapi3filter.RegisterBodyDecoder("application/yaml", openapi3filter.FileBodyDecoder)
	openapi3filter.RegisterBodyDecoder("text/html", openapi3filter.FileBodyDecoder)
}

// holdToContract checks an answer, and the request if it succeeded, against openapi.yaml.
// The answer for a path that the file does not have must be a problem.
func (a answered) holdToContract(r *http.Request) {
	a.t.Helper()
	if a.header.Get("X-Request-Id") == "" {
		a.t.Errorf("%s: %d without X-Request-Id", a.what, a.status)
	}
	found, params, err := contractRouter().FindRoute(r)
	if err != nil {
		a.holdToProblem()
		return
	}
	request := &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: found, Options: &strictly}
	if _, bulk := found.Operation.Extensions["x-items"]; a.status < 300 && !bulk { // a bulk with broken items is answered item by item
		if err := openapi3filter.ValidateRequest(r.Context(), request); err != nil {
			a.t.Errorf("%s: the request breaks the contract and was answered with %d: %v", a.what, a.status, err)
		}
	}
	response := &openapi3filter.ResponseValidationInput{RequestValidationInput: request, Status: a.status, Header: a.header,
		Body: io.NopCloser(bytes.NewReader(a.body)), Options: &strictly}
	if err := openapi3filter.ValidateResponse(r.Context(), response); err != nil {
		a.t.Errorf("%s: the answer %d breaks the contract: %v\n%s", a.what, a.status, err, a.body)
	}
	recordChecked(found.Operation.OperationID, a.status)
}

func (a answered) holdToProblem() {
	a.t.Helper()
	var v any
	if err := json.Unmarshal(a.body, &v); err != nil || a.header.Get("Content-Type") != "application/problem+json" {
		a.t.Errorf("%s: %d is no problem+json: %s", a.what, a.status, a.body)
		return
	}
	if err := contract().Components.Schemas["Problem"].Value.VisitJSON(v); err != nil {
		a.t.Errorf("%s: %v", a.what, err)
	}
}

// is checks the status.
func (a answered) is(status int) answered {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("%s: got %d, want %d: %s", a.what, a.status, status, a.body)
	}
	return a
}

// fault checks the status of a problem and one of its faults.
func (a answered) fault(status int, pointer, code string) answered {
	a.t.Helper()
	a.is(status)
	for _, f := range a.problem.Errors {
		if f.Pointer == pointer && (code == "*" || f.Code == code) && f.Detail != "" {
			return a
		}
	}
	a.t.Errorf("%s: no fault %s at %q in %s", a.what, code, pointer, a.body)
	return a
}

func (a answered) text(name string) string {
	a.t.Helper()
	text, ok := a.json[name].(string)
	if !ok {
		a.t.Fatalf("%s: no %s in %s", a.what, name, a.body)
	}
	return text
}

func (a answered) id() string { a.t.Helper(); return a.text("id") }

// checked records which statuses of which operations were checked against the contract.
var checked = struct {
	sync.Mutex
	seen map[string]map[int]bool
}{seen: map[string]map[int]bool{}}

func recordChecked(operation string, status int) {
	checked.Lock()
	defer checked.Unlock()
	if checked.seen[operation] == nil {
		checked.seen[operation] = map[int]bool{}
	}
	checked.seen[operation][status] = true
}

type syncBuffer struct {
	sync.Mutex
	bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.Lock()
	defer b.Unlock()
	return b.Buffer.Write(p)
}

func (b *syncBuffer) String() string {
	b.Lock()
	defer b.Unlock()
	return b.Buffer.String()
}

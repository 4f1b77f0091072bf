// Package client calls Lemma's HTTP API for flows, events, enrollments, A/B tests, direct
// notifications, webhook endpoints, exports, the audit log, the workspace and tests of
// providers. A call is carried out once, also when the network or the server fails and the
// request is repeated. A refusal is a Problem, which names the fields at fault. Lists are
// read to their end.
//
// Its types are the JSON of these operations, which the server answers with too. Data sources,
// audiences, templates, providers, suppressions, topics, API keys and campaigns are managed
// by people and have no methods and no types here: openapi.yaml describes their JSON.
//
//	lemma, err := client.New("https://lemma.example.com", os.Getenv("LEMMA_API_KEY"))
//	recorded, err := lemma.RecordEvent(ctx, client.NewEvent{ProfileKey: "c1", Event: "signed_up", SourceID: "signup-4711"})
//
// Every operation of openapi.yaml on these is a method of its name, except resolving and
// explaining a notification and rotating the link key. Other programs may use the package.
// It needs a server and an API key.
//
// The module path lemma is no address on the network, so `go get` cannot fetch it. A
// program that uses the package has a checkout, and its path in go.mod:
//
//	require lemma v0.0.0
//	replace lemma => ../lemma
//
// `go mod tidy` then completes go.mod.
package client

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Client calls one server with one API key. It is safe for concurrent use.
type Client struct {
	base    string // without a slash or /v1 at its end
	key     string
	http    *http.Client
	agent   string
	tries   int           // of one request, with the first
	backOff time.Duration // before the second try; doubled each time
}

// Option changes how a Client works.
type Option func(*Client)

// HTTPClient sets the client of the requests. The default follows no redirect.
func HTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

// Tries sets how often one request is sent at most: 5 by default.
func Tries(n int) Option { return func(c *Client) { c.tries = max(n, 1) } }

// BackOff sets the longest pause before the second try: 250 ms by default. A pause is half of it at least,
// and it doubles with each try.
func BackOff(d time.Duration) Option { return func(c *Client) { c.backOff = max(d, 0) } }

// UserAgent sets the User-Agent header.
func UserAgent(name string) Option { return func(c *Client) { c.agent = name } }

// New returns a client for a server, such as https://lemma.example.com, and an API key.
func New(server, key string, options ...Option) (*Client, error) {
	if err := CheckURL(server); err != nil {
		return nil, err
	}
	if key == "" {
		return nil, errors.New("the API key must not be empty")
	}
	c := &Client{base: strings.TrimSuffix(strings.TrimRight(server, "/"), "/v1"), key: key, agent: "lemma-client", tries: 5,
		backOff: 250 * time.Millisecond}
	c.http = &http.Client{Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, o := range options {
		o(c)
	}
	return c, nil
}

// CheckURL returns why New would refuse the URL of a server. A valid one has no credentials.
func CheckURL(server string) error {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("the server must be a URL such as https://lemma.example.com, without a query and credentials")
	}
	return nil
}

// CallOption changes one request.
type CallOption func(*request)

// IdempotencyKey sets the key under which a POST is carried out once, also when another
// process repeats it. By default each call has a new key, which its tries share.
func IdempotencyKey(key string) CallOption {
	return func(r *request) { r.idempotency = key }
}

// IfMatch makes a change only if the resource has this ETag, or returns a Problem of 412.
func IfMatch(etag string) CallOption { return func(r *request) { r.ifMatch = etag } }

// DryRun makes Enroll and EnrollBulk return what would happen. See also PlanFlowVersion.
func DryRun() CallOption { return func(r *request) { r.set("dry_run", "true") } }

// AfterStep makes GetEnrollmentHistory begin behind a step.
func AfterStep(step int) CallOption { return func(r *request) { r.set("after", strconv.Itoa(step)) } }

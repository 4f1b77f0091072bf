// Package client calls Lemma's HTTP API for flows, events and enrollments. It
// promises that a call is carried out once, also when the network or the server
// fails in between and the request is repeated; that a refusal names the field at
// fault (Problem); and that a list is read to its end.
//
//	lemma, err := client.New("https://lemma.example.com", os.Getenv("LEMMA_API_KEY"))
//	recorded, err := lemma.RecordEvent(ctx, client.NewEvent{ProfileKey: "c1", Event: "signed_up", SourceID: "signup-4711"})
//
// Every operation of openapi.yaml that is about flows, events or enrollments is
// a method of its name. Other programs may use the package: it needs a server
// and a key, and nothing else of Lemma.
//
// The module is called lemma, which is no address on the network, so `go get`
// cannot fetch it. A program that uses the package keeps a checkout and says in
// its go.mod where it is:
//
//	require lemma v0.0.0
//	replace lemma => ../lemma
//
// and then runs `go mod tidy`.
package client

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Client is a server and a key for it. Any number of goroutines may use one.
type Client struct {
	base    string // ends without a slash, and without /v1
	key     string
	http    *http.Client
	agent   string
	tries   int           // of one request, the first included
	backOff time.Duration // before the second try; doubled each time
}

// Option changes how a Client works.
type Option func(*Client)

// HTTPClient is what makes the requests. Without it, one that gives a try up
// after a minute and follows no redirect, so that the key goes nowhere else.
func HTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

// Tries is how often one request is made at most: 5 by default; 1
// is never again.
func Tries(n int) Option { return func(c *Client) { c.tries = max(n, 1) } }

// BackOff is how long the second try waits, and later ones twice as long as
// the one before: 250 ms by default. Where the server sets
// Retry-After, that is waited for.
func BackOff(d time.Duration) Option { return func(c *Client) { c.backOff = d } }

// UserAgent is what the client calls itself.
func UserAgent(name string) Option { return func(c *Client) { c.agent = name } }

// New makes a client for a server, such as https://lemma.example.com, and one
// of the workspace's keys.
func New(server, key string, options ...Option) (*Client, error) {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return nil, fmt.Errorf("the server must be the address of a Lemma, such as https://lemma.example.com")
	}
	if key == "" {
		return nil, errors.New("an API key is needed")
	}
	c := &Client{base: strings.TrimSuffix(strings.TrimRight(server, "/"), "/v1"), key: key, agent: "lemma-client", tries: 5, backOff: 250 * time.Millisecond}
	c.http = &http.Client{Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, o := range options {
		o(c)
	}
	return c, nil
}

// CallOption changes one request.
type CallOption func(*request)

// IdempotencyKey names a POST, so that making it again, also by another
// process, does nothing again. Without it each call makes a key of its own,
// which its own repetitions share.
func IdempotencyKey(key string) CallOption {
	return func(r *request) { r.idempotency = key }
}

// IfMatch lets a change through only when the thing still has this ETag; when
// it was changed in between, the answer is a Problem of status 412.
func IfMatch(etag string) CallOption { return func(r *request) { r.ifMatch = etag } }

// DryRun makes Enroll and EnrollBulk answer what would happen. PlanFlowVersion
// answers what publishing would do.
func DryRun() CallOption { return func(r *request) { r.set("dry_run", "true") } }

package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/net/http/httpguts"

	"lemma/dial"
	"lemma/sender"
	"lemma/sender/redact"
)

// Request is a POST. Its body must not be empty, since a request without a body is
// complete with its header.
type Request struct {
	URL     *url.URL
	Header  http.Header // not changed
	Body    []byte      // not used after the call
	StartBy time.Time   // the request does not begin later; zero: no bound
}

// Answer is a provider's answer. Its status is not 1xx.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	Whole  bool // the body is complete; otherwise its beginning is there

	private bool            // the server has a private address, and its answers are not shown (Operator.ShowPrivate)
	redact  *redact.Secrets // removes the secrets of the account
}

// Text is a text of the answer as a receipt has it (sender.Detail). It is empty for a server at
// a private address: a tenant that chooses the server could read the answers of any service in
// the operator's network.
func (a *Answer) Text(text, address string) string {
	if a.private {
		return ""
	}
	return sender.Detail(a.redact, text, address)
}

// Post sends a request. It returns the answer, or the receipt of a call without one.
func (c *Client) Post(ctx context.Context, r Request) (*Answer, *sender.Receipt) {
	if detail := fault(r); detail != "" {
		return nil, receipt(sender.Receipt{Outcome: sender.Rejected, Reason: "message_invalid", Detail: detail})
	}
	if over(ctx, r.StartBy) {
		return nil, notCalled()
	}
	for _, calls := range c.callsOf(ctx) {
		select {
		case calls <- struct{}{}:
			defer func() { <-calls }()
		case <-ctx.Done():
			return nil, notCalled()
		}
	}
	leave, wait := c.slow.enter(originOf(r.URL), isAlone(ctx))
	if leave == nil {
		return nil, receipt(sender.Receipt{Outcome: sender.NotCalled, Reason: "server_slow", Detail: sentence(serverSlow, nil), RetryAfter: wait})
	}
	end := failed
	defer func() {
		if ctx.Err() != nil {
			end = left
		}
		leave(end)
	}()
	server, err := c.pool(originOf(r.URL))
	if err != nil {
		return nil, notCalled()
	}
	defer c.leave(server)
	limited, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	call := call{Client: c, server: server, caller: ctx, ctx: limited, begun: time.Now(), request: r}
	answer, failure := call.try()
	if failure != nil && failure.again {
		answer, failure = call.try()
	}
	if failure != nil {
		c.recorder.failed(failure.Receipt)
		return nil, receipt(failure.Receipt)
	}
	end = answered
	return answer, nil
}

// over reports that a request may not begin any more. It also reads the clock: in a
// process that was stopped, the timer of ctx may be late.
func over(ctx context.Context, by time.Time) bool {
	end, ok := ctx.Deadline()
	now := time.Now()
	return ctx.Err() != nil || ok && !now.Before(end) || !by.IsZero() && !now.Before(by)
}

// fault is what prevents a request from being written.
func fault(r Request) string {
	switch {
	case len(r.Body) == 0:
		return "the request has no body"
	case r.URL == nil || r.URL.Host == "" || r.URL.Scheme != "https" && r.URL.Scheme != "http",
		r.URL.Opaque != "" || r.URL.Path != "" && r.URL.Path[0] != '/':
		return "the URL cannot be called"
	}
	for name, values := range r.Header {
		for _, value := range values {
			if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
				return "a header of the request cannot be written"
			}
		}
	}
	return ""
}

func originOf(u *url.URL) origin {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return origin{u.Scheme, net.JoinHostPort(u.Hostname(), port)}
}

// call is one request.
type call struct {
	*Client
	server  *pool
	caller  context.Context //nolint:containedctx // call is the state of one call
	ctx     context.Context //nolint:containedctx // caller with the timeout
	begun   time.Time
	request Request
}

// toBegin is the time in which the request has to begin: three quarters of that of the call, so that
// the server has the rest to answer.
func (c *call) toBegin() time.Duration { return c.options.Timeout*3/4 - time.Since(c.begun) }

// failure is why there is no answer.
type failure struct {
	sender.Receipt
	again bool // the request was not processed, and another connection may serve it
}

// try puts the request on a connection.
func (c *call) try() (*Answer, *failure) {
	waiting, stop := context.WithTimeout(c.ctx, c.toBegin())
	defer stop()
	conn, waited, err := c.server.take(waiting)
	if err != nil {
		return nil, c.unconnected(err, waited, waiting.Err() != nil)
	}
	defer c.server.done(conn)
	return c.send(conn)
}

// send makes the call over a connection. One that does not begin in a quarter of its time is put on
// another connection: when a server of HTTP/2 lowers the number of requests that it takes at a time
// (RFC 9113, 6.5.2), net/http lets those wait that have capacity by the earlier one.
func (c *call) send(conn *capacity) (*Answer, *failure) {
	if over(c.caller, c.request.StartBy) {
		conn.Release()
		return nil, &failure{Receipt: *notCalled()}
	}
	conn.of.meter.send(len(c.request.Body))
	body := &body{rest: c.request.Body}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	late := time.AfterFunc(min(c.options.Timeout/4, c.toBegin()), func() {
		if body.isLate() {
			cancel()
		}
	})
	c.recorder.request(c.request)
	response, err := conn.RoundTrip(c.http(ctx, body))
	late.Stop()
	if err != nil {
		return nil, c.unanswered(err, body, conn.fresh)
	}
	defer body.end()
	return c.read(response, conn)
}

func (c *call) http(ctx context.Context, b *body) *http.Request {
	r := &http.Request{Method: http.MethodPost, URL: c.request.URL, Host: c.request.URL.Host, Header: c.request.Header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: b, ContentLength: int64(len(c.request.Body))}
	return r.WithContext(ctx)
}

// read reads an answer. 1xx is no answer: 101 would change the protocol.
func (c *call) read(response *http.Response, from *capacity) (*Answer, *failure) {
	defer response.Body.Close()
	if response.StatusCode < 200 {
		return nil, &failure{Receipt: sender.Receipt{Outcome: sender.Unknown, Code: response.StatusCode, Reason: "protocol_error"}}
	}
	a := &Answer{Status: response.StatusCode, Header: response.Header, private: c.server.private.Load(), redact: c.options.Redact}
	var err error
	a.Body, err = io.ReadAll(io.LimitReader(response.Body, mostAnswer+1))
	a.Whole = err == nil && len(a.Body) <= mostAnswer
	a.Body = a.Body[:min(len(a.Body), mostAnswer)]
	from.answer, from.keep = bytesOf(response.Header, len(a.Body)), keepAlive(response)
	c.recorder.answer(response, a)
	return a, nil
}

// unconnected is a call for which there was no connection.
func (c *call) unconnected(err error, waited, late bool) *failure {
	switch {
	case c.caller.Err() != nil, errors.Is(err, errClosed):
		return &failure{Receipt: *notCalled()}
	case late:
		return &failure{Receipt: ofProvider("timeout", err)}
	}
	r := ofProvider(reasonOf(err), err)
	r.Definite = r.Reason == "forbidden_address"
	if !waited {
		r.Outcome = sender.NotCalled
		return &failure{Receipt: r}
	}
	c.options.Log.Info("no connection to the provider", "provider_id", c.options.Provider, "host", c.request.URL.Host,
		"reason", r.Reason, "error", dial.Brief(c.options.Redact.Error(err)))
	return &failure{Receipt: r}
}

// unanswered is a call whose request was put on a connection.
func (c *call) unanswered(err error, b *body, fresh bool) *failure {
	f := c.lost(err, b, fresh)
	c.options.Log.Info("no answer of the provider", "provider_id", c.options.Provider, "host", c.request.URL.Host,
		"reason", f.Reason, "outcome", f.Outcome, "error", dial.Brief(c.options.Redact.Error(err)))
	return f
}

func (c *call) lost(err error, b *body, fresh bool) *failure {
	begun, ended, late := b.end(), c.caller.Err() != nil, c.ctx.Err() != nil
	reason := "protocol_error"
	switch {
	case ended && !begun:
		return &failure{Receipt: *notCalled()}
	case late && !begun:
		return &failure{Receipt: ofProvider("timeout", err)}
	case b.isLate():
		return &failure{Receipt: ofProvider("timeout", err), again: true}
	case !begun || unprocessed(err):
		return &failure{Receipt: ofProvider("connection_lost", err), again: !fresh && !late}
	case ended:
		reason = "call_ended"
	case late:
		reason = "timeout"
	case isLost(err):
		reason = "connection_lost"
	}
	return &failure{Receipt: sender.Receipt{Outcome: sender.Unknown, Reason: reason, Detail: sentence(reason, err)}}
}

package webhooks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"lemma/dial"
)

// What kept a message from being delivered, in one word. Nothing in it says
// what a name resolved to or how far a connection came: whoever names an
// endpoint could otherwise look around with it.
const (
	ReasonStatus    = "status"             // the answer's status says so
	ReasonTimeout   = "timeout"            // no answer in time
	ReasonNetwork   = "network"            // it could not be reached, or hung up
	ReasonForbidden = "forbidden_address"  // the name leads where nothing may be called
	ReasonURL       = "invalid_url"        // the address is no longer one that may be called
	ReasonGone      = "endpoint_deleted"   // there is no such endpoint any more
	ReasonSecret    = "secret_unavailable" // the secret does not open with this node's keys
)

// maxAnswer is how much of an answer is read, so that the connection can be
// used again; what it says is thrown away.
const maxAnswer = 4 << 10

// maxRetryAfter bounds how long a receiver may have us wait.
const maxRetryAfter = time.Hour

// verdict is what one call came to.
type verdict struct {
	status     int    // 0: no answer
	reason     string // empty: delivered
	final      bool   // it is not called again
	retryAfter time.Duration
	cause      error // for the log
}

func (v verdict) delivered() bool { return v.reason == "" }

// state is what the message's row becomes.
func (v verdict) state() string {
	switch {
	case !v.final:
		return "pending"
	case v.delivered():
		return "delivered"
	}
	return "failed"
}

// newClient makes a client that dials what is allowed and follows no redirect. It
// speaks HTTP/1.1 only: with HTTP/2 an endpoint could flood it with frames.
// A connection that is not made within the timeout is closed: net/http goes on with
// a dial whose call has ended.
func newClient(d dial.Dialer, timeout time.Duration) *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy: nil, // a proxy would resolve the name itself, unchecked
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				ctx, cancel := context.WithTimeout(ctx, timeout)
				defer cancel()
				return d.DialContext(ctx, network, address)
			},
			TLSHandshakeTimeout:    timeout,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
			Protocols:              &protocols,
			DisableCompression:     true,
			MaxIdleConns:           200,
			MaxIdleConnsPerHost:    8,
			IdleConnTimeout:        30 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
		},
	}
}

// call says a message once, unless its answer is known.
func (w *Webhooks) call(ctx context.Context, m claimed) verdict {
	if m.Answered {
		return m.answer()
	}
	if m.URL == nil {
		return verdict{reason: ReasonGone, final: true}
	}
	if err := w.checkURL(*m.URL); err != nil {
		return verdict{reason: ReasonURL, final: true, cause: err}
	}
	ring, err := w.open(m.WorkspaceID, m.EndpointID, m.Secret, m.At)
	if err != nil {
		return verdict{reason: ReasonSecret, cause: err}
	}
	ctx, cancel := context.WithTimeout(ctx, w.options.Timeout)
	defer cancel()
	request, err := newRequest(ctx, m, ring)
	if err != nil {
		return verdict{reason: ReasonURL, final: true, cause: err}
	}
	started := time.Now()
	answer, err := w.client.Do(request)
	w.metrics.called(time.Since(started))
	if err != nil {
		v := unanswered(err)
		w.lanes.heard(m.EndpointID, v.final)
		return v
	}
	defer answer.Body.Close()
	w.lanes.heard(m.EndpointID, true)
	_, _ = io.CopyN(io.Discard, answer.Body, maxAnswer) // the status has been heard, whatever becomes of the rest
	return judge(answer)
}

func newRequest(ctx context.Context, m claimed, ring keyring) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, *m.URL, strings.NewReader(m.Body))
	if err != nil {
		return nil, err
	}
	id := MessageID(m.ID)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "Lemma")
	request.Header.Set("webhook-id", id)
	request.Header.Set("webhook-timestamp", strconv.FormatInt(m.At.Unix(), 10))
	request.Header.Set("webhook-signature", ring.sign(id, m.At, []byte(m.Body)))
	return request, nil
}

// unanswered judges a call that had no answer.
func unanswered(err error) verdict {
	var network net.Error
	switch {
	case errors.Is(err, dial.ErrForbidden):
		return verdict{reason: ReasonForbidden, final: true, cause: err}
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return verdict{reason: ReasonTimeout, cause: err}
	}
	return verdict{reason: ReasonNetwork, cause: err}
}

// judge says what an answer means. A redirect is not followed, so it is a
// refusal like any other.
func judge(answer *http.Response) verdict {
	v := verdict{status: answer.StatusCode, reason: ReasonStatus}
	switch s := answer.StatusCode; {
	case s >= 200 && s < 300:
		v.reason = ""
		v.final = true
	case s == http.StatusRequestTimeout, s == http.StatusTooEarly, s == http.StatusTooManyRequests, s >= 500:
		v.retryAfter = retryAfter(answer.Header)
	default:
		v.final = true
	}
	if !v.delivered() {
		v.cause = fmt.Errorf("answered with %d", v.status)
	}
	return v
}

// retryAfter reads how long a receiver wants to be left alone: seconds, or a
// time, which is measured by the receiver's own clock where it tells that.
func retryAfter(h http.Header) time.Duration {
	text := strings.TrimSpace(h.Get("Retry-After"))
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	until, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return max(0, min(until.Sub(now), maxRetryAfter))
}

// withoutURL is the cause of an error of the client, which quotes the whole
// address; its query may hold what is nobody's business.
func withoutURL(err error) error {
	var quoted *url.Error
	if errors.As(err, &quoted) {
		return quoted.Err
	}
	return err
}

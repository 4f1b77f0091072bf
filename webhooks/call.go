package webhooks

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"lemma/dial"
)

// Reasons why a message was not delivered. They reveal neither the address that a
// name resolved to nor how far a connection came: otherwise endpoints could be used
// to scan the network.
const (
	ReasonStatus    = "status"             // the answer has a status other than 2xx
	ReasonTimeout   = "timeout"            // no answer in time
	ReasonNetwork   = "network"            // no connection, or it was closed
	ReasonForbidden = "forbidden_address"  // the name resolves to an address that may not be called
	ReasonURL       = "invalid_url"        // the URL is no longer allowed
	ReasonDisabled  = "endpoint_disabled"  // the endpoint is disabled
	ReasonGone      = "endpoint_deleted"   // the endpoint was deleted
	ReasonSecret    = "secret_unavailable" // this process's keys do not decrypt the secret
)

// maxAnswer is how many bytes of an answer are read and discarded, so that the
// connection can be used again.
const maxAnswer = 4 << 10

// maxRetryAfter bounds the wait that a receiver can ask for.
const maxRetryAfter = time.Hour

// result is the result of one call.
type result struct {
	status     int    // 0: no answer
	reason     string // empty: delivered
	final      bool   // the message is not called again
	retryAfter time.Duration
	cause      error // for the log
}

func (v result) delivered() bool { return v.reason == "" }

// state is the new status of the message's row.
func (v result) state() string {
	switch {
	case !v.final:
		return "pending"
	case v.delivered():
		return "delivered"
	}
	return "failed"
}

// newClient returns a client that dials only allowed addresses and follows no
// redirect. It uses HTTP/1.1 only: with HTTP/2 an endpoint could flood it with frames.
// Dials have a timeout of their own, since net/http continues a dial whose call has ended.
// Each concurrent call keeps its connection, also when all endpoints are of one host.
func newClient(d dial.Dialer, roots *x509.CertPool, timeout time.Duration, calls int) *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	connect := func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return d.DialContext(ctx, network, address)
	}
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy:       nil, // a proxy would resolve the name itself, unchecked
			DialContext: connect,
			DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := connect(ctx, network, address)
				if err != nil {
					return nil, err
				}
				workspace, _ := ctx.Value(workspaceKey{}).(uuid.UUID)
				host, _, _ := net.SplitHostPort(address)
				return dial.Secure(ctx, conn, dial.TLS(workspace, host, roots), timeout)
			},
			Protocols:              &protocols,
			DisableCompression:     true,
			MaxIdleConns:           max(200, calls),
			MaxIdleConnsPerHost:    calls,
			IdleConnTimeout:        30 * time.Second,
			MaxResponseHeaderBytes: 16 << 10, // short fields take sixteen times as much memory
		},
	}
}

// workspaceKey is the key of the workspace for which a connection is made.
type workspaceKey struct{}

// call sends a message once, unless its answer is known. Of a message that carries an
// event only 2xx is final: nothing waits for another answer, such as a redirect.
func (w *Webhooks) call(ctx context.Context, m claimed) result {
	if m.Answered {
		return m.answer()
	}
	if m.URL == nil {
		return result{reason: ReasonGone, final: true}
	}
	if *m.Status == Disabled {
		return result{reason: ReasonDisabled, final: true}
	}
	if err := w.checkURL(*m.URL); err != nil {
		return result{reason: ReasonURL, final: true, cause: err}
	}
	keys, err := w.openOnce(m.WorkspaceID, m.EndpointID, m.Secret, m.At)
	if err != nil {
		return result{reason: ReasonSecret, cause: err}
	}
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, workspaceKey{}, m.WorkspaceID), w.options.Timeout)
	defer cancel()
	request, err := newRequest(ctx, m, keys)
	if err != nil {
		return result{reason: ReasonURL, final: true, cause: err}
	}
	started := time.Now()
	answer, err := w.client.Do(request)
	w.metrics.called(time.Since(started))
	if err != nil {
		v := classifyError(err)
		w.limiter.recordAnswer(m.WorkspaceID, m.EndpointID, v.final)
		return v
	}
	defer answer.Body.Close()
	w.limiter.recordAnswer(m.WorkspaceID, m.EndpointID, true)
	_, _ = io.CopyN(io.Discard, answer.Body, maxAnswer) // the status is known, whatever happens to the rest
	v := classify(answer)
	v.final = v.final && (v.delivered() || m.EventID == nil)
	return v
}

func newRequest(ctx context.Context, m claimed, keys keyring) (*http.Request, error) {
	body := m.body()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, *m.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "Lemma")
	keys.sign(request.Header, MessageID(m.ID), m.At, body)
	return request, nil
}

// classifyError returns the result of a call without an answer.
func classifyError(err error) result {
	var network net.Error
	switch {
	case errors.Is(err, dial.ErrForbidden):
		return result{reason: ReasonForbidden, final: true, cause: err}
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return result{reason: ReasonTimeout, cause: err}
	}
	return result{reason: ReasonNetwork, cause: err}
}

// classify returns the result of an answer. A redirect is not followed, so it
// fails like other refusals.
func classify(answer *http.Response) result {
	v := result{status: answer.StatusCode, reason: ReasonStatus}
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

// retryAfter reads the Retry-After header: seconds, or a time, which is measured
// by the Date header, or by the local clock without one.
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

// logged is the cause of an error of the client for the log, without the URL, whose query
// may contain secrets.
func logged(err error) string {
	if quoted, ok := errors.AsType[*url.Error](err); ok {
		err = quoted.Err
	}
	return dial.Brief(err)
}

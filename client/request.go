package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"lemma"
)

const (
	longestWait   = 30 * time.Second // between two tries, whatever the server answers
	longestAnswer = 64 << 20         // bytes
)

// request is one call with all its tries.
type request struct {
	method      string
	path        string
	query       url.Values
	body        []byte
	idempotency string
	ifMatch     string
}

func (r *request) set(name, value string) {
	if value != "" {
		r.query.Set(name, value)
	}
}

// setNumber leaves 0, the default, out.
func (r *request) setNumber(name string, n int) {
	if n != 0 {
		r.query.Set(name, strconv.Itoa(n))
	}
}

// newRequest returns a request. path is a format for the parts, which are escaped.
func newRequest(method, path string, parts ...any) (*request, error) {
	escaped := make([]any, len(parts))
	for i, part := range parts {
		text := fmt.Sprint(part)
		if text == "" {
			return nil, errors.New("lemma: an id must not be empty")
		}
		escaped[i] = url.PathEscape(text)
	}
	return &request{method: method, path: fmt.Sprintf(path, escaped...), query: url.Values{}}, nil
}

// with adds a body and the caller's options.
func (r *request) with(body any, options []CallOption) error {
	if body != nil {
		var raw bytes.Buffer
		e := json.NewEncoder(&raw)
		e.SetEscapeHTML(false) // an escape has six bytes, which count in the limits of the server
		if err := e.Encode(body); err != nil {
			return fmt.Errorf("lemma: write the request: %w", err)
		}
		r.body = raw.Bytes()
	}
	if r.method == http.MethodPost { // the same for each try
		r.idempotency = lemma.FormatID("req", lemma.NewID())
	}
	for _, o := range options {
		o(r)
	}
	return nil
}

// call sends a request and reads its answer into a T.
func call[T any](ctx context.Context, c *Client, body any, options []CallOption, method, path string, parts ...any) (T, error) {
	answer, _, err := tagged[T](ctx, c, body, options, method, path, parts...)
	return answer, err
}

// tagged is call for an answer that has an ETag.
func tagged[T any](ctx context.Context, c *Client, body any, options []CallOption, method, path string,
	parts ...any) (answer T, etag string, err error) {
	r, err := newRequest(method, path, parts...)
	if err == nil {
		err = r.with(body, options)
	}
	if err != nil {
		return answer, "", err
	}
	header, err := c.do(ctx, r, &answer)
	return answer, header.Get("ETag"), err
}

// do sends a request until it succeeds, or until another try has no use.
func (c *Client) do(ctx context.Context, r *request, answer any) (http.Header, error) {
	for try := 1; ; try++ {
		status, header, raw, err := c.once(ctx, r)
		if r.method == http.MethodDelete && try > 1 && status == http.StatusNotFound {
			return header, nil // an earlier try deleted it, and its answer was lost
		}
		if err == nil && status >= 300 {
			err = problemOf(status, header, raw)
		}
		if err == nil {
			return header, r.read(status, raw, answer)
		}
		wait, again := c.again(r, err, header, try)
		if !again || ctx.Err() != nil {
			return header, err
		}
		select {
		case <-ctx.Done():
			return header, errors.Join(err, ctx.Err())
		case <-time.After(wait):
		}
	}
}

func (r *request) read(status int, raw []byte, answer any) error {
	if answer == nil || status == http.StatusNoContent {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber() // a float64 would change numbers of 17 digits in a history
	if err := d.Decode(answer); err != nil {
		return fmt.Errorf("lemma: read the answer of %s %s: %w", r.method, r.path, err)
	}
	return nil
}

// once sends the request once.
func (c *Client) once(ctx context.Context, r *request) (status int, header http.Header, raw []byte, err error) {
	address := c.base + r.path
	if len(r.query) > 0 {
		address += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, address, bytes.NewReader(r.body))
	if err != nil {
		return 0, nil, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.key)
	req.Header.Set("User-Agent", c.agent)
	for name, value := range map[string]string{"Idempotency-Key": r.idempotency, "If-Match": r.ifMatch} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return 0, nil, nil, unanswered{err}
	}
	defer res.Body.Close()
	raw, err = io.ReadAll(io.LimitReader(res.Body, longestAnswer))
	if err != nil {
		return 0, nil, nil, unanswered{err}
	}
	return res.StatusCode, res.Header, raw, nil
}

// unanswered is an error of the network. Whether the request was carried out is unknown.
type unanswered struct{ error }

func (u unanswered) Unwrap() error { return u.error }

// again reports whether there is another try, and after which pause.
func (c *Client) again(r *request, err error, header http.Header, try int) (wait time.Duration, again bool) {
	if try >= c.tries {
		return 0, false
	}
	var p *Problem
	switch {
	case errors.As(err, &unanswered{}):
		if !r.repeatable() {
			return 0, false
		}
	case errors.As(err, &p):
		if !p.passing() || p.Status != http.StatusTooManyRequests && !r.repeatable() {
			return 0, false
		}
	default:
		return 0, false
	}
	wait = min(min(c.backOff, longestWait)<<min(try-1, 10), longestWait)
	wait = wait/2 + rand.N(wait/2+1) // so that clients that failed at one time do not retry at one time
	if asked, ok := retryAfter(header); ok {
		if asked > longestWait {
			return 0, false // too long to wait here
		}
		wait = max(wait, asked)
	}
	return wait, true
}

// repeatable reports whether a request may be sent again after its answer was lost. It must
// have no second effect and no wrong answer: a change with If-Match that was made would be
// refused as stale, except for a POST, whose answer is kept under its key.
func (r *request) repeatable() bool {
	switch r.method {
	case http.MethodPost:
		return r.idempotency != ""
	case http.MethodPatch, http.MethodPut:
		return r.ifMatch == ""
	}
	return true
}

func retryAfter(header http.Header) (time.Duration, bool) {
	text := header.Get("Retry-After")
	if seconds, err := strconv.Atoi(text); err == nil && seconds >= 0 {
		return time.Duration(seconds) * time.Second, true
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(time.Until(at), 0), true
	}
	return 0, false
}

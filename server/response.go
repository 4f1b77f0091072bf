package server

import (
	"io"
	"net/http"
	"time"
)

// bounded bounds how long a response may take to be received, and responds at once
// to requests whose body the handler does not read completely. Otherwise net/http
// waits for the rest of a small body before it sends the response, and a client
// without a key could hold a connection for the time of a whole request. The rest
// has a moment to arrive: closing a connection with unread bytes discards the
// response.
func bounded(next http.Handler, l timeLimits) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _ := r.Context().Value(connectionOf{}).(*gated)
		body := &watchedBody{ReadCloser: r.Body, ended: r.Body == http.NoBody, connection: http.NewResponseController(w),
			counted: conn, limits: l}
		if !body.ended {
			r.Body = body
		}
		response := &boundedResponse{ResponseWriter: w, body: body, limits: l, latest: time.Now().Add(l.total)}
		next.ServeHTTP(response, r)
		response.begin() // for a handler that has written nothing
	})
}

// bodyRate is how many bytes of a body must arrive in a second, after limits.body.
const bodyRate = 8 << 10

// watchedBody records whether it was read completely, and bounds how slowly it may
// arrive. While it arrives, its connection may be closed for a new one.
type watchedBody struct {
	io.ReadCloser
	ended      bool
	connection *http.ResponseController
	counted    *gated // nil outside of a gate
	limits     timeLimits

	begun  time.Time // of the first read
	length int64     // read so far
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.await()
	n, err := b.ReadCloser.Read(p)
	b.length += int64(n)
	b.ended = b.ended || err == io.EOF
	if err != nil {
		b.arrived()
	}
	return n, err
}

// await sets the deadline for the next bytes: limits.body for the first, and then
// by bodyRate, but no longer than limits.request for all.
func (b *watchedBody) await() {
	if b.ended {
		return
	}
	if b.begun.IsZero() {
		b.begun = time.Now()
		b.counted.arrives(b.begun)
	}
	grace := b.limits.body + time.Duration(b.length)*time.Second/bodyRate
	_ = b.connection.SetReadDeadline(b.begun.Add(min(grace, b.limits.request)))
}

// arrived ends what await began.
func (b *watchedBody) arrived() {
	if !b.begun.IsZero() {
		b.counted.arrives(time.Time{})
	}
}

// boundedResponse gives the client limits.answer to receive it, but no longer than
// until latest. It closes the connection if it begins before the end of the
// request's body.
type boundedResponse struct {
	http.ResponseWriter
	body   *watchedBody
	limits timeLimits
	latest time.Time
	begun  bool
}

func (a *boundedResponse) begin() {
	if a.begun {
		return
	}
	a.begun = true
	a.body.arrived()
	connection, now := http.NewResponseController(a.ResponseWriter), time.Now() // a connection has deadlines
	if end := now.Add(a.limits.answer); end.Before(a.latest) {
		_ = connection.SetWriteDeadline(end)
	}
	if !a.body.ended {
		a.Header().Set("Connection", "close")
		_ = connection.SetReadDeadline(now.Add(a.limits.unread))
	}
}

// WriteHeader sets the deadlines before the first byte.
func (a *boundedResponse) WriteHeader(status int) {
	a.begin()
	a.ResponseWriter.WriteHeader(status)
}

func (a *boundedResponse) Write(b []byte) (int, error) {
	a.begin()
	return a.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (a *boundedResponse) Unwrap() http.ResponseWriter { return a.ResponseWriter }

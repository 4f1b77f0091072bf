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
		body := &watchedBody{ReadCloser: r.Body, ended: r.Body == http.NoBody}
		if !body.ended {
			r.Body = body
		}
		response := &boundedResponse{ResponseWriter: w, body: body, limits: l, latest: time.Now().Add(l.total)}
		next.ServeHTTP(response, r)
		response.begin() // for a handler that has written nothing
	})
}

// watchedBody records whether it was read completely.
type watchedBody struct {
	io.ReadCloser
	ended bool
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.ended = b.ended || err == io.EOF
	return n, err
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
	connection, now := http.NewResponseController(a.ResponseWriter), time.Now() // a connection has deadlines
	if end := now.Add(a.limits.answer); end.Before(a.latest) {
		_ = connection.SetWriteDeadline(end)
	}
	if !a.body.ended {
		a.Header().Set("Connection", "close")
		_ = connection.SetReadDeadline(now.Add(a.limits.unread))
	}
}

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

package main

import (
	"io"
	"net/http"
	"time"
)

// unread answers requests whose body is not read to its end at once. Otherwise
// net/http waits for the rest of a small body before it sends the answer, so
// that anybody, without a key, could hold a connection for the time of a whole
// request. The rest has a moment to arrive, since the client of a connection that
// is closed with unread bytes in it loses the answer.
func unread(next http.Handler, moment time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		body := &watchedBody{ReadCloser: r.Body}
		r.Body = body
		answer := &earlyAnswer{ResponseWriter: w, body: body, moment: moment}
		next.ServeHTTP(answer, r)
		answer.hurry() // for a handler that has written nothing
	})
}

// watchedBody knows whether it was read to its end.
type watchedBody struct {
	io.ReadCloser
	ended bool
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.ended = b.ended || err == io.EOF
	return n, err
}

// earlyAnswer closes the connection behind an answer that comes before the end
// of the request's body.
type earlyAnswer struct {
	http.ResponseWriter
	body   *watchedBody
	moment time.Duration
	begun  bool
}

func (a *earlyAnswer) hurry() {
	if a.begun || a.body.ended {
		return
	}
	a.begun = true
	a.Header().Set("Connection", "close")
	_ = http.NewResponseController(a.ResponseWriter).SetReadDeadline(time.Now().Add(a.moment)) // a connection has deadlines
}

func (a *earlyAnswer) WriteHeader(status int) {
	a.hurry()
	a.begun = true
	a.ResponseWriter.WriteHeader(status)
}

func (a *earlyAnswer) Write(b []byte) (int, error) {
	a.hurry()
	a.begun = true
	return a.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (a *earlyAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

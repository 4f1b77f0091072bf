package server

import (
	"io"
	"net/http"
	"time"
)

// unread responds at once to requests whose body the handler does not read
// completely. Otherwise net/http waits for the rest of a small body before it
// sends the response, and a client without a key could hold a connection for the
// time of a whole request. The rest has a moment to arrive: closing a connection
// with unread bytes discards the response.
func unread(next http.Handler, moment time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		body := &watchedBody{ReadCloser: r.Body}
		r.Body = body
		response := &earlyResponse{ResponseWriter: w, body: body, moment: moment}
		next.ServeHTTP(response, r)
		response.hurry() // for a handler that has written nothing
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

// earlyResponse closes the connection after a response that begins before the end
// of the request's body.
type earlyResponse struct {
	http.ResponseWriter
	body   *watchedBody
	moment time.Duration
	begun  bool
}

func (a *earlyResponse) hurry() {
	if a.begun || a.body.ended {
		return
	}
	a.begun = true
	a.Header().Set("Connection", "close")
	_ = http.NewResponseController(a.ResponseWriter).SetReadDeadline(time.Now().Add(a.moment)) // a connection has deadlines
}

func (a *earlyResponse) WriteHeader(status int) {
	a.hurry()
	a.begun = true
	a.ResponseWriter.WriteHeader(status)
}

func (a *earlyResponse) Write(b []byte) (int, error) {
	a.hurry()
	a.begun = true
	return a.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (a *earlyResponse) Unwrap() http.ResponseWriter { return a.ResponseWriter }

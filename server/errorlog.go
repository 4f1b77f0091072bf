package server

import (
	"log"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Limits of what net/http may log about the connections of one listener, or of all clients.
const (
	maxHTTPError  = 2 << 10 // bytes of a message; a panic has its stack in it
	maxHTTPErrors = 10      // messages in httpErrorsPer
	httpErrorsPer = time.Minute
)

// SetDefaultLog makes a logger that of packages without one of their own. Of package log it logs
// how many messages there were, and no text: the HTTP client of net/http quotes there what servers
// send, which may be a secret that they have received, and no setting prevents that.
func SetDefaultLog(to *slog.Logger) {
	slog.SetDefault(to)
	log.SetFlags(0)
	log.SetOutput(&httpErrors{log: to, hidden: true}) // SetDefault has set another
}

// httpErrors logs the messages of net/http as an attribute. A peer decides their
// text and how many there are, so both are bounded.
type httpErrors struct {
	log    *slog.Logger
	hidden bool // the text

	mu      sync.Mutex
	since   time.Time // when the current interval began
	logged  int       // in it
	dropped int       // since the last message that was logged
}

func newErrorLog(to *slog.Logger, listener string) *log.Logger {
	return log.New(&httpErrors{log: to.With("listener", listener)}, "", 0)
}

// Write logs one message.
func (e *httpErrors) Write(message []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if time.Since(e.since) >= httpErrorsPer {
		e.since, e.logged = time.Now(), 0
	}
	if e.logged >= maxHTTPErrors {
		e.dropped++
		return len(message), nil
	}
	if e.hidden {
		e.log.Warn("a library reports an error, whose text is left out: it may quote what a server sent", "dropped", e.dropped)
	} else {
		text := strings.TrimSpace(string(message[:min(len(message), maxHTTPError)]))
		e.log.Warn("net/http reports an error", "error", strings.ToValidUTF8(text, "?"), "dropped", e.dropped)
	}
	e.logged, e.dropped = e.logged+1, 0
	return len(message), nil
}

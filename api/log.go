package api

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// maxKeylessLines is how many lines of requests without a key are logged in a minute: as many of
// what was requested, and as many of failures.
const maxKeylessLines = 300

// requested is the message of a line about a request.
const requested = "request"

// BoundedLog is a logger that logs a bounded number of lines with the context of a request without a
// known key, whichever package logs them. The next line has the number of those that were dropped.
func BoundedLog(log *slog.Logger) *slog.Logger {
	return slog.New(boundedLog{log.Handler(), &quotas{}})
}

type boundedLog struct {
	slog.Handler
	quotas *quotas
}

type quotas struct{ requests, failures quota }

// Handle is part of slog.Handler.
func (b boundedLog) Handle(ctx context.Context, r slog.Record) error {
	if t, ok := ctx.Value(requestInfoKey{}).(*requestInfo); ok && t.key == "" {
		of := &b.quotas.failures
		if r.Message == requested {
			of = &b.quotas.requests
		}
		logged, dropped := of.take(time.Now())
		if !logged {
			return nil
		}
		r = r.Clone()
		r.AddAttrs(slog.Int("dropped", dropped))
	}
	return b.Handler.Handle(ctx, r)
}

// WithAttrs is part of slog.Handler.
func (b boundedLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return boundedLog{b.Handler.WithAttrs(attrs), b.quotas}
}

// WithGroup is part of slog.Handler.
func (b boundedLog) WithGroup(name string) slog.Handler {
	return boundedLog{b.Handler.WithGroup(name), b.quotas}
}

// quota bounds the lines in a minute.
type quota struct {
	mu      sync.Mutex
	since   time.Time // when the current minute began
	logged  int       // in it
	dropped int       // since the last line that was logged
}

// take reports whether a line may be logged, and how many were dropped before it.
func (q *quota) take(now time.Time) (logged bool, dropped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if now.Sub(q.since) >= time.Minute {
		q.since, q.logged = now, 0
	}
	if q.logged >= maxKeylessLines {
		q.dropped++
		return false, 0
	}
	dropped = q.dropped
	q.logged, q.dropped = q.logged+1, 0
	return true, dropped
}

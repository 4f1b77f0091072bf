// Package sentry reports errors of this process to Sentry, or to another service with
// its protocol. It guarantees:
//
//   - Only log records of the level error are reported, and so only what the log has too.
//   - A report contains no personal data: no text of an error, and of the attributes only
//     numbers, times, ids and codes. The log has the rest.
//   - Equal errors are one group, and at most one report a minute, with the number of those
//     that were left out. A process reports at most 30 errors a minute.
//   - The process never waits for Sentry, but for at most 2 s at its end.
//
// Equal are errors with the same message of the log and the same types. A panic is also
// distinguished by where it occurred.
package sentry

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	sentrygo "github.com/getsentry/sentry-go"

	"lemma/dial"
)

const (
	flushTimeout = 2 * time.Second
	callTimeout  = 10 * time.Second
)

// ErrDSN is the error of a DSN that cannot be read. It does not contain the DSN.
var ErrDSN = errors.New("must be the DSN of a project in Sentry, such as https://key@sentry.example.com/1")

// Check checks a DSN.
func Check(dsn string) error {
	if _, err := sentrygo.NewDsn(dsn); err != nil {
		return ErrDSN // the cause contains the DSN
	}
	return nil
}

// Options are the settings of a Reporter.
type Options struct {
	DSN       string
	Transport http.RoundTripper // for tests; nil: connections by package dial
}

// Reporter sends reports. It is safe for concurrent use.
type Reporter struct {
	client *sentrygo.Client
	limit  *limit
}

// Open makes a Reporter. It does not connect.
func Open(o Options) (*Reporter, error) {
	transport := o.Transport
	if transport == nil {
		// The operator entered the address, so it may be in their own network.
		transport = &http.Transport{DialContext: dial.Dialer{AllowPrivate: true}.DialContext, TLSHandshakeTimeout: callTimeout / 2,
			MaxResponseHeaderBytes: 64 << 10, MaxConnsPerHost: 2, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true}
	}
	client, err := sentrygo.NewClient(sentrygo.ClientOptions{Dsn: o.DSN, Release: release(), MaxBreadcrumbs: -1, DisableClientReports: true,
		// An integration adds facts about the machine and the program's environment.
		Integrations: func([]sentrygo.Integration) []sentrygo.Integration { return nil },
		HTTPClient: &http.Client{Transport: transport, Timeout: callTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}})
	if err != nil {
		return nil, ErrDSN
	}
	return &Reporter{client: client, limit: newLimit(time.Now)}, nil
}

// release is the version of the program. Without it, the client would ask git.
func release() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return "lemma@" + info.Main.Version
	}
	return "lemma"
}

// Flush sends what is not sent yet, for at most 2 s. It is called at the end of the process.
func (r *Reporter) Flush() { r.client.Flush(flushTimeout) }

// Handler logs to next, and reports errors.
func (r *Reporter) Handler(next slog.Handler) slog.Handler {
	return &handler{Handler: next, reporter: r}
}

// handler is a slog.Handler. attrs are those of its logger, without groups: a group
// may be a person's data.
type handler struct {
	slog.Handler
	reporter *Reporter
	attrs    []slog.Attr
	grouped  bool
}

// Enabled is part of slog.Handler. Errors are reported also if they are not logged.
func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelError || h.Handler.Enabled(ctx, level)
}

// Handle is part of slog.Handler.
func (h *handler) Handle(ctx context.Context, record slog.Record) error {
	if record.Level >= slog.LevelError {
		h.report(record)
	}
	if !h.Handler.Enabled(ctx, record.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, record)
}

// WithAttrs is part of slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *h
	next.Handler = h.Handler.WithAttrs(attrs)
	if !h.grouped {
		next.attrs = slices.Concat(h.attrs, attrs)
	}
	return &next
}

// WithGroup is part of slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	next := *h
	next.Handler, next.grouped = h.Handler.WithGroup(name), true
	return &next
}

func (h *handler) report(record slog.Record) {
	f := newFault(record, h.attrs, h.grouped)
	leftOut, allowed := h.reporter.limit.admit(f.group())
	if allowed {
		h.reporter.client.CaptureEvent(f.event(leftOut), nil, nil)
	}
}

package server

import (
	"context"
	"log/slog"
)

// riverLog is the logger for River: it logs a line for every job below warning.
func riverLog(log *slog.Logger) *slog.Logger { return slog.New(quiet{log.Handler()}) }

// quiet logs warnings and errors only.
type quiet struct{ slog.Handler }

// Enabled reports whether the level is logged.
func (q quiet) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && q.Handler.Enabled(ctx, l)
}

// WithAttrs is part of slog.Handler.
func (q quiet) WithAttrs(a []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(a)} }

// WithGroup is part of slog.Handler.
func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }

package main

import (
	"log/slog"
	"strings"
	"testing"

	"lemma/pgtest"
	"lemma/secrets"
)

// A transaction of an API process that waits for its client is ended soon, one
// of a worker later, and DATABASE_URL overrules both.
func TestIdleTransactionsAreBounded(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(pgtest.DB(t))
	own := "?"
	if strings.Contains(dsn, "?") {
		own = "&"
	}
	for _, c := range []struct {
		what, dsn, want string
		work            bool
	}{
		{"serve", dsn, "10s", false}, {"serve --work", dsn, "1min", true},
		{"serve with a bound in DATABASE_URL", dsn + own + "idle_in_transaction_session_timeout=7s", "7s", false},
	} {
		cfg := defaultConfig()
		cfg.DatabaseURL, cfg.SecretKey = c.dsn, secrets.NewKey()
		n, err := openServer(t.Context(), cfg, slog.New(slog.DiscardHandler), c.work, (&serveCommand{Work: c.work}).transactionIdle())
		if err != nil {
			t.Fatal(err)
		}
		defer n.Pool.Close()
		var got string
		if err := n.Pool.QueryRow(t.Context(), `show idle_in_transaction_session_timeout`).Scan(&got); err != nil || got != c.want {
			t.Errorf("%s: %s, want %s: %v", c.what, got, c.want, err)
		}
	}
}

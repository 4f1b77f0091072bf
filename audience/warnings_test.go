package audience

import (
	"strings"
	"testing"

	"lemma/audience/wire"
)

// Without verify-full the connection can be intercepted: the API and doctor
// warn of it.
func TestWarningsOfTLS(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ kind, dsn, want string }{
		{Postgres, "postgres://u:p@db.shop.example/shop?sslmode=verify-full", ""},
		{Postgres, "postgres://u:p@db.shop.example/shop?sslmode=require",
			"not verified, so the connection can be intercepted; use sslmode=verify-full"},
		{Postgres, "postgres://u:p@db.shop.example/shop?sslmode=disable", "not encrypted; use sslmode=verify-full"},
		{Postgres, "postgres://u:p@db.shop.example/shop", "may be unencrypted"},
		{Postgres, "postgres://u:p@127.0.0.1/shop", ""},
		{Postgres, "postgres://u:p@[::1]/shop", ""},
		{Postgres, "postgres://u:p@localhost/shop", ""},
		{Postgres, "postgres://u:p@/shop?host=/run/postgres", ""},
		{MySQL, "mysql://u:p@db.shop.example/shop?tls=true", ""},
		{MySQL, "u:p@tcp(db.shop.example:3306)/shop?tls=skip-verify", "intercepted; use tls=true"},
		{MySQL, "mysql://u:p@db.shop.example/shop?tls=false", "not encrypted; use tls=true"},
	} {
		target, err := wire.Parse(c.kind, c.dsn, wire.Rules{AllowPrivate: true, AllowUnix: true})
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(Source{Kind: c.kind, Address: target.String(), TLS: target.Protection()}.AllWarnings(), "|")
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q", c.dsn, got)
		}
	}
}

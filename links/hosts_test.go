package links_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/links"
	"lemma/pgtest"
)

func (f fixture) own(host string, ws uuid.UUID) {
	f.t.Helper()
	pgtest.Exec(f.t, f.pool, `insert into tracking_hosts (host, workspace_id) values ($1, $2)`, host, ws)
}

// validAt reports whether a token is valid under a host.
func (f fixture) validAt(l *links.Links, host, token string) bool {
	f.t.Helper()
	_, _, err := l.VerifyAt(f.t.Context(), links.Unsubscribe, host, token)
	if err != nil && lemma.KindOf(err) != lemma.NotFound {
		f.t.Error(err)
	}
	return err == nil
}

// Under the host of a workspace only its own tokens are valid; hosts of no workspace are of all.
func TestATokenUnderAHost(t *testing.T) {
	f := setup(t)
	other := pgtest.Workspace(t, f.pool)
	f.own("go.shop.example", f.ws)
	f.own("go.other.example", other)
	pgtest.Exec(t, f.pool, `insert into tracking_hosts (host) values ('public.example')`)
	token := f.sign(f.ws, time.Now(), "p")
	for host, want := range map[string]bool{"go.shop.example": true, "GO.shop.example.:443": true, "go.other.example": false,
		"Go.Other.Example:8443": false, "go.other.example.": false, "lemma.example": true, "public.example": true, "": true, "[::1]:80": true} {
		for range 2 { // read, and in memory
			if got := f.validAt(f.Links, host, token); got != want {
				t.Errorf("%q: %t", host, got)
			}
		}
	}
}

// A host in memory is read again after a while, and stays as it was while the database is away.
func TestAHostWithoutTheDatabase(t *testing.T) {
	f := setup(t)
	other := pgtest.Workspace(t, f.pool)
	f.own("go.other.example", other)
	token := f.sign(f.ws, time.Now(), "p")
	l := links.New(f.pool, f.box, nil)
	if f.validAt(l, "go.other.example", token) || !f.validAt(l, "go.shop.example", token) {
		t.Fatal("not what the table has")
	}
	pgtest.Exec(t, f.pool, `alter table tracking_hosts rename to away`)
	l.ForgetHosts(time.Minute)
	for range 3 {
		if f.validAt(l, "go.other.example", token) || !f.validAt(l, "go.shop.example", token) || !f.validAt(l, "new.example", token) {
			t.Error("a host that cannot be read has changed")
		}
	}
	pgtest.Exec(t, f.pool, `alter table away rename to tracking_hosts`)
	pgtest.Exec(t, f.pool, `update tracking_hosts set workspace_id = $1`, f.ws)
	l.ForgetHosts(time.Minute)
	pgtest.Eventually(t, 10*time.Second, "the host is read again", func() bool { return f.validAt(l, "go.other.example", token) })
}

package hooks

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"lemma/pgtest"
	"lemma/sender"
	"lemma/signing"
)

// How old a signature is, is by the clock of the database, whatever that of the process.
func TestSignaturesAreComparedWithTheTimeOfTheDatabase(t *testing.T) {
	b := setup(t)
	now := time.Now().AddDate(0, 0, 2)
	pgtest.SetClock(t, b.Pool, now)
	h := b.hooks()
	if err := b.receive(h, "1", `{"type":"delivered","address":"p1@shop.example"}`); !errors.Is(err, sender.ErrReplayed) {
		t.Errorf("a signature two days old: %v", err)
	}
	body := `{"type":"delivered","address":"p1@shop.example"}`
	r := httptest.NewRequest(http.MethodPost, "/hooks/http/"+b.path(), strings.NewReader(body))
	signing.Set(r.Header, [][]byte{b.key}, "2", now, []byte(body))
	b.Must(h.Receive(r, "http", b.path()))
}

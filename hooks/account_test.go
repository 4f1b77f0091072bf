package hooks

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/pgtest"
	"lemma/providers"
	"lemma/sender"
	"lemma/signing"
)

// withHeaders makes a provider of a workspace with so many secret headers of 3,900 bytes.
func (b *bundle) withHeaders(ws uuid.UUID, headers int) uuid.UUID {
	b.T.Helper()
	all := map[string]string{}
	for i := range headers {
		all[fmt.Sprint("X-", i)] = rand.Text() + strings.Repeat("x", 3_900)
	}
	secrets, err := json.Marshal(map[string]any{"signing_secret": signing.Secret(b.key), "webhook_secret": signing.Secret(b.key),
		"headers": all})
	b.Must(err)
	made, err := b.accounts.Create(b.T.Context(), ws, providers.NewProvider{ID: lemma.NewID(), Name: rand.Text(), Kind: "http",
		Config: json.RawMessage(`{"url":"https://gw.example/send"}`), Secrets: secrets})
	b.Must(err)
	return made.ID
}

// call sends an unsigned webhook to a provider.
func (b *bundle) call(h *Hooks, provider uuid.UUID) {
	b.T.Helper()
	path := lemma.FormatID(lemma.PrefixProvider, provider)
	r := httptest.NewRequest(http.MethodPost, "/hooks/http/"+path, strings.NewReader("{}"))
	if err := h.Receive(r, "http", path); !errors.Is(err, sender.ErrForged) {
		b.T.Fatal(err)
	}
}

// isKept reports whether a process has the account of a provider in memory.
func isKept(h *Hooks, provider uuid.UUID) bool {
	_, ok := h.accounts.kept.Get(provider)
	return ok
}

// The providers of a workspace have a share of the memory, by what their secrets take, and evict none
// of another workspace.
func TestTheMemoryOfProvidersIsBounded(t *testing.T) {
	b := setup(t)
	other := b.withHeaders(pgtest.Workspace(t, b.Pool), 0)
	h := b.hooks()
	b.call(h, other)
	all := make([]uuid.UUID, 140) // with some 140 KB each
	for i := range all {
		all[i] = b.withHeaders(b.Workspace, 15)
		b.call(h, all[i])
	}
	if n := h.accounts.kept.Bytes(); n > accountsShare+1<<20 {
		t.Errorf("%d bytes of providers", n)
	}
	if isKept(h, all[0]) || !isKept(h, all[len(all)-1]) || !isKept(h, other) {
		t.Error("the provider that was called least recently is kept, or one of another workspace is not")
	}
	before := h.accounts.kept.Bytes()
	h.accounts.fresh(all[len(all)-1], accountAge).readAt = time.Now().Add(-accountAge - time.Second)
	b.call(h, all[len(all)-1])
	if n := h.accounts.kept.Bytes(); n != before {
		t.Errorf("an unchanged provider that is read again has %d bytes more", n-before)
	}
}

// A provider whose webhooks do not come any more is forgotten with its secrets.
func TestAnUnusedProviderIsForgotten(t *testing.T) {
	b := setup(t)
	h := b.hooks()
	unused, used := b.create(b.key), b.create(b.key)
	for _, id := range []uuid.UUID{unused, used} {
		b.call(h, id)
	}
	h.accounts.fresh(unused, accountAge).readAt = time.Now().Add(-accountUnused - time.Second)
	h.accounts.fresh(used, accountAge).readAt = time.Now().Add(-accountUnused + time.Minute)
	b.call(h, b.provider)
	if isKept(h, unused) || !isKept(h, used) {
		t.Errorf("the unused provider is kept: %v, the other one: %v", isKept(h, unused), isKept(h, used))
	}
}

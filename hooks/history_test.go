package hooks

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"lemma/cache"
	"lemma/providers"
	"lemma/sender"
	"lemma/signing"
)

// Ids that another server stored are not known, also if its commit is answered late.
func TestAnotherServerKnowsNoIDs(t *testing.T) {
	t.Parallel()
	var h cache.History
	k := newKnown(2)
	k.history = &h
	ids := []uuid.UUID{uuid.New(), uuid.New(), uuid.New()}
	h.Continue("a")
	before := h.Now()
	k.add(before, ids)
	for _, id := range ids {
		if !k.has(id) {
			t.Error("a stored id is not known")
		}
	}
	h.Continue("b")
	k.add(before, ids[:1])
	for _, id := range ids {
		if k.has(id) {
			t.Error("an id is known that another server stored")
		}
	}
	k.add(h.Now(), ids[:1])
	if !k.has(ids[0]) {
		t.Error("an id that this server stored is not known")
	}
}

// After a failover a provider may have another secret under the version that is in memory, and
// reports that were stored before are stored again.
func TestWebhooksKeepToAHistory(t *testing.T) {
	b := setup(t)
	var history cache.History
	history.Continue("a")
	h := b.hooks()
	h.Follow(&history)
	receive := func() {
		t.Helper()
		b.Must(b.receive(h, "e1", fmt.Sprintf(`{"type":"delivered","notification_id":%q}`, b.notification(1))))
	}
	receive()
	b.Exec(`delete from provider_events`)
	receive()
	if n := len(b.rows()); n != 0 {
		t.Errorf("%d rows: a repetition is stored", n)
	}
	old := b.request("e1", "{}")
	_, _ = rand.Read(b.key)
	_, err := b.accounts.Update(t.Context(), b.Workspace, b.provider, nil, providers.Patch{Secrets: json.RawMessage(fmt.Sprintf(
		`{"signing_secret":%q,"webhook_secret":%q}`, signing.Secret(make([]byte, 32)), signing.Secret(b.key)))})
	b.Must(err)
	b.Exec(`update providers set version = version - 1`)
	history.Continue("b")
	if err := h.Receive(old, "http", b.path()); !errors.Is(err, sender.ErrForged) {
		t.Errorf("the secret of the other server is used: %v", err)
	}
	receive()
	if n := len(b.rows()); n != 1 {
		t.Errorf("%d rows: the report is not stored on the other server", n)
	}
}

package links_test

import (
	"testing"
	"time"

	"lemma/cache"
	"lemma/links"
	"lemma/pgtest"
)

// A key that another server had under the same number does not verify links.
func TestKeysKeepToAHistory(t *testing.T) {
	f := setup(t)
	var h cache.History
	f.Follow(&h)
	h.Continue("a")
	f.valid(f.sign(f.ws, time.Now(), "p"), "p")
	pgtest.Exec(t, f.pool, `delete from link_keys`)
	token := f.sign(f.ws, time.Now(), "q")
	if _, _, err := f.Verify(t.Context(), links.Unsubscribe, token); err == nil {
		t.Error("the key is not in memory, which the test needs")
	}
	h.Continue("b")
	f.valid(token, "q")
}

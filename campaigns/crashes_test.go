package campaigns

import (
	"context"
	"testing"

	"github.com/google/uuid"
)

// TestAFanoutThatKillsItsProcessIsParked plays a source that ends each process
// which reads it: the campaign is paused with the reason instead of going on
// for ever, and a resume tries again.
func TestAFanoutThatKillsItsProcessIsParked(t *testing.T) {
	b := setup(t, 20)
	c := b.sent()
	die := func() {
		b.run(b.pool, `update fanouts set leased_by = 'dead', lease_until = now() - interval '1 second' where campaign_id = $1`, c.ID)
	}
	for range maxCrashes - 1 {
		die()
		if parked, err := b.parkCrashed(context.Background(), b.ws, c.ID); parked || err != nil {
			t.Fatalf("parked: %t, %v", parked, err)
		}
	}
	die()
	b.fanout(c.ID)
	if got := b.get(c.ID); got.Status != Paused || got.StatusReason != "fanout_crashed" || len(b.addresses(c.ID)) != 0 {
		t.Fatalf("%+v, %d notifications", got, len(b.addresses(c.ID)))
	}
	if _, err := b.Resume(context.Background(), b.ws, c.ID, uuid.Nil); err != nil {
		t.Fatal(err)
	}
	die()
	b.fanout(c.ID)
	if got := b.get(c.ID); got.Status != Sending || len(b.addresses(c.ID)) != 20 {
		t.Errorf("after the resume: %+v, %d notifications", got, len(b.addresses(c.ID)))
	}
}

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

// A fan-out whose process is killed over and over, and which gets on each time,
// is not parked; one that gets on no more is.
func TestAFanoutThatGetsOnIsNotParked(t *testing.T) {
	b := setup(t, 20)
	c := b.sent()
	die := func(written int) (parked bool) {
		b.run(b.pool, `update fanouts set leased_by = 'dead', lease_until = now() - interval '1 second', runs = runs + 1 where campaign_id = $1`, c.ID)
		b.run(b.pool, `insert into fanout_chunks (workspace_id, origin_id, id, run, created)
			select workspace_id, campaign_id, gen_random_uuid(), runs, $2 from fanouts where campaign_id = $1 and $2 > 0`, c.ID, written)
		parked, err := b.parkCrashed(context.Background(), b.ws, c.ID)
		b.must(err)
		return parked
	}
	for i := range 3 * maxCrashes {
		if die(1) {
			t.Fatalf("parked after %d kills, each of a run that got on", i+1)
		}
	}
	for i := range maxCrashes - 1 {
		if last := i == maxCrashes-2; die(0) != last {
			t.Fatalf("after %d runs that did not get on it is parked: %t", i+1, !last)
		}
	}
}

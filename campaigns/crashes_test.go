package campaigns

import (
	"context"
	"testing"

	"github.com/google/uuid"
)

// A source crashes each process that reads it: the campaign is paused with the
// reason, and a resume reads it again.
func TestAFanoutThatCrashesItsProcessIsPaused(t *testing.T) {
	b := setup(t, 20)
	c := b.sent()
	die := func() {
		b.run(b.pool, `update fanouts set leased_by = 'dead', lease_until = now() - interval '1 second' where campaign_id = $1`, c.ID)
	}
	for range maxCrashes - 1 {
		die()
		if paused, err := b.endExpired(context.Background(), b.ws, c.ID); paused || err != nil {
			t.Fatalf("paused: %t, %v", paused, err)
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

// A fan-out whose process is killed repeatedly is paused only if it does not
// progress.
func TestAFanoutThatProgressesIsNotPaused(t *testing.T) {
	b := setup(t, 20)
	c := b.sent()
	die := func(written int) (paused bool) {
		b.run(b.pool, `update fanouts set leased_by = 'dead', lease_until = now() - interval '1 second', runs = runs + 1
			where campaign_id = $1`, c.ID)
		b.run(b.pool, `insert into fanout_chunks (workspace_id, origin_id, id, run, created)
			select workspace_id, campaign_id, gen_random_uuid(), runs, $2 from fanouts where campaign_id = $1 and $2 > 0`, c.ID, written)
		paused, err := b.endExpired(context.Background(), b.ws, c.ID)
		b.must(err)
		return paused
	}
	for i := range 3 * maxCrashes {
		if die(1) {
			t.Fatalf("paused after %d kills, each of a run that got on", i+1)
		}
	}
	for i := range maxCrashes - 1 {
		if last := i == maxCrashes-2; die(0) != last {
			t.Fatalf("after %d runs that did not get on it is paused: %t", i+1, !last)
		}
	}
}

package chaos

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/campaigns"
)

// asUsual sends a campaign and says how long it took to complete. It goes out
// while others hang, and takes no longer than they do when nothing hangs: the
// bound is generous, since the machine may be busy.
func (h *house) asUsual(people *customer, usual time.Duration) time.Duration {
	h.t.Helper()
	begun := time.Now()
	id := h.send(people)
	h.completed(id, max(5*usual, time.Minute))
	took := time.Since(begun)
	h.judge(people, id)
	if usual > 0 && took > 5*usual+10*time.Second {
		h.t.Errorf("the campaign took %v, and %v when nothing hung", took, usual)
	}
	return took
}

// Two data sources of one workspace hang in the middle of their audiences, and
// more campaigns wait for them than the worker has places. Another workspace's
// campaign is read and sent meanwhile as if they were not there.
func TestSlowSourcesHoldUpNoOtherWorkspace(t *testing.T) {
	h := build(t)
	slow := h.neighbour(2)
	h.startWorkers(1, append(patient, "LEMMA_FANOUT_WORKERS=4", "LEMMA_SOURCE_TIMEOUT=30m")...)
	people := h.customer(500)
	usual := h.asUsual(people, 0)

	const held = 3 // places of a worker with four that one workspace can have
	sources := []*customer{slow.customer(20_000), slow.customer(20_000)}
	var hanging []uuid.UUID
	for _, source := range sources {
		source.wire.hangAfter(1600 << 10)
	}
	for range 4 {
		for _, source := range sources {
			hanging = append(hanging, slow.send(source))
		}
	}
	reading := func() int {
		return h.count(`select count(*) from fanouts f where f.workspace_id = $1 and f.leased_by is not null and f.finished_at is null
			and exists (select from batches b where b.workspace_id = f.workspace_id and b.origin_id = f.campaign_id)`, slow.ws)
	}
	h.until(60*time.Second, "the slow sources hold all places that they can", func() bool { return reading() >= held })
	took := h.asUsual(people, usual)
	t.Logf("the campaign took %v, and %v when nothing hung", took.Round(time.Millisecond), usual.Round(time.Millisecond))
	if n := reading(); n != held {
		t.Errorf("%d audiences of the slow sources are being read, want %d: this has shown nothing", n, held)
	}
	for _, id := range hanging {
		if c := slow.campaign(id); c.Status != campaigns.Preparing && c.Status != campaigns.Sending {
			t.Errorf("a campaign on a slow source is %s: %s", c.Status, c.StatusReason)
		}
	}
}

// A provider takes each message and does not answer, as one that takes 25 s for
// it. Its workspace has more batches than the worker has places for. Another
// workspace's campaign is sent meanwhile as if they were not there.
func TestASlowProviderHoldsUpNoOtherWorkspace(t *testing.T) {
	h := build(t)
	slow := h.neighbour(60)
	h.startWorkers(1, "LEMMA_SEND_WORKERS=16", "LEMMA_CALL_TIMEOUT=10m", "LEMMA_LEASE=1h")
	people := h.customer(500)
	usual := h.asUsual(people, 0)

	many := slow.customer(20_000)
	speak := slow.post.keepSilent(t)
	hanging := slow.send(many)
	h.until(60*time.Second, "its audience is read, and batches of it are being called", func() bool {
		return h.count(`select count(*) from fanouts where campaign_id = $1 and finished_at is not null`, hanging) == 1 &&
			h.count(`select count(*) from batches where origin_id = $1 and status = 'leased'`, hanging) >= 4
	})
	took := h.asUsual(people, usual)
	t.Logf("the campaign took %v, and %v when nothing hung", took.Round(time.Millisecond), usual.Round(time.Millisecond))
	if b := slow.campaign(hanging).Counts; b.Sent != 0 || b.Processing == 0 {
		t.Errorf("the slow provider's campaign was not hanging: %+v", b)
	}

	_, _, err := slow.campaigns.Cancel(t.Context(), slow.ws, hanging, uuid.Nil)
	h.must(err)
	speak()
	h.until(60*time.Second, "what was being called has ended", func() bool { return slow.campaign(hanging).Counts.Processing == 0 })
	if b := slow.campaign(hanging).Counts; b.Sent == 0 || b.Orphaned != 0 || b.Failed != 0 || !b.Balanced {
		t.Errorf("after it answered: %+v", b)
	}
}

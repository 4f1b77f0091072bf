package chaos

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/campaigns"
	"lemma/pgtest"
)

// sendAndVerify sends a campaign and returns how long it took to complete. While others
// hang it must take about as long as usual; the bound allows for a busy machine.
func (h *env) sendAndVerify(people *customer, usual time.Duration) time.Duration {
	h.t.Helper()
	begun := time.Now()
	id := h.send(people)
	h.completed(id, max(5*usual, time.Minute))
	took := time.Since(begun)
	h.verify(people, id)
	if usual > 0 && took > 5*usual+10*time.Second {
		h.t.Errorf("the campaign took %v, and %v when nothing hung", took, usual)
	}
	return took
}

// Two data sources of one workspace hang while they are read, and more campaigns use
// them than the worker has fan-out slots. Another workspace's campaign takes as long as
// usual.
func TestSlowSourcesDelayNoOtherWorkspace(t *testing.T) {
	h := setup(t)
	slow := h.anotherWorkspace(2)
	h.startWorkers(1, append(longLeases, "LEMMA_FANOUT_WORKERS=4", "LEMMA_SOURCE_TIMEOUT=30m")...)
	people := h.customer(500)
	usual := h.sendAndVerify(people, 0)

	const held = 3 // of four fan-out slots, those that one workspace can use
	sources := []*customer{slow.customer(20_000), slow.customer(20_000)}
	var hanging []uuid.UUID
	for _, source := range sources {
		source.proxy.hangAfter(1600 << 10)
	}
	for range 4 {
		for _, source := range sources {
			hanging = append(hanging, slow.send(source))
		}
	}
	reading := func() int {
		return h.Count(`select count(*) from fanouts f where f.workspace_id = $1 and f.leased_by is not null and f.finished_at is null
			and exists (select from batches b where b.workspace_id = f.workspace_id and b.origin_id = f.campaign_id)`, slow.Workspace)
	}
	pgtest.Eventually(h.t, 60*time.Second, "the slow sources use all slots that they can", func() bool { return reading() >= held })
	took := h.sendAndVerify(people, usual)
	t.Logf("the campaign took %v, and %v when nothing hung", took.Round(time.Millisecond), usual.Round(time.Millisecond))
	if n := reading(); n != held {
		t.Errorf("%d audiences of the slow sources are being read, want %d: nothing was tested", n, held)
	}
	for _, id := range hanging {
		if c := slow.campaign(id); c.Status != campaigns.Preparing && c.Status != campaigns.Sending {
			t.Errorf("a campaign on a slow source is %s: %s", c.Status, c.StatusReason)
		}
	}
}

// A provider does not answer. Its workspace has more batches than the worker has slots.
// Another workspace's campaign takes as long as usual.
func TestASlowProviderDelaysNoOtherWorkspace(t *testing.T) {
	h := setup(t)
	slow := h.anotherWorkspace(60)
	h.startWorkers(1, "LEMMA_SEND_WORKERS=16", "LEMMA_CALL_TIMEOUT=10m", "LEMMA_LEASE=1h")
	people := h.customer(500)
	usual := h.sendAndVerify(people, 0)

	many := slow.customer(20_000)
	release := slow.mail.hold(t)
	hanging := slow.send(many)
	pgtest.Eventually(h.t, 60*time.Second, "its audience is read, and batches of it are being called", func() bool {
		return h.Count(`select count(*) from fanouts where campaign_id = $1 and finished_at is not null`, hanging) == 1 &&
			h.Count(`select count(*) from batches where origin_id = $1 and status = 'leased'`, hanging) >= 4
	})
	took := h.sendAndVerify(people, usual)
	t.Logf("the campaign took %v, and %v when nothing hung", took.Round(time.Millisecond), usual.Round(time.Millisecond))
	if b := slow.campaign(hanging).Counts; b.Sent != 0 || b.Processing == 0 {
		t.Errorf("the slow provider's campaign was not hanging: %+v", b)
	}

	_, _, err := slow.campaigns.Cancel(t.Context(), slow.Workspace, hanging, uuid.Nil)
	h.Must(err)
	release()
	pgtest.Eventually(h.t, 60*time.Second, "all calls have ended", func() bool { return slow.campaign(hanging).Counts.Processing == 0 })
	if b := slow.campaign(hanging).Counts; b.Sent == 0 || b.Orphaned != 0 || b.Failed != 0 || !b.Balanced {
		t.Errorf("after it answered: %+v", b)
	}
}

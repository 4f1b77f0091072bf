package chaos

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/campaigns"
)

// sendAndVerify sends a campaign, which completes while others hang, and logs how long it
// took. Had it waited for those, it would not complete at all.
func (h *env) sendAndVerify(people *customer) {
	h.t.Helper()
	begun := time.Now()
	id := h.send(people)
	h.completed(id)
	h.t.Logf("the campaign took %v", time.Since(begun).Round(time.Millisecond))
	h.verify(people, id)
}

// Two data sources of one workspace hang while they are read, and more campaigns use
// them than the worker has fan-out slots. Another workspace's campaign completes meanwhile.
func TestSlowSourcesDelayNoOtherWorkspace(t *testing.T) {
	t.Parallel()
	h := setup(t)
	slow := h.anotherWorkspace()
	h.startWorkers(1, "LEMMA_FANOUT_WORKERS=4", "LEMMA_SOURCE_TIMEOUT=30m")
	people := h.customer(500)

	const held = 3 // of four fan-out slots, those that one workspace can use
	sources := []*customer{slow.largeCustomer(6_000), slow.largeCustomer(6_000)}
	var hanging []uuid.UUID
	for range 4 {
		for _, source := range sources {
			hanging = append(hanging, slow.send(source))
		}
	}
	reading := func() int {
		return h.Count(`select count(*) from fanouts f where f.workspace_id = $1 and f.leased_by is not null and f.finished_at is null
			and exists (select from batches b where b.workspace_id = f.workspace_id and b.origin_id = f.campaign_id)`, slow.Workspace)
	}
	allHeld := func() bool { return reading() == held }
	h.eventually("the slow sources use all slots that they can", allHeld)
	h.sendAndVerify(people)
	h.eventually("the slow sources use all slots that they can", allHeld)
	for _, id := range hanging {
		if c := slow.campaign(id); c.Status != campaigns.Preparing && c.Status != campaigns.Sending {
			t.Errorf("a campaign on a slow source is %s: %s", c.Status, c.StatusReason)
		}
	}
}

// A provider does not answer. Its workspace has more batches than the worker has slots.
// Another workspace's campaign completes meanwhile.
func TestASlowProviderDelaysNoOtherWorkspace(t *testing.T) {
	t.Parallel()
	h := setup(t)
	slow := h.anotherWorkspace()
	h.startWorkers(1, "LEMMA_SEND_WORKERS=8")
	people := h.customer(500)

	many := slow.customer(10_000)
	release := slow.mail.hold(t)
	hanging := slow.send(many)
	h.eventually("its audience is read, and batches of it are being called", func() bool {
		return h.Count(`select count(*) from fanouts where campaign_id = $1 and finished_at is not null`, hanging) == 1 &&
			h.Count(`select count(*) from batches where origin_id = $1 and status = 'leased'`, hanging) >= 2
	})
	h.sendAndVerify(people)
	if b := slow.campaign(hanging).Counts; b.Sent != 0 || b.Processing == 0 {
		t.Errorf("the slow provider's campaign was not hanging: %+v", b)
	}

	_, _, err := slow.campaigns.Cancel(t.Context(), slow.Workspace, hanging, uuid.Nil)
	h.Must(err)
	release()
	h.eventually("all calls have ended", func() bool { return slow.campaign(hanging).Counts.Processing == 0 })
	if b := slow.campaign(hanging).Counts; b.Sent == 0 || b.Orphaned != 0 || b.Failed != 0 || !b.Balanced {
		t.Errorf("after it answered: %+v", b)
	}
}

package chaos

import (
	"testing"

	"lemma/campaigns"
)

// A customer's database freezes while it is read: the connection stays open without
// data. That campaign fails with the reason. Meanwhile the same worker sends another
// customer's campaign.
func TestAFrozenSourceFailsItsCampaignAlone(t *testing.T) {
	t.Parallel()
	h := setup(t)
	frozen, healthy := h.largeCustomer(6_000), h.customer(2000)
	worker := h.startWorkers(1)[0]
	closed := h.send(frozen)
	h.waitForMessages(100)

	other := h.send(healthy)
	h.completed(other)
	h.WantCount(1, `select count(*) from fanouts where campaign_id = $1 and leased_by is not null and source_failures = 0`, closed)
	h.verify(healthy, other)

	worker.shutDown() // the next one waits no more than 3 s
	h.startWorkers(1, "LEMMA_SOURCE_TIMEOUT=3s")
	h.eventually("the frozen campaign has failed", func() bool {
		h.makeAllDue()
		return h.campaign(closed).Status == campaigns.Failed
	})
	c := h.campaign(closed)
	if c.StatusReason != "source_timeout" || c.StatusDetail == "" {
		t.Errorf("it failed for %q: %s", c.StatusReason, c.StatusDetail)
	}
	h.eventually("none of its notifications is pending", func() bool {
		b := h.campaign(closed).Counts
		return b.Pending+b.Processing == 0
	})
	h.verifyNotifications(closed)
}

package chaos

import (
	"testing"
	"time"

	"lemma/campaigns"
	"lemma/pgtest"
)

// A customer's database freezes while it is read: the connection stays open without
// data. That campaign fails with the reason. Meanwhile the same worker sends another
// customer's campaign.
func TestAFrozenSourceFailsItsCampaignAlone(t *testing.T) {
	t.Parallel()
	h := setup(t)
	frozen, healthy := h.customer(20_000), h.customer(2000)
	frozen.proxy.slow(50 * time.Millisecond)
	h.startWorkers(1, "LEMMA_SOURCE_TIMEOUT=6s")
	closed := h.send(frozen)
	h.waitForMessages(100, 20*time.Second)
	frozen.proxy.freeze()
	if h.Count(`select count(*) from fanouts where campaign_id = $1 and finished_at is null`, closed) != 1 {
		t.Fatal("the source was read completely before it froze")
	}

	begun := time.Now()
	other := h.send(healthy)
	h.completed(other, 30*time.Second)
	t.Logf("the other campaign took %v", time.Since(begun).Round(time.Millisecond))
	if h.Count(`select source_failures from fanouts where campaign_id = $1`, closed) != 0 {
		t.Error("the other campaign had to wait until the frozen source was given up")
	}
	h.verify(healthy, other)

	pgtest.Eventually(h.t, 150*time.Second, "the frozen campaign has failed", func() bool {
		h.makeAllDue()
		return h.campaign(closed).Status == campaigns.Failed
	})
	c := h.campaign(closed)
	if c.StatusReason != "source_timeout" || c.StatusDetail == "" {
		t.Errorf("it failed for %q: %s", c.StatusReason, c.StatusDetail)
	}
	pgtest.Eventually(h.t, 20*time.Second, "none of its notifications is pending", func() bool {
		b := h.campaign(closed).Counts
		return b.Pending+b.Processing == 0
	})
	h.verifyNotifications(closed)
}

package flows

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"lemma"
)

// A message that has waited is looked up in the audience of the version that
// wrote it, whatever is published since.
func TestRecheckOfASendNode(t *testing.T) {
	b := setup(t, 4)
	flow := b.live(welcome)
	for i := 1; i <= 4; i++ {
		b.tell(fmt.Sprintf("c%d", i), "signed_up")
	}
	b.settleDown()
	b.publish(flow, `{"triggers":[{"type":"event","event":"signed_up"}],"recurrence":{"policy":"once"},"start":"end","nodes":{"end":{"type":"exit"}}}`, InFlight{Mode: "stay"})
	var content uuid.UUID
	b.must(b.pool.QueryRow(bg, `select distinct content_id from batches where workspace_id = $1`, b.ws).Scan(&content))
	b.run(b.shop, `update customers set opted_out = true where id = 'c1'`)
	b.run(b.shop, `delete from customers where id = 'c2'`)
	b.run(b.shop, `update customers set email = 'new@shop.example' where id = 'c3'`)

	now, found, err := b.Recheck(bg, b.ws, content, []string{"c1", "c2", "c3", "c4"})
	if err != nil || !found || len(now) != 3 || !now["c1"][0].OptedOut || now["c3"][0].Email != "new@shop.example" || now["c4"][0].Email != "c4@shop.example" {
		t.Errorf("%v, %v, %v", now, found, err)
	}
	if _, found, err := b.Recheck(bg, b.ws, lemma.NewID(), []string{"c1"}); found || err != nil {
		t.Errorf("of a content that is no flow's: %v, %v", found, err)
	}
}

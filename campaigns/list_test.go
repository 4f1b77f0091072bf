package campaigns

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/notifications"
)

// A page costs the same statements however many campaigns are on it, and shows
// each with its own counts.
func TestAPageOfCampaignsCostsTwoStatements(t *testing.T) {
	b := setup(t, 40)
	b.run(b.shop, `insert into customers values ('m', null, 'x', false), ('d', 'C1@shop.example', 'x', false)`)
	ctx := context.Background()
	want := map[uuid.UUID]Books{}
	for i := range 5 {
		c := b.draft()
		if i > 0 {
			_, err := b.Send(ctx, b.ws, c.ID, uuid.Nil)
			b.must(err)
		}
		if i > 1 {
			b.must(b.WriteChunk(ctx, b.plans(c.ID, 1), append(someRecipients(c.ID, 0, 10*i), notifications.Recipient{ProfileKey: "m", Skip: notifications.MissingAddress})))
		}
		if i == 4 {
			b.endBatches()
		}
		want[c.ID] = Books{}
	}
	for id := range want {
		want[id] = b.get(id).Books
	}
	seen := &tracer{}
	rooms := b.rooms
	rooms.Pool = b.connect(seen, nil)
	rooms.Ledger = notifications.New(rooms.Pool)
	page, _, err := New(rooms, b.cfg).List(ctx, b.ws, "", lemma.Page{Limit: 10})
	b.must(err)
	if len(seen.statements) != 2 {
		t.Errorf("%d statements: %q", len(seen.statements), seen.statements)
	}
	if len(page) != 5 {
		t.Fatalf("%d campaigns", len(page))
	}
	for i, c := range page {
		if d := cmp.Diff(want[c.ID], c.Books); d != "" {
			t.Errorf("counts of %s: %s", c.ID, d)
		}
		if made := 4 - i; made > 1 && (c.Books.Audience != int64(10*made+1) || c.Books.SkippedBy["missing_address"] != 1) {
			t.Errorf("campaign %d: %+v", made, c.Books)
		}
	}
}

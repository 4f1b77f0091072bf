package campaigns

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma/notifications"
	"lemma/page"
	"lemma/pgtest"
)

// A page costs the same statements however many campaigns are on it, and shows
// each with its own counts.
func TestAPageOfCampaignsCostsTwoStatements(t *testing.T) {
	b := setup(t, 40)
	b.ExecDB(`insert into customers values ('m', null, 'x', false), ('d', 'C1@shop.example', 'x', false)`)
	ctx := context.Background()
	want := map[uuid.UUID]Counts{}
	for i := range 5 {
		c := b.draft()
		if i > 0 {
			_, err := b.Send(ctx, b.Workspace, c.ID, uuid.Nil)
			b.Must(err)
		}
		if i > 1 {
			b.Must(b.WriteChunk(ctx, b.plans(c.ID, 1),
				append(someRecipients(c.ID, 0, 10*i), notifications.Recipient{ProfileKey: "m", Skip: notifications.MissingAddress})))
		}
		if i == 4 {
			b.endBatches()
		}
		want[c.ID] = Counts{}
	}
	for id := range want {
		want[id] = b.get(id).Counts
	}
	seen := &tracer{}
	deps := b.deps
	deps.Pool = b.connect(seen, nil)
	deps.Ledger = notifications.New(deps.Pool)
	some, _, err := New(deps, b.cfg).List(ctx, b.Workspace, page.Query{Limit: 10})
	b.Must(err)
	if len(seen.statements) != 2 {
		t.Errorf("%d statements: %q", len(seen.statements), seen.statements)
	}
	if len(some) != 5 {
		t.Fatalf("%d campaigns", len(some))
	}
	for i, c := range some {
		if d := cmp.Diff(want[c.ID], c.Counts); d != "" {
			t.Errorf("counts of %s: %s", c.ID, d)
		}
		if made := 4 - i; made > 1 && (c.Counts.Audience != int64(10*made+1) || c.Counts.SkippedBy["missing_address"] != 1) {
			t.Errorf("campaign %d: %+v", made, c.Counts)
		}
	}
}

// A page of thousands is read from an index in its order, whatever its filter.
func TestPagesOfCampaignsAreReadInOrder(t *testing.T) {
	b := setup(t, 1)
	like := b.draft()
	b.Exec(`insert into campaigns (workspace_id, id, name, audience_id, template_id, template_version, provider_id, from_email)
		select workspace_id, gen_random_uuid(), 'c' || n, audience_id, template_id, template_version, provider_id, from_email
		from campaigns, generate_series(1, 5000) n where id = $1`, like.ID)
	b.Exec(`analyze campaigns`)
	for sort, index := range map[string]string{"name": "campaigns_by_name", "-name": "campaigns_by_name", "created_at": "campaigns_pkey",
		"-created_at": "campaigns_pkey"} {
		for _, q := range []page.Query{{}, {Status: "draft"}, {Name: "c1"}, {CreatedAfter: new(time.Now().Add(-time.Hour))}} {
			seen := &pgtest.Statements{}
			deps := b.deps
			deps.Pool = b.connect(seen, nil)
			q.Limit, q.Sort = 2, sort
			_, next, err := New(deps, b.cfg).List(context.Background(), b.Workspace, q)
			b.Must(err)
			q.Cursor = next
			_, _, err = New(deps, b.cfg).List(context.Background(), b.Workspace, q)
			b.Must(err)
			found := 0
			for _, scan := range seen.Scans(t, b.Pool) {
				if scan.Table == "campaigns" {
					found++
					if scan.Index != index || strings.Contains(scan.Plan, "Sort Key: c.") {
						t.Errorf("%+v reads %s %s:\n%s", q, scan.Type, scan.Index, scan.Plan)
					}
				}
			}
			if found == 0 {
				t.Fatal("no plan was seen")
			}
		}
	}
}

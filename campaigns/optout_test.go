package campaigns

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// optOuts adds rows that are opted out, behind the customers that have the same
// addresses (of another profile, of the same, of two more, without a key), and one
// of a customer at another address.
func (b *bundle) optOuts() {
	b.t.Helper()
	b.run(b.shop, `insert into customers values ('o1', ' C1@SHOP.example', 'x', true), ('2', 'c2@shop.example', 'x', true),
		('o3', 'c3@shop.example', 'x', true), ('p3', 'C3@shop.example', 'x', true), ('', 'c4@shop.example', 'x', true),
		('o5', 'out@shop.example', 'x', true), ('o6', null, 'x', true), ('6', 'other@shop.example', 'x', true)`)
}

// An address that is opted out in any row of the audience gets no message, whatever
// the chunk and the order of the rows, and however often the audience is read.
func TestAnOptOutWins(t *testing.T) {
	for name, chunk := range map[string]int{"in one chunk": 5000, "across chunks": 3} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 20, func(cfg *Config) { cfg.Chunk = chunk })
			b.optOuts()
			c := b.sent()
			b.fanout(c.ID)
			// Customers 2 and 6 are opted out with both of their rows.
			want := map[string]int64{"unsubscribed": 9, "duplicate_address": 3, "invalid_key": 1}
			first := b.get(c.ID).Counts
			if d := cmp.Diff(want, first.SkippedBy); d != "" || first.Audience != 28 || first.Pending != 15 || !first.Balanced {
				t.Errorf("%+v %s", first, d)
			}
			for i, address := range []string{"c1@shop.example", "c2@shop.example", "c3@shop.example", "c4@shop.example",
				"c6@shop.example"} {
				if b.addresses(c.ID)[address] != 0 {
					t.Errorf("address %d (%s) has a notification", i+1, address)
				}
			}
			for range 2 {
				b.run(b.pool, `update fanouts set finished_at = null where workspace_id = $1`, b.ws)
				b.fanout(c.ID)
			}
			if d := cmp.Diff(first, b.get(c.ID).Counts); d != "" {
				t.Errorf("a repetition changed the counts: %s", d)
			}
			preview, err := b.Preview(context.Background(), b.ws, b.draft().ID)
			b.must(err)
			if preview.Sendable != 15 || preview.Rows != 28 || !cmp.Equal(want, preview.SkippedBy) {
				t.Errorf("the preview counts %+v", preview)
			}
			if i := slices.IndexFunc(preview.Sample, func(r Rendered) bool { return r.Address == "c1@shop.example" }); i >= 0 {
				t.Error("the preview shows a message to an opted-out address")
			}
		})
	}
}

// Runs at once: each writes the opt-outs before its first notification.
func TestAnOptOutWinsWhenRunsAreAtOnce(t *testing.T) {
	b := setup(t, 2000)
	b.run(b.shop, `insert into customers select 'o' || i, 'C' || i || '@shop.example', 'x', true from generate_series(1, 2000, 7) i`)
	c := b.sent()
	var runs sync.WaitGroup
	for i := range 3 {
		p := b.plans(c.ID, 1+i%2)
		runs.Go(func() {
			if _, err := b.readAll(p); err != nil {
				t.Error(err)
			}
		})
	}
	runs.Wait()
	got := b.get(c.ID).Counts
	if got.Audience != 2286 || got.SkippedBy["unsubscribed"] != 286 || got.SkippedBy["duplicate_address"] != 286 || got.Pending != 1714 ||
		!got.Balanced {
		t.Errorf("%+v", got)
	}
}

// A campaign that was begun before an opt-out continues without a second row for
// recipients that it has written, and skips the opt-out among the others.
func TestAnOptOutBetweenTwoRuns(t *testing.T) {
	b := setup(t, 10)
	c := b.sent()
	ctx := context.Background()
	b.must(b.WriteChunk(ctx, b.plans(c.ID, 1), someRecipients(c.ID, 1, 3)))
	written := b.addresses(c.ID)
	b.run(b.shop, `update customers set opted_out = true where id in ('9', '10')`)
	b.run(b.shop, `insert into customers values ('o8', 'c8@shop.example', 'x', true), ('o1', $1, 'x', true)`,
		slices.Sorted(maps.Keys(written))[0])
	if _, err := b.readAll(b.plans(c.ID, 2)); err != nil {
		t.Fatal(err)
	}
	got := b.get(c.ID).Counts
	if got.SkippedBy["unsubscribed"] != 4 || got.SkippedBy["duplicate_address"] != 1 || !got.Balanced {
		t.Errorf("%+v", got)
	}
	for _, gone := range []string{"c8@shop.example", "c9@shop.example", "c10@shop.example"} {
		if b.addresses(c.ID)[gone] != 0 {
			t.Errorf("%s has a notification", gone)
		}
	}
}

// Rows that are opted out do not count for the provider's rate.
func TestOptOutsDelayNoBatch(t *testing.T) {
	b := setup(t, 10)
	b.run(b.shop, `insert into customers select 'o' || i, 'o' || i || '@shop.example', 'x', true from generate_series(1, 1000) i`)
	b.run(b.pool, `update providers set rate_per_second = 1 where workspace_id = $1`, b.ws)
	c := b.sent()
	b.fanout(c.ID)
	var last time.Duration
	b.must(b.pool.QueryRow(context.Background(), `select max(due_at) - now() from batches where workspace_id = $1`, b.ws).Scan(&last))
	if last > time.Minute {
		t.Errorf("ten messages are due within %v", last)
	}
}

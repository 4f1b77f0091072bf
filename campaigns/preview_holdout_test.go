package campaigns

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// A preview of an experiment counts its holdout as the fan-out does, whatever else is the matter
// with a row, and renders no message of it.
func TestAPreviewCountsTheHoldoutOfAFanout(t *testing.T) {
	b := setup(t, 0, func(cfg *Config) { cfg.Chunk, cfg.BatchSize = 3, 2 })
	ctx := context.Background()
	split := ab(func(e *Experiment) { e.Metric, e.Duration, e.SamplePercent, e.HoldoutPercent = nil, 0, 100, 50 })
	var held int64
	for seed := range 40 {
		b.randomAudience(rand.New(rand.NewPCG(uint64(seed), 5)), []any{"a", "b", "c", "d", "e", "", strings.Repeat("k", 256)},
			[]any{"x@shop.example", "X@Shop.example", "y@shop.example", " y@shop.example ", nil, "no address", "w@shop.example", "v@shop.example"})
		c, err := b.Create(ctx, b.Workspace, b.tested(split))
		b.Must(err)
		p, err := b.Preview(ctx, b.Workspace, c.ID)
		b.Must(err)
		_, err = b.Send(ctx, b.Workspace, c.ID, uuid.Nil)
		b.Must(err)
		b.fanout(c.ID)
		counts := b.get(c.ID).Counts
		if counts.Audience != p.Rows || counts.Pending != p.Sendable || fmt.Sprint(counts.SkippedBy) != fmt.Sprint(p.SkippedBy) {
			t.Errorf("seed %d: the preview counts %d rows, %d sendable, %v, the fan-out %+v: %v", seed, p.Rows, p.Sendable, p.SkippedBy, counts,
				b.pairs(b.DB, `select left(id, 5), coalesce(email, 'null') || opted_out from customers`))
		}
		held += p.SkippedBy["holdout"]
	}
	if held == 0 {
		t.Error("no profile was in a holdout")
	}
}

// The samples and the warnings of a preview are those of the profiles that get a message.
func TestAPreviewShowsNoHoldout(t *testing.T) {
	b := setup(t, 400)
	ctx := context.Background()
	c, err := b.Create(ctx, b.Workspace, b.tested(ab(func(e *Experiment) { e.HoldoutPercent, e.MinSample = 50, 1000 })))
	b.Must(err)
	held := b.members(b.iteration(c), b.customers, holdout)
	sendable := int64(b.customers - len(held))
	all, err := b.Preview(ctx, b.Workspace, c.ID)
	b.Must(err)
	one, err := b.PreviewVariant(ctx, b.Workspace, c.ID, "B")
	b.Must(err)
	warning := fmt.Sprintf("the smallest variant has %d notifications", sendable/4) // half of the sample, which is a half
	for _, p := range []Preview{all, one} {
		if p.Sendable != sendable || p.SkippedBy["holdout"] != int64(len(held)) || p.Rendered != sendable {
			t.Errorf("%d sendable, %v, %d rendered; %d are in the holdout", p.Sendable, p.SkippedBy, p.Rendered, len(held))
		}
		if !slices.ContainsFunc(p.Warnings, func(w string) bool { return strings.HasPrefix(w, warning) }) {
			t.Errorf("%q, not %q", p.Warnings, warning)
		}
	}
	for _, v := range all.Variants {
		for _, r := range v.Sample {
			if slices.Contains(held, r.ProfileKey) {
				t.Errorf("%s: a message of %s, which is in the holdout", v.Name, r.ProfileKey)
			}
		}
	}
}

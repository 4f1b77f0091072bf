package campaigns

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/message"
	"lemma/notifications"
	"lemma/page"
	"lemma/suppression"
)

// A preview renders checkSize random rows of the audience. They include a failure
// of 1 % of the rows with a probability of 1 - 0.99^500 = 99.3 %. It shows
// sampleSize messages of page.MaxBytes in all and at most faultsShown different errors, each with at most
// profilesShown profiles.
const (
	checkSize     = 500
	sampleSize    = 3
	faultsShown   = 10
	profilesShown = 5
)

// checkTime bounds the rendering of a preview. The rows that are rendered by then are reported.
const checkTime = 10 * time.Second

// Preview returns the result that a send would have now, without a side effect. It
// counts the rows of the audience by outcome, and renders the messages of random
// rows, by each variant if there is an experiment.
func (c *Campaigns) Preview(ctx context.Context, workspaceID, id uuid.UUID) (Preview, error) {
	return c.preview(ctx, workspaceID, id, nil)
}

// PreviewVariant is Preview of one variant.
func (c *Campaigns) PreviewVariant(ctx context.Context, workspaceID, id uuid.UUID, variant string) (Preview, error) {
	return c.preview(ctx, workspaceID, id, &variant)
}

func (c *Campaigns) preview(ctx context.Context, workspaceID, id uuid.UUID, variant *string) (Preview, error) {
	now, err := c.Get(ctx, workspaceID, id)
	if err != nil {
		return Preview{}, err
	}
	content, err := c.content(ctx, now)
	if err != nil {
		return Preview{}, err
	}
	it, contents, err := c.previewed(ctx, now, variant, content)
	if err != nil {
		return Preview{}, err
	}
	counts, sample, err := c.audiences.Sample(ctx, workspaceID, now.AudienceID, now.Channel,
		audience.Sampling{Columns: columnsOf(contents...), Size: checkSize, Holdout: it.inHoldout()})
	if err != nil {
		return Preview{}, err
	}
	r := Preview{Rows: counts.Rows, Sendable: counts.Sendable, SkippedBy: map[string]int64{}}
	for reason, n := range map[string]int64{
		notifications.MissingAddress: counts.MissingAddress, notifications.InvalidAddress: counts.InvalidAddress,
		notifications.DuplicateAddress: counts.DuplicateAddress, notifications.TooManyAddresses: counts.TooManyAddresses,
		notifications.RowTooLarge: counts.RowTooLarge, notifications.Unsubscribed: counts.Unsubscribed,
		notifications.InvalidKey: counts.InvalidKey, notifications.Holdout: counts.Holdout,
	} {
		if n > 0 {
			r.SkippedBy[reason] = n
		}
	}
	suppressed, err := c.suppressed(ctx, now, sample, counts.Sendable)
	if err != nil {
		return Preview{}, err
	}
	if suppressed > 0 {
		r.Warnings = append(r.Warnings, suppressedWarning(suppressed, counts.Sendable, len(sample)))
	}
	begun, bytes := time.Now(), page.MaxBytes
	if it != nil && variant == nil {
		bytes /= len(contents) + 1 // the answer has the first one twice
	}
	for i, content := range contents {
		one := RenderedRows{Sample: []Rendered{}, bytes: bytes}
		links, err := c.untrackedOf(now, content)
		if err != nil {
			return Preview{}, err
		}
		one.render(ctx, now, links, slices.Clone(sample), counts.Sendable, begun.Add(checkTime*time.Duration(i+1)/time.Duration(len(contents))))
		if i == 0 {
			r.RenderedRows = one
		}
		name := ""
		if it != nil && variant == nil {
			name = it.Variants[i].Name
			r.Variants = append(r.Variants, VariantPreview{name, one})
		}
		r.Warnings = append(r.Warnings, links.warnings(name, one.Rendered)...)
	}
	if it != nil {
		sent := counts.Sendable - suppressed
		r.Warnings = append(r.Warnings, it.warnings(it.smallest(min(counts.Profiles, sent)), it.smallest(sent))...)
	}
	return r, ctx.Err()
}

// suppressed is how many of the sendable recipients are suppressed, or have unsubscribed from the topic: by
// the sample, which has all of them if they are few.
func (c *Campaigns) suppressed(ctx context.Context, now Campaign, sample []audience.Row, sendable int64) (int64, error) {
	m := suppression.Message{Channel: now.Channel, Transactional: now.Transactional}
	lemma.Set(&m.TopicID, now.TopicID)
	var texts []string
	for _, row := range sample {
		for _, to := range row.Addresses(nil, now.Channel) { // one
			texts = append(texts, to.Text)
		}
	}
	if len(texts) == 0 {
		return 0, nil
	}
	found, err := suppression.Check(ctx, c.pool, now.WorkspaceID, m, texts)
	return int64(math.Round(float64(len(found)) / float64(len(texts)) * float64(sendable))), err
}

func suppressedWarning(suppressed, sendable int64, sampled int) string {
	about := ""
	if int64(sampled) < sendable {
		about = fmt.Sprintf("about (by a sample of %d) ", sampled)
	}
	return fmt.Sprintf("%s%d of %d sendable recipients are suppressed, or have unsubscribed from the topic, and will be skipped",
		about, suppressed, sendable)
}

// previewed returns the experiment, if there is one, and the contents to render: that of one
// variant, those of all, or without an experiment the one of the campaign.
func (c *Campaigns) previewed(ctx context.Context, now Campaign, variant *string, content *message.Compiled) (
	*Iteration, []*message.Compiled, error) {
	it, found, err := iterationOf(ctx, c.pool, now.WorkspaceID, now.ID)
	if err != nil {
		return nil, nil, err
	}
	unknown := lemma.Fault("?variant", "unknown_variant", "must be the name of a variant of the campaign")
	if !found {
		if variant != nil {
			return nil, nil, unknown
		}
		return nil, []*message.Compiled{content}, nil
	}
	aud, err := c.audiences.Get(ctx, now.WorkspaceID, now.AudienceID)
	if err != nil {
		return nil, nil, err
	}
	all, err := c.sentContents(ctx, now, it.Experiment, aud)
	if err != nil || variant == nil {
		return &it, all, err
	}
	i := it.indexOf(*variant)
	if i < 0 {
		return nil, nil, unknown
	}
	return &it, all[i : i+1], nil
}

// render renders the first rows, which are shown, and then the others in random
// order, so that a deadline omits each of them with the same probability.
func (r *RenderedRows) render(ctx context.Context, now Campaign, links untracked, sample []audience.Row, sendable int64,
	deadline time.Time) {
	faults := map[string]*RenderFault{}
	others := sample[min(len(sample), sampleSize):]
	rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	for _, row := range sample {
		if ctx.Err() != nil || r.Rendered > 0 && time.Now().After(deadline) {
			break
		}
		to := appendRecipients(nil, now.ID, now.Channel, row)[0]
		one := Rendered{ProfileKey: to.ProfileKey, Address: to.Address}
		text, headers, err := links.render(to.Payload)
		r.Rendered++
		if err != nil {
			one.Error = err.Error()
			r.failed(faults, one)
		}
		one.Content, one.Headers = text, headers
		r.show(one)
	}
	r.Faults = slices.SortedFunc(maps.Values(faults), func(a, b *RenderFault) int {
		return cmp.Or(cmp.Compare(b.Rows, a.Rows), cmp.Compare(a.Error, b.Error))
	})
	r.Faults = r.Faults[:min(len(r.Faults), faultsShown)]
	r.FailedAtMost = failureBound(r.Failed, r.Rendered, sendable)
}

// show adds a message to the sample while it has fewer than sampleSize, and they fit.
func (r *RenderedRows) show(one Rendered) {
	if len(r.Sample) == sampleSize || r.Truncated {
		return
	}
	r.bytes -= page.Size(one)
	if r.Truncated = r.bytes < 0; !r.Truncated {
		r.Sample = append(r.Sample, one)
	}
}

func (r *RenderedRows) failed(faults map[string]*RenderFault, one Rendered) {
	r.Failed++
	f := faults[one.Error]
	if f == nil {
		f = &RenderFault{Error: one.Error}
		faults[one.Error] = f
	}
	if f.Rows++; len(f.ProfileKeys) < profilesShown {
		f.ProfileKeys = append(f.ProfileKeys, one.ProfileKey)
	}
}

// failureBound is the upper bound of the fraction of all rows that fail, with a
// confidence of 95 %, if so many of n random rows failed (Clopper and Pearson,
// Biometrika 26, 1934). Without a failure it is about 3/n, the rule of three
// (Hanley and Lippman-Hand, JAMA 249, 1983). If all rows were rendered it is exact.
func failureBound(failed, n, all int64) float64 {
	switch {
	case n == 0 && all > 0:
		return 1
	case n == 0:
		return 0
	case n >= all || failed == n:
		return float64(failed) / float64(n)
	}
	low, high := float64(failed)/float64(n), 1.0
	for range 60 {
		if p := (low + high) / 2; atMost(failed, n, p) > 0.05 {
			low = p
		} else {
			high = p
		}
	}
	return high
}

// atMost is the probability of at most k failures in n rows of which the fraction p fails.
func atMost(k, n int64, p float64) float64 {
	sum, term := 0.0, float64(n)*math.Log1p(-p) // logarithm of the probability of no failure
	for i := int64(0); i <= k; i++ {
		sum += math.Exp(term)
		term += math.Log(float64(n-i)/float64(i+1)) + math.Log(p) - math.Log1p(-p)
	}
	return sum
}

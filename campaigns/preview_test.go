package campaigns

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/audience"
	"lemma/message"
	"lemma/page"
)

// strict makes the template fail for profiles without a city in their data.
func (b *bundle) strict() Campaign {
	b.T.Helper()
	ctx := context.Background()
	b.ExecDB(`alter table customers add data jsonb default '{"city":"Kyiv"}'; grant select on customers to ` + b.Role)
	_, err := b.deps.Audiences.Update(ctx, b.Workspace, b.Audience, nil,
		audience.Patch{SQL: new("select id, email, name, opted_out, data from customers order by id::int")}, nil)
	b.Must(err)
	tpl, err := b.deps.Templates.Create(ctx, b.Workspace,
		message.NewTemplate{ID: lemma.NewID(), Name: "strict", Content: message.Content{Subject: "Hi", Text: "{{ data.city }}"}})
	b.Must(err)
	b.Template = tpl.ID
	return b.draft()
}

// Failures at the end of an audience are found.
func TestAPreviewFindsRareFailures(t *testing.T) {
	b := setup(t, 5000)
	c := b.strict()
	b.ExecDB(`update customers set data = '{}' where id::int > 4800`) // 4 %: missed with a probability of 1 in 700 million
	r, err := b.Preview(context.Background(), b.Workspace, c.ID)
	b.Must(err)
	if r.Rows != 5000 || r.Sendable != 5000 || r.Rendered != checkSize || r.Failed == 0 || len(r.Faults) != 1 ||
		len(r.Sample) != sampleSize {
		t.Fatalf("%+v", r)
	}
	f := r.Faults[0]
	if f.Rows != r.Failed || len(f.ProfileKeys) == 0 || len(f.ProfileKeys) > profilesShown ||
		!strings.Contains(f.Error, "data.city is missing") {
		t.Errorf("%+v", f)
	}
	if share := float64(r.Failed) / checkSize; r.FailedAtMost <= share || r.FailedAtMost > share+0.05 {
		t.Errorf("%d failed: at most %v", r.Failed, r.FailedAtMost)
	}
}

// Every sendable row of a small audience is rendered, and the result is exact.
func TestAPreviewOfASmallAudienceIsExact(t *testing.T) {
	b := setup(t, 400)
	c := b.strict()
	b.ExecDB(`update customers set data = '{}' where id in ('7', '8', '9', '10');
		update customers set opted_out = true where id = '7'; update customers set email = 'C1@shop.example' where id = '8'`)
	r, err := b.Preview(context.Background(), b.Workspace, c.ID)
	b.Must(err)
	if r.Sendable != 398 || r.Rendered != 398 || r.Failed != 2 || r.FailedAtMost != 2.0/398 || r.Faults[0].Rows != 2 {
		t.Errorf("%+v, %+v", r, r.Faults)
	}
	if r.Sample[0].ProfileKey != "1" || r.Sample[2].ProfileKey != "3" || r.Sample[0].Text != "Kyiv" {
		t.Errorf("%+v", r.Sample)
	}
}

// The rows that are rendered within the time are reported.
func TestAPreviewIsBoundedInTime(t *testing.T) {
	b := setup(t, 100)
	ctx := context.Background()
	now := b.get(b.draft().ID)
	content, err := b.content(ctx, now)
	b.Must(err)
	_, sample, err := b.deps.Audiences.Sample(ctx, b.Workspace, b.Audience, lemma.Email,
		audience.Sampling{Columns: content.Variables(), Size: checkSize})
	b.Must(err)
	var r RenderedRows
	r.render(ctx, now, untracked{content, "", nil}, sample, 100, time.Now().Add(-time.Second))
	if r.Rendered != 1 || r.Failed != 0 || math.Abs(r.FailedAtMost-0.95) > 1e-9 {
		t.Errorf("%+v", r)
	}
}

// A preview warns of links that are too long to be tracked, and shows them as they are.
func TestAPreviewWarnsOfLinksThatAreNotTracked(t *testing.T) {
	b := setup(t, 4)
	ctx := context.Background()
	b.strict()
	b.ExecDB(`update customers set data = jsonb_build_object('city', repeat('x', 2000)) where id in ('2', '3')`)
	made := func(track message.Choice) Preview {
		t.Helper()
		tpl, err := b.deps.Templates.Create(ctx, b.Workspace, message.NewTemplate{ID: lemma.NewID(), Name: "t" + string(track),
			Content: message.Content{Subject: "s", Text: "t", TrackClicks: track,
				HTML: `<a href="https://shop.example/a">a</a><a href="https://shop.example/{{ data.city }}">b</a>`}})
		b.Must(err)
		c := b.draft()
		_, err = b.Update(ctx, b.Workspace, c.ID, nil, Patch{TemplateID: &tpl.ID})
		b.Must(err)
		r, err := b.Preview(ctx, b.Workspace, c.ID)
		b.Must(err)
		return r
	}
	r := made(message.On)
	want := []string{"in 2 of 4 rendered messages, clicks on link 1 (https://shop.example/{{ data.city }}) are not tracked, " +
		"since its URL is longer than 2000 bytes"}
	if !slices.Equal(r.Warnings, want) || !strings.HasPrefix(r.Sample[0].HTML, `<a href="https://shop.example/a">a</a><a href="https://shop`) {
		t.Errorf("%q, %q", r.Warnings, r.Sample[0].HTML)
	}
	if r := made(message.Off); r.Warnings != nil {
		t.Errorf("of a template that tracks no clicks: %q", r.Warnings)
	}
}

// The samples of large messages end at the bytes of a page, which the variants share.
func TestAPreviewIsBoundedInBytes(t *testing.T) {
	b := setup(t, 4)
	ctx := context.Background()
	c := b.strict()
	b.ExecDB(`update customers set data = jsonb_build_object('city', repeat('x', 17000))`) // a message has 340 KB
	tpl, err := b.deps.Templates.Create(ctx, b.Workspace, message.NewTemplate{ID: lemma.NewID(), Name: "large",
		Content: message.Content{Subject: "s", HTML: "<p>" + strings.Repeat("{{ data.city }}", 10), Text: strings.Repeat("{{ data.city }}", 10)}})
	b.Must(err)
	e := ab(func(e *Experiment) { e.Variants, e.HoldoutPercent = nil, 0 })
	for i := range 4 {
		e.Variants = append(e.Variants, Variant{Name: fmt.Sprint(i), Weight: 25})
	}
	_, err = b.Update(ctx, b.Workspace, c.ID, nil, Patch{TemplateID: &tpl.ID, Experiment: e})
	b.Must(err)
	r, err := b.Preview(ctx, b.Workspace, c.ID)
	b.Must(err)
	bytes := page.Size(r.Sample)
	for _, v := range r.Variants {
		bytes += page.Size(v.Sample)
		if len(v.Sample) != 2 || !v.Truncated || v.Rendered != 4 {
			t.Errorf("%s: %d messages, truncated: %v, %d rendered", v.Name, len(v.Sample), v.Truncated, v.Rendered)
		}
	}
	if bytes > page.MaxBytes || len(r.Variants) != 4 || !r.Truncated {
		t.Errorf("%d bytes of %d variants, truncated: %v", bytes, len(r.Variants), r.Truncated)
	}
	one, err := b.PreviewVariant(ctx, b.Workspace, c.ID, "3")
	if err != nil || len(one.Sample) != sampleSize || one.Truncated {
		t.Errorf("of one variant: %d messages, truncated: %v, %v", len(one.Sample), one.Truncated, err)
	}
}

// The bound is compared with known values of the binomial distribution.
func TestFailureBound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		failed, n, all int64
		want           float64
	}{
		{0, 500, 1_000_000, 0.005974}, // 1 - 0.05^(1/500); the rule of three gives 0.006
		{0, 100, 1_000_000, 0.029513},
		{5, 100, 1_000_000, 0.102253},
		{50, 100, 1_000_000, 0.586378},
		{250, 500, 1_000_000, 0.537708},
		{499, 500, 1_000_000, 0.999897},
		{1, 10, 1_000_000, 0.394163},
		{500, 500, 1_000_000, 1},
		{3, 100, 100, 0.03},
		{0, 0, 0, 0},
		{0, 0, 5, 1},
	} {
		if got := failureBound(c.failed, c.n, c.all); math.Abs(got-c.want) > 2e-6 {
			t.Errorf("%d of %d of %d: %.6f, want %.6f", c.failed, c.n, c.all, got, c.want)
		}
	}
}

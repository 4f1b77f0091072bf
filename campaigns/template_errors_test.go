package campaigns

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
)

// render does what senders do: of each of some open batches it ends rows as sent
// and as skipped with a template error.
func (b *bundle) render(campaign uuid.UUID, batches, sent, failed int) {
	b.T.Helper()
	b.Exec(`
		update batches set sent = sent + $3, skipped = skipped + $4,
			skips = jsonb_build_object('template_error', coalesce((skips->>'template_error')::int, 0) + $4::int),
			status = case when sent + skipped + $3 + $4 = size then 'done' else 'ready' end
		where id in (select id from batches where workspace_id = $1 and origin_id = $2 and status = 'ready'
		order by sent + skipped, id limit $5)`,
		b.Workspace, campaign, sent, failed, batches)
}

func (b *bundle) check(id uuid.UUID) Campaign {
	b.T.Helper()
	b.Must(b.CheckTemplateErrors(context.Background(), b.Workspace, id, "data.city is missing"))
	return b.get(id)
}

func TestWhenTemplateErrorsPause(t *testing.T) {
	for name, c := range map[string]struct {
		batches, sent, failed int // of 25 batches with 20 rows each
		limit                 *float64
		want                  Status
	}{
		"none":                            {25, 10, 0, nil, Sending},
		"nine of many":                    {9, 10, 1, nil, Sending},
		"ten, and 2 % of what was begun":  {25, 0, 0, nil, Sending},
		"ten of 200":                      {10, 1, 1, nil, Paused},
		"all":                             {1, 0, 19, nil, Paused},
		"five percent, allowed by itself": {25, 1, 1, new(0.05), Sending},
		"more than is allowed by itself":  {25, 0, 2, new(0.05), Paused},
		"none is allowed":                 {10, 1, 1, new(0.0), Paused},
		"all are allowed":                 {1, 0, 19, new(1.0), Sending},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 500, func(cfg *Config) { cfg.Chunk = 500 })
			d := b.draft()
			_, err := b.Update(context.Background(), b.Workspace, d.ID, nil, Patch{TemplateErrorLimit: c.limit})
			b.Must(err)
			_, err = b.Send(context.Background(), b.Workspace, d.ID, uuid.Nil)
			b.Must(err)
			b.fanout(d.ID)
			b.render(d.ID, c.batches, c.sent, c.failed)
			if strings.HasPrefix(name, "ten, and") { // exactly the limit: 10 of 500
				b.render(d.ID, 10, 0, 1)
				b.Exec(`update batches set sent = 1 where workspace_id = $1 and sent = 0`, b.Workspace)
			}
			got := b.check(d.ID)
			if got.Status != c.want {
				t.Errorf("%s (%s: %s)", got.Status, got.StatusReason, got.StatusDetail)
			}
			held := b.Count(`select count(*) from batches where workspace_id = $1 and gate = 'held'`, b.Workspace)
			if (held > 0) != (c.want == Paused) || c.want == Paused && got.StatusReason != "template_errors" {
				t.Errorf("%d batches are held, %s", held, got.StatusReason)
			}
		})
	}
}

// After a resume the errors until then do not count; new ones do.
func TestResumeResetsTemplateErrors(t *testing.T) {
	b := setup(t, 500, func(cfg *Config) { cfg.Chunk = 500 })
	ctx := context.Background()
	c := b.sent()
	b.fanout(c.ID)
	b.render(c.ID, 10, 1, 1)
	got := b.check(c.ID)
	if got.Status != Paused ||
		got.StatusDetail != "10 of 200 messages could not be rendered, "+
			"and more than 2 % pause the campaign; the last error: data.city is missing" {
		t.Fatalf("%s: %s", got.Status, got.StatusDetail)
	}
	_, err := b.Resume(ctx, b.Workspace, c.ID, uuid.Nil)
	b.Must(err)
	if got = b.check(c.ID); got.Status != Sending {
		t.Fatalf("paused again at once: %s", got.StatusDetail)
	}
	b.render(c.ID, 9, 1, 1) // nine more
	if got = b.check(c.ID); got.Status != Sending {
		t.Fatalf("paused for few: %s", got.StatusDetail)
	}
	b.render(c.ID, 1, 0, 1)
	if got = b.check(c.ID); got.Status != Paused || !strings.HasPrefix(got.StatusDetail, "10 of 380 ") {
		t.Fatalf("not paused for new ones: %s, %s", got.Status, got.StatusDetail)
	}
	if got.Counts.SkippedBy["template_error"] != 20 || !got.Counts.Balanced {
		t.Errorf("%+v", got.Counts)
	}
	if got, err = b.ResumeWith(ctx, b.Workspace, c.ID, uuid.Nil, new(1.0)); err != nil || *got.TemplateErrorLimit != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	b.render(c.ID, 6, 0, 18)
	if got = b.check(c.ID); got.Status != Sending {
		t.Errorf("paused although all are allowed: %s", got.StatusDetail)
	}
}

// A campaign that has nothing left to send is not paused again, nor a paused
// campaign, nor another origin.
func TestWhatTemplateErrorsDoNotPause(t *testing.T) {
	b := setup(t, 20, func(cfg *Config) { cfg.Chunk = 500 })
	ctx := context.Background()
	c := b.sent()
	b.fanout(c.ID)
	b.render(c.ID, 1, 5, 15)
	if got := b.check(c.ID); got.Status != Sending {
		t.Errorf("all have ended: %s", got.Status)
	}
	b.Must(b.Tick(ctx))
	if got := b.check(c.ID); got.Status != Completed {
		t.Errorf("%s", got.Status)
	}
	d := b.sent()
	b.fanout(d.ID)
	b.render(d.ID, 1, 1, 15)
	_, err := b.Pause(ctx, b.Workspace, d.ID, uuid.Nil)
	b.Must(err)
	if got := b.check(d.ID); got.StatusReason != "requested" {
		t.Errorf("%s", got.StatusReason)
	}
	b.Must(b.CheckTemplateErrors(ctx, b.Workspace, uuid.New(), ""))
}

// Of many processes that check at once one pauses. A resume at the same time comes
// before it, and the campaign is not paused, or after it.
func TestTemplateErrorsAndAResumeAtOnce(t *testing.T) {
	b := setup(t, 200, func(cfg *Config) { cfg.Chunk = 500 })
	ctx := context.Background()
	c := b.sent()
	b.fanout(c.ID)
	b.render(c.ID, 5, 1, 10)
	before := b.get(c.ID).Version
	var runs sync.WaitGroup
	for range 8 {
		runs.Go(func() {
			if err := b.CheckTemplateErrors(ctx, b.Workspace, c.ID, "x"); err != nil {
				t.Error(err)
			}
		})
	}
	runs.Wait()
	if got := b.get(c.ID); got.Status != Paused || got.Version != before+1 {
		t.Errorf("%s after %d changes", got.Status, got.Version-before)
	}
	for range 4 {
		runs.Go(func() {
			if err := b.CheckTemplateErrors(ctx, b.Workspace, c.ID, "x"); err != nil {
				t.Error(err)
			}
		})
	}
	_, err := b.Resume(ctx, b.Workspace, c.ID, uuid.Nil)
	b.Must(err)
	runs.Wait()
	if got := b.check(c.ID); got.Status != Sending {
		t.Errorf("%s (%s) after the resume", got.Status, got.StatusDetail)
	}
}

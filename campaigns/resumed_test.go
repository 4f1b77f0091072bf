package campaigns

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
)

// resumesAtChunk pauses a campaign before its run writes the nth chunk, and resumes it at once.
// Everybody opts out in the pause. The statement after is executed when the campaign is resumed.
func (b *bundle) resumesAtChunk(id uuid.UUID, nth int, after string) {
	written := 0
	b.Hook = func(ctx context.Context, at string, _ uuid.UUID) {
		if at != "writing" {
			return
		}
		if written++; written != nth {
			return
		}
		ctx = context.WithoutCancel(ctx)
		_, err := b.Pause(ctx, b.Workspace, id, uuid.Nil)
		b.Must(err)
		b.ExecDB(`update customers set opted_out = true`)
		_, err = b.Resume(ctx, b.Workspace, id, uuid.Nil)
		b.Must(err)
		if after != "" {
			b.Exec(after)
		}
	}
}

// rollout is a campaign whose experiment is decided, before the rest of its audience is read.
func (b *bundle) rollout() Campaign {
	b.T.Helper()
	c, it := b.sampled(ab())
	b.convertBest(it, 1, 80)
	b.endTest(it)
	b.evaluate()
	if got := b.iteration(c).Status; got != IterationDecided {
		b.T.Fatalf("the experiment is %s", got)
	}
	return c
}

// Resume!NoCallAfterResume: a run has read the audience before a pause, and would write a chunk
// after the resume. It writes nothing and ends, and the next run reads the audience again, whatever
// the clock of the database does. No profile that opted out in the pause has a message that is not
// read again.
func TestAChunkThatWasReadBeforeAPauseIsNotWritten(t *testing.T) {
	const n = 600
	for name, c := range map[string]struct {
		campaign func(*bundle) Campaign
		nth      int // the chunk before which the campaign is paused
		after    string
	}{
		"the first chunk":     {(*bundle).sent, 1, ""},
		"a later chunk":       {(*bundle).sent, 5, ""},
		"of a sample":         {func(b *bundle) Campaign { return b.experiment(ab()) }, 3, ""},
		"of a rollout":        {(*bundle).rollout, 3, ""},
		"the clock goes back": {(*bundle).sent, 5, `update campaigns set resumed_at = resumed_at - interval '1 day'`},
		"the clock was ahead": {(*bundle).sent, 5, `update campaigns set resumed_at = resumed_at + interval '1 day'`},
	} {
		t.Run(name, func(t *testing.T) {
			b := experiments(t, n, func(cfg *Config) { cfg.Writers, cfg.TickEvery = 1, time.Hour })
			id := c.campaign(b).ID
			b.resumesAtChunk(id, c.nth, c.after)
			before := b.Count(`select count(*) from fanout_chunks where origin_id = $1`, id)
			again, err := b.Fanout(context.Background(), b.Workspace, id)
			b.Must(err)
			if wrote := b.Count(`select count(*) from fanout_chunks where origin_id = $1`, id) - before; wrote != c.nth-1 || again <= 0 {
				t.Errorf("the run wrote %d chunks, want %d, and runs again in %v", wrote, c.nth-1, again)
			}
			if l := b.lease(id); l.LeasedBy != nil || l.Finished || l.Failures != 0 {
				t.Errorf("the run left %+v", l)
			}
			b.Hook = nil
			if again, err = b.Fanout(context.Background(), b.Workspace, id); err != nil || again != 0 || !b.lease(id).Finished {
				t.Errorf("the next run did not end: again in %v, %v", again, err)
			}
			if stale := b.Count(`select count(*) from notifications n join batches b on b.origin_id = n.origin_id and b.id = n.batch_id
				where n.origin_id = $1 and b.status = 'ready' and b.resumed_at is null`, id); stale > 0 {
				t.Errorf("%d profiles opted out in the pause, and have a message that is not read again", stale)
			}
			if got := b.get(id).Counts; got.Audience != n || !got.Balanced || got.SkippedBy["unsubscribed"] == 0 {
				t.Errorf("the counts are %+v", got)
			}
		})
	}
}

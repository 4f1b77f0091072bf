package campaigns

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/lifecycle"
	"lemma/pgtest"
)

func TestACampaignFromDraftToCompleted(t *testing.T) {
	b := setup(t, 230)
	c := b.sent()
	if c.Status != Preparing {
		t.Errorf("after send it is %s", c.Status)
	}
	b.fanout(c.ID)
	c = b.get(c.ID)
	if c.Status != Sending || c.Counts.Audience != 230 || c.Counts.Pending != 230 || c.RowsRead == nil || *c.RowsRead != 230 {
		t.Errorf("after the fan-out: %s, %+v", c.Status, c.Counts)
	}
	b.Must(b.Tick(context.Background()))
	if c = b.get(c.ID); c.Status != Sending {
		t.Errorf("it is %s although nothing was sent", c.Status)
	}
	b.endBatches()
	b.Must(b.Tick(context.Background()))
	if c = b.get(c.ID); c.Status != Completed || c.FinishedAt == nil || c.Counts.Sent != 230 || !c.Counts.Balanced {
		t.Errorf("at the end: %s, %+v", c.Status, c.Counts)
	}
}

// Each recipient that is skipped has a reason, and the counts include every row.
func TestEveryRecipientIsCounted(t *testing.T) {
	b := setup(t, 10)
	b.ExecDB(`insert into customers values ('m1', null, 'x', false), ('m2', '  ', 'x', false), ('i1', 'no at sign', 'x', false),
		('d1', 'C1@Shop.Example', 'x', false), ('d2', ' c2@shop.example ', 'x', false),
		('o1', 'out@shop.example', 'x', true), ('', 'nokey@shop.example', 'x', false)`)
	c := b.sent()
	b.fanout(c.ID)
	want := map[string]int64{"missing_address": 2, "invalid_address": 1, "duplicate_address": 2, "unsubscribed": 1, "invalid_key": 1}
	got := b.get(c.ID).Counts
	if d := cmp.Diff(want, got.SkippedBy); d != "" || got.Audience != 17 || got.Pending != 10 || !got.Balanced {
		t.Errorf("%+v %s", got, d)
	}
}

func TestPauseAndResume(t *testing.T) {
	b := setup(t, 100)
	c := b.sent()
	ctx := context.Background()
	p := b.plans(c.ID, 1)
	b.Must(b.WriteChunk(ctx, p, someRecipients(c.ID, 0, 30)))
	b.endLease(c.ID)
	got, err := b.Pause(ctx, b.Workspace, c.ID, uuid.Nil)
	if err != nil || got.Status != Paused || got.StatusReason != "requested" {
		t.Errorf("%s (%s), %v", got.Status, got.StatusReason, err)
	}
	b.fanout(c.ID)
	if got := b.get(c.ID); got.Counts.Audience != 30 || got.FannedOutAt != nil {
		t.Errorf("it continued although it is paused: %+v", got.Counts)
	}
	before := b.jobs("batch_send")
	got, err = b.Resume(ctx, b.Workspace, c.ID, uuid.Nil)
	if err != nil || got.Status != Sending || b.jobs("batch_send") != before+2 {
		t.Errorf("%s, %d jobs, %v", got.Status, b.jobs("batch_send")-before, err)
	}
	b.fanout(c.ID)
	if got := b.get(c.ID); got.Counts.Audience != 130 {
		t.Errorf("%+v", got.Counts)
	}
}

// A cause that is older than the resume does not pause the campaign again.
func TestAResumeEndsEarlierCauses(t *testing.T) {
	b := setup(t, 1)
	c := b.sent()
	_, err := b.Pause(t.Context(), b.Workspace, c.ID, uuid.Nil)
	b.Must(err)
	now, err := b.Resume(t.Context(), b.Workspace, c.ID, uuid.Nil)
	b.Must(err)
	resumed := pgtest.One[time.Time](t, b.Pool, `select resumed_at from campaigns where id = $1`, c.ID)
	for _, p := range []struct {
		after time.Duration
		want  Status
	}{{-time.Millisecond, now.Status}, {0, Paused}} {
		paused, err := b.PauseFor(t.Context(), b.Workspace, c.ID, lifecycle.Cause{Reason: "provider_errors", SeenAt: resumed.Add(p.after)})
		b.Must(err)
		if now := b.get(c.ID); now.Status != p.want || paused != (p.want == Paused) {
			t.Errorf("seen %v after the resume: %s, paused %v", p.after, now.Status, paused)
		}
	}
}

// The whole state machine: every verb in every status.
func TestEveryVerbInEveryStatus(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	verbs := map[verb]func(uuid.UUID) error{
		edit: func(id uuid.UUID) error {
			_, err := b.Update(ctx, b.Workspace, id, nil, Patch{Name: new("n")})
			return err
		},
		send: func(id uuid.UUID) error { _, err := b.Send(ctx, b.Workspace, id, uuid.Nil); return err },
		schedule: func(id uuid.UUID) error {
			_, err := b.Schedule(ctx, b.Workspace, id, time.Now().Add(time.Hour), uuid.Nil)
			return err
		},
		unschedule: func(id uuid.UUID) error { _, err := b.Unschedule(ctx, b.Workspace, id, uuid.Nil); return err },
		pause:      func(id uuid.UUID) error { _, err := b.Pause(ctx, b.Workspace, id, uuid.Nil); return err },
		resume:     func(id uuid.UUID) error { _, err := b.Resume(ctx, b.Workspace, id, uuid.Nil); return err },
		cancel:     func(id uuid.UUID) error { _, _, err := b.Cancel(ctx, b.Workspace, id, uuid.Nil); return err },
		remove:     func(id uuid.UUID) error { return b.Delete(ctx, b.Workspace, id) },
	}
	for _, status := range []Status{Draft, Scheduled, Preparing, Sending, Paused, Completed, Cancelled, Failed} {
		for v, perform := range verbs {
			c := b.draft()
			b.Exec(`update campaigns set status = $3, scheduled_at = now() where workspace_id = $1 and id = $2`, b.Workspace, c.ID, status)
			err := perform(c.ID)
			may := slices.Contains(table.Allowed(status), string(v))
			var e *lemma.Error
			if may != (err == nil) || (!may && (!errors.As(err, &e) || e.Kind != lemma.WrongStatus || e.Status != string(status))) {
				t.Errorf("%s of a %s campaign: allowed %v, got %v", v, status, may, err)
			}
		}
	}
}

func TestScheduleStartsOnce(t *testing.T) {
	b := setup(t, 3)
	ctx := context.Background()
	c, err := b.Schedule(ctx, b.Workspace, b.draft().ID, time.Now().Add(time.Hour), uuid.Nil)
	b.Must(err)
	if n, err := b.FireDue(ctx); n != 0 || err != nil {
		t.Errorf("fired %d an hour early, %v", n, err)
	}
	b.Exec(`update campaigns set scheduled_at = now() - interval '1 second' where workspace_id = $1`, b.Workspace)
	var processes sync.WaitGroup
	for range 4 {
		processes.Go(func() { _, _ = b.FireDue(ctx) })
	}
	processes.Wait()
	if got := b.get(c.ID); got.Status != Preparing || b.jobs("campaign_fanout") != 1 {
		t.Errorf("%s, %d fan-out jobs", got.Status, b.jobs("campaign_fanout"))
	}
}

func (b *bundle) jobs(kind string) int {
	b.T.Helper()
	return b.Count(`select count(*) from river_job where kind = $1`, kind)
}

func (b *bundle) batchCount() int {
	b.T.Helper()
	return b.Count(`select count(*) from batches where workspace_id = $1`, b.Workspace)
}

// A source that changed fails the campaign: what was written
// is cancelled, and the campaign shows the reason.
func TestAChangedSourceFailsTheCampaign(t *testing.T) {
	b := setup(t, 100)
	c := b.sent()
	ctx := context.Background()
	p := b.plans(c.ID, 1)
	b.Must(b.WriteChunk(ctx, p, someRecipients(c.ID, 0, 30)))
	b.endLease(c.ID)
	b.ExecDB(`alter table customers rename column name to called`)
	b.fanout(c.ID)
	got := b.get(c.ID)
	if got.Status != Failed || got.StatusReason != "source_changed" || got.Counts.Cancelled != 30 || got.Counts.Pending != 0 ||
		!got.Counts.Balanced {
		t.Errorf("%s (%s: %s), %+v", got.Status, got.StatusReason, got.StatusDetail, got.Counts)
	}
}

// A source that does not respond is read again, and then fails the campaign.
func TestAnUnavailableSourceIsRetried(t *testing.T) {
	b := setup(t, 100)
	c := b.sent()
	b.ExecDB(`alter role ` + b.Role + ` connection limit 0`)
	tries := 0
	for b.get(c.ID).Status != Failed && tries < 50 {
		b.fanout(c.ID)
		tries++
		b.Exec(`update fanouts set retry_at = now() where workspace_id = $1`, b.Workspace)
	}
	got := b.get(c.ID)
	if got.Status != Failed || got.StatusReason != "source_unavailable" || tries != 4 {
		t.Errorf("%s (%s: %s) after %d tries", got.Status, got.StatusReason, got.StatusDetail, tries)
	}
}

func TestUnknownVariablesAreFoundBeforeASend(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	_, err := b.Pool.Exec(ctx,
		`update template_versions set subject = 'Hi {{ nickname }}', variables = '{name,nickname}' where workspace_id = $1`, b.Workspace)
	b.Must(err)
	_, err = b.Send(ctx, b.Workspace, b.draft().ID, uuid.Nil)
	var e *lemma.Error
	if !errors.As(err, &e) || e.Kind != lemma.Invalid || len(e.Fields) != 1 || e.Fields[0].Code != "unknown_variable" {
		t.Errorf("got %v", err)
	}
}

func TestConcurrentUpdates(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	c := b.draft()
	if _, err := b.Update(ctx, b.Workspace, c.ID, new(c.Version), Patch{Name: new("first")}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Update(ctx, b.Workspace, c.ID, new(c.Version), Patch{Name: new("second")}); lemma.KindOf(err) != lemma.Stale {
		t.Errorf("got %v", err)
	}
	if got := b.get(c.ID); got.Name != "first" {
		t.Errorf("name is %s", got.Name)
	}
}

func TestPreviewHasNoSideEffect(t *testing.T) {
	b := setup(t, 20)
	b.ExecDB(`insert into customers values ('m', null, 'x', false), ('d', 'C1@shop.example', 'x', false)`)
	c := b.draft()
	r, err := b.Preview(context.Background(), b.Workspace, c.ID)
	b.Must(err)
	if r.Rows != 22 || r.Sendable != 20 || r.SkippedBy["missing_address"] != 1 || r.SkippedBy["duplicate_address"] != 1 ||
		len(r.Sample) != 3 || r.Sample[0].Subject != "Hi N1" {
		t.Errorf("%+v", r)
	}
	if b.batchCount() != 0 || b.get(c.ID).Status != Draft {
		t.Error("a preview wrote rows")
	}
}

// A draft that is deleted while a change of it waits is not found.
func TestADraftIsDeletedDuringAChange(t *testing.T) {
	b := setup(t, 1)
	c := b.draft()
	deleting, err := b.Pool.Begin(t.Context())
	b.Must(err)
	_, err = deleting.Exec(t.Context(), `delete from campaigns where id = $1`, c.ID)
	b.Must(err)
	changed := make(chan error, 1)
	go func() {
		_, err := b.Update(context.Background(), b.Workspace, c.ID, nil, Patch{Name: new("n")})
		changed <- err
	}()
	b.WaitForLocks(1)
	b.Must(deleting.Commit(t.Context()))
	if err := <-changed; lemma.KindOf(err) != lemma.NotFound {
		t.Error(err)
	}
}

// Addresses of an internationalized domain are stored in ASCII:
// carriers refuse them otherwise.
func TestSenderOnAnInternationalizedDomain(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	made, err := b.Create(ctx, b.Workspace, NewCampaign{ID: lemma.NewID(), Name: "c", AudienceID: b.Audience, TemplateID: b.Template,
		ProviderID: b.Provider, FromEmail: "News@Bücher.example", ReplyTo: "hilfe@bücher.example"})
	b.Must(err)
	if made.FromEmail != "News@xn--bcher-kva.example" || made.ReplyTo != "hilfe@xn--bcher-kva.example" {
		t.Errorf("made from %s, reply to %s", made.FromEmail, made.ReplyTo)
	}
	changed, err := b.Update(ctx, b.Workspace, made.ID, nil, Patch{FromEmail: new("a@straße.example"), ReplyTo: new("")})
	b.Must(err)
	if changed.FromEmail != "a@xn--strae-oqa.example" || changed.ReplyTo != "" {
		t.Errorf("changed to %s, reply to %s", changed.FromEmail, changed.ReplyTo)
	}
	_, err = b.Update(ctx, b.Workspace, made.ID, nil, Patch{FromEmail: new("jürgen@shop.example")})
	var e *lemma.Error
	if !errors.As(err, &e) || len(e.Fields) != 1 || e.Fields[0].Pointer != "/from/email" ||
		!strings.Contains(e.Fields[0].Detail, "SMTPUTF8") {
		t.Errorf("%+v", err)
	}
	_, err = b.Send(ctx, b.Workspace, made.ID, uuid.Nil)
	b.Must(err)
	b.fanout(made.ID)
	from := pgtest.One[string](b.T, b.Pool, `select from_email from contents where workspace_id = $1 and id = $2`, b.Workspace, made.ID)
	if from != "a@xn--strae-oqa.example" {
		t.Errorf("sent from %s", from)
	}
}

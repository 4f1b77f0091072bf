package campaigns

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// stops makes a run stop at a point until release is called.
func (c *Campaigns) stops(at string) (reached <-chan uuid.UUID, release func()) {
	here, gone := make(chan uuid.UUID), make(chan struct{})
	c.Hook = func(_ context.Context, point string, campaign uuid.UUID) {
		if point == at {
			here <- campaign
			<-gone
		}
	}
	return here, func() { close(gone) }
}

type leaseRow struct {
	LeasedBy *string
	Failures int
	Finished bool
	Runs     int
}

func (b *bundle) lease(id uuid.UUID) leaseRow {
	b.T.Helper()
	rows, _ := b.Pool.Query(context.Background(), `select leased_by, source_failures + internal_failures, finished_at is not null, runs
		from fanouts where workspace_id = $1 and campaign_id = $2`, b.Workspace, id)
	row, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[leaseRow])
	b.Must(err)
	return row
}

// Campaign!FailedMeansUnread: a run that has lost its lease to another changes
// nothing, whatever its result is: the campaign and the lease of the other stay.
func TestAFanoutWithoutItsLeaseChangesNothing(t *testing.T) {
	cases := map[string]struct{ breaks, mends string }{
		"it read to its end": {},
		"its source changed": {`alter table customers rename column name to called`,
			`alter table customers rename column called to name`},
		"its source did not respond": {`alter role ROLE connection limit 0`, `alter role ROLE connection limit -1`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 230)
			ctx := context.Background()
			id := b.sent().ID
			shop := func(sql string) {
				if sql != "" {
					b.ExecDB(strings.ReplaceAll(sql, "ROLE", b.Role))
				}
			}
			shop(c.breaks)
			streamed, release := b.stops("streamed")
			first := make(chan error, 1)
			go func() { _, err := b.Fanout(ctx, b.Workspace, id); first <- err }()
			<-streamed
			shop(c.mends)

			b.Exec(`update fanouts set lease_until = now() - interval '1 second' where workspace_id = $1`, b.Workspace)
			other := New(b.deps, b.cfg)
			loaded, releaseOther := other.stops("loaded")
			second := make(chan error, 1)
			go func() { _, err := other.Fanout(ctx, b.Workspace, id); second <- err }()
			<-loaded
			before := b.lease(id)

			release()
			b.Must(<-first)
			after := b.lease(id)
			if after.LeasedBy == nil || before.LeasedBy == nil || *after.LeasedBy != *before.LeasedBy || after.Failures != 0 ||
				after.Finished {
				t.Errorf("the run that had lost its lease made of %+v %+v", before, after)
			}
			if got := b.get(id).Status; got != Preparing && got != Sending {
				t.Errorf("it left the campaign %s", got)
			}
			releaseOther()
			b.Must(<-second)
			if got := b.get(id); got.Status != Sending || got.Counts.Pending != 230 || got.FannedOutAt == nil {
				t.Errorf("after the other run it is %s (%s): %+v", got.Status, got.StatusDetail, got.Counts)
			}
		})
	}
}

// The same if the other run has finished meanwhile: no notification is cancelled.
func TestALateFailureDoesNotFailWhatWasRead(t *testing.T) {
	b := setup(t, 230)
	ctx := context.Background()
	id := b.sent().ID
	b.ExecDB(`alter table customers rename column name to called`)
	streamed, release := b.stops("streamed")
	first := make(chan error, 1)
	go func() { _, err := b.Fanout(ctx, b.Workspace, id); first <- err }()
	<-streamed
	b.ExecDB(`alter table customers rename column called to name`)
	b.Exec(`update fanouts set lease_until = now() - interval '1 second' where workspace_id = $1`, b.Workspace)
	if _, err := New(b.deps, b.cfg).Fanout(ctx, b.Workspace, id); err != nil {
		t.Fatal(err)
	}
	release()
	b.Must(<-first)
	if got := b.get(id); got.Status != Sending || got.Counts.Cancelled != 0 || got.Counts.Pending != 230 {
		t.Errorf("it is %s (%s): %+v", got.Status, got.StatusReason, got.Counts)
	}
}

// A run stops between reading profiles and writing them. A profile that has opted
// out meanwhile gets no message, and has one row.
func TestALateRunWritesNothing(t *testing.T) {
	for name, continued := range map[string]bool{"another run has read them": true, "its lease has lapsed": false} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 40)
			ctx := context.Background()
			id := b.sent().ID
			writing, release := b.stops("writing")
			first := make(chan error, 1)
			go func() { _, err := b.Fanout(ctx, b.Workspace, id); first <- err }()
			<-writing
			b.ExecDB(`update customers set opted_out = true where id = '7'`)
			b.Exec(`update fanouts set lease_until = now() - interval '1 second' where workspace_id = $1`, b.Workspace)
			other := New(b.deps, b.cfg)
			if continued {
				if _, err := other.Fanout(ctx, b.Workspace, id); err != nil {
					t.Fatal(err)
				}
			}
			release()
			b.Must(<-first)
			if !continued {
				if _, err := other.Fanout(ctx, b.Workspace, id); err != nil {
					t.Fatal(err)
				}
			}
			if got := b.get(id).Counts; got.Audience != 40 || got.Skipped != 1 || got.Pending != 39 || !got.Balanced {
				t.Errorf("the counts are %+v", got)
			}
			if n := b.addresses(id)["c7@shop.example"]; n != 0 {
				t.Error("a profile that opted out gets a message")
			}
		})
	}
}

// A run is late and its lease has expired. Another process counts that and finds all
// slots of the data source taken, so the campaign is queued. The late run writes nothing.
func TestALateRunOfAQueuedCampaignWritesNothing(t *testing.T) {
	b := setup(t, 40, func(cfg *Config) { cfg.PerSource = 1 })
	ctx := context.Background()
	id, beside := b.sent().ID, b.sent().ID
	writing, letGo := b.stops("writing")
	late := make(chan error, 1)
	go func() { _, err := b.Fanout(ctx, b.Workspace, id); late <- err }()
	<-writing
	b.Exec(`update fanouts set lease_until = now() - interval '1 second'
		where workspace_id = $1 and campaign_id = $2`, b.Workspace, id)
	other := New(b.deps, b.cfg)
	loaded, goOn := other.stops("loaded")
	reading := make(chan error, 1)
	go func() { _, err := other.Fanout(ctx, b.Workspace, beside); reading <- err }()
	<-loaded
	again, err := New(b.deps, b.cfg).Fanout(ctx, b.Workspace, id)
	if err != nil || again == 0 || b.get(id).StatusReason != queued {
		t.Errorf("again in %v, %v, %s", again, err, b.get(id).StatusReason)
	}
	letGo()
	b.Must(<-late)
	if n := b.get(id).Counts.Audience; n != 0 {
		t.Errorf("the late run wrote %d recipients", n)
	}
	goOn()
	b.Must(<-reading)
}

// A lease that has expired is not renewed, and the run stops.
func TestAnExpiredLeaseIsNotRenewed(t *testing.T) {
	b := setup(t, 1, func(cfg *Config) { cfg.Lease = 30 * time.Millisecond })
	id := b.sent().ID
	l := lease{b.Workspace, id, "late"}
	b.Exec(`update fanouts set leased_by = 'late', lease_until = now() - interval '1 second'
		where workspace_id = $1 and campaign_id = $2`, b.Workspace, id)
	ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
	defer stop()
	b.holdLease(ctx, stop, l)
	if !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("the run continues: %v", ctx.Err())
	}
}

// A run stops in the transaction of a chunk, after it has read its lease. No other
// run begins until the transaction has ended.
func TestATakeOverWaitsForTheChunkOfALateRun(t *testing.T) {
	b := setup(t, 40)
	ctx := context.Background()
	id := b.sent().ID
	held, release := b.stops("held")
	first := make(chan error, 1)
	go func() { _, err := b.Fanout(ctx, b.Workspace, id); first <- err }()
	<-held
	b.Exec(`update fanouts set lease_until = now() - interval '1 second' where workspace_id = $1`, b.Workspace)
	second := make(chan error, 1)
	go func() { _, err := New(b.deps, b.cfg).Fanout(ctx, b.Workspace, id); second <- err }()
	b.WaitForLocks(1)
	release()
	b.Must(<-first)
	b.Must(<-second)
	if got := b.get(id); got.FannedOutAt == nil || got.Counts.Pending != 40 || !got.Counts.Balanced {
		t.Errorf("%s: %+v", got.Status, got.Counts)
	}
}

// A chunk whose lease has ended writes nothing, even before another run has it.
func TestAChunkAfterItsLeaseWritesNothing(t *testing.T) {
	b := setup(t, 1)
	c := b.sent()
	p := b.plans(c.ID, 1)
	b.endLease(c.ID)
	if err := b.WriteChunk(context.Background(), p, someRecipients(c.ID, 0, 1)); !errors.Is(err, errStopped) {
		t.Error(err)
	}
}

// Campaign!CampaignEnds: a run reads the campaign while it is paused, and it is
// resumed before the run begins. The run continues.
func TestAResumeBetweenReadAndBegin(t *testing.T) {
	for _, people := range []int{0, 120} {
		t.Run(fmt.Sprintf("%d profiles", people), func(t *testing.T) {
			b := setup(t, people)
			ctx := context.Background()
			id := b.sent().ID
			b.Hook = func(ctx context.Context, at string, campaign uuid.UUID) {
				switch at {
				case "claimed":
					_, err := b.Pause(ctx, b.Workspace, id, uuid.Nil)
					b.Must(err)
				case "loaded":
					got, err := b.Resume(ctx, b.Workspace, id, uuid.Nil)
					b.Must(err)
					if got.Status != Preparing {
						t.Errorf("after the resume it is %s", got.Status)
					}
				}
			}
			b.fanout(id)
			b.Hook = nil
			b.fanout(id) // the job of the resume
			b.endBatches()
			b.Must(b.Tick(ctx))
			if got := b.get(id); got.Status != Completed || got.Counts.Sent != int64(people) {
				t.Errorf("it is %s, %+v", got.Status, got.Counts)
			}
		})
	}
}

// A process that shuts down leaves the job of its fan-out to another, which
// continues at once.
func TestADrainedFanoutIsLeftToAnotherProcess(t *testing.T) {
	b := setup(t, 1000)
	id := b.sent().ID
	b.Hook = func(_ context.Context, at string, _ uuid.UUID) {
		if at == "loaded" {
			b.Drain()
		}
	}
	again, err := b.Fanout(context.Background(), b.Workspace, id)
	if err != nil || again <= 0 || again > time.Second {
		t.Errorf("the drained run answers %v, %v", again, err)
	}
	if again, err = b.Fanout(context.Background(), b.Workspace, id); err != nil || again <= 0 || b.lease(id).Runs != 1 {
		t.Errorf("a process that shuts down claims once more: %v, %v", again, err)
	}
	if _, err := New(b.deps, b.cfg).Fanout(context.Background(), b.Workspace, id); err != nil || b.get(id).FannedOutAt == nil {
		t.Errorf("the other process did not go on: %v", err)
	}
}

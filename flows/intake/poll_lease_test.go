package intake_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"lemma/flows"
	"lemma/flows/flowstest"
)

// A paused flow's poll, however long it is due, delays no other.
func TestAPausedPollDelaysNoOtherPoll(t *testing.T) {
	b := setup(t, 2)
	paused := b.Live(flowstest.Polled("once", ""))
	b.Must(flowstest.Second(b.Pause(context.Background(), b.Workspace, paused, nil)))
	b.Exec(`update flow_polls set next_at = now() - interval '1 day'`)
	live := b.Live(flowstest.Polled("once", ""))
	b.PollOne()
	b.nothingDue()
	if r := b.polledRow(live); *r.Enrolled != 2 {
		t.Fatalf("%+v", r)
	}
	b.Must(flowstest.Second(b.Resume(context.Background(), b.Workspace, paused, new(time.Duration(0)), nil)))
	b.PollOne() // a poll that became due in the pause runs when it ends
	if r := b.polledRow(paused); *r.Enrolled != 2 {
		t.Fatalf("%+v", r)
	}
}

// A publish while a poll ends schedules another poll.
func TestAPollDoesNotForgetAPublish(t *testing.T) {
	b := setup(t, 3)
	flow := b.Live(flowstest.Polled("once", ""))
	p, err := b.ClaimPoll(context.Background())
	b.Must(err)
	read, err := b.PollAudience(context.Background(), *p)
	b.Must(err)
	b.PublishNext(flow, strings.Replace(flowstest.Polled("once", ""), "P1D", "P2D", 1), flows.InFlight{})
	b.Must(b.FinishPoll(context.Background(), *p, read))
	b.PollOne()
}

// Two processes do not read one audience at a time. A poll that lost its lease stops and does
// not overwrite the other's result.
func TestAPollIsLeased(t *testing.T) {
	b := setup(t, 1500)
	flow := b.Live(flowstest.Polled("once", ""))
	stolen := false
	b.Hook.Do = func(stage string) {
		if stage != "poll: chunk" || stolen {
			return
		}
		stolen = true
		b.nothingDueFor(b.Another())
		b.Exec(`update flow_polls set leased_by = 'another', lease_until = now() + interval '1 hour'`)
	}
	b.PollOne()
	b.Hook.Do = nil
	b.WantCount(1, `select count(*) from flow_polls where workspace_id = $1 and leased_by = 'another' and rows_read is null`,
		b.Workspace)
	b.nothingDue()
	b.Exec(`update flow_polls set lease_until = now() - interval '1 second'`)
	b.PollOne() // an expired lease is taken over
	if r := b.polledRow(flow); *r.Rows != 1500 || !r.Free {
		t.Fatalf("%+v", r)
	}
	b.WantCount(1500, `select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, b.Workspace, flow)
}

// A poll that has read its audience loses its lease before it records that.
func TestAPollThatLostItsLeaseRecordsNothing(t *testing.T) {
	b := setup(t, 3)
	b.Live(flowstest.Polled("once", ""))
	p, err := b.ClaimPoll(context.Background())
	b.Must(err)
	read, err := b.PollAudience(context.Background(), *p)
	b.Must(err)
	b.Exec(`update flow_polls set leased_by = 'another', lease_until = now() + interval '1 hour'`)
	b.Must(b.FinishPoll(context.Background(), *p, read))
	b.WantCount(1, `select count(*) from flow_polls where leased_by = 'another' and lease_until > now() and rows_read is null`)
}

// A poll stalls between reading profiles and enrolling them, and loses its lease. A
// profile that has left the audience since does not enroll.
func TestALatePollEnrollsNoProfile(t *testing.T) {
	for name, another := range map[string]bool{"another has polled since": true, "its lease has lapsed": false} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 3)
			flow := b.Live(flowstest.Polled("once", ""))
			late := b.Another()
			late.Hook.Do = func(stage string) {
				if stage != "poll: chunk" {
					return
				}
				b.ExecDB(`delete from customers where id = 'c2'`)
				b.Exec(`update flow_polls set lease_until = now() - interval '1 second'`)
				if another {
					b.PollOne()
				}
			}
			if was, err := late.PollOnce(context.Background()); !was || err != nil {
				t.Fatal(was, err)
			}
			if !another {
				b.PollOne()
			}
			b.WantCount(2, `select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, b.Workspace, flow)
		})
	}
}

// A poll stalls in the transaction of a chunk, and its lease expires. No other poll begins
// until that transaction has ended.
func TestATakeOverWaitsForTheChunkOfALatePoll(t *testing.T) {
	b := setup(t, 3)
	flow := b.Live(flowstest.Polled("once", ""))
	late := b.Another()
	late.Hook.Do = func(stage string) {
		switch stage {
		case "poll: chunk":
			b.Exec(`update flow_polls set lease_until = now() + interval '1 second'`)
		case "poll: held":
			b.Eventually("the lease has expired", func() bool {
				return b.Count(`select count(*) from flow_polls where workspace_id = $1 and lease_until >= now()`, b.Workspace) == 0
			})
			b.nothingDueFor(b.Another())
		}
	}
	if was, err := late.PollOnce(context.Background()); !was || err != nil {
		t.Fatal(was, err)
	}
	b.WantCount(3, `select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, b.Workspace, flow)
}

// A poll stops reading when its lease is another's, and when it has expired: a lease
// that has expired is not renewed.
func TestAPollThatLostItsLeaseStops(t *testing.T) {
	for name, lose := range map[string]string{
		"it is another's": `update flow_polls set leased_by = 'another', lease_until = now() + interval '1 hour'`,
		"it has expired":  `update flow_polls set lease_until = now() - interval '1 second'`,
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 1, func(c *flows.Config) { c.Lease = 30 * time.Millisecond })
			b.Live(flowstest.Polled("once", ""))
			p, err := b.ClaimPoll(context.Background())
			b.Must(err)
			b.Exec(lose)
			ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
			defer stop()
			b.RenewPoll(ctx, stop, *p)
			if !errors.Is(ctx.Err(), context.Canceled) {
				t.Errorf("it goes on: %v", ctx.Err())
			}
		})
	}
}

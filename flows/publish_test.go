package flows_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/flows"
	"lemma/flows/flowstest"
)

func TestPublishingMovesAndEnrollsNothing(t *testing.T) {
	b := setup(t, 3)
	flow := b.Live(flowstest.Welcome)
	for _, c := range []string{"c1", "c2"} {
		b.RecordEvent(c, "signed_up")
	}
	b.Settle()
	before := b.Snapshot(flow)
	b.PublishNext(flow, strings.ReplaceAll(flowstest.Welcome, "P3D", "P9D"), flows.InFlight{})
	if d := cmp.Diff(before, b.Snapshot(flow)); d != "" {
		t.Error(d)
	}
	if n, err := b.MoveOnce(context.Background()); n != 0 || err != nil {
		t.Errorf("%d are moved: %v", n, err)
	}
	b.RecordEvent("c3", "signed_up")
	for profile, version := range map[string]int{"c1": 1, "c3": 2} {
		if e := b.Enrollment(flow, profile); e.Version != version {
			t.Errorf("%s is in version %d", profile, e.Version)
		}
	}
	if f := b.Flow(flow); f.Status != flows.Live || *f.LiveVersion != 2 {
		t.Errorf("%+v", f)
	}
}

// Two admins have both validated their versions.
func TestTwoPublishersAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		versions [2]int
		ifMatch  *flows.Tag
	}{
		"the same version":              {[2]int{1, 1}, nil},
		"two versions, each with a tag": {[2]int{1, 2}, &flows.Tag{Version: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 0)
			ctx := context.Background()
			flow := b.NewDraft(flowstest.Minimal).ID
			_, err := b.CreateVersion(ctx, b.Workspace, flow, b.Definition(flowstest.Minimal))
			b.Must(err)
			var both, all sync.WaitGroup
			both.Add(2)
			b.Hook.Do = func(stage string) {
				if stage == "publish: checked" {
					both.Done()
					both.Wait()
				}
			}
			var errs [2]error
			for i := range errs {
				all.Go(func() {
					_, errs[i] = b.Publish(ctx, b.Workspace, flow, c.versions[i], c.ifMatch, flows.InFlight{}, nil)
				})
			}
			all.Wait()
			if (errs[0] == nil) == (errs[1] == nil) {
				t.Fatalf("%v and %v", errs[0], errs[1])
			}
			for i, err := range errs {
				if err != nil {
					b.Wants(lemma.Stale, err)
				} else if f := b.Flow(flow); *f.LiveVersion != c.versions[i] {
					t.Errorf("version %d is live", *f.LiveVersion)
				}
			}
			b.WantCount(1, `select count(*) from flow_log where workspace_id = $1`, b.Workspace)
		})
	}
}

// A draft that changes while it is checked is not published.
func TestADraftIsChangedWhileItIsChecked(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	flow := b.NewDraft(flowstest.Minimal).ID
	b.Hook.Do = func(stage string) {
		if stage == "publish: checked" {
			_, err := b.UpdateVersion(ctx, b.Workspace, flow, 1, nil, b.Definition(`{"nodes":{}}`))
			b.Must(err)
		}
	}
	_, err := b.Publish(ctx, b.Workspace, flow, 1, nil, flows.InFlight{}, nil)
	b.Wants(lemma.Stale, err)
	if f := b.Flow(flow); f.Status != flows.Draft || f.LiveVersion != nil {
		t.Errorf("%+v", f)
	}
}

func TestPublishingComparesTheETag(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	flow := b.NewDraft(flowstest.Minimal).ID
	_, err := b.Publish(ctx, b.Workspace, flow, 1, &flows.Tag{Version: 7}, flows.InFlight{}, nil)
	b.Wants(lemma.Stale, err)
	first, err := b.Publish(ctx, b.Workspace, flow, 1, &flows.Tag{Version: 1}, flows.InFlight{}, nil)
	b.Must(err)
	again, err := b.Publish(ctx, b.Workspace, flow, 1, nil, flows.InFlight{}, nil)
	b.Must(err)
	if d := cmp.Diff(first, again); d != "" {
		t.Errorf("publishing twice does something: %s", d)
	}
	// Changed between the check and the lock.
	_, err = b.CreateVersion(ctx, b.Workspace, flow, b.Definition(flowstest.Minimal))
	b.Must(err)
	b.Hook.Do = func(stage string) {
		if stage == "publish: checked" {
			_, err := b.Update(ctx, b.Workspace, flow, nil, flows.Patch{Name: new("other")})
			b.Must(err)
		}
	}
	_, err = b.Publish(ctx, b.Workspace, flow, 2, &flows.Tag{Version: again.Version}, flows.InFlight{}, nil)
	b.Wants(lemma.Stale, err)
	_, err = b.Publish(ctx, b.Workspace, flow, 3, nil, flows.InFlight{}, nil)
	b.Wants(lemma.NotFound, err)
	_, err = b.Publish(ctx, b.Workspace, lemma.NewID(), 1, nil, flows.InFlight{}, nil)
	b.Wants(lemma.NotFound, err)
}

func TestPublishingListensAndPolls(t *testing.T) {
	b := setup(t, 0)
	text := `{"audience_id":"$audience","triggers":[{"type":"event","event":"hi"},{"type":"audience","every":"PT5M"}],
		"recurrence":{"policy":"once"},"exit_on":[{"event":"bye"}],
		"start":"w","nodes":{"w":{"type":"wait_for_event","event":"hi","timeout":"P1D","next":"end","on_timeout":"end"},"end":{"type":"exit"}}}`
	flow := b.Live(text)
	listens := func() int { return b.Count(`select count(*) from flow_listeners where workspace_id = $1`, b.Workspace) }
	polls := func() int {
		return b.Count(`select count(*) from flow_polls where workspace_id = $1 and next_at <= now()`, b.Workspace)
	}
	if listens() != 3 || polls() != 1 {
		t.Errorf("%d uses, %d polls", listens(), polls())
	}
	b.Exec(`update flow_polls set next_at = now() + interval '1 day'`)
	b.PublishNext(flow, text, flows.InFlight{})
	if listens() != 6 || polls() != 1 {
		t.Errorf("%d uses, %d polls: the audience of another version is polled at once", listens(), polls())
	}
	b.PublishNext(flow, flowstest.Minimal, flows.InFlight{})
	if listens() != 7 || polls() != 0 || b.Count(`select count(*) from flow_polls where workspace_id = $1`, b.Workspace) != 0 {
		t.Errorf("%d uses, %d polls", listens(), polls())
	}
	_, err := b.Rollback(context.Background(), b.Workspace, flow, nil, nil, flows.InFlight{}, nil) // to 2
	b.Must(err)
	if polls() != 1 {
		t.Error("the audience of the version is not polled again")
	}
}

// Rollbacks change the live version, and move no enrollment.
func TestRollbackFlipsBackAndKeepsPeople(t *testing.T) {
	b := setup(t, 3)
	ctx := context.Background()
	flow := b.Live(flowstest.Welcome)
	_, err := b.Rollback(ctx, b.Workspace, flow, nil, nil, flows.InFlight{}, nil)
	if e := b.Wants(lemma.Conflict, err); e.Code != "nothing_before" {
		t.Error(e)
	}
	b.PublishNext(flow, strings.ReplaceAll(flowstest.Welcome, "P3D", "P9D"), flows.InFlight{})
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	before := b.Snapshot(flow)
	back := func(to *int, want int) {
		t.Helper()
		f, err := b.Rollback(ctx, b.Workspace, flow, to, new(b.Flow(flow).Version), flows.InFlight{}, nil)
		b.Must(err)
		if *f.LiveVersion != want {
			t.Errorf("version %d is live, not %d", *f.LiveVersion, want)
		}
	}
	back(nil, 1)
	if d := cmp.Diff(before, b.Snapshot(flow)); d != "" {
		t.Error(d)
	}
	_, err = b.Rollback(ctx, b.Workspace, flow, nil, nil, flows.InFlight{}, nil) // 2 was rolled back
	b.Wants(lemma.Conflict, err)
	b.PublishNext(flow, flowstest.Welcome, flows.InFlight{}) // 3, after 2 was rolled back
	back(nil, 1)                                             // not 2: it was not live before 3
	back(new(2), 2)
	back(new(3), 3)
	b.RecordEvent("c2", "signed_up")
	if e := b.Enrollment(flow, "c2"); e.Version != 3 {
		t.Errorf("c2 is in version %d", e.Version)
	}
	_, err = b.CreateVersion(ctx, b.Workspace, flow, b.Definition(flowstest.Welcome))
	b.Must(err)
	_, err = b.Rollback(ctx, b.Workspace, flow, new(4), nil, flows.InFlight{}, nil)
	if e := b.Wants(lemma.Invalid, err); flowstest.Pointers(e) != "/to_version not_published" {
		t.Error(flowstest.Pointers(e))
	}
	_, err = b.Rollback(ctx, b.Workspace, flow, new(9), nil, flows.InFlight{}, nil)
	b.Wants(lemma.NotFound, err)
	_, err = b.Rollback(ctx, b.Workspace, flow, new(1), new(1), flows.InFlight{}, nil)
	b.Wants(lemma.Stale, err)

	// A rollback works even if resources that the version names are gone.
	b.Exec(`update audiences set columns = '[]'`)
	back(new(2), 2)
}

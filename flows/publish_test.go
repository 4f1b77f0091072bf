package flows

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
)

// everybody is all that a publish must leave alone, in one text.
func (b *bundle) everybody(flow uuid.UUID) string {
	b.t.Helper()
	var text string
	b.must(b.pool.QueryRow(context.Background(), `
		select coalesce(string_agg(e::text, E'\n' order by id), '') from enrollments e where workspace_id = $1 and flow_id = $2`, b.ws, flow).Scan(&text))
	return text
}

func TestPublishingMovesNobodyAndEnrollsNobody(t *testing.T) {
	b := setup(t, 3)
	flow := b.live(welcome)
	for _, c := range []string{"c1", "c2"} {
		b.tell(c, "signed_up")
	}
	b.settleDown()
	before := b.everybody(flow)
	b.publish(flow, strings.ReplaceAll(welcome, "P3D", "P9D"), InFlight{})
	if d := cmp.Diff(before, b.everybody(flow)); d != "" {
		t.Error(d)
	}
	if n, err := b.moveSome(context.Background()); n != 0 || err != nil {
		t.Errorf("%d are moved: %v", n, err)
	}
	b.tell("c3", "signed_up")
	for profile, version := range map[string]int{"c1": 1, "c3": 2} {
		if e := b.enrollment(flow, profile); e.Version != version {
			t.Errorf("%s is in version %d", profile, e.Version)
		}
	}
	if f := b.flow(flow); f.Status != Live || *f.LiveVersion != 2 {
		t.Errorf("%+v", f)
	}
}

// Two admins have both been told that their version is fine.
func TestTwoPublishersAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		versions [2]int
		ifMatch  *int
	}{
		"the same version":              {[2]int{1, 1}, nil},
		"two versions, each with a tag": {[2]int{1, 2}, ptr(1)},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 0)
			ctx := context.Background()
			flow := b.draft(minimal).ID
			_, err := b.CreateVersion(ctx, b.ws, flow, b.definition(minimal))
			b.must(err)
			var both, all sync.WaitGroup
			both.Add(2)
			b.hook = func(stage string) {
				if stage == "publish: checked" {
					both.Done()
					both.Wait()
				}
			}
			var errs [2]error
			for i := range errs {
				all.Go(func() { _, errs[i] = b.Publish(ctx, b.ws, flow, c.versions[i], c.ifMatch, InFlight{}, nil) })
			}
			all.Wait()
			if (errs[0] == nil) == (errs[1] == nil) {
				t.Fatalf("%v and %v", errs[0], errs[1])
			}
			for i, err := range errs {
				if err != nil {
					b.wants(lemma.Stale, err)
				} else if f := b.flow(flow); *f.LiveVersion != c.versions[i] {
					t.Errorf("version %d is live", *f.LiveVersion)
				}
			}
			if n := b.count(`select count(*) from flow_log where workspace_id = $1`); n != 1 {
				t.Errorf("%d lines in the log", n)
			}
		})
	}
}

// What was looked at is what is published: a draft that is changed meanwhile is not.
func TestADraftIsChangedWhileItIsChecked(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	flow := b.draft(minimal).ID
	b.hook = func(stage string) {
		if stage == "publish: checked" {
			_, err := b.UpdateVersion(ctx, b.ws, flow, 1, nil, b.definition(`{"nodes":{}}`))
			b.must(err)
		}
	}
	_, err := b.Publish(ctx, b.ws, flow, 1, nil, InFlight{}, nil)
	b.wants(lemma.Stale, err)
	if f := b.flow(flow); f.Status != Draft || f.LiveVersion != nil {
		t.Errorf("%+v", f)
	}
}

func TestPublishingGoesByTheTag(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	flow := b.draft(minimal).ID
	_, err := b.Publish(ctx, b.ws, flow, 1, ptr(7), InFlight{}, nil)
	b.wants(lemma.Stale, err)
	first, err := b.Publish(ctx, b.ws, flow, 1, ptr(1), InFlight{}, nil)
	b.must(err)
	again, err := b.Publish(ctx, b.ws, flow, 1, nil, InFlight{}, nil)
	b.must(err)
	if d := cmp.Diff(first, again); d != "" {
		t.Errorf("publishing twice does something: %s", d)
	}
	// Changed between the look and the lock.
	_, err = b.CreateVersion(ctx, b.ws, flow, b.definition(minimal))
	b.must(err)
	b.hook = func(stage string) {
		if stage == "publish: checked" {
			_, err := b.Update(ctx, b.ws, flow, nil, Patch{Name: ptr("other")})
			b.must(err)
		}
	}
	_, err = b.Publish(ctx, b.ws, flow, 2, ptr(again.Version), InFlight{}, nil)
	b.wants(lemma.Stale, err)
	_, err = b.Publish(ctx, b.ws, flow, 3, nil, InFlight{}, nil)
	b.wants(lemma.NotFound, err)
	_, err = b.Publish(ctx, b.ws, lemma.NewID(), 1, nil, InFlight{}, nil)
	b.wants(lemma.NotFound, err)
}

func TestPublishingListensAndPolls(t *testing.T) {
	b := setup(t, 0)
	text := `{"audience_id":"$audience","triggers":[{"type":"event","event":"hi"},{"type":"audience","every":"PT5M"}],"recurrence":{"policy":"once"},"exit_on":[{"event":"bye"}],
		"start":"w","nodes":{"w":{"type":"wait_for_event","event":"hi","timeout":"P1D","next":"end","on_timeout":"end"},"end":{"type":"exit"}}}`
	flow := b.live(text)
	listens := func() int { return b.count(`select count(*) from flow_listeners where workspace_id = $1`) }
	polls := func() int {
		return b.count(`select count(*) from flow_polls where workspace_id = $1 and next_at <= now()`)
	}
	if listens() != 3 || polls() != 1 {
		t.Errorf("%d uses, %d polls", listens(), polls())
	}
	b.run(b.pool, `update flow_polls set next_at = now() + interval '1 day'`)
	b.publish(flow, text, InFlight{})
	if listens() != 6 || polls() != 1 {
		t.Errorf("%d uses, %d polls: another version looks at its audience at once", listens(), polls())
	}
	b.publish(flow, minimal, InFlight{})
	if listens() != 7 || polls() != 0 || b.count(`select count(*) from flow_polls where workspace_id = $1`) != 0 {
		t.Errorf("%d uses, %d polls", listens(), polls())
	}
	_, err := b.Rollback(context.Background(), b.ws, flow, nil, nil, InFlight{}, nil) // to 2
	b.must(err)
	if polls() != 1 {
		t.Error("the audience of the version is not looked at again")
	}
}

// live, back, forth: which version is live, and who is where.
func TestRollbackFlipsBackAndKeepsPeople(t *testing.T) {
	b := setup(t, 3)
	ctx := context.Background()
	flow := b.live(welcome)
	_, err := b.Rollback(ctx, b.ws, flow, nil, nil, InFlight{}, nil)
	if e := b.wants(lemma.Conflict, err); e.Code != "nothing_before" {
		t.Error(e)
	}
	b.publish(flow, strings.ReplaceAll(welcome, "P3D", "P9D"), InFlight{})
	b.tell("c1", "signed_up")
	b.settleDown()
	before := b.everybody(flow)
	back := func(to *int, want int) {
		t.Helper()
		f, err := b.Rollback(ctx, b.ws, flow, to, ptr(b.flow(flow).Version), InFlight{}, nil)
		b.must(err)
		if *f.LiveVersion != want {
			t.Errorf("version %d is live, not %d", *f.LiveVersion, want)
		}
	}
	back(nil, 1)
	if d := cmp.Diff(before, b.everybody(flow)); d != "" {
		t.Error(d)
	}
	_, err = b.Rollback(ctx, b.ws, flow, nil, nil, InFlight{}, nil) // 2 was taken off
	b.wants(lemma.Conflict, err)
	b.publish(flow, welcome, InFlight{}) // 3, after 2 was given up
	back(nil, 1)                         // not 2: it was not live before 3
	back(ptr(2), 2)
	back(ptr(3), 3)
	b.tell("c2", "signed_up")
	if e := b.enrollment(flow, "c2"); e.Version != 3 {
		t.Errorf("c2 is in version %d", e.Version)
	}
	_, err = b.CreateVersion(ctx, b.ws, flow, b.definition(welcome))
	b.must(err)
	_, err = b.Rollback(ctx, b.ws, flow, ptr(4), nil, InFlight{}, nil)
	if e := b.wants(lemma.Invalid, err); pointers(e) != "/to_version not_published" {
		t.Error(pointers(e))
	}
	_, err = b.Rollback(ctx, b.ws, flow, ptr(9), nil, InFlight{}, nil)
	b.wants(lemma.NotFound, err)
	_, err = b.Rollback(ctx, b.ws, flow, ptr(1), ptr(1), InFlight{}, nil)
	b.wants(lemma.Stale, err)

	// The way out is open also when what the version names is gone.
	b.run(b.pool, `update audiences set columns = '[]'`)
	back(ptr(2), 2)
}

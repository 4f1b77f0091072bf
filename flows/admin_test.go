package flows_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/graph"
	"lemma/flows/query"
	"lemma/page"
	"lemma/pgtest"
)

// Each verb in each status, against a table.
func TestVerbsByStatus(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	may := map[flows.Status]string{
		flows.Draft:    "update delete publish archive",
		flows.Live:     "update publish rollback pause drain archive",
		flows.Paused:   "update publish rollback resume drain archive",
		flows.Draining: "update publish rollback pause resume archive",
		flows.Archived: "update",
	}
	verbs := map[string]func(flow uuid.UUID) error{
		"update": func(id uuid.UUID) error {
			_, err := b.Update(ctx, b.Workspace, id, nil, flows.Patch{Metadata: map[string]string{"a": "b"}})
			return err
		},
		"delete": func(id uuid.UUID) error { return b.Delete(ctx, b.Workspace, id) },
		"publish": func(id uuid.UUID) error {
			_, err := b.Publish(ctx, b.Workspace, id, 2, nil, flows.InFlight{}, nil)
			return err
		},
		"rollback": func(id uuid.UUID) error {
			_, err := b.Rollback(ctx, b.Workspace, id, new(1), nil, flows.InFlight{Mode: "exit"}, nil)
			return err
		},
		"pause":   func(id uuid.UUID) error { _, err := b.Pause(ctx, b.Workspace, id, nil); return err },
		"resume":  func(id uuid.UUID) error { _, err := b.Resume(ctx, b.Workspace, id, nil, nil); return err },
		"drain":   func(id uuid.UUID) error { _, err := b.Drain(ctx, b.Workspace, id, nil); return err },
		"archive": func(id uuid.UUID) error { _, err := b.Archive(ctx, b.Workspace, id, nil); return err },
	}
	for status, allowed := range may {
		for name, do := range verbs {
			id := b.NewDraft(flowstest.Minimal).ID
			_, err := b.CreateVersion(ctx, b.Workspace, id, b.Definition(flowstest.Minimal))
			b.Must(err)
			if status != flows.Draft {
				_, err := b.Publish(ctx, b.Workspace, id, 1, nil, flows.InFlight{}, nil)
				b.Must(err)
				b.Exec(`update flows set status = $2, paused_at = now() where id = $1`, id, status)
			}
			if got := strings.Join(b.Flow(id).Allowed, " "); got != allowed {
				t.Fatalf("%s allows %q, not %q", status, got, allowed)
			}
			err = do(id)
			if slices.Contains(strings.Fields(allowed), name) {
				if err != nil {
					t.Errorf("%s of a %s flow: %v", name, status, err)
				}
				continue
			}
			if e := b.Wants(lemma.WrongStatus, err); e.Status != string(status) || strings.Join(e.Allowed, " ") != allowed {
				t.Errorf("%s of a %s flow: %+v", name, status, e)
			}
			if now := b.Flow(id); now.Status != status {
				t.Errorf("a refused %s made a %s flow %s", name, status, now.Status)
			}
		}
	}
}

func TestFlowIsMadeOnceAndChangedByItsETag(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	n := flows.NewFlow{ID: lemma.NewID(), Name: "Welcome", Metadata: map[string]string{"team": "a/b"},
		Definition: b.Definition(flowstest.Minimal)}
	first, err := b.Create(ctx, b.Workspace, n)
	b.Must(err)
	again, err := b.Create(ctx, b.Workspace, n)
	b.Must(err)
	if d := cmp.Diff(first, again); d != "" || first.Status != flows.Draft || first.Version != 1 || first.LiveVersion != nil {
		t.Fatalf("the repeated creation changed it: %s", d)
	}
	b.WantCount(enrollment.Shards, `select count(*) from flow_shards where workspace_id = $1`, b.Workspace)
	_, err = b.Create(ctx, b.Workspace, flows.NewFlow{ID: lemma.NewID(), Name: "Welcome"})
	if e := b.Wants(lemma.Conflict, err); e.Code != "name_taken" {
		t.Error(e)
	}
	for _, name := range []string{"", " ", strings.Repeat("x", 201), "a\x00b"} {
		_, err = b.Create(ctx, b.Workspace, flows.NewFlow{ID: lemma.NewID(), Name: name})
		b.Wants(lemma.Invalid, err)
	}
	_, err = b.Update(ctx, b.Workspace, n.ID, nil, flows.Patch{Metadata: map[string]string{"a/b": "\x00"}})
	if e := b.Wants(lemma.Invalid, err); flowstest.Pointers(e) != "/metadata/a~1b invalid" {
		t.Error(flowstest.Pointers(e))
	}

	changed, err := b.Update(ctx, b.Workspace, n.ID, new(1), flows.Patch{Name: new("Hello")})
	b.Must(err)
	if changed.Name != "Hello" || changed.Version != 2 || changed.Metadata["team"] != "a/b" {
		t.Errorf("%+v", changed)
	}
	_, err = b.Update(ctx, b.Workspace, n.ID, new(1), flows.Patch{Name: new("Late")})
	b.Wants(lemma.Stale, err)
	_, err = b.Update(ctx, b.Workspace, lemma.NewID(), nil, flows.Patch{})
	b.Wants(lemma.NotFound, err)
	if _, err := b.Get(ctx, lemma.NewID(), n.ID); lemma.KindOf(err) != lemma.NotFound {
		t.Errorf("another workspace reads it: %v", err)
	}
}

func TestFlowsAreListedNewestFirst(t *testing.T) {
	b := setup(t, 0)
	var made []uuid.UUID
	for range 3 {
		made = append(made, b.NewDraft(flowstest.Minimal).ID)
	}
	first, next, err := b.List(context.Background(), b.Workspace, page.Query{Limit: 2})
	b.Must(err)
	rest, end, err := b.List(context.Background(), b.Workspace, page.Query{Limit: 2, Cursor: next})
	b.Must(err)
	if len(first) != 2 || len(rest) != 1 || first[0].ID != made[2] || first[1].ID != made[1] || rest[0].ID != made[0] || end != "" {
		t.Errorf("%v then %v, %q", first, rest, end)
	}
	_, _, err = b.List(context.Background(), b.Workspace, page.Query{Limit: 2, Cursor: "x"})
	b.Wants(lemma.Invalid, err)
	_, err = b.Archive(context.Background(), b.Workspace, made[1], nil)
	b.Must(err)
	drafts, _, err := b.List(context.Background(), b.Workspace, page.Query{Limit: 5, Status: string(flows.Draft)})
	b.Must(err)
	archived, _, err := b.List(context.Background(), b.Workspace, page.Query{Limit: 5, Status: string(flows.Archived)})
	b.Must(err)
	if len(drafts) != 2 || len(archived) != 1 || archived[0].ID != made[1] {
		t.Errorf("drafts %v, archived %v", drafts, archived)
	}
}

// An archived flow releases its name, and may be renamed to any.
func TestAnArchivedFlowReleasesItsName(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	old := b.Live(flowstest.Minimal)
	taken := func(err error) {
		t.Helper()
		if e := b.Wants(lemma.Conflict, err); e.Code != "name_taken" {
			t.Error(e)
		}
	}
	rename := func(flow uuid.UUID, name string) error {
		_, err := b.Update(ctx, b.Workspace, flow, nil, flows.Patch{Name: &name})
		return err
	}
	b.Must(rename(old, "Welcome"))
	again := flows.NewFlow{ID: lemma.NewID(), Name: "Welcome"}
	_, err := b.Create(ctx, b.Workspace, again)
	taken(err)
	_, err = b.Archive(ctx, b.Workspace, old, nil)
	b.Must(err)
	_, err = b.Create(ctx, b.Workspace, again)
	b.Must(err)
	other := b.NewDraft(flowstest.Minimal).ID
	taken(rename(other, "Welcome"))
	b.Must(rename(old, "Hello"))
	b.Must(rename(old, "Welcome"))
	b.Must(rename(other, "Hello"))
}

func TestOnlyADraftIsDeleted(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	draft := b.NewDraft(flowstest.Minimal).ID
	b.Must(b.Delete(ctx, b.Workspace, draft))
	b.Wants(lemma.NotFound, b.Delete(ctx, b.Workspace, draft))
	b.WantCount(0, `select count(*) from flow_versions where workspace_id = $1`, b.Workspace)
	live := b.Live(flowstest.Minimal)
	b.Wants(lemma.WrongStatus, b.Delete(ctx, b.Workspace, live))

	// A flow with enrollments is never deleted, whatever its status.
	b.RecordEvent("c1", "hi")
	b.Exec(`update flows set status = 'draft', live_version = null where id = $1`, live)
	if e := b.Wants(lemma.Conflict, b.Delete(ctx, b.Workspace, live)); e.Code != "in_use" {
		t.Error(e)
	}
}

func TestVersionsAreNumbered(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	flow, err := b.Create(ctx, b.Workspace, flows.NewFlow{ID: lemma.NewID(), Name: "empty"})
	b.Must(err)
	var all sync.WaitGroup
	var mu sync.Mutex
	var numbers []int
	for range 8 {
		all.Go(func() {
			v, err := b.CreateVersion(ctx, b.Workspace, flow.ID, b.Definition(flowstest.Minimal))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			numbers = append(numbers, v.Version)
		})
	}
	all.Wait()
	slices.Sort(numbers)
	if !slices.Equal(numbers, []int{1, 2, 3, 4, 5, 6, 7, 8}) {
		t.Fatal(numbers)
	}
	some, next, err := b.ListVersions(ctx, b.Workspace, flow.ID, page.Query{Limit: 5})
	b.Must(err)
	rest, end, err := b.ListVersions(ctx, b.Workspace, flow.ID, page.Query{Limit: 5, Cursor: next})
	b.Must(err)
	if len(some) != 5 || some[0].Version != 8 || len(rest) != 3 || rest[2].Version != 1 || end != "" {
		t.Error(some, rest)
	}
	_, err = b.CreateVersion(ctx, b.Workspace, lemma.NewID(), b.Definition(flowstest.Minimal))
	b.Wants(lemma.NotFound, err)
	for _, n := range []int{0, 9, 1 << 40} {
		_, err = b.GetVersion(ctx, b.Workspace, flow.ID, n)
		b.Wants(lemma.NotFound, err)
	}
}

// A draft may have any faults, as long as it has the form of a definition.
func TestDraftsNeedOnlyTheShape(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	flow := b.NewDraft(`{"nodes":{"a":{"type":"send","next":"nowhere"}}}`)
	v, err := b.GetVersion(ctx, b.Workspace, flow.ID, 1)
	b.Must(err)
	if v.Status != "draft" || string(v.Definition) != `{"nodes":{"a":{"type":"send","next":"nowhere"}}}` {
		t.Errorf("%+v", v)
	}
	for _, text := range []string{``, `[]`, `{"nodes":{"a":{"type":7}}}`, `{"nodes":`, "{\"start\":\"\xff\"}",
		`{"start":"` + strings.Repeat("x", 300<<10) + `"}`, `{"nodez":{}}`} {
		_, err := b.CreateVersion(ctx, b.Workspace, flow.ID, json.RawMessage(text))
		b.Wants(lemma.Invalid, err)
		_, err = b.UpdateVersion(ctx, b.Workspace, flow.ID, 1, nil, json.RawMessage(text))
		b.Wants(lemma.Invalid, err)
	}
	_, err = b.UpdateVersion(ctx, b.Workspace, flow.ID, 1, nil, json.RawMessage(`{"nodes":{"a/b":{"type":7}}}`))
	if e := b.Wants(lemma.Invalid, err); !strings.HasPrefix(flowstest.Pointers(e), "/nodes/a~1b/type ") {
		t.Error(flowstest.Pointers(e))
	}
	changed, err := b.UpdateVersion(ctx, b.Workspace, flow.ID, 1, new(1), b.Definition(flowstest.Minimal))
	b.Must(err)
	if changed.Revision != 2 {
		t.Error(changed.Revision)
	}
	_, err = b.UpdateVersion(ctx, b.Workspace, flow.ID, 1, new(1), b.Definition(flowstest.Minimal))
	b.Wants(lemma.Stale, err)
	_, err = b.UpdateVersion(ctx, b.Workspace, flow.ID, 7, nil, b.Definition(flowstest.Minimal))
	b.Wants(lemma.NotFound, err)
}

func TestAPublishedVersionNeverChanges(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	flow := b.Live(flowstest.Minimal)
	before, err := b.GetVersion(ctx, b.Workspace, flow, 1)
	b.Must(err)
	if before.Status != "live" || before.PublishedAt == nil {
		t.Fatalf("%+v", before)
	}
	_, err = b.UpdateVersion(ctx, b.Workspace, flow, 1, new(before.Revision), b.Definition(flowstest.Welcome))
	if e := b.Wants(lemma.WrongStatus, err); e.Status != "live" {
		t.Error(e)
	}
	b.PublishNext(flow, flowstest.Minimal, flows.InFlight{})
	_, err = b.UpdateVersion(ctx, b.Workspace, flow, 1, nil, b.Definition(flowstest.Welcome))
	b.Wants(lemma.WrongStatus, err)
	_, err = b.Publish(ctx, b.Workspace, flow, 1, nil, flows.InFlight{}, nil)
	if e := b.Wants(lemma.WrongStatus, err); e.Status != "published" || !slices.Equal(e.Allowed, []string{"rollback"}) {
		t.Error(e)
	}
	after, err := b.GetVersion(ctx, b.Workspace, flow, 1)
	b.Must(err)
	before.Status = "published"
	if d := cmp.Diff(before, after); d != "" {
		t.Error(d)
	}
}

func TestDiffBetweenVersions(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	flow := b.NewDraft(flowstest.Minimal).ID
	_, err := b.CreateVersion(ctx, b.Workspace, flow, b.Definition(strings.Replace(flowstest.Minimal, `"hi"`, `"hello"`, 1)))
	b.Must(err)
	all, err := b.Diff(ctx, b.Workspace, flow, 1, 2)
	b.Must(err)
	want := []graph.Difference{{Pointer: "/triggers/0/event", Op: "replace", From: json.RawMessage(`"hi"`), To: json.RawMessage(`"hello"`)}}
	if d := cmp.Diff(want, all); d != "" {
		t.Error(d)
	}
	_, err = b.Diff(ctx, b.Workspace, flow, 1, 3)
	b.Wants(lemma.NotFound, err)

	// A draft is compared as it would be published.
	sends := b.Live(flowstest.Welcome)
	b.Must(flowstest.Second(b.CreateVersion(ctx, b.Workspace, sends, b.Definition(flowstest.Welcome))))
	if all, err = b.Diff(ctx, b.Workspace, sends, 1, 2); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
}

func TestHistoryNamesTheActor(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	flow, key := b.Live(flowstest.Minimal), lemma.NewID()
	b.PublishNext(flow, flowstest.Minimal, flows.InFlight{Mode: "exit"})
	_, err := b.Rollback(ctx, b.Workspace, flow, nil, nil, flows.InFlight{}, &flows.Actor{APIKeyID: key})
	b.Must(err)
	_, err = b.Pause(ctx, b.Workspace, flow, &flows.Actor{APIKeyID: key})
	b.Must(err)
	_, err = b.Resume(ctx, b.Workspace, flow, new(time.Duration(0)), nil)
	b.Must(err)
	_, err = b.Drain(ctx, b.Workspace, flow, nil)
	b.Must(err)
	b.Must(b.ArchiveDrained(ctx))
	var reported []string
	for _, l := range pgtest.Pages(t, 2, func(cursor string) ([]query.LogLine, string, error) {
		return b.History(ctx, b.Workspace, flow, page.Query{Limit: 2, Cursor: cursor})
	}) {
		actor := "lemma"
		if l.APIKeyID != nil {
			actor = "key"
		}
		reported = append(reported, l.Action+" "+actor+" "+string(rune('0'+*l.Version)))
	}
	want := []string{"archived lemma 1", "drained lemma 1", "resumed lemma 1", "paused key 1", "rolled_back key 1", "published lemma 2",
		"published lemma 1"}
	if d := cmp.Diff(want, reported); d != "" {
		t.Error(d)
	}
	_, _, err = b.History(ctx, b.Workspace, lemma.NewID(), page.Query{Limit: 2})
	b.Wants(lemma.NotFound, err)
}

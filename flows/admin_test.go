package flows

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
)

// minimal is the shortest flow that can be published.
const minimal = `{"triggers":[{"type":"event","event":"hi"}],"recurrence":{"policy":"per_event"},"start":"end","nodes":{"end":{"type":"exit"}}}`

func (b *bundle) draft(text string) Flow {
	b.t.Helper()
	f, err := b.Create(context.Background(), b.ws, NewFlow{ID: lemma.NewID(), Name: uuid.NewString(), Definition: b.definition(text)})
	b.must(err)
	return f
}

func (b *bundle) flow(id uuid.UUID) Flow {
	b.t.Helper()
	f, err := b.Get(context.Background(), b.ws, id)
	b.must(err)
	return f
}

// wants asks for an error of a kind, and answers it.
func (b *bundle) wants(kind lemma.Kind, err error) *lemma.Error {
	b.t.Helper()
	var e *lemma.Error
	if !errors.As(err, &e) || e.Kind != kind {
		b.t.Fatalf("%v is not %s", err, kind)
	}
	return e
}

func pointers(e *lemma.Error) string {
	var all []string
	for _, f := range e.Fields {
		all = append(all, f.Pointer+" "+f.Code)
	}
	return strings.Join(all, ", ")
}

// Each verb in each status, from a table of its own.
func TestVerbsByStatus(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	may := map[Status]string{
		Draft:    "update delete publish archive",
		Live:     "update publish rollback pause drain archive",
		Paused:   "update publish rollback resume drain archive",
		Draining: "update publish rollback pause resume archive",
		Archived: "update",
	}
	verbs := map[string]func(flow uuid.UUID) error{
		"update": func(id uuid.UUID) error {
			_, err := b.Update(ctx, b.ws, id, nil, Patch{Metadata: map[string]string{"a": "b"}})
			return err
		},
		"delete":  func(id uuid.UUID) error { return b.Delete(ctx, b.ws, id) },
		"publish": func(id uuid.UUID) error { _, err := b.Publish(ctx, b.ws, id, 2, nil, InFlight{}, nil); return err },
		"rollback": func(id uuid.UUID) error {
			_, err := b.Rollback(ctx, b.ws, id, ptr(1), nil, InFlight{Mode: "exit"}, nil)
			return err
		},
		"pause":   func(id uuid.UUID) error { _, err := b.Pause(ctx, b.ws, id, nil); return err },
		"resume":  func(id uuid.UUID) error { _, err := b.Resume(ctx, b.ws, id, nil, nil); return err },
		"drain":   func(id uuid.UUID) error { _, err := b.Drain(ctx, b.ws, id, nil); return err },
		"archive": func(id uuid.UUID) error { _, err := b.Archive(ctx, b.ws, id, nil); return err },
	}
	for status, allowed := range may {
		for name, do := range verbs {
			id := b.draft(minimal).ID
			_, err := b.CreateVersion(ctx, b.ws, id, b.definition(minimal))
			b.must(err)
			if status != Draft {
				_, err := b.Publish(ctx, b.ws, id, 1, nil, InFlight{}, nil)
				b.must(err)
				b.run(b.pool, `update flows set status = $2, held_from = now() where id = $1`, id, status)
			}
			if got := strings.Join(b.flow(id).Allowed, " "); got != allowed {
				t.Fatalf("%s allows %q, not %q", status, got, allowed)
			}
			err = do(id)
			if slices.Contains(strings.Fields(allowed), name) {
				if err != nil {
					t.Errorf("%s of a %s flow: %v", name, status, err)
				}
				continue
			}
			if e := b.wants(lemma.WrongState, err); e.Status != string(status) || strings.Join(e.Allowed, " ") != allowed {
				t.Errorf("%s of a %s flow: %+v", name, status, e)
			}
			if now := b.flow(id); now.Status != status {
				t.Errorf("a refused %s made a %s flow %s", name, status, now.Status)
			}
		}
	}
}

func TestFlowIsMadeOnceAndChangedByWhoSawIt(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	n := NewFlow{ID: lemma.NewID(), Name: "Welcome", Metadata: map[string]string{"team": "a/b"}, Definition: b.definition(minimal)}
	first, err := b.Create(ctx, b.ws, n)
	b.must(err)
	again, err := b.Create(ctx, b.ws, n)
	b.must(err)
	if d := cmp.Diff(first, again); d != "" || first.Status != Draft || first.Version != 1 || first.LiveVersion != nil {
		t.Fatalf("made twice: %s", d)
	}
	if turns := b.count(`select count(*) from flow_turns where workspace_id = $1`); turns != Turns {
		t.Errorf("%d turns", turns)
	}
	_, err = b.Create(ctx, b.ws, NewFlow{ID: lemma.NewID(), Name: "Welcome"})
	if e := b.wants(lemma.Conflict, err); e.Code != "name_taken" {
		t.Error(e)
	}
	for _, name := range []string{"", " ", strings.Repeat("x", 201), "a\x00b"} {
		_, err = b.Create(ctx, b.ws, NewFlow{ID: lemma.NewID(), Name: name})
		b.wants(lemma.Invalid, err)
	}
	_, err = b.Update(ctx, b.ws, n.ID, nil, Patch{Metadata: map[string]string{"a/b": "\x00"}})
	if e := b.wants(lemma.Invalid, err); pointers(e) != "/metadata/a~1b invalid" {
		t.Error(pointers(e))
	}

	changed, err := b.Update(ctx, b.ws, n.ID, ptr(1), Patch{Name: ptr("Hello")})
	b.must(err)
	if changed.Name != "Hello" || changed.Version != 2 || changed.Metadata["team"] != "a/b" {
		t.Errorf("%+v", changed)
	}
	_, err = b.Update(ctx, b.ws, n.ID, ptr(1), Patch{Name: ptr("Late")})
	b.wants(lemma.Stale, err)
	_, err = b.Update(ctx, b.ws, lemma.NewID(), nil, Patch{})
	b.wants(lemma.NotFound, err)
	if _, err := b.Get(ctx, lemma.NewID(), n.ID); lemma.KindOf(err) != lemma.NotFound {
		t.Errorf("another workspace sees it: %v", err)
	}
}

func TestFlowsAreListedNewestFirst(t *testing.T) {
	b := setup(t, 0)
	var made []uuid.UUID
	for range 3 {
		made = append(made, b.draft(minimal).ID)
	}
	first, next, err := b.List(context.Background(), b.ws, "", lemma.Page{Limit: 2})
	b.must(err)
	rest, end, err := b.List(context.Background(), b.ws, "", lemma.Page{Limit: 2, Cursor: next})
	b.must(err)
	if len(first) != 2 || len(rest) != 1 || first[0].ID != made[2] || first[1].ID != made[1] || rest[0].ID != made[0] || end != "" {
		t.Errorf("%v then %v, %q", first, rest, end)
	}
	_, _, err = b.List(context.Background(), b.ws, "", lemma.Page{Limit: 2, Cursor: "x"})
	b.wants(lemma.Invalid, err)
	_, err = b.Archive(context.Background(), b.ws, made[1], nil)
	b.must(err)
	drafts, _, err := b.List(context.Background(), b.ws, Draft, lemma.Page{Limit: 5})
	b.must(err)
	archived, _, err := b.List(context.Background(), b.ws, Archived, lemma.Page{Limit: 5})
	b.must(err)
	if len(drafts) != 2 || len(archived) != 1 || archived[0].ID != made[1] {
		t.Errorf("drafts %v, archived %v", drafts, archived)
	}
}

// An archived flow does not keep its name from another, and may be given any.
func TestAnArchivedFlowLetsGoOfItsName(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	old := b.live(minimal)
	taken := func(err error) {
		t.Helper()
		if e := b.wants(lemma.Conflict, err); e.Code != "name_taken" {
			t.Error(e)
		}
	}
	rename := func(flow uuid.UUID, name string) error {
		_, err := b.Update(ctx, b.ws, flow, nil, Patch{Name: &name})
		return err
	}
	b.must(rename(old, "Welcome"))
	again := NewFlow{ID: lemma.NewID(), Name: "Welcome"}
	_, err := b.Create(ctx, b.ws, again)
	taken(err)
	_, err = b.Archive(ctx, b.ws, old, nil)
	b.must(err)
	_, err = b.Create(ctx, b.ws, again)
	b.must(err)
	other := b.draft(minimal).ID
	taken(rename(other, "Welcome"))
	b.must(rename(old, "Hello"))
	b.must(rename(old, "Welcome"))
	b.must(rename(other, "Hello"))
}

func TestOnlyADraftIsDeleted(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	draft := b.draft(minimal).ID
	b.must(b.Delete(ctx, b.ws, draft))
	b.wants(lemma.NotFound, b.Delete(ctx, b.ws, draft))
	if n := b.count(`select count(*) from flow_versions where workspace_id = $1`); n != 0 {
		t.Errorf("%d versions are left", n)
	}
	live := b.live(minimal)
	b.wants(lemma.WrongState, b.Delete(ctx, b.ws, live))

	// Whatever its status says: what people went through stays.
	b.tell("c1", "hi")
	b.run(b.pool, `update flows set status = 'draft', live_version = null where id = $1`, live)
	if e := b.wants(lemma.Conflict, b.Delete(ctx, b.ws, live)); e.Code != "in_use" {
		t.Error(e)
	}
}

func TestVersionsAreNumbered(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	flow, err := b.Create(ctx, b.ws, NewFlow{ID: lemma.NewID(), Name: "empty"})
	b.must(err)
	var all sync.WaitGroup
	var mu sync.Mutex
	var numbers []int
	for range 8 {
		all.Go(func() {
			v, err := b.CreateVersion(ctx, b.ws, flow.ID, b.definition(minimal))
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
	page, next, err := b.ListVersions(ctx, b.ws, flow.ID, lemma.Page{Limit: 5})
	b.must(err)
	rest, end, err := b.ListVersions(ctx, b.ws, flow.ID, lemma.Page{Limit: 5, Cursor: next})
	b.must(err)
	if len(page) != 5 || page[0].Version != 8 || len(rest) != 3 || rest[2].Version != 1 || end != "" {
		t.Error(page, rest)
	}
	_, err = b.CreateVersion(ctx, b.ws, lemma.NewID(), b.definition(minimal))
	b.wants(lemma.NotFound, err)
	for _, n := range []int{0, 9, 1 << 40} {
		_, err = b.GetVersion(ctx, b.ws, flow.ID, n)
		b.wants(lemma.NotFound, err)
	}
}

// A draft may be as wrong as it likes, as long as it is a definition.
func TestDraftsNeedOnlyTheShape(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	flow := b.draft(`{"nodes":{"a":{"type":"send","next":"nowhere"}}}`)
	v, err := b.GetVersion(ctx, b.ws, flow.ID, 1)
	b.must(err)
	if v.Status != "draft" || string(v.Definition) != `{"nodes":{"a":{"type":"send","next":"nowhere"}}}` {
		t.Errorf("%+v", v)
	}
	for _, text := range []string{``, `[]`, `{"nodes":{"a":{"type":7}}}`, `{"nodes":`, "{\"start\":\"\xff\"}", `{"start":"` + strings.Repeat("x", 300<<10) + `"}`, `{"nodez":{}}`} {
		_, err := b.CreateVersion(ctx, b.ws, flow.ID, json.RawMessage(text))
		b.wants(lemma.Invalid, err)
		_, err = b.UpdateVersion(ctx, b.ws, flow.ID, 1, nil, json.RawMessage(text))
		b.wants(lemma.Invalid, err)
	}
	_, err = b.UpdateVersion(ctx, b.ws, flow.ID, 1, nil, json.RawMessage(`{"nodes":{"a/b":{"type":7}}}`))
	if e := b.wants(lemma.Invalid, err); !strings.HasPrefix(pointers(e), "/nodes/a~1b/type ") {
		t.Error(pointers(e))
	}
	changed, err := b.UpdateVersion(ctx, b.ws, flow.ID, 1, ptr(1), b.definition(minimal))
	b.must(err)
	if changed.Revision != 2 {
		t.Error(changed.Revision)
	}
	_, err = b.UpdateVersion(ctx, b.ws, flow.ID, 1, ptr(1), b.definition(minimal))
	b.wants(lemma.Stale, err)
	_, err = b.UpdateVersion(ctx, b.ws, flow.ID, 7, nil, b.definition(minimal))
	b.wants(lemma.NotFound, err)
}

func TestAPublishedVersionNeverChanges(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	flow := b.live(minimal)
	before, err := b.GetVersion(ctx, b.ws, flow, 1)
	b.must(err)
	if before.Status != "live" || before.PublishedAt == nil {
		t.Fatalf("%+v", before)
	}
	_, err = b.UpdateVersion(ctx, b.ws, flow, 1, ptr(before.Revision), b.definition(welcome))
	if e := b.wants(lemma.WrongState, err); e.Status != "live" {
		t.Error(e)
	}
	b.publish(flow, minimal, InFlight{})
	_, err = b.UpdateVersion(ctx, b.ws, flow, 1, nil, b.definition(welcome))
	b.wants(lemma.WrongState, err)
	_, err = b.Publish(ctx, b.ws, flow, 1, nil, InFlight{}, nil)
	if e := b.wants(lemma.WrongState, err); e.Status != "published" || !slices.Equal(e.Allowed, []string{"rollback"}) {
		t.Error(e)
	}
	after, err := b.GetVersion(ctx, b.ws, flow, 1)
	b.must(err)
	before.Status = "published"
	if d := cmp.Diff(before, after); d != "" {
		t.Error(d)
	}
}

func TestDiffBetweenVersions(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	flow := b.draft(minimal).ID
	_, err := b.CreateVersion(ctx, b.ws, flow, b.definition(strings.Replace(minimal, `"hi"`, `"hello"`, 1)))
	b.must(err)
	all, err := b.Diff(ctx, b.ws, flow, 1, 2)
	b.must(err)
	want := []Change{{Pointer: "/triggers/0/event", Op: "replace", From: json.RawMessage(`"hi"`), To: json.RawMessage(`"hello"`)}}
	if d := cmp.Diff(want, all); d != "" {
		t.Error(d)
	}
	_, err = b.Diff(ctx, b.ws, flow, 1, 3)
	b.wants(lemma.NotFound, err)

	// A draft is compared as it would be published.
	sends := b.live(welcome)
	b.must(second(b.CreateVersion(ctx, b.ws, sends, b.definition(welcome))))
	if all, err = b.Diff(ctx, b.ws, sends, 1, 2); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
}

func TestHistoryTellsWhoDidWhat(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	flow, key := b.live(minimal), lemma.NewID()
	b.publish(flow, minimal, InFlight{Mode: "exit"})
	_, err := b.Rollback(ctx, b.ws, flow, nil, nil, InFlight{}, &Asker{APIKeyID: key})
	b.must(err)
	_, err = b.Pause(ctx, b.ws, flow, &Asker{APIKeyID: key})
	b.must(err)
	_, err = b.Resume(ctx, b.ws, flow, ptr(time.Duration(0)), nil)
	b.must(err)
	_, err = b.Drain(ctx, b.ws, flow, nil)
	b.must(err)
	b.must(b.archiveDrained(ctx))
	var told []string
	for cursor := ""; ; {
		lines, next, err := b.History(ctx, b.ws, flow, lemma.Page{Limit: 2, Cursor: cursor})
		b.must(err)
		for _, l := range lines {
			who := "lemma"
			if l.APIKeyID != nil {
				who = "key"
			}
			told = append(told, l.Action+" "+who+" "+string(rune('0'+*l.Version)))
		}
		if cursor = next; next == "" {
			break
		}
	}
	want := []string{"archived lemma 1", "drained lemma 1", "resumed lemma 1", "paused key 1", "rolled_back key 1", "published lemma 2", "published lemma 1"}
	if d := cmp.Diff(want, told); d != "" {
		t.Error(d)
	}
	_, _, err = b.History(ctx, b.ws, lemma.NewID(), lemma.Page{Limit: 2})
	b.wants(lemma.NotFound, err)
}

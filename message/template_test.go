package message_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/message"
	"lemma/page"
	"lemma/pgtest"
)

type bundle struct {
	pgtest.Shop
	templates *message.Templates
}

func setup(t testing.TB) bundle {
	t.Helper()
	s := pgtest.NewShop(t)
	return bundle{s, message.New(s.Pool)}
}

var hello = message.Content{Subject: "Hi {{ name }}", HTML: "<p>Hi {{ name }}, {{ points }}</p>"}

func (b bundle) create(t testing.TB) message.Template {
	t.Helper()
	made, err := b.templates.Create(t.Context(), b.Workspace,
		message.NewTemplate{ID: lemma.NewID(), Name: "news " + uuid.NewString(), Content: hello})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestCreatingOneIDTwice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	n := message.NewTemplate{ID: lemma.NewID(), Name: "news", Content: hello}
	first, err := b.templates.Create(t.Context(), b.Workspace, n)
	b.Must(err)
	again, err := b.templates.Create(t.Context(), b.Workspace, n)
	if diff := cmp.Diff(first, again); diff != "" || err != nil {
		t.Error(diff, err)
	}
	version, err := b.templates.Version(t.Context(), b.Workspace, n.ID, 1)
	b.Must(err)
	want := message.Version{TemplateID: n.ID, Version: 1, Variables: []string{"name", "points"}, CreatedAt: version.CreatedAt,
		Content: message.Content{Channel: lemma.Email, Subject: hello.Subject, HTML: hello.HTML, Text: "Hi {{ name }}, {{ points }}"}}
	if diff := cmp.Diff(want, version); diff != "" {
		t.Error(diff)
	}
}

func TestBadTemplatesAreNotSaved(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := lemma.NewID()
	_, err := b.templates.Create(t.Context(), b.Workspace,
		message.NewTemplate{ID: id, Content: message.Content{Subject: "{{ a b }}", HTML: "{% nope %}"}})
	var wrong *lemma.Error
	if !errors.As(err, &wrong) || wrong.Kind != lemma.Invalid || len(wrong.Fields) != 3 {
		t.Errorf("%v, want faults of name, subject and html", err)
	}
	if _, err := b.templates.Get(t.Context(), b.Workspace, id); lemma.KindOf(err) != lemma.NotFound {
		t.Errorf("it was saved all the same: %v", err)
	}
	made := b.create(t)
	if _, err := b.templates.AddVersion(t.Context(), b.Workspace, made.ID, nil, message.Content{Subject: "s", HTML: "{{ a"},
		uuid.Nil); lemma.KindOf(err) != lemma.Invalid {
		t.Errorf("a bad version: %v", err)
	}
	if now, err := b.templates.Get(t.Context(), b.Workspace, made.ID); err != nil || now.Version != 1 {
		t.Errorf("it is %+v, %v", now, err)
	}
}

func TestNamesAreUnique(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one, other := b.create(t), b.create(t)
	_, created := b.templates.Create(t.Context(), b.Workspace, message.NewTemplate{ID: lemma.NewID(), Name: one.Name, Content: hello})
	_, renamed := b.templates.Update(t.Context(), b.Workspace, other.ID, nil, one.Name)
	for _, err := range []error{created, renamed} {
		var wrong *lemma.Error
		if !errors.As(err, &wrong) || wrong.Kind != lemma.Conflict || wrong.Code != "name_taken" || wrong.Fields[0].Pointer != "/name" {
			t.Errorf("%v, want name_taken", err)
		}
	}
}

func TestVersionsAreAdded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.create(t).ID
	second, err := b.templates.AddVersion(t.Context(), b.Workspace, id, new(1), message.Content{Subject: "two", Text: "{{ x }}"}, uuid.Nil)
	if err != nil || second.Version != 2 {
		t.Fatal(second, err)
	}
	if _, err := b.templates.AddVersion(t.Context(), b.Workspace, id, new(1), hello, uuid.Nil); lemma.KindOf(err) != lemma.Stale {
		t.Errorf("a version on top of one that is not the newest: %v", err)
	}
	if now, err := b.templates.Get(t.Context(), b.Workspace, id); err != nil || now.Version != 2 {
		t.Errorf("the template is %+v, %v", now, err)
	}
	first, err := b.templates.Version(t.Context(), b.Workspace, id, 1)
	if err != nil || first.Content.Subject != hello.Subject {
		t.Errorf("version 1 is %+v, %v", first, err)
	}
}

// A change of the name or of the content makes a change on top of an older revision stale.
func TestRevisionsOfATemplate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.create(t).ID
	rename := func(ifMatch int, name string) (message.Template, error) {
		return b.templates.Update(t.Context(), b.Workspace, id, new(ifMatch), name)
	}
	renamed, err := rename(1, "a")
	if err != nil || renamed.Version != 1 || renamed.Revision != 2 {
		t.Fatalf("%+v, %v", renamed, err)
	}
	if _, err := rename(1, "b"); lemma.KindOf(err) != lemma.Stale {
		t.Errorf("a name on top of an older one: %v", err)
	}
	add := func(ifMatch int) (message.Version, error) {
		return b.templates.AddVersion(t.Context(), b.Workspace, id, new(ifMatch), hello, uuid.Nil)
	}
	if _, err := add(1); lemma.KindOf(err) != lemma.Stale {
		t.Errorf("a version on top of an older name: %v", err)
	}
	if added, err := add(2); err != nil || added.Version != 2 || added.Revision != 3 {
		t.Errorf("%+v, %v", added, err)
	}
	if _, err := rename(2, "c"); lemma.KindOf(err) != lemma.Stale {
		t.Errorf("a name on top of an older version: %v", err)
	}
}

func TestVersionsAddedAtOnceAreAllKept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.create(t).ID
	var wait sync.WaitGroup
	for n := range 8 {
		wait.Go(func() {
			if _, err := b.templates.AddVersion(t.Context(), b.Workspace, id, nil, message.Content{Subject: fmt.Sprint(n), Text: "t"},
				uuid.Nil); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	var got []int
	for _, v := range pgtest.Pages(t, 4, func(cursor string) ([]message.Version, string, error) {
		return b.templates.Versions(t.Context(), b.Workspace, id, page.Query{Limit: 4, Cursor: cursor})
	}) {
		got = append(got, v.Version)
	}
	if diff := cmp.Diff([]int{9, 8, 7, 6, 5, 4, 3, 2, 1}, got); diff != "" {
		t.Error(diff)
	}
}

// TestPagesOfLargeVersions has versions of which a page of 200 would be 100 MB.
func TestPagesOfLargeVersions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	made := b.create(t)
	large := strings.Repeat("x", message.MaxSource)
	const versions = 25
	for range versions - 1 {
		if _, err := b.templates.AddVersion(t.Context(), b.Workspace, made.ID, nil, message.Content{Subject: "s", HTML: large, Text: large},
			uuid.Nil); err != nil {
			t.Fatal(err)
		}
	}
	all := pgtest.Pages(t, 200, func(cursor string) ([]message.Version, string, error) {
		some, next, err := b.templates.Versions(t.Context(), b.Workspace, made.ID, page.Query{Limit: 200, Cursor: cursor})
		size := 0
		for _, v := range some {
			size += len(v.Content.HTML) + len(v.Content.Text)
		}
		if size > 4<<20 {
			t.Errorf("a page of %d versions has %d bytes", len(some), size)
		}
		return some, next, err
	})
	for i, v := range all {
		if v.Version != versions-i {
			t.Errorf("version %d, want %d", v.Version, versions-i)
		}
	}
	if len(all) != versions {
		t.Errorf("%d versions, want %d", len(all), versions)
	}
}

func TestRename(t *testing.T) {
	t.Parallel()
	b := setup(t)
	made := b.create(t)
	renamed, err := b.templates.Update(t.Context(), b.Workspace, made.ID, new(1), "other")
	if err != nil || renamed.Name != "other" || renamed.Version != 1 || !renamed.UpdatedAt.After(made.UpdatedAt) {
		t.Errorf("it is %+v, %v", renamed, err)
	}
	if _, err := b.templates.Update(t.Context(), b.Workspace, made.ID, new(7), "third"); lemma.KindOf(err) != lemma.Stale {
		t.Errorf("of an unknown version: %v", err)
	}
}

func TestCompiled(t *testing.T) {
	t.Parallel()
	b := setup(t)
	made := b.create(t)
	compiled, err := b.templates.Compiled(t.Context(), b.Workspace, made.ID, 1)
	b.Must(err)
	rendered, err := compiled.Render(`{"name":"Anna","points":3}`)
	if want := (message.Content{Channel: lemma.Email, Subject: "Hi Anna", HTML: "<p>Hi Anna, 3</p>", Text: "Hi Anna, 3"}); err != nil ||
		!cmp.Equal(rendered, want) {
		t.Errorf("got %+v, %v", rendered, err)
	}
	again, err := b.templates.Compiled(t.Context(), b.Workspace, made.ID, 1)
	if err != nil || again != compiled {
		t.Errorf("it was compiled a second time, or %v", err)
	}
	if _, err := b.templates.Compiled(t.Context(), pgtest.Workspace(t, b.Pool), made.ID, 1); lemma.KindOf(err) != lemma.NotFound {
		t.Errorf("from another workspace: %v", err)
	}
}

func TestUnknownIDs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	made := b.create(t)
	elsewhere := pgtest.Workspace(t, b.Pool)
	for what, at := range map[string][2]uuid.UUID{"an unknown id": {b.Workspace, lemma.NewID()}, "another workspace's id": {elsewhere,
		made.ID}} {
		ws, id := at[0], at[1]
		_, get := b.templates.Get(t.Context(), ws, id)
		_, update := b.templates.Update(t.Context(), ws, id, new(1), "x")
		_, add := b.templates.AddVersion(t.Context(), ws, id, nil, hello, uuid.Nil)
		_, version := b.templates.Version(t.Context(), ws, id, 1)
		_, _, versions := b.templates.Versions(t.Context(), ws, id, page.Query{Limit: 1})
		for verb, err := range map[string]error{"get": get, "update": update, "add": add, "version": version, "versions": versions,
			"delete": b.templates.Delete(t.Context(), ws, id)} {
			if lemma.KindOf(err) != lemma.NotFound {
				t.Errorf("%s %s: %v", verb, what, err)
			}
		}
	}
	if _, err := b.templates.Version(t.Context(), b.Workspace, made.ID, 2); lemma.KindOf(err) != lemma.NotFound {
		t.Errorf("an unknown version: %v", err)
	}
}

func TestDelete(t *testing.T) {
	t.Parallel()
	b := setup(t)
	free, used := b.create(t), b.create(t)
	if err := b.templates.Delete(t.Context(), b.Workspace, free.ID); err != nil {
		t.Error(err)
	}
	b.Exec(campaignWith, b.Workspace, used.ID)
	var wrong *lemma.Error
	if err := b.templates.Delete(t.Context(), b.Workspace, used.ID); !errors.As(err, &wrong) || wrong.Kind != lemma.Conflict ||
		wrong.Code != "in_use" {
		t.Errorf("deleting what a campaign uses: %v", err)
	}
	if _, err := b.templates.Version(t.Context(), b.Workspace, used.ID, 1); err != nil {
		t.Errorf("its version: %v", err)
	}
}

// campaignWith makes a campaign that uses version 1 of template $2.
const campaignWith = `
	with s as (insert into data_sources (workspace_id, id, name, kind, address, dsn) values ($1, $2, 's', 'postgres', 'a', '')),
	a as (insert into audiences (workspace_id, id, data_source_id, name, sql, key_column, email_column, columns)
	values ($1, $2, $2, 'a', 'q', 'k', 'e', '[]')),
	p as (insert into providers (workspace_id, id, name, channel, kind, config) values ($1, $2, 'p', 'email', 'smtp', '{}'))
	insert into campaigns (workspace_id, id, name, audience_id, template_id, template_version, provider_id, from_email)
	values ($1, $2, 'c', $2, $2, 1, $2, 'a@example.com')`

func TestListPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var want []string
	for range 5 {
		want = append([]string{b.create(t).Name}, want...)
	}
	var got []string
	for _, x := range pgtest.Pages(t, 2, func(cursor string) ([]message.Template, string, error) {
		return b.templates.List(t.Context(), b.Workspace, page.Query{Limit: 2, Cursor: cursor})
	}) {
		got = append(got, x.Name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	_, _, list := b.templates.List(t.Context(), b.Workspace, page.Query{Limit: 2, Cursor: "nonsense"})
	_, _, versions := b.templates.Versions(t.Context(), b.Workspace, b.create(t).ID, page.Query{Limit: 2, Cursor: "nonsense"})
	for _, err := range []error{list, versions} {
		var wrong *lemma.Error
		if !errors.As(err, &wrong) || wrong.Fields[0].Code != "invalid_cursor" {
			t.Errorf("a cursor of nonsense: %v", err)
		}
	}
}

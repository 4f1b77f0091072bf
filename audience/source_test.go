package audience

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/audience/value"
	"lemma/page"
	"lemma/pgtest"
)

func TestSourcesAreKept(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	n := NewSource{ID: lemma.NewID(), Name: "shop", Kind: Postgres, DSN: "postgres://u:canary@db.example.com/shop"}
	made, err := b.CreateSource(t.Context(), b.Workspace, n)
	b.Must(err)
	again, err := b.CreateSource(t.Context(), b.Workspace, n)
	if diff := cmp.Diff(made, again); err != nil || diff != "" {
		t.Errorf("made twice: %v %s", err, diff)
	}
	if made.Address != "db.example.com:5432/shop" || made.Status != "untested" || made.Version != 1 {
		t.Errorf("%+v", made)
	}
	_, err = b.CreateSource(t.Context(), b.Workspace, NewSource{ID: lemma.NewID(), Name: "shop", Kind: Postgres, DSN: n.DSN})
	wantCode(t, err, "name_taken /name")
	_, err = b.CreateSource(t.Context(), b.Workspace, NewSource{ID: lemma.NewID(), Kind: Postgres, DSN: n.DSN})
	wantCode(t, err, "invalid /name")

	name, dsn, old := "store", "postgres://u:canary@db.example.com/store", 7
	_, err = b.UpdateSource(t.Context(), b.Workspace, n.ID, &old, SourcePatch{Name: &name})
	wantCode(t, err, "stale")
	changed, err := b.UpdateSource(t.Context(), b.Workspace, n.ID, &made.Version, SourcePatch{Name: &name, DSN: &dsn})
	if err != nil || changed.Version != 2 || changed.Name != "store" || changed.Address != "db.example.com:5432/store" {
		t.Errorf("%+v, %v", changed, err)
	}
	if err := b.DeleteSource(t.Context(), b.Workspace, n.ID); err != nil {
		t.Error(err)
	}
	wantCode(t, b.DeleteSource(t.Context(), b.Workspace, n.ID), "not_found")
}

// A workspace has at most MaxSources data sources, also when some are created together. One
// that exists is created again.
func TestSourcesOfAWorkspaceAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	n := NewSource{ID: lemma.NewID(), Name: "shop", Kind: Postgres, DSN: b.DSN}
	_, err := b.CreateSource(t.Context(), b.Workspace, n)
	b.Must(err)
	b.Exec(`insert into data_sources (workspace_id, id, name, kind, address, tls, dsn)
		select workspace_id, gen_random_uuid(), 's' || i, kind, address, tls, dsn from data_sources, generate_series(4, $2::int) i
		where id = $1`, n.ID, MaxSources)
	first, err := b.Pool.Begin(t.Context()) // like a creation that has not committed yet
	b.Must(err)
	defer func() { _ = first.Rollback(context.Background()) }()
	if _, err := first.Exec(t.Context(), `select from workspaces where id = $1 for no key update`, b.Workspace); err != nil {
		t.Fatal(err)
	}
	var together sync.WaitGroup
	faults := make(chan string, 4)
	for range 4 {
		together.Go(func() {
			_, err := b.CreateSource(t.Context(), b.Workspace, NewSource{ID: lemma.NewID(), Name: uuid.NewString(), Kind: Postgres, DSN: b.DSN})
			faults <- codeOf(err)
		})
	}
	b.WaitForLocks(cap(faults))
	b.Must(first.Rollback(t.Context()))
	together.Wait()
	close(faults)
	got := map[string]int{}
	for fault := range faults {
		got[fault]++
	}
	if diff := cmp.Diff(map[string]int{"fine": 1, "too_many_data_sources": 3}, got); diff != "" {
		t.Error(diff)
	}
	b.WantCount(MaxSources, `select count(*) from data_sources`)
	_, err = b.CreateSource(t.Context(), b.Workspace, n)
	wantCode(t, err, "fine")
	b.Workspace = pgtest.Workspace(t, b.Pool)
	b.addSource(t, Postgres, b.DSN)
}

func TestSourceListsArePaged(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	want := []uuid.UUID{b.source}
	for range 4 {
		want = append([]uuid.UUID{b.addSource(t, Postgres, b.DSN)}, want...)
	}
	var got []uuid.UUID
	for _, s := range pgtest.Pages(t, 2, func(cursor string) ([]Source, string, error) {
		return b.ListSources(t.Context(), b.Workspace, page.Query{Limit: 2, Cursor: cursor})
	}) {
		got = append(got, s.ID)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	_, _, err := b.ListSources(t.Context(), b.Workspace, page.Query{Limit: 2, Cursor: "x"})
	wantCode(t, err, "invalid ?cursor")
	_, _, err = b.List(t.Context(), b.Workspace, page.Query{Limit: 2, Cursor: "x"})
	wantCode(t, err, "invalid ?cursor")
}

// TestDSNsAreSealed searches the table for the password, and moves a DSN to another row.
func TestDSNsAreSealed(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	secret := strings.Replace(b.DSN, "@", ":canary@", 1)
	id := b.addSource(t, Postgres, secret)
	var sealed []byte
	if err := b.Pool.QueryRow(t.Context(), "select dsn from data_sources where id = $1", id).Scan(&sealed); err != nil ||
		bytes.Contains(sealed, []byte("canary")) {
		t.Errorf("stored as %q, %v", sealed, err)
	}
	if _, err := b.TestSource(t.Context(), b.Workspace, id); err != nil {
		t.Errorf("in its own row: %v", err)
	}
	pgtest.Exec(t, b.Pool, "update data_sources set dsn = $1 where id = $2", sealed, b.source)
	if _, err := b.TestSource(t.Context(), b.Workspace, b.source); lemma.KindOf(err) != lemma.Internal {
		t.Errorf("in another row: %v", err)
	}
}

func TestTenantsDoNotMeet(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x := b.addAudience(t, shopSQL)
	other, ctx, none := pgtest.Workspace(t, b.Pool), t.Context(), "name"
	for name, ask := range map[string]func() error{
		"get source": func() error { _, err := b.GetSource(ctx, other, b.source); return err },
		"update source": func() error {
			_, err := b.UpdateSource(ctx, other, b.source, nil, SourcePatch{Name: &none})
			return err
		},
		"delete source": func() error { return b.DeleteSource(ctx, other, b.source) },
		"test source":   func() error { _, err := b.TestSource(ctx, other, b.source); return err },
		"schema":        func() error { _, err := b.Schema(ctx, other, b.source); return err },
		"validate":      func() error { _, err := b.Validate(ctx, other, x.draft()); return err },
		"create": func() error {
			_, err := b.Create(ctx, other,
				NewAudience{ID: lemma.NewID(), DataSourceID: b.source, Name: "x", SQL: shopSQL, KeyColumn: "id", EmailColumn: "email"})
			return err
		},
		"get":               func() error { _, err := b.Get(ctx, other, x.ID); return err },
		"update":            func() error { _, err := b.Update(ctx, other, x.ID, nil, Patch{Name: &none}, nil); return err },
		"delete":            func() error { return b.Delete(ctx, other, x.ID) },
		"preview":           func() error { _, err := b.Preview(ctx, other, x.ID, 1); return err },
		"count":             func() error { _, err := b.Audiences.Count(ctx, other, x.ID, ""); return err },
		"stream":            func() error { _, err := b.Stream(ctx, other, x.ID, nil, func(Row) error { return nil }); return err },
		"an id of nothing":  func() error { _, err := b.Get(ctx, b.Workspace, lemma.NewID()); return err },
		"a source for none": func() error { _, err := b.GetSource(ctx, b.Workspace, x.ID); return err },
	} {
		if got := codeOf(ask()); got != "not_found" {
			t.Errorf("%s: %s", name, got)
		}
	}
	if list, _, err := b.ListSources(ctx, other, page.Query{Limit: 10}); err != nil || len(list) != 0 {
		t.Errorf("%d sources, %v", len(list), err)
	}
	if list, _, err := b.List(ctx, other, page.Query{Limit: 10}); err != nil || len(list) != 0 {
		t.Errorf("%d audiences, %v", len(list), err)
	}
}

func TestAudiencesAreKept(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	n := NewAudience{ID: lemma.NewID(), DataSourceID: b.source, Name: "all", SQL: shopSQL, KeyColumn: "id", EmailColumn: "email",
		OptedOutColumn: "opted_out"}
	made, err := b.Create(t.Context(), b.Workspace, n)
	b.Must(err)
	again, err := b.Create(t.Context(), b.Workspace, n)
	if diff := cmp.Diff(made, again); err != nil || diff != "" {
		t.Errorf("made twice: %v %s", err, diff)
	}
	if len(made.Columns) != 10 || made.Columns[1] != (Column{Name: "email", Type: value.Text}) || made.OptedOutColumn != "opted_out" {
		t.Errorf("%+v", made)
	}
	wantCode(t, b.DeleteSource(t.Context(), b.Workspace, b.source), "in_use")

	bad, short, none, key := "nothing", "select id, email from customers", "", "name"
	for name, c := range map[string]struct {
		patch Patch
		want  string
	}{
		"key column":                  {Patch{KeyColumn: &bad}, "query_invalid /key_column"},
		"email column":                {Patch{EmailColumn: &bad}, "query_invalid /email_column"},
		"opted out":                   {Patch{OptedOutColumn: &bad}, "query_invalid /opted_out_column"},
		"opted out, of another type":  {Patch{OptedOutColumn: &key}, "query_invalid /opted_out_column"},
		"a column that is still used": {Patch{SQL: &short}, "query_invalid /opted_out_column"},
	} {
		_, err := b.Update(t.Context(), b.Workspace, n.ID, nil, c.patch, nil)
		if got := codeOf(err); got != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
	changed, err := b.Update(t.Context(), b.Workspace, n.ID, &made.Version, Patch{SQL: &short, OptedOutColumn: &none}, nil)
	if err != nil || changed.Version != 2 || len(changed.Columns) != 2 || changed.OptedOutColumn != "" {
		t.Errorf("%+v, %v", changed, err)
	}
	_, err = b.Update(t.Context(), b.Workspace, n.ID, &made.Version, Patch{Name: &key}, nil)
	wantCode(t, err, "stale")
	if err := b.Delete(t.Context(), b.Workspace, n.ID); err != nil {
		t.Error(err)
	}
}

// TestOneOfManyEditorsWins lets twenty change the same version at once.
func TestOneOfManyEditorsWins(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x := b.addAudience(t, shopSQL)
	var all sync.WaitGroup
	codes := make(chan string, 20)
	for i := range 20 {
		name := strings.Repeat("n", i+1)
		all.Go(func() {
			_, err := b.Update(t.Context(), b.Workspace, x.ID, &x.Version, Patch{Name: &name}, nil)
			codes <- codeOf(err)
		})
	}
	all.Wait()
	close(codes)
	won := 0
	for code := range codes {
		if code == "fine" {
			won++
		} else if code != "stale" {
			t.Error(code)
		}
	}
	if won != 1 {
		t.Errorf("%d won", won)
	}
}

func TestRolesThatAreTooPowerful(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ grant, want string }{
		"only selects":      {"select 1", "fine"},
		"superuser":         {"alter role % superuser", CodeRefused},
		"creates roles":     {"alter role % createrole", CodeRefused},
		"creates databases": {"alter role % createdb", CodeRefused},
		"replicates":        {"alter role % replication", CodeRefused},
		"bypasses":          {"alter role % bypassrls", CodeRefused},
		"reads files":       {"grant pg_read_server_files to %", CodeRefused},
		"writes files":      {"grant pg_write_server_files to %", CodeRefused},
		"runs programs":     {"grant pg_execute_server_program to %", CodeRefused},
		"signals":           {"grant pg_signal_backend to %", CodeRefused},
		"not inherited":     {"alter role % noinherit; grant pg_read_server_files to %", CodeRefused},
		"has a function":    {"grant execute on function pg_read_file(text) to %", CodeRefused},
		"writes":            {"grant insert on customers to %", CodeRefused},
		"deletes":           {"grant delete on customers to %", CodeRefused},
		"hides behind role": {"create role mask_%; grant select on customers to mask_%; grant mask_% to %; " +
			"alter role % createdb; alter role % set role = mask_%", CodeRefused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, dev)
			x := b.addAudience(t, shopSQL)
			for statement := range strings.SplitSeq(strings.ReplaceAll(c.grant, "%", b.Role), ";") {
				pgtest.Exec(t, b.DB, statement)
			}
			if strings.Contains(c.grant, "mask_") {
				t.Cleanup(func() { pgtest.Exec(t, b.Pool, "drop role mask_"+b.Role) })
				t.Cleanup(func() { pgtest.Exec(t, b.DB, "drop owned by mask_"+b.Role) })
			}
			report, err := b.TestSource(t.Context(), b.Workspace, b.source)
			if got := codeOf(err); got != c.want {
				t.Errorf("test: %s, want %s (%v)", got, c.want, err)
			}
			if err != nil && name == "superuser" && strings.Contains(err.Error(), "alter role "+b.Role) {
				t.Errorf("advises: %v", err) // a superuser may be the administrator of the server
			}
			if err == nil && (report.Source.Status != "ok" || !strings.HasPrefix(report.Version, "PostgreSQL ")) ||
				err != nil && report.Source.Status != "failed" {
				t.Errorf("stored as %+v", report)
			}
			if _, err := b.collect(t, x.ID); (err != nil) != (c.want == CodeRefused) {
				t.Errorf("stream: %v", err)
			}
		})
	}
}

func TestSchemaShowsWhatTheRoleCanRead(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	pgtest.Exec(t, b.DB, "create table private (id int); create schema crm; create view crm.people as select id, email from customers")
	pgtest.Exec(t, b.DB, "grant usage on schema crm to "+b.Role)
	pgtest.Exec(t, b.DB, "grant select (id) on crm.people to "+b.Role)
	s, err := b.Schema(t.Context(), b.Workspace, b.source)
	if err != nil || len(s.Tables) != 2 || s.Truncated {
		t.Fatalf("%+v, %v", s, err)
	}
	if diff := cmp.Diff(Table{"crm", "people", []TableColumn{{"id", value.Integer, true}}}, s.Tables[0]); diff != "" {
		t.Error(diff)
	}
	if c := s.Tables[1].Columns; s.Tables[1].Name != "customers" || len(c) != 10 || c[0] != (TableColumn{"id", value.Integer, false}) {
		t.Errorf("%+v", s.Tables[1])
	}
}

// TestErrorsDoNotContainTheDSN has sources that refuse, are missing or are invalid.
func TestErrorsDoNotContainTheDSN(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	for _, dsn := range []string{"postgres://intruder:canary@127.0.0.1:1099/hidden", strings.Replace(b.DSN, b.Role, "intruder:canary", 1),
		"postgres://u:canary@hidden.invalid/hidden"} {
		report, err := b.TestSource(t.Context(), b.Workspace, b.addSource(t, Postgres, dsn))
		if err == nil {
			t.Errorf("%s answered", dsn)
		}
		for _, word := range []string{"canary", "127.0.0.1", "hidden", "intruder"} {
			if strings.Contains(report.Source.TestError, word) {
				t.Errorf("the error shows %q: %s", word, report.Source.TestError)
			}
		}
		if strings.Contains(err.Error(), "canary") {
			t.Errorf("even the log would show the password: %v", err)
		}
	}
}

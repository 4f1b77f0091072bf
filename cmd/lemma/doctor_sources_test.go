package main

import (
	"strings"
	"testing"

	"lemma/pgtest"
	"lemma/pgtest/shop"
)

// TestDoctorTestsDataSources has a source whose role can write, and one whose role has only
// the default privileges.
func TestDoctorTestsDataSources(t *testing.T) {
	t.Parallel()
	f := shop.New(pgtest.NewShop(t, "create table reader (id int)"), shop.Local, nil)
	f.NewSource(f.DSN)
	f.OpenDB("create table writer (id int)")
	f.ExecDB("grant insert on writer to " + f.Role)
	f.NewSource(f.DSN)
	out := doctorOf(f)
	for _, want := range []string{"can write to public.writer", "revoke insert on table public.writer from " + f.Role, "pg_terminate_backend",
		"revoke execute on function pg_terminate_backend(integer,bigint) from public"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
}

// TestDoctorTestsSourcesOfAllWorkspaces has a workspace with more sources than are tested, and one
// with a later id.
func TestDoctorTestsSourcesOfAllWorkspaces(t *testing.T) {
	t.Parallel()
	f := shop.New(pgtest.NewShop(t, "create table reader (id int)"), shop.Local, nil)
	for range maxSourcesOfOne + 2 {
		f.NewSource(f.DSN)
	}
	other := *f
	other.Workspace = pgtest.Workspace(t, f.Pool)
	id := other.NewSource(f.DSN)
	f.Exec("update data_sources set name = $2 where id = $1", id, "the last\u009b31m\n")
	out := doctorOf(f)
	for _, want := range []string{"the last·31m·\n", "2 were not tested"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in %d bytes", want, len(out))
		}
	}
	if n := strings.Count(out, "data source ds_"); n != maxSourcesOfOne+1 {
		t.Errorf("%d sources were tested", n)
	}
}

func doctorOf(f *shop.Fixture) string {
	f.T.Helper()
	var out strings.Builder
	f.Must(printSources(f.T.Context(), f.Audiences, f.Pool, &out))
	return out.String()
}

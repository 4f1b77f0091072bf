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
	var out strings.Builder
	if err := printSources(t.Context(), f.Audiences, f.Pool, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"can write to public.writer", "revoke insert on table public.writer from " + f.Role, "pg_terminate_backend",
		"revoke execute on function pg_terminate_backend(integer,bigint) from public"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

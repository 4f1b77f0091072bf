package main

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/pgtest"
	"lemma/secrets"
)

// TestDoctorTestsDataSources has a source whose role can write, and one whose role has only
// the default privileges.
func TestDoctorTestsDataSources(t *testing.T) {
	t.Parallel()
	pool, shop := pgtest.DB(t), pgtest.Empty(t)
	box, err := secrets.ParseKeys(secrets.NewKey())
	if err != nil {
		t.Fatal(err)
	}
	sources := audience.New(pool, box, audience.Options{AllowPrivate: true, AllowUnix: true})
	ws := pgtest.Workspace(t, pool)
	for _, role := range []string{"reader", "writer"} {
		name := role + "_" + strings.ReplaceAll(uuid.NewString(), "-", "")
		for _, statement := range []string{"create role " + name + " login", "create table " + role + " (id int)",
			"grant select on " + role + " to " + name} {
			if _, err := shop.Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() { shop.Exec(context.Background(), "drop owned by "+name+"; drop role "+name) })
		if role == "writer" {
			if _, err := shop.Exec(t.Context(), "grant insert on writer to "+name); err != nil {
				t.Fatal(err)
			}
		}
		dsn := "postgres://" + name + "@/" + shop.Config().ConnConfig.Database + "?host=" + shop.Config().ConnConfig.Host
		if _, err := sources.CreateSource(t.Context(), ws,
			audience.NewSource{ID: lemma.NewID(), Name: role, Kind: audience.Postgres, DSN: dsn}); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	if err := printSources(t.Context(), sources, pool, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"can write to public.writer", "revoke insert on table public.writer from writer_", "pg_terminate_backend",
		"revoke execute on function pg_terminate_backend(integer,bigint) from public"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

package audience

import (
	"context"
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/pgtest"
)

// TestValidationRunsNothing has queries that reveal data of a row by an error
// or by time, as soon as any part of them is evaluated.
func TestValidationRunsNothing(t *testing.T) {
	t.Parallel()
	pg := setup(t, dev)
	pgtest.Exec(t, pg.DB, `
create table private (secret text); insert into private values ('canary');
create function reveal() returns bigint language plpgsql stable security definer as $$ begin raise exception '%', (select secret
from private); end $$;
create function wait() returns bigint language plpgsql stable as $$ begin perform pg_sleep(60); return 1; end $$`)
	maria := first(mariadbShop(t, dev))
	for _, c := range []struct {
		b      bundle
		sql    string
		secret string
	}{
		{pg, "select id, email from customers where id = reveal()", "canary"},
		{pg, "select id, email from customers where id = wait()", ""},
		{pg, "select id, email from customers where current_setting(email) is not null", "@example.com"},
		{pg, "select id, email from customers where email::regclass is not null", "person1@example"},
		{pg, "select id, email from customers where quote_ident(email)::regnamespace is not null", "@example.com"},
		{maria, "select id, email from customers where id = (select n from (select count(*) as n, " +
			"concat((select email from customers where id = 1), floor(rand(0) * 2)) as x from customers group by x) as y)",
			"person1@example.com"},
		{maria, "select id, email from customers where id = (select sleep(60))", ""},
		{maria, "select * from (select id, email from customers where id = (select sleep(60)) order by id limit 3) as x", ""},
	} {
		d := Draft{DataSourceID: c.b.source, SQL: c.sql, KeyColumn: "id", EmailColumn: "email"}
		begun := time.Now()
		r, err := c.b.Validate(ForCaller(t.Context(), false), c.b.Workspace, d)
		if err != nil || r.EstimatedRows != nil || len(r.Columns) != 2 || time.Since(begun) > 15*time.Second {
			t.Errorf("%s: %+v after %s, %v", c.sql, r, time.Since(begun), err)
		}
		begun = time.Now()
		matching := "select id from (" + c.sql + ") as x"
		if err := c.b.ValidateMatching(ForCaller(t.Context(), false), c.b.Workspace, c.b.source, matching); err != nil ||
			time.Since(begun) > 15*time.Second {
			t.Errorf("%s: after %s, %v", matching, time.Since(begun), err)
		}
		if c.secret == "" {
			continue
		}
		x, err := c.b.Create(ForCaller(t.Context(), false), c.b.Workspace,
			NewAudience{ID: lemma.NewID(), DataSourceID: c.b.source, Name: c.sql, SQL: c.sql, KeyColumn: "id", EmailColumn: "email"})
		if err != nil {
			t.Fatal(err)
		}
		for caller, ctx := range map[string]context.Context{"no caller": t.Context(),
			"a caller without the scope": ForCaller(t.Context(), false),
			"a reader":                   ForCaller(t.Context(), true)} {
			_, err := c.b.Stream(ctx, c.b.Workspace, x.ID, nil, func(Row) error { return nil })
			if err == nil || strings.Contains(lemma.Public(err), c.secret) != (caller == "a reader") {
				t.Errorf("%s: %s is shown %q", c.sql, caller, lemma.Public(err))
			}
			if caller != "a reader" && strings.Contains(err.Error(), c.secret) {
				t.Errorf("%s: the log of %s has %q", c.sql, caller, err)
			}
			if _, err := c.b.Lookup(ctx, c.b.Workspace, x.ID, nil, []string{"1"}, 0); err == nil ||
				strings.Contains(lemma.Public(err), c.secret) != (caller == "a reader") {
				t.Errorf("lookup in %s: %s is shown %q", c.sql, caller, lemma.Public(err))
			}
		}
	}
}

// TestTextsOfFaults checks that a caller that may not read rows gets the position of
// a fault, and not the message of the source.
func TestTextsOfFaults(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]bundle{"postgres": setup(t, dev), "mariadb": first(mariadbShop(t, dev))} {
		for _, sql := range []string{"select id, email from canary", "select id,\n email form canary where"} {
			d := Draft{DataSourceID: b.source, SQL: sql, KeyColumn: "id", EmailColumn: "email"}
			_, open := b.Validate(ForCaller(t.Context(), true), b.Workspace, d)
			_, hidden := b.Validate(ForCaller(t.Context(), false), b.Workspace, d)
			matching := b.ValidateMatching(ForCaller(t.Context(), false), b.Workspace, b.source, sql)
			if !strings.Contains(lemma.Public(open), "canary") && !strings.Contains(lemma.Public(open), "syntax") {
				t.Errorf("%s: %s shows %q", name, sql, lemma.Public(open))
			}
			for _, err := range []error{hidden, matching} {
				if text := lemma.Public(err); strings.Contains(text, "canary") || strings.Contains(text, "syntax") ||
					!strings.Contains(text, "SQLSTATE 42") {
					t.Errorf("%s: %s shows %q", name, sql, text)
				}
			}
			if got, want := codeOf(hidden), codeOf(open); got != want {
				t.Errorf("%s: %s is %q instead of %q", name, sql, got, want)
			}
			o, h := open.(*lemma.Error).Fields[0], hidden.(*lemma.Error).Fields[0]
			if o.Line != h.Line || o.Column != h.Column {
				t.Errorf("%s: %s has its fault at %d:%d instead of %d:%d", name, sql, h.Line, h.Column, o.Line, o.Column)
			}
		}
	}
}

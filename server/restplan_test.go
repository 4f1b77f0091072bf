package server

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"lemma/pgtest"
)

// The queries of docs/guides/send-to-the-rest.md look up a profile by indexes, with each type
// of key column that the guide has a line for. Recipients that have waited are looked up batch
// by batch: a lookup that read all addresses would take hours in total.
func TestTheRestIsLookedUpByIndexes(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/guides/send-to-the-rest.md")
	if err != nil {
		t.Fatal(err)
	}
	guide := guideSQL(t)
	line := regexp.MustCompile(`(?m)^ *added_key .*$`)
	lines := map[string]string{"bigint": line.FindString(guide["create"])}
	for _, row := range regexp.MustCompile("\\| `([a-z]+)` \\| `(added_key .*)` \\|").FindAllStringSubmatch(string(page), -1) {
		lines[row[1]] = strings.ReplaceAll(row[2], `\|`, "|")
	}
	if len(lines) != 5 {
		t.Fatalf("the guide has the types %v", lines)
	}
	keys := map[string]string{"bigint": "i", "integer": "i", "text": "'c' || i", "varchar": "'c' || i", "uuid": "md5(i::text)::uuid"}
	for kind, column := range lines {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := pgtest.DB(t)
			pgtest.Exec(t, db, `create table customers (id `+kind+` primary key, email varchar, name text, opted_out boolean)`)
			pgtest.Exec(t, db, `insert into customers select `+keys[kind]+`, 'c' || i || '@x.example', 'x', false from generate_series(1, 20000) i`)
			create, _, _ := strings.Cut(line.ReplaceAllLiteralString(guide["create"], column), "grant ")
			pgtest.Exec(t, db, create)
			pgtest.Exec(t, db, `insert into sent_before (id, profile_key, address, not_sent)
				select 'ntf_' || i, id::text, email, i % 100 = 0 from (select *, row_number() over () as i from customers) c`)
			pgtest.Exec(t, db, `insert into sent_before (address) select 'log' || i || '@x.example' from generate_series(1, 20000) i`)
			pgtest.Exec(t, db, `analyze`)
			few := `(select array_agg(id) from (select id from customers limit 10) c)`
			list := pgtest.One[string](t, db, `select quote_literal(`+few+`::text)`)
			err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
				for _, query := range []string{"rest", "one address", "some"} {
					if plan := lookupPlan(t, tx, guide[query], list); strings.Contains(plan, "Seq Scan") || strings.Contains(plan, "hashed") {
						t.Errorf("%s: the lookup reads a whole table:\n%s", query, plan)
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

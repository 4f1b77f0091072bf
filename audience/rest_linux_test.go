package audience

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"lemma"
)

// The query of docs/guides/send-to-the-rest.md in MySQL: the added rows exclude their addresses,
// however they are spelled, and the keys of profiles stay as they are.
func TestSendToTheRestInMySQL(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../docs/guides/send-to-the-rest.md")
	if err != nil {
		t.Fatal(err)
	}
	query := regexp.MustCompile(`select id, email, name, opted_out from customers\s+union all\s+` +
		`select .* from sent_before where not not_sent\n`).FindString(string(guide))
	b, s := mariadbShop(t, dev)
	user := "q" + strings.ReplaceAll(b.Workspace.String()[24:], "-", "")
	b.source = b.addSource(t, MySQL, s.login(t, user, "grant select on shop.* to $", "grant select on shop_rest.* to $"))
	s.exec(t, "create database shop_rest")
	for _, key := range []string{"bigint", "bigint unsigned", "int unsigned", "varchar(20)"} {
		table := "of_" + strings.NewReplacer(" ", "_", "(", "", ")", "").Replace(key)
		s.exec(t, "create table shop_rest."+table+" (id "+key+" primary key, email text, name text, opted_out boolean not null)",
			"insert into shop_rest."+table+` values (1, 'C1@shop.example', 'a', false), (2, 'c2@shop.example', 'b', false),
				(3, 'c3@shop.example', 'c', false), (4, 'c4@shop.example', 'd', false), (5, 'c5@shop.example', 'e', true)`,
			"create table shop_rest.sent_"+table+" (added_key "+key+" primary key, address text, not_sent boolean)", // keys that no profile has
			"insert into shop_rest.sent_"+table+` values (9001, 'c1@shop.example', false), (9002, 'C2@shop.example', false),
				(9003, 'c3@shop.example', true)`)
		sql := strings.NewReplacer("from customers", "from shop_rest."+table, "from sent_before", "from shop_rest.sent_"+table).Replace(query)
		x, err := b.Create(t.Context(), b.Workspace, NewAudience{ID: lemma.NewID(), DataSourceID: b.source, Name: table, SQL: sql,
			KeyColumn: "id", EmailColumn: "email", OptedOutColumn: "opted_out"})
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		counts, err := b.Audiences.Count(t.Context(), b.Workspace, x.ID, lemma.Email)
		if err != nil || counts.Sendable != 2 || counts.InvalidKey != 0 {
			t.Errorf("%s: %+v, %v", key, counts, err)
		}
		found, err := b.lookup(t, x.ID, []string{"name"}, []string{"3", "4"})
		if err != nil || len(found) != 2 || found["4"].Email != "c4@shop.example" {
			t.Errorf("%s: %+v, %v", key, found, err)
		}
	}
}

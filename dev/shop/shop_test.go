package shop

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"lemma/mail"
	"lemma/pgtest"
)

func create(t *testing.T, dsn string, n int) Shop {
	t.Helper()
	s, err := Create(t.Context(), dsn, n)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// counts are the faults of a shop, as Lemma will find them.
type counts struct{ customers, missing, malformed, repeated, optedOut int }

func count(t *testing.T, conn *pgx.Conn) (c counts) {
	t.Helper()
	rows, err := conn.Query(t.Context(), "select coalesce(email, ''), opted_out from customers order by id")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	var email string
	var optedOut bool
	_, err = pgx.ForEachRow(rows, []any{&email, &optedOut}, func() error {
		c.customers++
		address, ok := mail.ParseAddress(email)
		switch {
		case email == "":
			c.missing++
		case !ok:
			c.malformed++
		case seen[address.Canonical]:
			c.repeated++
		}
		seen[address.Canonical] = true
		if optedOut {
			c.optedOut++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestShopHasTheFaultsOfRealData(t *testing.T) {
	t.Parallel()
	s := create(t, pgtest.DSN(pgtest.Empty(t)), 50_000)
	if got, want := count(t, connect(t, s.DSN)), (counts{50_000, 300, 199, 247, 500}); got != want {
		t.Errorf("the shop has %+v instead of %+v", got, want)
	}
}

func TestShopIsMadeOnce(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(pgtest.Empty(t))
	first := create(t, dsn, 500)
	admin := connect(t, dsn)
	if _, err := admin.Exec(t.Context(), "delete from orders where id = 1"); err != nil {
		t.Fatal(err)
	}
	second := create(t, dsn, 500)
	if !first.Made || second.Made || first.DSN != second.DSN {
		t.Errorf("made %v, then %v; DSNs differ: %v", first.Made, second.Made, first.DSN != second.DSN)
	}
	var missing bool
	if err := admin.QueryRow(t.Context(), "select not exists (select from orders where id = 1)").Scan(&missing); err != nil || !missing {
		t.Errorf("the second call filled the shop again (%v)", err)
	}
	if third := create(t, dsn, 600); !third.Made {
		t.Error("a shop of another size was not made")
	}
}

func TestShopIsTheSameEveryTime(t *testing.T) {
	t.Parallel()
	sums := map[string]bool{}
	for range 2 {
		var sum string
		conn := connect(t, create(t, pgtest.DSN(pgtest.Empty(t)), 2000).DSN)
		if err := conn.QueryRow(t.Context(), `select md5(string_agg(c::text, ';' order by id)) ||
			(select md5(string_agg(o::text, ';' order by id)) from orders o) from customers c`).Scan(&sum); err != nil {
			t.Fatal(err)
		}
		sums[sum] = true
	}
	if len(sums) != 1 {
		t.Error("two shops differ")
	}
}

func TestReaderCanOnlyRead(t *testing.T) {
	t.Parallel()
	conn := connect(t, create(t, pgtest.DSN(pgtest.Empty(t)), 100).DSN)
	var name string
	if err := conn.QueryRow(t.Context(), "select current_user").Scan(&name); err != nil || name != readerOf(conn.Config().Database) {
		t.Errorf("the DSN is for %s (%v)", name, err)
	}
	for _, sql := range []string{
		"update customers set name = ''", "insert into orders (id, customer_id, total, placed_at) values (0, 1, 1, now())",
		"delete from customers",
		"create table mine ()", "create role another", "select pg_read_file('PG_VERSION')",
	} {
		if _, err := conn.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

func TestOtherTablesAreNotChanged(t *testing.T) {
	t.Parallel()
	pool := pgtest.Empty(t)
	if _, err := pool.Exec(t.Context(), "create table customers (id int)"); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(t.Context(), pgtest.DSN(pool), 100); err == nil || !strings.Contains(err.Error(), "not the demo shop's") {
		t.Errorf("create over another table: %v", err)
	}
}

func TestReaderDSN(t *testing.T) {
	t.Parallel()
	for admin, want := range map[string]string{
		"postgres://me:x@db.example:5433/shop?sslmode=require": "@db.example:5433/shop?sslmode=require",
		"postgres://me@[::1]/shop":                             "@[::1]:5432/shop",
		"host=/run/pg port=6000 dbname=shop user=me":           "@/shop?host=%2Frun%2Fpg&port=6000",
	} {
		c, err := pgx.ParseConfig(admin)
		if err != nil {
			t.Fatal(err)
		}
		if got := readerDSN(admin, c, "p"); got != "postgres://shop_reader:p"+want {
			t.Errorf("%s gives %s", admin, got)
		}
	}
}

func TestCustomersBuyOnce(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(pgtest.Empty(t))
	s := create(t, dsn, 100)
	first, err := s.Buy(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := create(t, dsn, 100).Buy(t.Context(), 3); err != nil || !second.Equal(first) {
		t.Errorf("bought at %v and again at %v: %v", first, second, err)
	}
	var orders int
	err = connect(t, s.DSN).QueryRow(t.Context(),
		"select count(*) from orders where customer_id = 3 and placed_at = $1", first).Scan(&orders)
	if err != nil || orders != 1 {
		t.Errorf("the reader sees %d orders: %v", orders, err)
	}
	if _, err := s.Buy(t.Context(), 101); err == nil {
		t.Error("a customer that does not exist has bought")
	}
}

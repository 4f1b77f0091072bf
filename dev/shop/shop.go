// Package shop creates the database of an invented customer: a shop with people,
// orders, and the faults that real data has. Its rows are the same every time. It
// also creates a role that can only read them.
package shop

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Shop is a shop that exists.
type Shop struct {
	DSN  string // of a role that can only read
	Made bool   // Create has created it

	admin string // DSN of a role that may write
}

// readerOf names the role that reads a shop. Shops of one server have different roles.
func readerOf(database string) string { return database + "_reader" }

//go:embed shop.sql
var rows string

// Create creates a shop of n customers in a database; the role of adminDSN must be
// able to create tables and roles. An existing shop of this size is not changed. It
// returns an error if other tables have the same names.
func Create(ctx context.Context, adminDSN string, n int) (Shop, error) {
	conn, err := pgx.Connect(ctx, adminDSN)
	if err != nil {
		return Shop{}, fmt.Errorf("reach the shop's database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	password := passwordFor(adminDSN)
	made := false
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if made, err = fill(ctx, tx, n); err != nil {
			return err
		}
		return grant(ctx, tx, conn.Config().Database, password)
	})
	if err != nil {
		return Shop{}, fmt.Errorf("fill the shop: %w", err)
	}
	return Shop{DSN: readerDSN(adminDSN, conn.Config(), password), Made: made, admin: adminDSN}, nil
}

// fill creates the tables unless they exist, and reports whether it did.
func fill(ctx context.Context, tx pgx.Tx, n int) (bool, error) {
	const ours = "The demo shop of Lemma"
	wanted := fmt.Sprintf("%s, edition 1, %d customers", ours, n)
	var there bool
	var comment string
	err := tx.QueryRow(ctx, `select to_regclass('customers') is not null or to_regclass('orders') is not null,
		coalesce(obj_description(to_regclass('customers'), 'pg_class'), '')`).Scan(&there, &comment)
	switch {
	case err != nil:
		return false, err
	case comment == wanted:
		return false, nil
	case there && !strings.HasPrefix(comment, ours):
		return false, errors.New("the database has tables customers or orders that are not the demo shop's: name another database")
	}
	script := strings.ReplaceAll(rows, ":n", strconv.Itoa(n)) + fmt.Sprintf("comment on table customers is '%s';\n", wanted)
	_, err = tx.Exec(ctx, script)
	return true, err
}

// grant creates the role that reads, with its privileges.
func grant(ctx context.Context, tx pgx.Tx, database, password string) error {
	_, err := tx.Exec(ctx, fmt.Sprintf(`
do $$ begin create role %[1]s; exception when duplicate_object then null; end $$;
alter role %[1]s login nosuperuser nocreatedb nocreaterole noinherit password '%[2]s';
revoke create on schema public from public;
grant connect on database %[3]s to %[1]s;
grant usage on schema public to %[1]s;
grant select on customers, orders to %[1]s`, pgx.Identifier{readerOf(database)}.Sanitize(), password, pgx.Identifier{database}.Sanitize()))
	return err
}

// passwordFor returns the same password every time, so that a stored DSN stays valid.
// It is derived from adminDSN, which already gives full access.
func passwordFor(adminDSN string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte("demo shop "+adminDSN)))[:32]
}

func readerDSN(adminDSN string, c *pgx.ConnConfig, password string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(readerOf(c.Database), password), Path: "/" + c.Database}
	q := url.Values{}
	if strings.HasPrefix(c.Host, "/") { // the folder of a unix socket
		q.Set("host", c.Host)
		if c.Port != 5432 {
			q.Set("port", strconv.FormatUint(uint64(c.Port), 10))
		}
	} else {
		u.Host = fmt.Sprintf("%s:%d", bracketed(c.Host), c.Port)
	}
	if admin, err := url.Parse(adminDSN); err == nil && admin.Query().Has("sslmode") {
		q.Set("sslmode", admin.Query().Get("sslmode"))
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// bracketed is a host as URLs have it: IPv6 addresses contain colons.
func bracketed(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/migrations"
)

// session is set on each connection, unless the DSN sets the parameter.
var session = map[string]string{
	"statement_timeout": "60s",
	// A transaction that has waited for a lock must read what the holder of the
	// lock wrote. With repeatable read, which a role or a database may have as
	// its default, an event could miss an enrollment that waits for it.
	"default_transaction_isolation": migrations.Isolation,
	// Each statement has one good plan, by keys. Planning it again for each
	// batch costs more than the claim itself once the tables have statistics.
	"plan_cache_mode": "force_generic_plan",
	// That plan may be made while a table or a new partition is empty. A scan of
	// the whole table is cheap then, and not when the plan is used.
	"enable_seqscan": "off",
	// Constraints are compared with their text.
	"intervalstyle": "postgres", "quote_all_identifiers": "off",
	// Months of partitions and of direct notifications, and steps of a day, are in UTC.
	"timezone": "UTC",
	// A statement whose cost is overestimated would be compiled each time.
	"jit": "off",
	// Patterns have backslashes, and pgx sends some statements only with this setting.
	"standard_conforming_strings": "on",
}

// sessionSettings are set by a statement when a connection has been opened. A pooler refuses
// most of them in the startup message, or drops them there, so they are no RuntimeParams.
type sessionSettings struct{ names, values []string }

// takeSettings takes from the parameters of a DSN those of Lemma, with the values that
// the DSN has for them, also in capitals, as Postgres prints some, and search_path. Those in
// its options are left out. application_name stays, since poolers accept it.
func takeSettings(params map[string]string, transactionIdle string) sessionSettings {
	all := maps.Clone(session)
	all["idle_in_transaction_session_timeout"] = transactionIdle
	for name := range all {
		if inOptions(params, name) {
			delete(all, name)
		}
	}
	for given, value := range params {
		name := strings.ToLower(given)
		_, ours := session[name]
		if ours || name == "idle_in_transaction_session_timeout" || name == "search_path" {
			all[name] = value
			delete(params, given)
		}
	}
	if !isSet(params, "application_name") {
		params["application_name"] = "lemma"
	}
	s := sessionSettings{names: slices.Sorted(maps.Keys(all))}
	for _, name := range s.names {
		s.values = append(s.values, all[name])
	}
	return s
}

// isSet reports whether a DSN has a setting, in any spelling or in its options. Of two spellings
// Postgres takes the last one that is sent, which is random.
func isSet(params map[string]string, name string) bool {
	for given := range params {
		if strings.EqualFold(given, name) {
			return true
		}
	}
	return inOptions(params, name)
}

// inOptions reports whether the options of a DSN have a setting. Postgres takes -c name=value,
// -cname=value and --name=value, with dashes for underscores in the name.
func inOptions(params map[string]string, name string) bool {
	name = strings.ReplaceAll(name, "_", "[_-]")
	return regexp.MustCompile(`(?i)(^|\s|-c|--)` + name + `\s*=`).MatchString(params["options"])
}

// apply sets them on a new connection, in one round trip.
func (s sessionSettings) apply(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `select set_config(name, value, false) from unnest($1::text[], $2::text[]) as s (name, value)`,
		pgx.QueryExecModeExec, s.names, s.values)
	return lemma.Wrap(err, "set the settings of the session")
}

// errShared reports a pooler that gives a connection another session for each transaction.
// Settings are then lost, or are those of other connections, as are advisory locks.
var errShared = errors.New("DATABASE_URL leads to a pooler that does not keep one session of Postgres for each connection: " +
	"it must pool by session (for PgBouncer: pool_mode = session)")

// check reports a pooler that does not keep the session of a connection, or its settings.
// It uses two connections in turn: each must have one session, which the other does not have.
func (s sessionSettings) check(ctx context.Context, pool *pgxpool.Pool) error {
	first, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer first.Release()
	second, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig) // the pool may have only one
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer second.Close(context.WithoutCancel(ctx))
	// Poolers take the session that was used last, or the one that was not used for longest.
	// In this order both kinds repeat a session, or change it, with any number of sessions.
	conns, seen := [2]*pgx.Conn{first.Conn(), second}, [2]string{}
	for _, i := range []int{0, 1, 0, 0, 1, 1, 0} {
		var is string
		err := conns[i].QueryRow(ctx, `select concat_ws(' ', pg_backend_pid(), pg_postmaster_start_time())`, pgx.QueryExecModeExec).Scan(&is)
		if err != nil {
			return fmt.Errorf("identify the session of a connection: %w", err)
		}
		if seen[i] == "" {
			seen[i] = is
		}
		if seen[i] != is || seen[1-i] == is {
			return errShared
		}
	}
	return s.inEffect(ctx, first.Conn())
}

// inEffect compares the settings with those of a connection. Postgres prints a value in its
// own way, so each is set once more, until the end of the statement.
func (s sessionSettings) inEffect(ctx context.Context, conn *pgx.Conn) error {
	var lost []string
	err := conn.QueryRow(ctx, `
		with has as materialized (select name, value, current_setting(name) as current from unnest($1::text[], $2::text[]) as s (name, value))
		select array_agg(name order by name) from has where current <> set_config(name, value, true)`,
		pgx.QueryExecModeExec, s.names, s.values).Scan(&lost)
	if err != nil {
		return fmt.Errorf("read the settings of the session: %w", err)
	}
	if len(lost) > 0 {
		return fmt.Errorf("settings that were set on a connection to DATABASE_URL are not in effect: %s", strings.Join(lost, ", "))
	}
	return nil
}

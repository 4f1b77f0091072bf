package settings

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
)

// Querier is a pool or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Stored is a value that a process has, or had.
type Stored struct {
	Name, Value string
	StartedAt   time.Time // when the last process with it started
	SeenAt      time.Time // when a process with it ran last, to a few seconds
	InUse       bool      // a process with it runs
	fresh       bool      // it was stored a moment ago
}

// List returns the stored values by setting. The first public URL is used: that of the process
// that started last, but for an http URL while a process with an https URL runs.
func List(ctx context.Context, q Querier) ([]Stored, error) {
	rows, _ := q.Query(ctx, `
		select name, value, started_at, seen_at, seen_at > now() - $1::interval, seen_at > now() - $2::interval from settings
		order by name, starts_with(value, 'http:') and exists (
			select from settings where name = '`+PublicURL+`' and starts_with(value, 'https:') and seen_at > now() - $1::interval
		), started_at desc, value`, InUse, fresh)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Stored, err error) {
		err = row.Scan(&s.Name, &s.Value, &s.StartedAt, &s.SeenAt, &s.InUse, &s.fresh)
		return s, err
	})
	return all, lemma.Wrap(err, "read the settings of all processes")
}

// Of are the stored values of one setting.
func Of(all []Stored, name string) (some []Stored) {
	for _, s := range all {
		if s.Name == name {
			some = append(some, s)
		}
	}
	return some
}

// Remove deletes a value. It refuses one of a process that runs, which would store it again.
// With the newest public URL it deletes those before it that no process has: links must not
// lead to one that was given up earlier.
func Remove(ctx context.Context, pool *pgxpool.Pool, name, value string) error {
	var there bool
	tag, err := pool.Exec(ctx, `
		delete from settings s using settings r
		where r.name = $1 and r.value = $2 and r.seen_at < now() - $3::interval and s.name = r.name and s.seen_at < now() - $3::interval
		  and (s.value = r.value or r.name = '`+PublicURL+`' and s.started_at <= r.started_at
			and not exists (select from settings n where n.name = r.name and n.started_at > r.started_at))`, name, value, InUse)
	if err != nil || tag.RowsAffected() > 0 {
		return lemma.Wrap(err, "remove %s", name)
	}
	if err := pool.QueryRow(ctx, `select exists (select from settings where name = $1 and value = $2)`, name, value).Scan(&there); err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if !there {
		return fmt.Errorf("%s=%s is not stored: `lemma settings list` lists the values that are", name, value)
	}
	return fmt.Errorf("a process with %s=%s runs: stop it, or change the setting, and try again after %v", name, value, InUse)
}

// Longest returns which stored value of a setting is the longest duration, where zero is for
// ever; nil without any.
func Longest(all []Stored, name string) (longest *Stored, d time.Duration, err error) {
	for _, s := range Of(all, name) {
		other, err := time.ParseDuration(s.Value)
		if err != nil {
			return nil, 0, fmt.Errorf("stored %s: %w", name, err)
		}
		if longest == nil || d != 0 && (other == 0 || other > d) {
			longest, d = &s, other
		}
	}
	return longest, d, nil
}

package server

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
)

// Collation is the version of the order of texts in Lemma's database.
type Collation struct {
	Stored string // when the database was created; empty: its order depends on no library, or Postgres is older than 15
	Now    string // of the operating system or of ICU today
}

// Changed reports that indexes of texts, also unique ones, may be in another order than the
// one by which they are read: a row may not be found, and be inserted twice.
func (c Collation) Changed() bool { return c.Stored != "" && c.Now != "" && c.Stored != c.Now }

// ReadCollation reads the versions.
func ReadCollation(ctx context.Context, pool *pgxpool.Pool) (c Collation, err error) {
	var version int
	if err := pool.QueryRow(ctx, "select current_setting('server_version_num')::int").Scan(&version); err != nil || version < 150_000 {
		return c, lemma.Wrap(err, "read the version of Postgres")
	}
	err = pool.QueryRow(ctx, `
		select coalesce(datcollversion, ''), coalesce(pg_database_collation_actual_version(oid), '')
		from pg_database where datname = current_database()`).Scan(&c.Stored, &c.Now)
	return c, lemma.Wrap(err, "read the collation of the database")
}

// WarnOfCollation logs that the order of texts has changed. It waits at most 5 s for a
// database that does not respond, which others report.
func (s *Server) WarnOfCollation(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if c, err := ReadCollation(ctx, s.Pool); err == nil && c.Changed() {
		s.log.WarnContext(ctx, "the order of texts has changed below the database: rebuild its indexes, see lemma doctor",
			"stored", c.Stored, "now", c.Now)
	}
}

package flows

import (
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"lemma"
)

// ofConnection recognizes an error of the connection to Lemma's own database: no
// enrollment is at fault. Postgres reports it with the classes 08 (connection),
// 53 (resources) and 57P (shutdown, terminated); everything else that it
// reports is about the statement.
func ofConnection(err error) bool {
	var pg *pgconn.PgError
	var network net.Error
	switch {
	case errors.As(err, new(*lemma.Error)): // of a data source, say
		return false
	case errors.As(err, &pg):
		return strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "53") || strings.HasPrefix(pg.Code, "57P")
	}
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err,
		net.ErrClosed) || pgconn.SafeToRetry(err)
}

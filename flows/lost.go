package flows

import (
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"lemma"
)

// ofConnection recognizes an error of the connection to Lemma's own database, of which no
// enrollment is the cause. Postgres reports it with the classes 08 (connection), 53
// (resources) and 57P (shutdown, terminated); its other errors concern the statement.
func ofConnection(err error) bool {
	var pg *pgconn.PgError
	var network net.Error
	switch {
	case errors.As(err, new(*lemma.Error)): // such as one of a data source
		return false
	case errors.As(err, &pg):
		return strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "53") || strings.HasPrefix(pg.Code, "57P")
	}
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err,
		net.ErrClosed) || pgconn.SafeToRetry(err)
}

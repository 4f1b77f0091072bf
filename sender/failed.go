package sender

import (
	"context"
	"errors"
	"net"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"lemma"
	"lemma/notifications"
)

// logFailed logs why the work on a batch failed: one line, since River does not log errors
// of jobs as such. The end of the process is no failure. provider is Nil if it is not known.
func (s *Sender) logFailed(ref notifications.Ref, provider uuid.UUID, err error) {
	if err == nil || s.isDraining() && errors.Is(err, context.Canceled) {
		return
	}
	attrs := []any{"batch_id", ref.BatchID, "origin_id", ref.OriginID}
	if provider != uuid.Nil {
		attrs = append(attrs, "provider_id", provider)
	}
	s.log.Error("batch failed, it is worked again", append(attrs, "kind", kindOf(err), "error", err)...)
}

// kindOf is database for errors of Postgres and of its connections, and otherwise the kind
// of a *lemma.Error.
func kindOf(err error) string {
	var answer *pgconn.PgError
	var connect *pgconn.ConnectError
	var network net.Error // also of a deadline
	if lemma.KindOf(err) == lemma.Internal && (errors.As(err, &answer) || errors.As(err, &connect) || errors.As(err, &network)) {
		return "database"
	}
	return string(lemma.KindOf(err))
}

// alongside adds the error of giving a batch back to the one before, unless both have one
// cause, such as a database that is away.
func alongside(err, back error) error {
	if err != nil && back != nil && innermost(err).Error() == innermost(back).Error() {
		return err
	}
	return errors.Join(err, back)
}

func innermost(err error) error {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err
}

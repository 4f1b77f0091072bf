// Package pgerr turns errors of Postgres into errors that a caller of Lemma may
// read. A violated constraint becomes the error that its package names for it.
// The message of Postgres is only logged.
package pgerr

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lemma"
)

// SQLSTATEs (Postgres, appendix A).
const (
	ForeignKey = "23503" // a row that is referred to, or a reference to a row that does not exist
	Unique     = "23505"

	UndefinedTable = "42P01" // another process has dropped it
	LockTimeout    = "55P03"

	deadlock    = "40P01"
	serializing = "40001"
)

// Rules map the name of a violated constraint to the caller's error. A statement
// that can violate only one constraint of a kind uses its SQLSTATE instead.
type Rules map[string]*lemma.Error

// Explain returns nil for nil, a *lemma.Error unchanged, the rule of a violated
// constraint with its cause, and every other error wrapped with doing.
func (r Rules) Explain(err error, doing string) error {
	var ours *lemma.Error
	if err == nil || errors.As(err, &ours) {
		return err
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		rule := r[pg.ConstraintName]
		if rule == nil {
			rule = r[pg.Code]
		}
		if rule != nil {
			answer := *rule
			answer.Cause = err
			return &answer
		}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// NameTaken is the error for a name that another thing of this kind has.
func NameTaken(what string) *lemma.Error {
	text := "another " + what + " has this name"
	return &lemma.Error{Kind: lemma.Conflict, Code: "name_taken", Message: text,
		Fields: []lemma.Field{{Pointer: "/name", Code: "name_taken", Detail: text}}}
}

// InUse is the error for deleting a thing that is referred to. message names the referring things.
func InUse(message string) *lemma.Error {
	return &lemma.Error{Kind: lemma.Conflict, Code: "in_use", Message: message}
}

// Row turns pgx.ErrNoRows into lemma.Missing(what), and wraps other errors with doing.
func Row(err error, what, doing string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrNoRows):
		return lemma.Missing(what)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// Is reports whether Postgres returned an error whose SQLSTATE begins with one of states,
// such as a class.
func Is(err error, states ...string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.ContainsFunc(states, func(state string) bool { return strings.HasPrefix(pg.Code, state) })
}

// Violation reports that a row is refused: by its values, a constraint or a trigger.
func Violation(err error) bool { return Is(err, "22", "23", "P0001") }

// Retryable reports a deadlock, or a transaction that could not be serialized.
func Retryable(err error) bool { return Is(err, deadlock, serializing) }

// passing are the classes of SQLSTATE that are temporary (Postgres, appendix A): connection
// exceptions, transaction rollbacks (serialization, deadlock), insufficient resources,
// operator intervention (shutdown, starting up); and the states of a lock that was not
// available in time, of a server that is not the primary, and of a transaction that was
// ended because this process was idle in it.
var passing = []string{"08", "40", "53", "57", "55P03", "25006", "25P03"}

// Away reports whether an error is due to the connection to Postgres or its state, so that
// the same transaction can succeed later.
func Away(err error) bool { return Is(err, passing...) || Disconnected(err) }

// Disconnected reports an error of the connection to Postgres that Postgres did not return.
func Disconnected(err error) bool {
	if Is(err, "") {
		return false
	}
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) || pgconn.SafeToRetry(err) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

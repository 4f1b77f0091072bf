// Package pgerr turns what Postgres answers into errors that a caller of Lemma
// may read. It promises that a violated constraint becomes the answer that its
// package names for it, and that the text of Postgres stays in the log.
package pgerr

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lemma"
)

// SQLSTATEs (Postgres, appendix A).
const (
	ForeignKey = "23503" // a row that others refer to, or a reference to a row that is not there
	Unique     = "23505"

	deadlock    = "40P01"
	serializing = "40001"
)

// Rules say what a violation means to the caller, by the name of the constraint
// or, where a statement can violate only one of its kind, by the SQLSTATE.
type Rules map[string]*lemma.Error

// Explain answers nil for nil, a *lemma.Error as it is, the rule of a violated
// constraint with its cause, and any other error with what was being done.
func (r Rules) Explain(err error, doing string) error {
	var ours *lemma.Error
	if err == nil || errors.As(err, &ours) {
		return err
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
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

// NameTaken is the answer to a name that another thing of this kind has.
func NameTaken(what string) *lemma.Error {
	text := "another " + what + " has this name"
	return &lemma.Error{Kind: lemma.Conflict, Code: "name_taken", Message: text,
		Fields: []lemma.Field{{Pointer: "/name", Code: "name_taken", Detail: text}}}
}

// InUse is the answer to deleting what others refer to; message says what can.
func InUse(message string) *lemma.Error {
	return &lemma.Error{Kind: lemma.Conflict, Code: "in_use", Message: message}
}

// Row turns "no row" into the answer for an id that names nothing.
func Row(err error, what, doing string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrNoRows):
		return lemma.Missing(what)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// Retryable reports whether Postgres asks to repeat the transaction: it was the
// victim of a deadlock, or could not be serialized.
func Retryable(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == deadlock || pg.Code == serializing)
}

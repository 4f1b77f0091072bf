package pgerr_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lemma"
	"lemma/pgerr"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	rules := pgerr.Rules{"things_name": pgerr.NameTaken("thing"), pgerr.ForeignKey: pgerr.InUse("a box contains this thing")}
	violated := func(code, constraint string) error {
		return fmt.Errorf("exec: %w", &pgconn.PgError{Code: code, ConstraintName: constraint, Message: "secret"})
	}
	own := lemma.Missing("box")
	for name, c := range map[string]struct {
		err  error
		kind lemma.Kind
		code string
	}{
		"a named constraint": {violated(pgerr.Unique, "things_name"), lemma.Conflict, "name_taken"},
		"a kind of it":       {violated(pgerr.ForeignKey, "boxes_thing_id_fkey"), lemma.Conflict, "in_use"},
		"another":            {violated(pgerr.Unique, "things_pkey"), lemma.Internal, ""},
		"a *lemma.Error":     {fmt.Errorf("read: %w", own), lemma.NotFound, ""},
		"something else":     {errors.New("no connection"), lemma.Internal, ""},
	} {
		err := rules.Explain(c.err, "save thing")
		var e *lemma.Error
		if lemma.KindOf(err) != c.kind || errors.As(err, &e) && e.Code != c.code {
			t.Errorf("%s: %v", name, err)
		}
		if strings.Contains(lemma.Public(err), "secret") || !errors.Is(err, c.err) && c.kind != lemma.NotFound {
			t.Errorf("%s: %q of %v", name, lemma.Public(err), err)
		}
	}
	if err := rules.Explain(nil, "save thing"); err != nil {
		t.Error(err)
	}
	if rules["things_name"].Cause != nil {
		t.Error("Explain wrote the cause of one error into the rule")
	}
}

func TestRow(t *testing.T) {
	t.Parallel()
	if err := pgerr.Row(fmt.Errorf("x: %w", pgx.ErrNoRows), "thing", "get thing"); lemma.KindOf(err) != lemma.NotFound {
		t.Error(err)
	}
	if err := pgerr.Row(errors.New("x"), "thing", "get thing"); err == nil || err.Error() != "get thing: x" {
		t.Error(err)
	}
	if err := pgerr.Row(nil, "thing", "get thing"); err != nil {
		t.Error(err)
	}
}

func TestRetryable(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{"40P01": true, "40001": true, "23505": false} {
		if got := pgerr.Retryable(fmt.Errorf("x: %w", &pgconn.PgError{Code: code})); got != want {
			t.Errorf("%s: %v", code, got)
		}
	}
}

func TestDisconnected(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want bool
	}{
		{fmt.Errorf("x: %w", io.ErrUnexpectedEOF), true}, {&net.OpError{Err: errors.New("reset")}, true}, {errors.New("x"), false}, {nil, false},
		{errors.Join(&pgconn.PgError{Code: "28P01"}, io.EOF), false}, // Postgres has answered
	} {
		if got := pgerr.Disconnected(c.err); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}

func TestAway(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{"08006": true, "40P01": true, "53300": true, "57P01": true, "57014": true, "55P03": true,
		"25006": true, "25P03": true, "23505": false, "22P02": false, "42P01": false} {
		if got := pgerr.Away(fmt.Errorf("x: %w", &pgconn.PgError{Code: code})); got != want {
			t.Errorf("%s: %v", code, got)
		}
	}
	if !pgerr.Away(io.ErrUnexpectedEOF) || pgerr.Away(nil) || pgerr.Away(errors.New("x")) {
		t.Error("an error that Postgres did not return")
	}
}

package sendertest

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"lemma"
	"lemma/sender"
)

// CheckSettings checks which fields of an account are faulty: their pointers, with a blank
// between two; empty for none.
func CheckSettings(t *testing.T, kind sender.Kind, name, config, secrets, faults string) {
	t.Helper()
	var pointers []string
	if fault, ok := errors.AsType[*lemma.Error](kind.Check(json.RawMessage(config), json.RawMessage(secrets))); ok {
		for _, f := range fault.Fields {
			pointers = append(pointers, f.Pointer)
		}
	}
	if got := strings.Join(pointers, " "); got != faults {
		t.Errorf("%s: %q, want %q", name, got, faults)
	}
}

// Move is a change of a config, and how many fields decide that the secrets move.
type Move = struct {
	Name          string
	Before, After json.RawMessage
	Moves         int
}

// CheckMoves checks changes of a config with moves of a kind.
func CheckMoves(t *testing.T, moves func(before, after, secrets json.RawMessage) []string, all []Move) {
	t.Helper()
	for _, c := range all {
		if got := moves(c.Before, c.After, nil); len(got) != c.Moves {
			t.Errorf("%s: %q", c.Name, got)
		}
	}
}

// CheckAnswer checks what holds for the receipt of every answer, of a status and about a
// message to a recipient.
func CheckAnswer(t *testing.T, r sender.Receipt, status int, to string) {
	t.Helper()
	switch {
	case r.Outcome != sender.Accepted && (r.Reason == "" || r.Code != status), len(r.Detail) > 200,
		strings.Contains(strings.ToLower(r.Detail), strings.ToLower(to)),
		r.Definite && !r.Provider, r.Provider && r.Outcome != sender.NotAccepted:
		t.Errorf("%+v for an answer with the status %d", r, status)
	}
}

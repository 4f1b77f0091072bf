package server

import (
	"errors"
	"testing"

	"lemma"
	"lemma/hooks"
	"lemma/lmtp"
	"lemma/sender"
)

// A mail that may be stored later is sent again, and one that is refused for good is not.
func TestMailsThatAreSentAgain(t *testing.T) {
	t.Parallel()
	busy := &lemma.Error{Kind: lemma.Unavailable, Code: "overloaded"}
	down := errors.New("the database is away")
	for err, want := range map[error]error{busy: busy, down: down, sender.ErrForged: nil, sender.ErrUnreadable: nil, sender.ErrForeign: nil,
		sender.ErrReplayed: nil, hooks.ErrTooLarge: nil, hooks.ErrUnknown: lmtp.ErrNoProvider, sender.ErrNoReceiver: lmtp.ErrNoProvider} {
		if got := mailError(err); !errors.Is(got, want) || (got == nil) != (want == nil) {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}

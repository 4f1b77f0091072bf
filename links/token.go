package links

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// Purpose is what a token is signed for. A token of one purpose is not one of another.
type Purpose byte

// The purposes. Their values stand in links that were sent: they never change.
const (
	Unsubscribe Purpose = 1
	Open        Purpose = 2 // of a message: its pixel
	Click       Purpose = 3 // on a link of a message
	Download    Purpose = 4 // of the file of an export
)

// String is the name of a purpose in metrics.
func (p Purpose) String() string {
	return [...]string{Unsubscribe: "unsubscribe", Open: "open", Click: "click", Download: "download"}[p]
}

// Sizes of tokens and payloads, in bytes.
const (
	MaxToken   = 4096
	MaxPayload = MaxToken/4*3 - headBytes - macBytes

	headBytes = 1 + 2 + 16
	macBytes  = 16
)

// encoding accepts one spelling of each token.
var encoding = base64.RawURLEncoding.Strict()

// Signer signs with one key of a workspace. It is safe for concurrent use.
type Signer struct {
	workspace uuid.UUID
	number    uint16
	states    sync.Pool // of *state
}

// state is reused, so that a signature costs no key schedule.
type state struct {
	mac       hash.Hash
	raw, text []byte
}

func newSigner(ws uuid.UUID, number uint16, secret []byte) *Signer {
	s := &Signer{workspace: ws, number: number}
	s.states.New = func() any { return &state{mac: hmac.New(sha256.New, secret)} }
	return s
}

// Sign returns the token of a payload of at most MaxPayload bytes. It is the same each time.
func (s *Signer) Sign(p Purpose, payload []byte) string { return s.URL(p, payload) }

// URL is Sign after the parts of a prefix.
func (s *Signer) URL(p Purpose, payload []byte, prefix ...string) string {
	t := s.states.Get().(*state)
	defer s.states.Put(t)
	t.raw = append(t.raw[:0], byte(p))
	t.raw = binary.BigEndian.AppendUint16(t.raw, s.number)
	t.raw = append(t.raw, s.workspace[:]...)
	t.raw = t.sign(append(t.raw, payload...))
	t.text = t.text[:0]
	for _, part := range prefix {
		t.text = append(t.text, part...)
	}
	t.text = encoding.AppendEncode(t.text, t.raw)
	return string(t.text)
}

// sign appends the signature of raw to it.
func (t *state) sign(raw []byte) []byte {
	t.mac.Reset()
	t.mac.Write(raw)
	n := len(raw)
	return t.mac.Sum(raw)[:n+macBytes]
}

// signed reports whether raw ends with its signature.
func (s *Signer) signed(raw []byte) bool {
	t := s.states.Get().(*state)
	defer s.states.Put(t)
	end := len(raw) - macBytes
	t.raw = t.sign(append(t.raw[:0], raw[:end]...))
	return hmac.Equal(t.raw, raw)
}

// Verify returns the workspace and the payload of a token. Every token that was not
// signed for the purpose is NotFound; other errors are those of the database.
func (l *Links) Verify(ctx context.Context, p Purpose, token string) (ws uuid.UUID, payload []byte, err error) {
	ws, payload, reason, err := l.verify(ctx, p, token)
	if reason != "" {
		l.metrics.refused.WithLabelValues(p.String(), reason).Inc()
		return uuid.Nil, nil, errToken
	}
	return ws, payload, err
}

// Reasons why a token is refused.
const (
	malformed   = "malformed"    // not of the form, or of another purpose
	unknownKey  = "unknown_key"  // the workspace has no such key
	forged      = "forged"       // another signature
	foreignHost = "foreign_host" // it came to the host of another workspace
)

// verify is Verify; reason is why the token is refused.
func (l *Links) verify(ctx context.Context, p Purpose, token string) (ws uuid.UUID, payload []byte, reason string, err error) {
	raw, ok := decode(token)
	if !ok || Purpose(raw[0]) != p {
		return uuid.Nil, nil, malformed, nil
	}
	ws = uuid.UUID(raw[3:headBytes])
	key, err := l.byNumber(ctx, keyRef{ws, binary.BigEndian.Uint16(raw[1:])})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return uuid.Nil, nil, unknownKey, nil
	case err != nil:
		return uuid.Nil, nil, "", fmt.Errorf("verify link: %w", err)
	case !key.signed(raw):
		return uuid.Nil, nil, forged, nil
	}
	return ws, raw[headBytes : len(raw)-macBytes], "", nil
}

// errToken does not reveal what is wrong with a token.
var errToken = &lemma.Error{Kind: lemma.NotFound, Message: "no such link"}

// decode decodes one spelling of each token: the base64 decoder skips line breaks.
func decode(token string) ([]byte, bool) {
	if len(token) > MaxToken {
		return nil, false
	}
	raw, err := encoding.DecodeString(token)
	return raw, err == nil && encoding.EncodedLen(len(raw)) == len(token) && len(raw) >= headBytes+macBytes
}

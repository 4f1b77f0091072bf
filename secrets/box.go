// Package secrets keeps what Lemma must be able to read again, such as the
// password of a customer's database, unreadable to whoever gets hold of the
// table, a dump or a backup. A sealed text opens only with one of the keys of
// this process, and only in the place it was sealed for: copied into another
// row it does not open.
//
// Where the keys come from is cmd's affair; what is sealed, and under which
// names, is that of the room that owns the table.
package secrets

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
)

// KeySize is the length of a key in bytes: AES-256.
const KeySize = 32

// maxID is the longest key id, since its length is sealed as one byte.
const maxID = 64

// layout is the first byte of everything sealed, so that another layout can
// follow without guessing which one a row has.
const layout = 1

// ErrSealed is the answer to everything that does not open: a key that is not
// here, a text that was changed, or one that belongs to another row. Which of
// them it was is nobody's business who tries.
var ErrSealed = errors.New("sealed text does not open")

// Box seals and opens. It is safe for concurrent use and never prints its keys.
type Box struct {
	keys    map[string]cipher.AEAD
	current string
}

// New makes a box that seals with the key called current and opens with any of
// keys, each of KeySize bytes. To rotate, add a key, make it current, seal the
// rows anew, and only then drop the old one.
func New(keys map[string][]byte, current string) (*Box, error) {
	if _, ok := keys[current]; !ok {
		return nil, fmt.Errorf("current key %q is not among the keys", current)
	}
	b := &Box{keys: make(map[string]cipher.AEAD, len(keys)), current: current}
	for id, key := range keys {
		aead, err := newAEAD(id, key)
		if err != nil {
			return nil, fmt.Errorf("key %q: %w", id, err)
		}
		b.keys[id] = aead
	}
	return b, nil
}

func newAEAD(id string, key []byte) (cipher.AEAD, error) {
	if id == "" || len(id) > maxID {
		return nil, fmt.Errorf("the id has %d bytes, not 1 to %d", len(id), maxID)
	}
	if len(key) != KeySize {
		return nil, fmt.Errorf("the key has %d bytes, not %d", len(key), KeySize)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// Seal encrypts plain for the place that aad names, such as the table, the
// workspace and the id of a row. Sealing the same twice gives two texts.
func (b *Box) Seal(plain []byte, aad ...string) []byte {
	sealed := append([]byte{layout, byte(len(b.current))}, b.current...)
	return b.keys[b.current].Seal(sealed, nil, plain, place(sealed, aad))
}

// Open decrypts what Seal made under the same aad, or answers ErrSealed.
func (b *Box) Open(sealed []byte, aad ...string) ([]byte, error) {
	id, head, ok := header(sealed)
	if !ok {
		return nil, ErrSealed
	}
	aead, ok := b.keys[id]
	if !ok {
		return nil, ErrSealed
	}
	plain, err := aead.Open(nil, nil, sealed[head:], place(sealed[:head], aad))
	if err != nil {
		return nil, ErrSealed
	}
	return plain, nil
}

// Current tells whether sealed was made with the current key; what was not
// should be sealed anew while a rotation is on its way.
func (b *Box) Current(sealed []byte) bool {
	id, _, ok := header(sealed)
	return ok && id == b.current
}

// header reads layout, length and id of the key from the front.
func header(sealed []byte) (id string, size int, ok bool) {
	if len(sealed) < 2 || sealed[0] != layout {
		return "", 0, false
	}
	size = 2 + int(sealed[1])
	if len(sealed) < size {
		return "", 0, false
	}
	return string(sealed[2:size]), size, true
}

// place is the additional data: the header and every part of aad behind its
// length, so that ("ab", "c") and ("a", "bc") are two places.
func place(header []byte, aad []string) []byte {
	form := append([]byte(nil), header...)
	for _, part := range aad {
		form = binary.BigEndian.AppendUint32(form, uint32(len(part)))
		form = append(form, part...)
	}
	return form
}

// Format prints the same for every verb, %#v and %+v too, which would
// otherwise walk into the key schedule.
func (b *Box) Format(f fmt.State, _ rune) { fmt.Fprint(f, b.String()) }

// String names the box and not what is in it.
func (b *Box) String() string { return "secrets.Box(redacted)" }

// LogValue keeps slog from looking inside.
func (b *Box) LogValue() slog.Value { return slog.StringValue(b.String()) }

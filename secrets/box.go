// Package secrets encrypts what Lemma must read again, such as the password of a
// customer's database, so that a table, a dump or a backup does not reveal it. A
// sealed text opens only with one of the keys of this process, and only for the
// row that it was sealed for: copied into another row it does not open.
//
// Package cmd provides the keys. The package that owns a table decides which
// columns are sealed, and for which additional data.
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

// layout is the first byte of each sealed text.
const layout = 1

// ErrSealed is the error for a text that does not open: its key is missing, the
// text was changed, or it belongs to another row. The error does not reveal which.
var ErrSealed = errors.New("sealed text does not open")

// Box seals with its current key and opens with any of its keys. It is safe for
// concurrent use and never prints its keys.
type Box struct {
	keys    map[string]cipher.AEAD
	current string
}

// New returns a Box that seals with the key called current and opens with any of
// keys, each of KeySize bytes. To rotate, add a key, make it current, reseal the
// rows, and only then remove the old key.
func New(keys map[string][]byte, current string) (*Box, error) {
	if _, ok := keys[current]; !ok {
		return nil, fmt.Errorf("the current key %q must be one of the keys", current)
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
		return nil, fmt.Errorf("the id has %d bytes; must have 1 to %d", len(id), maxID)
	}
	if len(key) != KeySize {
		return nil, fmt.Errorf("the key has %d bytes; must have %d", len(key), KeySize)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// Seal encrypts plain for the additional data aad, such as the table, the
// workspace and the id of a row. Sealing one text twice gives two results.
func (b *Box) Seal(plain []byte, aad ...string) []byte {
	sealed := append([]byte{layout, byte(len(b.current))}, b.current...)
	return b.keys[b.current].Seal(sealed, nil, plain, additional(sealed, aad)) //nolint:gosec // the AEAD makes a random nonce
}

// Open decrypts the result of Seal with the same aad, or returns ErrSealed. It
// tries the key of the stored id first and then every other: the id is a hint,
// since the key may have had another id when it sealed.
func (b *Box) Open(sealed []byte, aad ...string) ([]byte, error) {
	plain, _, err := b.open(sealed, aad)
	return plain, err
}

// open also returns the id of the key that opened.
func (b *Box) open(sealed []byte, aad []string) (plain []byte, id string, err error) {
	hint, head, ok := header(sealed)
	if !ok {
		return nil, "", ErrSealed
	}
	for _, id := range b.order(hint) {
		if plain, err := b.keys[id].Open(nil, nil, sealed[head:], additional(sealed[:head], aad)); err == nil {
			return plain, id, nil
		}
	}
	return nil, "", ErrSealed
}

// order returns the ids of all keys, hint first if it is one of them.
func (b *Box) order(hint string) []string {
	ids := make([]string, 0, len(b.keys))
	if b.keys[hint] != nil {
		ids = append(ids, hint)
	}
	for id := range b.keys {
		if id != hint {
			ids = append(ids, id)
		}
	}
	return ids
}

// Reseal returns the text sealed with the current key, and whether that changed
// it. A text that the current key has sealed with its present id stays unchanged.
func (b *Box) Reseal(sealed []byte, aad ...string) (fresh []byte, changed bool, err error) {
	plain, id, err := b.open(sealed, aad)
	if err != nil {
		return nil, false, err
	}
	if hint, _, _ := header(sealed); id == b.current && hint == id {
		return sealed, false, nil
	}
	return b.Seal(plain, aad...), true, nil
}

// header reads the layout, the length and the id of the key from the first bytes.
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

// additional is the additional data: the header and each part of aad after its
// length, so that ("ab", "c") and ("a", "bc") differ.
func additional(header []byte, aad []string) []byte {
	form := append([]byte(nil), header...)
	for _, part := range aad {
		form = binary.BigEndian.AppendUint32(form, uint32(len(part)))
		form = append(form, part...)
	}
	return form
}

// Format prints String for every verb. Otherwise %#v and %+v would print the keys.
func (b *Box) Format(f fmt.State, _ rune) { fmt.Fprint(f, b.String()) }

// String contains no key.
func (b *Box) String() string { return "secrets.Box(redacted)" }

// LogValue keeps keys out of logs.
func (b *Box) LogValue() slog.Value { return slog.StringValue(b.String()) }

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

// Box seals with its current key and opens with any of its keys. It is safe for
// concurrent use and never prints its keys.
type Box struct {
	keys    map[string]cipher.AEAD
	current string
}

// New makes a box that seals with the key called current and opens with any of
// keys, each of KeySize bytes. To rotate, add a key, make it current, reseal the
// rows, and only then drop the old one.
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

// Open decrypts what Seal made under the same aad, or answers ErrSealed. The key
// of the sealed text's id is tried first and then every other: an id is a hint,
// and a key may have had another id when it sealed.
func (b *Box) Open(sealed []byte, aad ...string) ([]byte, error) {
	plain, _, err := b.open(sealed, aad)
	return plain, err
}

// open answers the id of the key that opened as well.
func (b *Box) open(sealed []byte, aad []string) (plain []byte, id string, err error) {
	hint, head, ok := header(sealed)
	if !ok {
		return nil, "", ErrSealed
	}
	for _, id := range b.order(hint) {
		if plain, err := b.keys[id].Open(nil, nil, sealed[head:], place(sealed[:head], aad)); err == nil {
			return plain, id, nil
		}
	}
	return nil, "", ErrSealed
}

// order are the ids of all keys, hint first if it is one of them.
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

// Reseal answers sealed under the current key, and whether that changed it:
// what the current key has sealed under its present id stays as it is.
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

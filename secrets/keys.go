package secrets

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// NewKey makes a key as ParseKeys reads it: KeySize random bytes in base64.
func NewKey() string {
	key := make([]byte, KeySize)
	rand.Read(key) // never fails: crypto/rand ends the program instead
	return base64.StdEncoding.EncodeToString(key)
}

// ParseKeys reads keys in base64, separated by commas, of which the first is
// current. A key may have an id, as id:base64. A key without one is named by its
// fingerprint, so that it has the same id in every list. Errors contain ids and
// positions, never a key.
func ParseKeys(s string) (*Box, error) {
	keys, current := map[string][]byte{}, ""
	for i, item := range strings.Split(strings.TrimSpace(s), ",") {
		id, key, err := parseKey(strings.TrimSpace(item))
		if err != nil {
			return nil, fmt.Errorf("secret key %d: %w", i+1, err)
		}
		if _, twice := keys[id]; twice {
			return nil, fmt.Errorf("secret key %d: the id %q is given twice; ids must be unique", i+1, id)
		}
		keys[id] = key
		if i == 0 {
			current = id
		}
	}
	return New(keys, current)
}

func parseKey(item string) (id string, key []byte, err error) {
	id, text, named := strings.Cut(item, ":")
	if !named {
		text = item
	}
	key, err = base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "", nil, errors.New("must be base64, or id:base64")
	}
	if !named {
		id = fingerprint(key)
	}
	return id, key, nil
}

// Fingerprints are those of keys as ParseKeys takes them: of the first one, which encrypts,
// and of all others in order. They are empty without valid keys, and reveal nothing of them.
func Fingerprints(s string) string {
	var all []string
	for item := range strings.SplitSeq(strings.TrimSpace(s), ",") {
		_, key, err := parseKey(strings.TrimSpace(item))
		if err != nil || len(key) != KeySize {
			return ""
		}
		all = append(all, fingerprint(key))
	}
	slices.Sort(all[1:])
	return strings.Join(all, ",")
}

// fingerprint is the id of a key. It is stored with each text that the key has
// sealed, and reveals nothing of 256 random bits.
func fingerprint(key []byte) string {
	sum := sha256.Sum256(append([]byte("lemma secret key\x00"), key...))
	return hex.EncodeToString(sum[:4])
}

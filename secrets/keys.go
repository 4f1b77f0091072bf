package secrets

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

// defaultID names a key that was given without an id.
const defaultID = "1"

// NewKey makes a key as ParseKeys reads it: KeySize random bytes in base64.
func NewKey() string {
	key := make([]byte, KeySize)
	rand.Read(key) // never fails: crypto/rand ends the program instead
	return base64.StdEncoding.EncodeToString(key)
}

// ParseKeys reads "id:base64,id:base64", of which the first is current, or one
// bare base64 key. Its errors name ids and places, never a key.
func ParseKeys(s string) (*Box, error) {
	keys, current := map[string][]byte{}, ""
	for i, item := range strings.Split(strings.TrimSpace(s), ",") {
		id, key, err := parseKey(strings.TrimSpace(item))
		if err != nil {
			return nil, fmt.Errorf("secret key %d: %w", i+1, err)
		}
		if _, twice := keys[id]; twice {
			return nil, fmt.Errorf("secret key %d: the id %q is there twice", i+1, id)
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
		id, text = defaultID, item
	}
	key, err = base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "", nil, errors.New("it is not base64; write id:base64, or the base64 alone")
	}
	return id, key, nil
}

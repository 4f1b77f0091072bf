package workspaces

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	tokenPrefix = "lk_" // people and secret scanners recognise a leaked key by it
	secretBytes = 32
	sumChars    = 6
	tokenLen    = len(tokenPrefix) + 2*secretBytes + sumChars
	prefixLen   = len(tokenPrefix) + 8 // 4 of 32 bytes: enough to recognise, too few to guess the rest
)

// newToken makes a token: lk_, 32 random bytes and a checksum, in hex. The
// checksum detects a token that was cut short or mistyped.
func newToken() string {
	secret := make([]byte, secretBytes)
	_, _ = rand.Read(secret) // never fails (crypto/rand since Go 1.24)
	body := hex.EncodeToString(secret)
	return tokenPrefix + body + checksum(body)
}

func checksum(body string) string {
	sum := sha256.Sum256([]byte(tokenPrefix + body))
	return hex.EncodeToString(sum[:])[:sumChars]
}

// hash is the stored form of a token.
type hash [sha256.Size]byte

// hashOf returns the stored form of a token, or false for a text that newToken
// cannot have made.
func hashOf(token string) (hash, bool) {
	body, ok := strings.CutPrefix(token, tokenPrefix)
	if !ok || len(token) != tokenLen {
		return hash{}, false
	}
	body, sum := body[:2*secretBytes], body[2*secretBytes:]
	if checksum(body) != sum {
		return hash{}, false
	}
	return sha256.Sum256([]byte(token)), true
}

package workspaces

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	tokenMark   = "lk_" // lets people and secret scanners see what leaked
	secretBytes = 32
	sumChars    = 6
	tokenLen    = len(tokenMark) + 2*secretBytes + sumChars
	prefixLen   = len(tokenMark) + 8 // 4 of 32 bytes: enough to recognise, nothing to guess from
)

// newToken draws a key: lk_, 32 random bytes and a checksum, in hex. The
// checksum tells a key that was cut short or mistyped from one that never was.
func newToken() string {
	secret := make([]byte, secretBytes)
	_, _ = rand.Read(secret) // never fails (crypto/rand since Go 1.24)
	body := hex.EncodeToString(secret)
	return tokenMark + body + checksum(body)
}

func checksum(body string) string {
	sum := sha256.Sum256([]byte(tokenMark + body))
	return hex.EncodeToString(sum[:])[:sumChars]
}

// hashOf answers what a token is stored as, or false for what newToken cannot
// have made.
func hashOf(token string) ([]byte, bool) {
	body, ok := strings.CutPrefix(token, tokenMark)
	if !ok || len(token) != tokenLen {
		return nil, false
	}
	body, sum := body[:2*secretBytes], body[2*secretBytes:]
	if checksum(body) != sum {
		return nil, false
	}
	hash := sha256.Sum256([]byte(token))
	return hash[:], true
}

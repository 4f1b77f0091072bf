// Package es256 signs the JSON Web Tokens of carriers by ES256: ECDSA with P-256 and
// SHA-256 (RFC 7518, 3.4). It guarantees that equal claims are equal tokens, since the
// signature is deterministic (RFC 6979): all processes send the same token without
// sharing it.
//
// The carriers decide about headers and claims.
package es256

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
)

// Key is a private key of P-256.
type Key struct{ private *ecdsa.PrivateKey }

// ParsePEM reads a key in PEM (PKCS #8), as Apple issues it.
func ParsePEM(text string) (Key, bool) {
	block, _ := pem.Decode([]byte(text))
	if block == nil || block.Type != "PRIVATE KEY" {
		return Key{}, false
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return Key{}, false
	}
	private, ok := parsed.(*ecdsa.PrivateKey)
	return Key{private}, ok && private.Curve == elliptic.P256()
}

// Parse reads a key of 32 bytes, as tools for Web Push write it.
func Parse(raw []byte) (Key, bool) {
	private, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), raw)
	return Key{private}, err == nil
}

// Bytes are the 32 bytes of the key.
func (k Key) Bytes() []byte {
	raw, _ := k.private.Bytes() // a key that was parsed is valid
	return raw
}

// Public is the public key as an uncompressed point of 65 bytes.
func (k Key) Public() []byte {
	point, _ := k.private.PublicKey.Bytes() // a key that was parsed is valid
	return point
}

// Sign returns a token. header and claims are marshalled as JSON.
func (k Key) Sign(header, claims any) (string, error) {
	signed := make([]byte, 0, 400)
	for _, part := range []any{header, claims} {
		text, err := json.Marshal(part)
		if err != nil {
			return "", fmt.Errorf("write a token: %w", err)
		}
		signed = append(base64.RawURLEncoding.AppendEncode(signed, text), '.')
	}
	signed = signed[:len(signed)-1]
	sum := sha256.Sum256(signed)
	der, err := k.private.Sign(nil, sum[:], crypto.SHA256) // without random numbers: RFC 6979
	if err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	var signature struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &signature); err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	var raw [64]byte
	signature.R.FillBytes(raw[:32])
	signature.S.FillBytes(raw[32:])
	return string(base64.RawURLEncoding.AppendEncode(append(signed, '.'), raw[:])), nil
}

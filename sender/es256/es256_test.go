package es256_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"

	"lemma/sender/es256"
)

func inPEM(t *testing.T, kind string, key any) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func TestTokensAreSignedAndTheSame(t *testing.T) {
	t.Parallel()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, ok := es256.ParsePEM(inPEM(t, "PRIVATE KEY", private))
	if !ok {
		t.Fatal("the key is refused")
	}
	same, ok := es256.Parse(key.Bytes())
	if !ok || string(same.Public()) != string(key.Public()) || len(key.Public()) != 65 {
		t.Fatal("another key")
	}
	for i := range 50 {
		header, claims := map[string]string{"alg": "ES256"}, map[string]int{"iat": i}
		token, err := key.Sign(header, claims)
		again, _ := same.Sign(header, claims)
		if err != nil || token != again {
			t.Fatalf("%v, %s, then %s", err, token, again)
		}
		parts := strings.Split(token, ".")
		sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
		raw, err := base64.RawURLEncoding.DecodeString(parts[2])
		if err != nil || len(raw) != 64 {
			t.Fatalf("%v, a signature of %d bytes", err, len(raw))
		}
		r, s := new(big.Int).SetBytes(raw[:32]), new(big.Int).SetBytes(raw[32:])
		if !ecdsa.Verify(&private.PublicKey, sum[:], r, s) {
			t.Fatal("the signature is wrong")
		}
	}
}

func TestKeysThatAreRefused(t *testing.T) {
	t.Parallel()
	wide, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"nothing": "", "text": "key", "RSA": inPEM(t, "PRIVATE KEY", other), "P-384": inPEM(t, "PRIVATE KEY", wide),
		"another type": inPEM(t, "PUBLIC KEY", wide), "an empty block": "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n",
	} {
		if _, ok := es256.ParsePEM(text); ok {
			t.Errorf("%s is accepted", name)
		}
	}
	for name, raw := range map[string][]byte{"nothing": nil, "31 bytes": make([]byte, 31), "zero": make([]byte, 32),
		"more than the order": []byte(strings.Repeat("\xff", 32))} {
		if _, ok := es256.Parse(raw); ok {
			t.Errorf("%s is accepted", name)
		}
	}
}

package webpush

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/uuid"
)

const (
	saltLength = 16
	mostBody   = 4096                                              // bytes that every push service accepts (RFC 8291, 4)
	overhead   = saltLength + 4 + 1 + 65 + 1 + 16                  // header (RFC 8188, 2.1), delimiter and tag
	mostText   = mostBody - overhead                               // of a plaintext
	keyInfo    = "Content-Encoding: aes128gcm\x00"                 // RFC 8188, 2.2
	nonceInfo  = "Content-Encoding: nonce\x00"                     // RFC 8188, 2.3
	sharedInfo = "WebPush: info\x00"                               // RFC 8291, 3.3
	ownInfo    = "lemma: salts and ephemeral keys of Web Push\x00" // separates the secret from the key that signs
)

// entropyOf derives the secret of an account from its private key.
func entropyOf(private []byte) ([]byte, error) {
	return hkdf.Key(sha256.New, private, nil, ownInfo, sha256.Size) //nolint:wrapcheck // the caller wraps
}

// ephemeral derives the salt and the sender's key of one message. They depend on all
// that is encrypted and on the subscription: no two plaintexts have the same.
func ephemeral(entropy []byte, seed uuid.UUID, s subscription, plaintext []byte) (salt []byte, key *ecdh.PrivateKey, err error) {
	mac := hmac.New(sha256.New, entropy)
	for _, part := range [][]byte{seed[:], s.public.Bytes(), s.auth, plaintext} { // all but the last have a fixed length
		mac.Write(part)
	}
	secret := mac.Sum(nil)
	if salt, err = hkdf.Expand(sha256.New, secret, "salt", saltLength); err != nil {
		return nil, nil, fmt.Errorf("derive a salt: %w", err)
	}
	for i := range 8 { // one of 2^32 texts is no key
		raw, err := hkdf.Expand(sha256.New, secret, fmt.Sprintf("key %d", i), 32)
		if err != nil {
			return nil, nil, fmt.Errorf("derive a key: %w", err)
		}
		if key, err = ecdh.P256().NewPrivateKey(raw); err == nil {
			return salt, key, nil
		}
	}
	return nil, nil, errors.New("derive a key: none of P-256")
}

// encrypt writes a plaintext as one record of aes128gcm (RFC 8291, 3.4; RFC 8188, 2).
func encrypt(s subscription, plaintext, salt []byte, key *ecdh.PrivateKey) ([]byte, error) {
	shared, err := key.ECDH(s.public)
	if err != nil {
		return nil, fmt.Errorf("agree on a key: %w", err)
	}
	own := key.PublicKey().Bytes()
	input, err := hkdf.Key(sha256.New, shared, s.auth, sharedInfo+string(s.public.Bytes())+string(own), 32)
	if err != nil {
		return nil, fmt.Errorf("derive a key: %w", err)
	}
	secret, err := hkdf.Extract(sha256.New, input, salt)
	if err != nil {
		return nil, fmt.Errorf("derive a key: %w", err)
	}
	content, err1 := hkdf.Expand(sha256.New, secret, keyInfo, 16)
	nonce, err2 := hkdf.Expand(sha256.New, secret, nonceInfo, 12)
	block, err3 := aes.NewCipher(content)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, fmt.Errorf("derive a key: %w", err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("encrypt: %w", err)
	}
	body := make([]byte, 0, len(plaintext)+overhead)
	body = append(body, salt...)
	body = binary.BigEndian.AppendUint32(body, mostBody)
	body = append(append(body, byte(len(own))), own...)
	record := append(append(make([]byte, 0, len(plaintext)+1), plaintext...), 2) // 2: the last record
	return gcm.Seal(body, nonce, record, nil), nil
}

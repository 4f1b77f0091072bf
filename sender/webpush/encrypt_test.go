package webpush

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"lemma/sender/es256"
)

func raw(t *testing.T, text string) []byte {
	t.Helper()
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The example of RFC 8291, section 5 and appendix A.
func TestExampleOfRFC8291(t *testing.T) {
	t.Parallel()
	s, err := readSubscription(`{"endpoint":"https://push.example.net/push/JzLQ3raZJfFBR0aqvOMsLrt54w4rJUsV","keys":{` +
		`"p256dh":"BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",` +
		`"auth":"BTBZMqHH6r4Tts7J_aSIgg"}}`)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdh.P256().NewPrivateKey(raw(t, "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"))
	if err != nil {
		t.Fatal(err)
	}
	plaintext := "When I grow up, I want to be a watermelon"
	got, err := encrypt(s, []byte(plaintext), raw(t, "DGv6ra1nlYgDCS1FRnbzlw"), key)
	want := "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6c" +
		"VPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
	if text := base64.RawURLEncoding.EncodeToString(got); err != nil || text != want {
		t.Fatalf("%v\n%s, want\n%s", err, text, want)
	}
	browser, err := ecdh.P256().NewPrivateKey(raw(t, "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94"))
	if err != nil {
		t.Fatal(err)
	}
	if back, err := decrypt(got, browser, raw(t, "BTBZMqHH6r4Tts7J_aSIgg")); err != nil || string(back) != plaintext {
		t.Errorf("%v: %q", err, back)
	}
}

// decrypt is what a browser does, written from RFC 8291, 3.4 and RFC 8188, 2 without
// package hkdf.
func decrypt(body []byte, browser *ecdh.PrivateKey, auth []byte) ([]byte, error) {
	if len(body) < 86 || body[20] != 65 {
		return nil, fmt.Errorf("a header of %d bytes", len(body))
	}
	salt, size, own, record := body[:16], binary.BigEndian.Uint32(body[16:20]), body[21:86], body[86:]
	sender, err := ecdh.P256().NewPublicKey(own)
	if err != nil {
		return nil, err
	}
	shared, err := browser.ECDH(sender)
	if err != nil {
		return nil, err
	}
	sum := func(key []byte, parts ...[]byte) []byte {
		mac := hmac.New(sha256.New, key)
		for _, p := range parts {
			mac.Write(p)
		}
		return mac.Sum(nil)
	}
	input := sum(sum(auth, shared), []byte("WebPush: info\x00"), browser.PublicKey().Bytes(), own, []byte{1})
	secret := sum(salt, input)
	block, err := aes.NewCipher(sum(secret, []byte("Content-Encoding: aes128gcm\x00\x01"))[:16])
	if err != nil {
		return nil, err
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	text, err := gcm.Open(nil, sum(secret, []byte("Content-Encoding: nonce\x00\x01"))[:12], record, nil)
	if err != nil || len(record) > int(size) || len(text) == 0 || text[len(text)-1] != 2 {
		return nil, fmt.Errorf("%w: a record of %d bytes: %q", err, len(record), text)
	}
	return text[:len(text)-1], nil
}

// Salt and key repeat only for the same plaintext, subscription, seed and account.
func TestSaltsAndKeysNeverRepeatForAnotherPlaintext(t *testing.T) {
	t.Parallel()
	one, other := mustRead(t, 1), mustRead(t, 2)
	key, _ := es256.Parse(bytes.Repeat([]byte{7}, 32))
	entropy, _ := entropyOf(key.Bytes())
	rotated, _ := entropyOf(bytes.Repeat([]byte{8}, 32))
	seen := map[string]string{}
	for _, c := range []struct {
		name    string
		entropy []byte
		seed    uuid.UUID
		msg     string
		to      subscription
	}{
		{"the first", entropy, uuid.UUID{1}, "a", one}, {"another plaintext", entropy, uuid.UUID{1}, "b", one},
		{"another seed", entropy, uuid.UUID{2}, "a", one}, {"another subscription", entropy, uuid.UUID{1}, "a", other},
		{"another account", rotated, uuid.UUID{1}, "a", one},
	} {
		for range 2 {
			salt, private, err := ephemeral(c.entropy, c.seed, c.to, []byte(c.msg))
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range [][]byte{salt, private.Bytes()} {
				if before, is := seen[string(part)]; is && before != c.name {
					t.Errorf("%s repeats what %s has", c.name, before)
				}
				seen[string(part)] = c.name
			}
		}
	}
	if len(seen) != 10 {
		t.Errorf("%d salts and keys of 5 messages: the second attempt has others", len(seen))
	}
}

func mustRead(t *testing.T, n int) subscription {
	t.Helper()
	s, err := readSubscription(address(n))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

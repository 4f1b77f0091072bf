package trace

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
)

const testSecret = `s3cr"et & wörd/+`

// A secret is removed in every encoding, alone and inside of a longer text that is
// encoded.
func TestSecretsAreRemovedInEveryEncoding(t *testing.T) {
	t.Parallel()
	secrets, _ := json.Marshal(map[string]any{"a": map[string]any{"b": []string{"other", testSecret}}})
	r := newRedactor(secrets)
	quoted, _ := json.Marshal(testSecret)
	std, web := base64.StdEncoding, base64.RawURLEncoding
	for name, text := range map[string]string{
		"plain": testSecret, "JSON": strings.Trim(string(quoted), `"`), "form": url.QueryEscape(testSecret), "path": url.PathEscape(testSecret),
		"hex": hex.EncodeToString([]byte(testSecret)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(testSecret))),
		"base64": std.EncodeToString([]byte(testSecret)), "base64url": web.EncodeToString([]byte(testSecret)),
		"AUTH PLAIN": std.EncodeToString([]byte("\x00lemma\x00" + testSecret)),
		"base64, 1":  std.EncodeToString([]byte("x" + testSecret + "yy")), "base64, 2": web.EncodeToString([]byte("xx" + testSecret + "y")),
	} {
		if got := r.text("before " + text + " after"); got != "before [redacted] after" {
			t.Errorf("%s: %s", name, got)
		}
	}
	got := r.text("nothing that is secret, c2VjcmV0IGFsaWtl, and another") // "other" is a secret
	if got != "nothing that is secret, c2VjcmV0IGFsaWtl, and an[redacted]" {
		t.Errorf("too much is removed: %s", got)
	}
}

// Of a key file, what names the servers is shown.
func TestNamesOfAKeyFileAreShown(t *testing.T) {
	t.Parallel()
	r := newRedactor([]byte(`{"service_account": {"type": "service_account", "project_id": "shop", "private_key": "-----BEGIN\nABCDEFGH\n",
		"token_uri": "https://oauth2.example/token", "universe_domain": "example"}, "headers": {"type": "hidden"}}`))
	got := r.text("POST https://oauth2.example/token shop service_account ABCDEFGH hidden")
	if got != "POST https://oauth2.example/token shop service_account [redacted] [redacted]" {
		t.Error(got)
	}
}

// A JSON Web Token is removed whole, though a part of it contains a secret.
func TestASignatureIsRemovedWithItsToken(t *testing.T) {
	t.Parallel()
	r := newRedactor([]byte(`{"client_email": "lemma@shop.example"}`))
	claims := base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"lemma@shop.example"}`))
	if got := r.text("assertion: eyJhbGciOiJSUzI1NiJ9." + claims + ".c2lnbmF0dXJl end"); got != "assertion: [redacted] end" {
		t.Error(got)
	}
}

// Random secrets inside of random texts are removed from the base64 of these.
func TestRandomSecretsAreRemoved(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	bytes := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(33 + random.IntN(90))
		}
		return string(b)
	}
	for range 2000 {
		secret := bytes(6 + random.IntN(40))
		text := bytes(random.IntN(9)) + secret + bytes(random.IntN(9))
		r := redactor{}
		r.add(secret)
		for _, e := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
			if got := r.text("(" + e.EncodeToString([]byte(text)) + ")"); got != "([redacted])" {
				t.Fatalf("%q in %q: %s", secret, text, got)
			}
		}
	}
}

// Texts that look like credentials are removed, though the account does not have them:
// tokens that it received, and what a server adds.
func TestCredentialsAreRemoved(t *testing.T) {
	t.Parallel()
	r := redactor{}
	for text, want := range map[string]string{
		`{"access_token": "ya29.a0Af", "expires_in": 3599}`:            `{"access_token": "[redacted]", "expires_in": 3599}`,
		`{"refreshToken":"a\"b","x":1}`:                                `{"refreshToken":"[redacted]","x":1}`,
		`grant_type=jwt&assertion=eyJhbGciOi.eyJpc3MiOi.c2ln`:          `grant_type=jwt&assertion=[redacted]`,
		`a eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJhIn0.c2lnbmF0dXJl b`:        `a [redacted] b`,
		`authorization: Bearer abcdefghijklmnop1234`:                   `authorization: Bearer [redacted]`,
		"-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----": `[redacted]`,
		"-----BEGIN EC PRIVATE KEY-----\nMIIE":                         `[redacted]`,
		`Basic authentication required`:                                `Basic authentication required`,
		`250 2.0.0 Ok: queued as ABC123`:                               `250 2.0.0 Ok: queued as ABC123`,
	} {
		if got := r.text(text); got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// A trace is bounded, and a secret is recognised before its text is cut.
func TestATraceIsBounded(t *testing.T) {
	t.Parallel()
	trace := New([]byte(`{"password":"` + strings.Repeat("p", 50) + `"}`))
	trace.SentBody(strings.Repeat("x", mostStepText-20)+strings.Repeat("p", 50), 7)
	for range mostSteps {
		trace.Received(PartBody, strings.Repeat("y", 1000))
	}
	steps, truncated := trace.Steps()
	total := 0
	for _, s := range steps {
		total += len(s.Text)
	}
	if !truncated || total > mostTraceText || len(steps) > mostSteps || strings.Contains(steps[0].Text, "pp") || steps[0].Bytes != 7 {
		t.Errorf("%d bytes in %d steps, truncated %v", total, len(steps), truncated)
	}
	var none *Trace
	none.Connected("a")
	none.Secret("b")
	if got := none.Redact("c"); got != "c" {
		t.Error(got)
	}
}

package redact

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"lemma"
)

const testSecret = `s3cr"et & wörd/+`

// A secret is removed in every encoding, alone and inside of a longer text that is
// encoded.
func TestSecretsAreRemovedInEveryEncoding(t *testing.T) {
	t.Parallel()
	secrets, _ := json.Marshal(map[string]any{"a": map[string]any{"b": []string{"other", testSecret}}})
	r := Of(secrets)
	quoted, _ := json.Marshal(testSecret)
	std, web := base64.StdEncoding, base64.RawURLEncoding
	for name, text := range map[string]string{
		"plain": testSecret, "JSON": strings.Trim(string(quoted), `"`), "form": url.QueryEscape(testSecret), "path": url.PathEscape(testSecret),
		"hex": hex.EncodeToString([]byte(testSecret)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(testSecret))),
		"base64": std.EncodeToString([]byte(testSecret)), "base64url": web.EncodeToString([]byte(testSecret)),
		"AUTH PLAIN": std.EncodeToString([]byte("\x00lemma\x00" + testSecret)),
		"base64, 1":  std.EncodeToString([]byte("x" + testSecret + "yy")), "base64, 2": web.EncodeToString([]byte("xx" + testSecret + "y")),
	} {
		if got := r.Text("before " + text + " after"); got != "before [redacted] after" {
			t.Errorf("%s: %s", name, got)
		}
	}
	for _, text := range []string{"nothing that is secret, c2VjcmV0IGFsaWtl, and another", `s3cr3t"et & wörd`, testSecret[1:],
		"100% + \\ eyJ"} {
		if got := r.Text(text); got != text {
			t.Errorf("too much is removed of %q: %q", text, got)
		}
	}
}

// escaped is a text as the libraries of other languages may write it in JSON: without the
// escapes of HTML, with those of slashes, and with ASCII only.
func escaped(text string) (all []string) {
	var out strings.Builder
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	_ = e.Encode(text)
	plain := strings.Trim(out.String(), "\"\n")
	all = append(all, plain, strings.ReplaceAll(plain, "/", `\/`))
	ascii := ""
	for _, unit := range utf16.Encode([]rune(text)) {
		ascii += fmt.Sprintf(`\u%04x`, unit)
	}
	return append(all, ascii)
}

// The spellings that an encoding allows are all found.
func TestEverySpellingIsFound(t *testing.T) {
	t.Parallel()
	const secret = "a+b c/\U0001f511\"d%\\ef"
	r := Of([]byte(`{"password":` + strconv.Quote(secret) + `}`))
	path := url.PathEscape(secret)
	texts := append(escaped(secret), url.QueryEscape(secret), path, strings.ToLower(url.QueryEscape(secret)),
		strings.ReplaceAll(url.QueryEscape(secret), "+", "%20"), strings.ReplaceAll(path, "+", "%2B"))
	for _, text := range texts {
		if got := r.Text("(" + text + ")"); got != "([redacted])" {
			t.Errorf("%s: %s", text, got)
		}
	}
	for _, text := range []string{strconv.Quote(escaped(secret)[0]), url.QueryEscape(url.QueryEscape(secret)),
		url.PathEscape(strconv.Quote(secret)), strconv.Quote(url.QueryEscape(secret))} {
		if got := r.Text("(" + text + ")"); strings.Trim(got, `()%2"`) != "[redacted]" {
			t.Errorf("%s: %s", text, got)
		}
	}
	all := strings.Join(texts, " ")
	if got := r.Text(all); got != strings.TrimSpace(strings.Repeat("[redacted] ", len(texts))) {
		t.Errorf("%s: %s", all, got)
	}
}

// A blank is + in a form, also without other escapes, and an escape may be the end.
func TestBlanksAndEndsAreDecoded(t *testing.T) {
	t.Parallel()
	r := Of([]byte(`["correct horse","the last one \u00f6"]`))
	if got := r.Text(`a correct+horse b`) + r.Text(`(the last one \u00f6)`); got != "a [redacted] b([redacted])" {
		t.Error(got)
	}
}

// A short secret is a whole word, and a shorter one is not searched.
func TestShortSecretsAreWholeWords(t *testing.T) {
	t.Parallel()
	r := Of([]byte(`{"password":"s3cure7","headers":{"X-A":"pin","X-B":"shop"}}`))
	inside := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	for text, want := range map[string]string{
		"pin s3cure7, the shop": "pin [redacted], the [redacted]", "s3cure7": "[redacted]", "as3cure7 s3cure7x shopping bishop": "",
		inside("\x00lemma\x00s3cure7"): "[redacted]", inside("a s3cure7 b"): "[redacted]", inside("as3cure7"): "", inside("s3cure7s"): "",
		inside("xx s3cure7") + "?": "[redacted]?", hex.EncodeToString([]byte("s3cure7")): "[redacted]", "user=s3cure7&": "user=[redacted]&",
		hex.EncodeToString([]byte("pin")): "", "%73%33cure7": "[redacted]", `s3\u0063ure7.`: "[redacted].",
	} {
		if want == "" {
			want = text
		}
		if got := r.Text(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// What names something is no secret, although some kinds have it among their secrets. It is
// in normal answers.
func TestPublicMembersStay(t *testing.T) {
	t.Parallel()
	const google = `{"service_account":{"type":"service_account","project_id":"shop-1234","private_key_id":"6f1e0c5a9d",
		"private_key":"-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkq\n-----END PRIVATE KEY-----\n","client_id":"1234567890",
		"client_email":"lemma@shop-1234.iam.gserviceaccount.com","token_uri":"https://oauth2.googleapis.com/token",
		"universe_domain":"googleapis.com"}}`
	for _, c := range [][3]string{
		{google, "projects/shop-1234/messages/0:1234567890 lemma@shop-1234.iam.gserviceaccount.com 6f1e0c5a9d googleapis.com", ""},
		{google, "key MIIEvQIBADANBgkq", "key [redacted]"},
		{`{"access_key_id":"AKIDEXAMPLE123456789","secret_access_key":"wJalrXUtnFEMI"}`, "no AKIDEXAMPLE123456789", ""},
		{`{"access_key_id":"AKIDEXAMPLE123456789","secret_access_key":"wJalrXUtnFEMI"}`, "no wJalrXUtnFEMI", "no [redacted]"},
		{`{"api_key_sid":"SK0123456789abcdef","api_key_secret":"0123456789abcdef"}`, "no SK9876543210fedcba SK0123456789abcdee", ""},
		{`{"headers":{"access_key_id":"0123456789abcdef"}}`, "no 0123456789abcdef", "no [redacted]"},
		{`{"private_key":"AAAAAAAAAAAA","client_id":"BBBBBBBBBBBB"}`, "AAAAAAAAAAAA BBBBBBBBBBBB", "[redacted] [redacted]"},
	} {
		if c[2] == "" {
			c[2] = c[1]
		}
		if got := Of([]byte(c[0])).Text(c[1]); got != c[2] {
			t.Errorf("%s: %s", c[0], got)
		}
	}
	if got := AllOf([]byte(google)).Text("lemma@shop-1234.iam.gserviceaccount.com of shop-1234"); got != "[redacted] of shop-1234" {
		t.Errorf("a trace shows %s", got)
	}
}

// A server may repeat a credential without the scheme of its header, or a signing secret
// without its prefix, or its bytes.
func TestPartsOfSecretsAreRemoved(t *testing.T) {
	t.Parallel()
	key := []byte("0123456789abcdef0123456789abcdef")
	r := Of([]byte(`{"signing_secret":"whsec_` + base64.StdEncoding.EncodeToString(key) + `","headers":{"Authorization":"Bearer tok-5e9e-dead",
		"Proxy-Authorization":"Basic ` + base64.StdEncoding.EncodeToString([]byte("lemma:hunter2-hunter3")) + `"}}`))
	for text, want := range map[string]string{
		"token tok-5e9e-dead": "token [redacted]", "password hunter2-hunter3 of lemma": "password [redacted] of lemma",
		base64.StdEncoding.EncodeToString(key): "[redacted]", "(" + base64.StdEncoding.EncodeToString(key)[:43] + ")": "([redacted])",
		hex.EncodeToString([]byte(base64.StdEncoding.EncodeToString(key))): "[redacted]",
		hex.EncodeToString(key): "[redacted]", "Bearer of news": "Bearer of news",
	} {
		if got := r.Text(text); got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// Of a long secret only the beginning of its encoded forms is searched, and all is removed.
func TestLongSecretsAreRemovedWhole(t *testing.T) {
	t.Parallel()
	key := benchKey()
	r := Of(fmt.Appendf(nil, `{"dkim_private_key":%q}`, key))
	for _, text := range []string{hex.EncodeToString([]byte(key)), base64.StdEncoding.EncodeToString([]byte("a" + key)), url.QueryEscape(key),
		base64.StdEncoding.EncodeToString([]byte(strings.ReplaceAll(key, "\n", "\r\n")))} {
		if got := r.Text("(" + text + ")."); got != "([redacted])." {
			t.Errorf("%.100s: %s", text, got)
		}
	}
	if got := r.Text(key); strings.Trim(got, "\n") != "[redacted]" {
		t.Error(got)
	}
	lines := strings.Split(key, "\n")
	if got := r.Text("a " + lines[3] + " b"); got != "a [redacted] b" {
		t.Error(got)
	}
}

// Ids that contain a secret stay different, and do not show it.
func TestIDsStayDifferent(t *testing.T) {
	t.Parallel()
	r, other := Of([]byte(`{"webhook_secret":"0123456789abcdef"}`)), Of([]byte(`{"webhook_secret":"0123456789abcdef","a":"b"}`))
	encoded := func(text string) string {
		return base64.RawURLEncoding.EncodeToString([]byte(text + "0123456789abcdef"))
	}
	first, second := r.ID(encoded("event-1")), r.ID(encoded("event-2"))
	if first == second || first != r.ID(encoded("event-1")) || strings.Contains(first, "ZXZlbnQ") || r.ID("event-1") != "event-1" {
		t.Errorf("%s and %s", first, second)
	}
	if r.ID("0123456789abcdef") == other.ID("0123456789abcdef") {
		t.Error("the hash has no key, so that a short secret can be guessed")
	}
	shop := Of([]byte(`["shop"]`))
	if !r.InAddress("0123456789abcdef@shop.example") || r.InAddress("ada@shop.example") || shop.InAddress("ada@shop.example") {
		t.Error("addresses")
	}
}

// A token that was received is removed, and only the last few are kept.
func TestLearnedTokensAreRemoved(t *testing.T) {
	t.Parallel()
	r := Of(nil)
	for i := range 3 * mostLearned {
		r.Learn(fmt.Sprintf("ya29.token-%04d", i))
	}
	if got := r.Text("no ya29.token-0011, ya29.token-0010"); got != "no [redacted], [redacted]" || len(r.last) != mostLearned {
		t.Error(got, r.last)
	}
}

// The text and the fields of an error have no secret, and the error is still found.
func TestErrorsAreCleaned(t *testing.T) {
	t.Parallel()
	r := Of([]byte(`{"password":"hunter2-hunter3"}`))
	cause := fmt.Errorf("malformed answer %q: %w", "a hunter2-hunter3", io.ErrUnexpectedEOF)
	err := r.Error(fmt.Errorf("read: %w", &lemma.Error{Kind: lemma.Conflict, Message: "no hunter2-hunter3", Cause: cause,
		Fields: []lemma.Field{{Pointer: "/hunter2-hunter3", Detail: "is hunter2-hunter3"}}}))
	found, ok := errors.AsType[*lemma.Error](err)
	if !ok || !errors.Is(err, io.ErrUnexpectedEOF) || lemma.KindOf(err) != lemma.Conflict || errors.Is(err, io.EOF) {
		t.Error("the error is not found")
	}
	if all := fmt.Sprintf("%v %+v %v", err, *found, found.Cause); strings.Contains(all, "hunter") {
		t.Error(all)
	}
	if r.Error(io.EOF) != io.EOF || r.Error(nil) != nil || (*Secrets)(nil).Error(cause) != cause {
		t.Error("an error without a secret is changed")
	}
}

// A text that repeats parts of secrets costs no more than another.
func TestRepetitionIsCheap(t *testing.T) {
	t.Parallel()
	long := Of([]byte(`["` + strings.Repeat("a", 4000) + `b","` + strings.Repeat("a", 4000) + `"]`))
	short := Of([]byte(`["aaaaaa","` + strings.Repeat("a", 4000) + `b"]`))
	began := time.Now()
	for _, text := range []string{strings.Repeat("a", 64<<10), strings.Repeat("YWFhYWFh", 8<<10), strings.Repeat("%61", 20<<10),
		strings.Repeat("616161", 10<<10), strings.Repeat(`\u0061`, 10<<10)} {
		long.Text(text)
		short.Text(text)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
}

// BenchmarkAccepted is the cost of an accepted message.
func BenchmarkAccepted(b *testing.B) {
	r := Of([]byte(`{"password":"correct-horse-battery","webhook_secret":"whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
		"dkim_private_key":"` + strings.ReplaceAll(benchKey(), "\n", `\n`) + `"}`))
	text := "2.0.0 Ok: queued as 4bXyZ1234567 (id 1tGx2A-000abc-Qd) by mx1"
	b.Run("text", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r.Text(text)
		}
	})
	b.Run("bytes", func(b *testing.B) {
		b.ReportAllocs()
		bytes := []byte(text)
		for b.Loop() {
			r.Bytes(bytes)
		}
	})
}

// benchKey is text like a key in PEM, which has the most lines.
func benchKey() string {
	random := rand.New(rand.NewPCG(3, 4))
	lines := []string{"-----BEGIN PRIVATE KEY-----"}
	for range 27 {
		raw := make([]byte, 48)
		for i := range raw {
			raw[i] = byte(random.IntN(256))
		}
		lines = append(lines, base64.StdEncoding.EncodeToString(raw))
	}
	return strings.Join(append(lines, "-----END PRIVATE KEY-----"), "\n")
}

// Of a key file, what names the servers is shown.
func TestNamesOfAKeyFileAreShown(t *testing.T) {
	t.Parallel()
	r := Of([]byte(`{"service_account": {"type": "service_account", "project_id": "shop", "private_key": "-----BEGIN\nABCDEFGH\n",
		"token_uri": "https://oauth2.example/token", "universe_domain": "example"}, "headers": {"type": "hidden"}}`))
	got := r.Text("POST https://oauth2.example/token shop service_account ABCDEFGH hidden")
	if got != "POST https://oauth2.example/token shop service_account [redacted] [redacted]" {
		t.Error(got)
	}
}

// A JSON Web Token is removed whole, though a part of it contains a secret.
func TestASignatureIsRemovedWithItsToken(t *testing.T) {
	t.Parallel()
	r := Of([]byte(`{"client_email": "lemma@shop.example"}`))
	claims := base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"lemma@shop.example"}`))
	if got := r.Text("assertion: eyJhbGciOiJSUzI1NiJ9." + claims + ".c2lnbmF0dXJl end"); got != "assertion: [redacted] end" {
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
		secret := bytes(8 + random.IntN(40))
		text := bytes(random.IntN(9)) + secret + bytes(random.IntN(9))
		r := AllOf(nil)
		r.Add(secret)
		for _, e := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
			if got := r.Text("(" + e.EncodeToString([]byte(text)) + ")"); got != "([redacted])" {
				t.Fatalf("%q in %q: %s", secret, text, got)
			}
		}
	}
}

// Texts that look like credentials are removed, though the account does not have them:
// tokens that it received, and what a server adds.
func TestCredentialsAreRemoved(t *testing.T) {
	t.Parallel()
	r := Of(nil)
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
		if got := r.Conversation(text); got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// Secrets that begin alike, and many of them, cost neither time nor memory without a bound: what
// cannot be searched is removed as a whole.
func TestManySecrets(t *testing.T) {
	t.Parallel()
	lines := func(n int) string {
		var all strings.Builder
		for i := range n {
			fmt.Fprintf(&all, "aaaa%04d\n", i)
		}
		text, _ := json.Marshal(map[string]string{"dkim_private_key": all.String()})
		return string(text)
	}
	many := Of([]byte(lines(7_000)))
	for text, want := range map[string]string{"": "", "250 OK": Redacted, "aaaa0001": Redacted} {
		if got := many.Text(text); got != want {
			t.Errorf("%q becomes %q", text, got)
		}
	}
	if len(many.fixed.first) > 9*mostSecrets {
		t.Errorf("%d forms", len(many.fixed.first))
	}
	few := Of([]byte(lines(mostSecrets - 2)))
	begun := time.Now()
	if got := few.Text(strings.Repeat(`aaaa%2541\u005c`, 5_000)); got != Redacted {
		t.Errorf("%.40q...", got)
	}
	if took := time.Since(begun); took > 2*time.Second {
		t.Error(took)
	}
	if got := few.Text("550 aaaa0001 no"); got != "550 "+Redacted+" no" {
		t.Error(got)
	}
}

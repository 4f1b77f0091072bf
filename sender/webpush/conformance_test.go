package webpush

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"lemma/sender"
	"lemma/sender/es256"
	"lemma/sender/sendertest"
	"lemma/sender/wire"
)

const service = "https://push.example" // in the subscriptions of the tests

// testKey is the VAPID key of the tests.
var testKey, testPublic = func() (private, public string) {
	key, ok := es256.Parse(bytes.Repeat([]byte{7}, 32))
	if !ok {
		panic("no key")
	}
	return base64.RawURLEncoding.EncodeToString(key.Bytes()), base64.RawURLEncoding.EncodeToString(key.Public())
}()

// browser is the nth recipient's key and secret.
func browser(n int) (*ecdh.PrivateKey, []byte) {
	sum := sha256.Sum256([]byte(strconv.Itoa(n)))
	key, err := ecdh.P256().NewPrivateKey(sum[:])
	if err != nil {
		panic(err)
	}
	return key, sum[:authLength]
}

// address is the nth recipient's subscription.
func address(n int) string {
	key, auth := browser(n)
	return fmt.Sprintf(`{"endpoint":"%s/send/%06d?a=b","keys":{"auth":%q,"p256dh":%q}}`, service, n,
		base64.RawURLEncoding.EncodeToString(auth), base64.RawURLEncoding.EncodeToString(key.PublicKey().Bytes()))
}

// at is a carrier whose recipients have their push service at a test's server.
type at struct {
	*carrier
	url string
}

func (a at) Send(ctx context.Context, messages []sender.Message) []sender.Receipt {
	moved := append([]sender.Message(nil), messages...)
	for i := range moved {
		moved[i].To = strings.Replace(moved[i].To, service, a.url, 1)
	}
	return a.carrier.Send(ctx, moved)
}

func accountAt(t *testing.T, s *sendertest.HTTPServer, more string) at {
	t.Helper()
	c, err := open(sender.Account{Trace: s.Trace, Secrets: fmt.Appendf(nil, `{"vapid_private_key":%q}`, testKey), Config: fmt.Appendf(nil,
		`{"subject":"mailto:push@shop.example","vapid_public_key":%q,"timeout_seconds":4%s}`, testPublic, more)},
		wire.Operator{AllowStrange: true, ShowPrivate: !s.Hides, Roots: s.Roots, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return at{c, s.URL}
}

func numberOf(r sendertest.Received) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(r.Path, "/send/"))
	return n
}

func recipient(r sendertest.Received) string { return address(numberOf(r)) }

// same is a request without the token, which changes with time.
func same(r sendertest.Received) []byte {
	r.Header = r.Header.Clone()
	r.Header.Del("Authorization")
	raw, _ := json.Marshal([]any{r.Path, r.Query, r.Header, r.Body})
	return raw
}

// verify returns what is wrong with a request by RFC 8030, 8291 and 8292.
func verify(r sendertest.Received) error {
	for name, form := range map[string]string{"Ttl": `^\d+$`, "Urgency": `^(very-low|low|normal|high)$`, "Content-Encoding": `^aes128gcm$`,
		"Topic": `^[A-Za-z0-9_-]{1,32}$`, "Content-Type": `^application/octet-stream$`} {
		if values := r.Header.Values(name); len(values) != 1 || !regexp.MustCompile(form).MatchString(values[0]) {
			return fmt.Errorf("%s: %q", name, values)
		}
	}
	match := regexp.MustCompile(`^vapid t=([\w.-]+), k=([\w-]+)$`).FindStringSubmatch(r.Header.Get("Authorization"))
	if match == nil || match[2] != testPublic {
		return fmt.Errorf("authorization %q", r.Header.Get("Authorization"))
	}
	if err := verifyToken(match[1], "https://"+r.Host, time.Now()); err != nil {
		return err
	}
	if _, err := opened(r); err != nil || len(r.Body) > 4096 || r.Query != "a=b" {
		return fmt.Errorf("%w, %d bytes, query %q", err, len(r.Body), r.Query)
	}
	return nil
}

// opened is the payload of a request, as the browser decrypts it.
func opened(r sendertest.Received) (one declarative, err error) {
	key, auth := browser(numberOf(r))
	plaintext, err := decrypt(r.Body, key, auth)
	if err != nil {
		return one, err
	}
	return one, json.Unmarshal(plaintext, &one)
}

func verifyToken(token, audience string, now time.Time) error {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return fmt.Errorf("a token of %d parts", len(parts))
	}
	var decoded [3][]byte
	for i, part := range parts {
		var err error
		if decoded[i], err = base64.RawURLEncoding.DecodeString(part); err != nil {
			return err
		}
	}
	var header struct{ Typ, Alg string }
	var claims struct {
		Aud, Sub string
		Exp      int64
	}
	if err := json.Unmarshal(decoded[0], &header); err != nil {
		return err
	}
	if err := json.Unmarshal(decoded[1], &claims); err != nil {
		return err
	}
	left := time.Unix(claims.Exp, 0).Sub(now)
	if header.Alg != "ES256" || claims.Aud != audience || claims.Sub != "mailto:push@shop.example" || left <= 0 || left > 24*time.Hour {
		return fmt.Errorf("%+v, %+v for %s", header, claims, audience)
	}
	point, _ := base64.RawURLEncoding.DecodeString(testPublic)
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if err != nil || len(decoded[2]) != 64 ||
		!ecdsa.Verify(public, sum[:], new(big.Int).SetBytes(decoded[2][:32]), new(big.Int).SetBytes(decoded[2][32:])) {
		return fmt.Errorf("%w: the signature is wrong", err)
	}
	return nil
}

func TestConformance(t *testing.T) {
	t.Parallel()
	cases := append(documented(), sendertest.OtherAnswers(func(status int) sender.Receipt {
		switch {
		case status >= 500:
			return sender.Receipt{Outcome: sender.Unknown, Reason: "server_error", Code: status}
		case status >= 300:
			return sender.Receipt{Outcome: sender.NotAccepted, Reason: "redirected", Code: status}
		}
		return sender.Receipt{Outcome: sender.Accepted}
	})...)
	sendertest.HTTPConformance(t, sendertest.HTTPHarness{
		Open: func(t *testing.T, s *sendertest.HTTPServer) sender.Carrier { return accountAt(t, s, "") },
		To:   recipient, Same: same, Address: address, Reasons: sendertest.Reasons(t, "webpush.go", "../wire/wire.go"), Cases: cases,
		Verify: verify, OfRecipient: true,
		Replies: map[sendertest.Behaviour]sendertest.Reply{
			sendertest.Accept: {Status: 201, Header: map[string]string{"Location": "https://push.example/message/qDIYHNcfAIPP"}},
			sendertest.Reject: {Status: 410, Body: `{"code":410,"errno":106,"error":"","message":"Endpoint has expired"}`},
			sendertest.Refuse: {Status: 429, Body: `{"reason":"TooManyRequests"}`},
		},
	})
}

// documented are the answers of the table in the package's comment.
func documented() (cases []sendertest.HTTPCase) {
	add := func(outcome sender.Outcome, reason string, statuses ...int) {
		for _, status := range statuses {
			want := sender.Receipt{Outcome: outcome, Reason: reason, Code: status}
			if outcome == sender.Accepted {
				want.Code = 0
			}
			cases = append(cases, sendertest.HTTPCase{Name: strconv.Itoa(status), Want: want, Reply: sendertest.Reply{Status: status,
				Header: map[string]string{"Location": "https://push.example/elsewhere"}, Body: `{"message":"because"}`}})
		}
	}
	add(sender.Accepted, "", 201, 202)
	add(sender.Unknown, "protocol_error", 203, 206, 299)
	add(sender.Rejected, "token_unregistered", 404, 410)
	add(sender.Rejected, "message_rejected", 400)
	add(sender.Rejected, "message_too_large", 413)
	add(sender.NotAccepted, "vapid_refused", 401, 403)
	add(sender.NotAccepted, "throttled", 406, 429)
	add(sender.NotAccepted, "unavailable", 503)
	add(sender.NotAccepted, "request_refused", 402, 405, 408, 409, 415, 422, 425, 451)
	add(sender.NotAccepted, "redirected", 301, 302, 307, 308)
	add(sender.Unknown, "server_error", 500, 501, 502, 504)
	cases = append(cases, sendertest.HTTPCase{Name: "no answer", Reply: sendertest.Reply{Hang: true},
		Want: sender.Receipt{Outcome: sender.Unknown, Reason: "timeout"}})
	return cases
}

func FuzzAnswers(f *testing.F) {
	f.Add(201, "https://push.example/message/1", "")
	f.Add(410, "", `{"code":410,"errno":106,"message":"https://push.example/send/000002?a=b expired"}`)
	f.Add(403, "", `{"reason":"BadJwtToken"}`)
	f.Add(400, "000002", `{"message":null,"reason":3}`)
	f.Add(307, "https://push.example/send/000002?a=b", `[]`)
	s, err := readSubscription(address(2))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, status int, location, body string) {
		if status < 200 || status > 999 {
			return
		}
		r := receiptFor(&wire.Answer{Status: status, Header: http.Header{"Location": {location}}, Body: []byte(body), Whole: true}, s)
		switch {
		case r.Outcome == sender.Accepted && (status > 202 || r.Reason != ""), r.Provider, r.Definite,
			r.Outcome != sender.Accepted && (r.Reason == "" || r.Code != status), len(r.Detail) > 200 || len(r.CarrierID) > 200,
			strings.Contains(r.Detail+" "+r.CarrierID, "000002"):
			t.Errorf("%+v for %d %q %q", r, status, location, body)
		}
	})
}

func FuzzSubscriptions(f *testing.F) {
	f.Add(address(1))
	f.Add(`{"endpoint":"https://u:p@x/","keys":{"p256dh":"","auth":""}}`)
	f.Add(`{"endpoint":"https://[::1]:443/","keys":null}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, token string) {
		s, err := readSubscription(token)
		if err == nil && (s.endpoint.Scheme != "https" || s.endpoint.Host == "" || len(s.auth) != authLength || s.public == nil ||
			!strings.HasPrefix(s.audience(), "https://")) {
			t.Errorf("%+v for %q", s, token)
		}
	})
}

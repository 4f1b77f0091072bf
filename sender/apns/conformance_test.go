package apns

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"lemma/sender"
	"lemma/sender/sendertest"
	"lemma/sender/wire"
)

// testKey is a key as Apple issues it, and its public part.
var testKey, testPublic = func() (string, *ecdsa.PublicKey) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), &private.PublicKey
}()

const (
	testKeyID = "ABC123DEFG"
	testTeam  = "DEF123GHIJ"
	testTopic = "com.example.shop"
)

// address is the token of the nth device, in upper case as some apps write it.
func address(n int) string { return fmt.Sprintf("%064X", 0xabcdef00000000+n) }

func secrets() []byte {
	raw, _ := json.Marshal(map[string]string{"private_key": testKey})
	return raw
}

func accountAt(t *testing.T, s *sendertest.HTTPServer, more string) *carrier {
	t.Helper()
	c, err := open(sender.Account{Trace: s.Trace, Secrets: secrets(), Config: fmt.Appendf(nil,
		`{"key_id":%q,"team_id":%q,"topic":%q,"endpoint":%q,"timeout_seconds":4%s}`, testKeyID, testTeam, testTopic, s.URL, more)},
		wire.Operator{AllowPrivate: true, ShowPrivate: !s.Hides, Roots: s.Roots, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// verify returns what is wrong with a request by Apple's documentation.
func verify(r sendertest.Received) error {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "bearer ")
	if !ok {
		return fmt.Errorf("authorization %q", r.Header.Get("Authorization"))
	}
	issued, err := verifyToken(token)
	if age := time.Since(time.Unix(issued, 0)); err != nil || age < 0 || age > time.Hour {
		return fmt.Errorf("token: %w, %s old", err, age)
	}
	for name, form := range map[string]string{
		"Apns-Id":          `^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`,
		"Apns-Collapse-Id": `^.{1,64}$`, "Apns-Push-Type": `^alert$`, "Apns-Priority": `^(1|5|10)$`, "Apns-Expiration": `^\d+$`,
		"Apns-Topic": "^" + regexp.QuoteMeta(testTopic) + "$", "Content-Type": `^application/json$`,
	} {
		if values := r.Header.Values(name); len(values) != 1 || !regexp.MustCompile(form).MatchString(values[0]) {
			return fmt.Errorf("%s: %q", name, values)
		}
	}
	if !regexp.MustCompile(`^/3/device/[0-9a-f]{64}$`).MatchString(r.Path) || r.Query != "" || r.Proto != "HTTP/2.0" {
		return fmt.Errorf("%s %s?%s", r.Proto, r.Path, r.Query)
	}
	var body struct {
		APS struct{ Alert struct{ Body string } }
	}
	if err := json.Unmarshal(r.Body, &body); err != nil || body.APS.Alert.Body == "" || len(r.Body) > 4096 {
		return fmt.Errorf("%w: %s", err, r.Body)
	}
	return nil
}

// verifyToken checks a JSON Web Token by RFC 7515 and 7518, and returns its time.
func verifyToken(token string) (issued int64, err error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return 0, fmt.Errorf("%d parts", len(parts))
	}
	var raw [3][]byte
	for i, part := range parts {
		if raw[i], err = base64.RawURLEncoding.DecodeString(part); err != nil {
			return 0, err
		}
	}
	var header struct{ Alg, Kid string }
	var claims struct {
		Iss string
		Iat int64
	}
	if err := json.Unmarshal(raw[0], &header); err != nil {
		return 0, err
	}
	if err := json.Unmarshal(raw[1], &claims); err != nil {
		return 0, err
	}
	if header.Alg != "ES256" || header.Kid != testKeyID || claims.Iss != testTeam || len(raw[2]) != 64 {
		return 0, fmt.Errorf("%+v %+v", header, claims)
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if !ecdsa.Verify(testPublic, sum[:], new(big.Int).SetBytes(raw[2][:32]), new(big.Int).SetBytes(raw[2][32:])) {
		return 0, fmt.Errorf("the signature is wrong")
	}
	return claims.Iat, nil
}

func recipient(r sendertest.Received) string {
	return strings.ToUpper(strings.TrimPrefix(r.Path, "/3/device/"))
}

// same is a request without the token, which changes with time.
func same(r sendertest.Received) []byte {
	r.Header = r.Header.Clone()
	r.Header.Del("Authorization")
	raw, _ := json.Marshal([]any{r.Path, r.Header, string(r.Body)})
	return raw
}

// accept is APNs' answer to a notification of the tests.
func accept(r sendertest.Received) sendertest.Reply {
	return sendertest.Reply{Status: 200, Header: map[string]string{"apns-id": strings.ToUpper(r.Header.Get("Apns-Id"))}}
}

// refuse is an error as APNs answers it.
func refuse(status int, reason string) sendertest.Reply {
	one := sendertest.Reply{Status: status, Header: map[string]string{"apns-id": "eabeae54-14a8-11e5-b60b-1697f925ec7b"}}
	if reason != "" {
		one.Body = fmt.Sprintf(`{"reason":%q}`, reason)
	}
	if status == 410 {
		one.Body = fmt.Sprintf(`{"reason":%q,"timestamp":1629000000000}`, reason)
	}
	return one
}

func TestConformance(t *testing.T) {
	t.Parallel()
	cases := append(documented(), sendertest.OtherAnswers(sendertest.ByStatus)...)
	cases = append(cases,
		sendertest.HTTPCase{Name: "no answer", Reply: sendertest.Reply{Hang: true},
			Want: sender.Receipt{Outcome: sender.Unknown, Reason: "timeout"}},
		sendertest.HTTPCase{Name: "200 without an apns-id", Reply: sendertest.Reply{Status: 200},
			Want: sender.Receipt{Outcome: sender.Unknown, Reason: "protocol_error", Code: 200}},
		sendertest.HTTPCase{Name: "200 for another request", Reply: refuse(200, ""),
			Want: sender.Receipt{Outcome: sender.Unknown, Reason: "protocol_error", Code: 200}},
		sendertest.HTTPCase{Name: "throttled with Retry-After",
			Reply: sendertest.Reply{Status: 429, Header: map[string]string{"Retry-After": "3"}},
			Want:  sender.Receipt{Outcome: sender.NotAccepted, Provider: true, Reason: "throttled", Code: 429}})
	sendertest.HTTPConformance(t, sendertest.HTTPHarness{
		Open: func(t *testing.T, s *sendertest.HTTPServer) sender.Carrier { return accountAt(t, s, "") },
		To:   recipient, Same: same, Address: address, Reasons: sendertest.Reasons(t, "apns.go", "../wire/wire.go"), Cases: cases, OnlyH2: true,
		Verify: verify, AcceptAs: accept,
		Replies: map[sendertest.Behaviour]sendertest.Reply{
			sendertest.Reject: refuse(410, "Unregistered"), sendertest.Refuse: refuse(429, "TooManyRequests"),
		},
	})
}

// documented are the answers of the table in the package's comment.
func documented() (cases []sendertest.HTTPCase) {
	add := func(r sender.Receipt, answers ...string) {
		for _, a := range answers {
			text, reason, _ := strings.Cut(a, " ")
			status, _ := strconv.Atoi(text)
			r.Code = status
			cases = append(cases, sendertest.HTTPCase{Name: a, Reply: refuse(status, reason), Want: r})
		}
	}
	rejected := func(reason string) sender.Receipt { return sender.Receipt{Outcome: sender.Rejected, Reason: reason} }
	provider := func(reason string, definite bool) sender.Receipt {
		return sender.Receipt{Outcome: sender.NotAccepted, Provider: true, Definite: definite, Reason: reason}
	}
	refused := func(reason string) sender.Receipt { return sender.Receipt{Outcome: sender.NotAccepted, Reason: reason} }
	unknown := sender.Receipt{Outcome: sender.Unknown, Reason: "server_error"}
	add(rejected("token_unregistered"), "410 Unregistered", "410 ExpiredToken", "410", "410 NewReason")
	add(rejected("token_invalid"), "400 BadDeviceToken", "400 MissingDeviceToken", "404 BadPath")
	add(rejected("token_mismatch"), "400 DeviceTokenNotForTopic")
	add(rejected("message_too_large"), "413 PayloadTooLarge", "413")
	add(rejected("message_invalid"), "400 PayloadEmpty", "400 BadCollapseId", "400 BadExpirationDate", "400 BadMessageId",
		"400 BadPriority", "400 DuplicateHeaders", "400 InvalidPushType")
	add(provider("topic_refused", true), "400 BadTopic", "400 MissingTopic", "400 TopicDisallowed")
	add(provider("credentials_refused", true), "403 InvalidProviderToken", "403 MissingProviderToken", "403 BadEnvironmentKeyIdInToken",
		"403 BadEnvironmentKeyInToken", "403 BadCertificate", "403 BadCertificateEnvironment")
	add(provider("credentials_refused", false), "403 UnrelatedKeyIdInToken")
	add(provider("clock_skew", false), "403 ExpiredProviderToken")
	add(provider("access_denied", true), "403 Forbidden", "403", "403 NewReason")
	add(provider("not_found", true), "405 MethodNotAllowed", "404", "405")
	add(provider("throttled", false), "429 TooManyProviderTokenUpdates", "429", "429 NewReason")
	add(refused("device_throttled"), "429 TooManyRequests")
	add(provider("unavailable", false), "503 ServiceUnavailable", "503 Shutdown", "400 IdleTimeout", "503", "503 BadDeviceToken")
	add(refused("request_refused"), "400", "400 NewReason", "401", "408", "409 NewReason")
	add(unknown, "500 InternalServerError", "500", "502", "504", "500 BadDeviceToken", "400 InternalServerError")
	return cases
}

// Every reason in the code has a case, and so has its row in the table.
func TestEveryReasonIsDocumented(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("apns.go")
	if err != nil {
		t.Fatal(err)
	}
	tested := map[string]bool{}
	for _, c := range documented() {
		_, reason, _ := strings.Cut(c.Name, " ")
		tested[reason] = true
	}
	for reason := range reasons {
		if !regexp.MustCompile(`\b`+reason+`\b`).Match(source) || !tested[reason] {
			t.Errorf("%s is not documented, or not tested", reason)
		}
	}
}

func FuzzAnswers(f *testing.F) {
	f.Add(200, "", "")
	f.Add(200, messageID(&sender.Message{Notification: "ntf_1"}), "")
	f.Add(410, "", `{"reason":"Unregistered","timestamp":1629000000000}`)
	f.Add(400, "x", `{"reason":"BadDeviceToken"}`)
	f.Add(403, "", `{"reason":null}`)
	f.Add(429, "", `{"reason":["TooManyRequests"]}`)
	f.Add(307, "#", `[]`)
	f.Fuzz(func(t *testing.T, status int, id, body string) {
		if status < 200 || status > 999 {
			return
		}
		m := sender.Message{Notification: "ntf_1", To: address(2)}
		r := receiptFor(&wire.Answer{Status: status, Header: http.Header{"Apns-Id": {id}}, Body: []byte(body), Whole: true}, &m)
		if r.Outcome == sender.Accepted && (status != 200 || !strings.EqualFold(id, messageID(&m))) {
			t.Errorf("%+v for %d %q", r, status, body)
		}
		sendertest.CheckAnswer(t, r, status, m.To)
	})
}

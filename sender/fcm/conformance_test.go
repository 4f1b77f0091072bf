package fcm

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"lemma/sender"
	"lemma/sender/redact"
	"lemma/sender/sendertest"
	"lemma/sender/wire"
)

const (
	testEmail   = "lemma@shop-1.iam.gserviceaccount.com"
	testProject = "shop-1"
)

var testKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

func device(n int) string { return fmt.Sprintf("fGh3-device:APA91b%04d", n) }

// serviceFile is the JSON key of a service account.
func serviceFile(tokenURI string) string {
	der, err := x509.MarshalPKCS8PrivateKey(testKey())
	if err != nil {
		panic(err)
	}
	file, _ := json.Marshal(map[string]string{"type": "service_account", "project_id": testProject, "private_key_id": "k1",
		"private_key":  string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		"client_email": testEmail, "client_id": "1", "auth_uri": "https://accounts.google.com/o/oauth2/auth", "token_uri": tokenURI})
	return string(file)
}

// tokenServer answers token requests. Without a script it gives each valid assertion a
// new token.
type tokenServer struct {
	*sendertest.HTTPServer
	mu    sync.Mutex
	valid map[string]bool // headers of Authorization
}

func serveTokens(t *testing.T, script func() *sendertest.Reply) *tokenServer {
	s := &tokenServer{valid: map[string]bool{}}
	s.HTTPServer = sendertest.ServeHTTPS(t, true, func(r sendertest.Received) sendertest.Reply {
		if fault := faultOf(r, "https://"+r.Host+"/token"); fault != "" {
			t.Errorf("a token request: %s", fault)
			return sendertest.Reply{Status: 400, Body: `{"error":"invalid_grant","error_description":"` + fault + `"}`}
		}
		if reply := script(); reply != nil {
			return *reply
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		token := fmt.Sprintf("ya29.token-%d", len(s.valid))
		s.valid["Bearer "+token] = true
		return sendertest.Reply{Body: `{"access_token":"` + token + `","expires_in":3599,"token_type":"Bearer"}`}
	})
	return s
}

func gives() *sendertest.Reply { return nil }

func (s *tokenServer) accepts(authorization string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.valid[authorization]
}

// faultOf verifies a token request as "Using OAuth 2.0 for Server to Server Applications"
// of Google describes it.
func faultOf(r sendertest.Received, audience string) string {
	form, err := url.ParseQuery(string(r.Body))
	parts := strings.Split(form.Get("assertion"), ".")
	if err != nil || r.Path != "/token" || form.Get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" || len(parts) != 3 ||
		r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" || len(form) != 2 {
		return "not the form of a token request"
	}
	signature, _ := base64.RawURLEncoding.DecodeString(parts[2])
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if rsa.VerifyPKCS1v15(&testKey().PublicKey, crypto.SHA256, sum[:], signature) != nil {
		return "a wrong signature"
	}
	var header struct{ Alg, Typ, Kid string }
	var claims struct {
		Iss, Scope, Aud string
		Iat, Exp        int64
	}
	for i, into := range []any{&header, &claims} {
		text, _ := base64.RawURLEncoding.DecodeString(parts[i])
		if json.Unmarshal(text, into) != nil {
			return "not JSON"
		}
	}
	now := time.Now().Unix()
	if header.Alg != "RS256" || header.Typ != "JWT" || header.Kid != "k1" || claims.Iss != testEmail || claims.Aud != audience ||
		claims.Scope != "https://www.googleapis.com/auth/firebase.messaging" || claims.Iat > now || claims.Iat < now-60 ||
		claims.Exp <= now || claims.Exp > claims.Iat+3600 {
		return fmt.Sprintf("wrong claims %+v %+v", header, claims)
	}
	return ""
}

// accountAt opens a carrier on a server.
func accountAt(t *testing.T, s *sendertest.HTTPServer, tokens *tokenServer, more string) *carrier {
	t.Helper()
	account := sender.Account{Trace: s.Trace, Config: fmt.Appendf(nil, `{"endpoint":%q,"timeout_seconds":4%s}`, s.URL, more),
		Secrets: fmt.Appendf(nil, `{"service_account":%s}`, serviceFile(tokens.URL+"/token"))}
	account.Redact = redact.Of(account.Secrets)
	c, err := open(account, wire.Operator{AllowPrivate: true, ShowPrivate: !s.Hides, Roots: s.Roots,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// body is the documented form of messages:send, as far as Lemma uses it.
type body struct {
	Message struct {
		Token        string
		Notification struct{ Title, Body string }
		Data         map[string]string
		Android      struct {
			CollapseKey  string `json:"collapse_key"`
			TTL          string
			Notification struct{ Tag string }
		}
		APNs    struct{ Headers map[string]string }
		Webpush struct {
			Headers      map[string]string
			Notification struct{ Title, Body, Tag string }
			Options      struct{ Link string } `json:"fcm_options"`
		}
	}
}

// read is a request, or an empty one if it is not as documented.
func read(r sendertest.Received) (one body) {
	d := json.NewDecoder(strings.NewReader(string(r.Body)))
	d.DisallowUnknownFields()
	if d.Decode(&one) != nil || r.Path != "/v1/projects/"+testProject+"/messages:send" || r.Query != "" ||
		r.Header.Get("Content-Type") != "application/json" {
		return body{}
	}
	return one
}

// refuse is an error as FCM answers it. code is that of FCM, empty for none.
func refuse(status int, canonical, code, message string, details ...string) sendertest.Reply {
	if code != "" {
		details = append(details, `{"@type":"type.googleapis.com/google.firebase.fcm.v1.FcmError","errorCode":"`+code+`"}`)
	}
	body := fmt.Sprintf(`{"error":{"code":%d,"message":%q,"status":%q,"details":[%s]}}`, status, message, canonical,
		strings.Join(details, ","))
	return sendertest.Reply{Status: status, Body: body, Header: map[string]string{"Content-Type": "application/json; charset=UTF-8"}}
}

const named = `{"name":"projects/shop-1/messages/0:1500415314455276%31bd1c9631bd1c96"}`

func TestConformance(t *testing.T) {
	t.Parallel()
	cases := append(documented(), sendertest.OtherAnswers(sendertest.ByStatus)...)
	tokens := serveTokens(t, gives)
	sendertest.HTTPConformance(t, sendertest.HTTPHarness{
		Open: func(t *testing.T, s *sendertest.HTTPServer) sender.Carrier { return accountAt(t, s, tokens, "") },
		To: func(r sendertest.Received) string {
			if !tokens.accepts(r.Header.Get("Authorization")) {
				t.Errorf("a request with %q", r.Header.Get("Authorization"))
				return ""
			}
			return read(r).Message.Token
		},
		Address: device, Reasons: sendertest.Reasons(t, "fcm.go", "../wire/wire.go"), Cases: cases,
		Replies: map[sendertest.Behaviour]sendertest.Reply{
			sendertest.Accept: {Body: named},
			sendertest.Reject: refuse(404, "NOT_FOUND", "UNREGISTERED", "gone: "+strings.ToUpper(device(2))),
			sendertest.Refuse: refuse(429, "RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED", "Device message rate exceeded."),
		},
	})
}

// documented are the answers of the table in the package's comment.
func documented() (cases []sendertest.HTTPCase) {
	add := func(r sender.Receipt, reply sendertest.Reply) {
		r.Code = reply.Status
		cases = append(cases, sendertest.HTTPCase{Name: fmt.Sprintf("%d %.60s", reply.Status, reply.Body), Reply: reply, Want: r})
	}
	const quota = `{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"subject":%q,"description":"x"}]}`
	const field = `{"@type":"type.googleapis.com/google.rpc.BadRequest","fieldViolations":[{"field":%q,"description":"x"}]}`
	unknown := sender.Receipt{Outcome: sender.Unknown, Reason: "server_error"}
	ofDevice := sender.Receipt{Outcome: sender.NotAccepted, Reason: "device_throttled"}
	add(wire.Rejected("token_unregistered"), refuse(404, "NOT_FOUND", "UNREGISTERED", "Requested entity was not found."))
	add(wire.Rejected("token_unregistered"), refuse(404, "NOT_FOUND", "UNREGISTERED", "not found", `7`, `{"violations":"x"}`))
	add(wire.Rejected("token_mismatch"), refuse(403, "PERMISSION_DENIED", "SENDER_ID_MISMATCH", "SenderId mismatch"))
	add(wire.Rejected("token_invalid"), refuse(400, "INVALID_ARGUMENT", "INVALID_ARGUMENT",
		"The registration token is not a valid FCM registration token"))
	add(wire.Rejected("token_invalid"), refuse(400, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "Request contains an invalid argument.",
		fmt.Sprintf(field, "message.token")))
	add(wire.Rejected("message_invalid"), refuse(400, "INVALID_ARGUMENT", "", "Invalid data key", fmt.Sprintf(field, "message.data[0].key")))
	add(wire.Rejected("message_invalid"), refuse(400, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "Android message is too big"))
	add(wire.Rejected("message_too_large"), sendertest.Reply{Status: 413})
	add(wire.OfProvider("throttled", false), refuse(429, "RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED", "Quota exceeded",
		fmt.Sprintf(quota, "project:1")))
	add(wire.OfProvider("throttled", false), refuse(429, "RESOURCE_EXHAUSTED", "", "Quota exceeded"))
	add(wire.OfProvider("throttled", false), sendertest.Reply{Status: 429, Header: map[string]string{"Retry-After": "60"}})
	add(ofDevice, refuse(429, "RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED", "Quota exceeded", fmt.Sprintf(quota, "Device message rate")))
	add(wire.OfProvider("unavailable", false), refuse(503, "UNAVAILABLE", "UNAVAILABLE", "The service is currently unavailable."))
	add(wire.OfProvider("unavailable", false), sendertest.Reply{Status: 503, Header: map[string]string{"Retry-After": "60"}})
	add(wire.OfProvider("push_credentials_refused", true), refuse(401, "UNAUTHENTICATED", "THIRD_PARTY_AUTH_ERROR", "Auth error from APNS"))
	add(wire.OfProvider("access_token_refused", false), refuse(401, "UNAUTHENTICATED", "", "Invalid Credentials"))
	add(wire.OfProvider("access_token_refused", false), sendertest.Reply{Status: 401})
	add(wire.OfProvider("access_denied", true), refuse(403, "PERMISSION_DENIED", "", "Permission 'cloudmessaging.messages.create' denied"))
	add(wire.OfProvider("access_denied", true), sendertest.Reply{Status: 403})
	add(wire.OfProvider("not_found", true), refuse(404, "NOT_FOUND", "", "The project was not found"))
	add(wire.OfProvider("not_found", true), sendertest.Reply{Status: 404, Body: "<html>"})
	add(sender.Receipt{Outcome: sender.NotAccepted, Reason: "request_refused"}, refuse(409, "ABORTED", "", "again"))
	add(sender.Receipt{Outcome: sender.NotAccepted, Reason: "request_refused"}, sendertest.Reply{Status: 400})
	add(unknown, refuse(500, "INTERNAL", "INTERNAL", "Internal error encountered."))
	add(unknown, refuse(500, "INTERNAL", "UNREGISTERED", "Internal error encountered."))
	add(unknown, sendertest.Reply{Status: 503, Body: "<html>"})
	add(sender.Receipt{Outcome: sender.Unknown, Reason: "protocol_error"}, sendertest.Reply{Status: 200, Body: `{"name":""}`})
	return cases
}

func FuzzAnswers(f *testing.F) {
	f.Add(200, named)
	f.Add(404, refuse(404, "NOT_FOUND", "UNREGISTERED", device(2)).Body)
	f.Add(429, refuse(429, "RESOURCE_EXHAUSTED", "", "x", `{"violations":[{"subject":"device"}]}`).Body)
	f.Add(503, `{"error":{"status":"UNAVAILABLE","details":{}}}`)
	f.Add(307, `[]`)
	f.Fuzz(func(t *testing.T, status int, body string) {
		if status < 200 || status > 999 {
			return
		}
		m := sender.Message{To: device(2)}
		r := receiptFor(&wire.Answer{Status: status, Header: http.Header{}, Body: []byte(body), Whole: true}, &m)
		if r.Outcome == sender.Accepted && (status >= 300 || r.CarrierID == "") {
			t.Errorf("%+v for %d %q", r, status, body)
		}
		sendertest.CheckAnswer(t, r, status, m.To)
	})
}

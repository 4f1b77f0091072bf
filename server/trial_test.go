package server

import (
	"bufio"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"lemma"
	"lemma/pgtest"
	"lemma/providers"
	"lemma/secrets"
	"lemma/sender/sendertest"
	"lemma/sender/wire"
	"lemma/signing"
	"lemma/workspaces"
)

// echoer is a mail server that repeats what it was sent, as it was and decoded.
func echoer(t *testing.T, mechanism string) (host, port string) {
	t.Helper()
	host, port, _ = net.SplitHostPort(listenWith(t, func(conn net.Conn) { echo(conn, mechanism) }))
	return host, port
}

func echo(conn net.Conn, mechanism string) {
	fmt.Fprintf(conn, "220 echoer\r\n")
	echoed := ""
	in := bufio.NewReader(conn)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		line = strings.TrimRight(line, "\r\n")
		verb, rest, _ := strings.Cut(line, " ")
		switch {
		case verb == "EHLO":
			fmt.Fprintf(conn, "250-hello %s\r\n250 AUTH %s\r\n", rest, mechanism)
		case line == "AUTH LOGIN":
			fmt.Fprintf(conn, "334 VXNlcm5hbWU6\r\n")
		case verb == "AUTH":
			echoed += repeat(rest[6:])
			fmt.Fprintf(conn, "235 %s\r\n", echoed)
		case verb == "MAIL", verb == "QUIT":
			fmt.Fprintf(conn, "250-%s\r\n250 %s\r\n", line, echoed)
		case verb == "RCPT":
			fmt.Fprintf(conn, "550 5.1.1 %s %s\r\n", line, echoed)
		case verb == "RSET":
			fmt.Fprintf(conn, "250 ok\r\n")
		default: // the two steps of AUTH LOGIN
			code := map[bool]int{true: 334, false: 235}[echoed == ""]
			echoed += repeat(line)
			fmt.Fprintf(conn, "%d %s\r\n", code, echoed)
		}
	}
}

// repeat is a text, and what it is decoded, in other encodings too.
func repeat(encoded string) string {
	plain, _ := base64.StdEncoding.DecodeString(encoded)
	text := strings.ReplaceAll(string(plain), "\x00", " ")
	return strings.Join([]string{encoded, text, url.QueryEscape(text), hex.EncodeToString(plain),
		base64.StdEncoding.EncodeToString([]byte("xx" + text)), base64.RawURLEncoding.EncodeToString(append([]byte("y"), plain...))}, " ")
}

// grantedToken is the access token that an account receives.
const grantedToken = "ya29.c0ASRK0GZ-deadbeef_5e9e"

// repeatRequest answers with the request: its headers, its body, and the parts of its
// headers that are base64.
func repeatRequest(r sendertest.Received) sendertest.Reply {
	reply := sendertest.Reply{Status: 403, Header: map[string]string{}}
	if r.Path == "/grants" {
		return sendertest.Reply{Body: fmt.Sprintf(`{"access_token":%q,"token_type":"Bearer","expires_in":60,"echoed":%q}`, grantedToken, r.Body)}
	}
	echoed := map[string]any{"message": "refused", "__type": "SignatureDoesNotMatch", "error": "refused"}
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		value := strings.Join(r.Header[name], " ")
		reply.Header["X-Repeated-"+name] = value
		echoed["header-"+name] = []string{value, url.QueryEscape(value), base64.StdEncoding.EncodeToString([]byte("a" + value))}
		echoed["error"] = fmt.Sprint(echoed["error"], " ", value)
	}
	echoed["body"] = []string{string(r.Body), base64.StdEncoding.EncodeToString(append([]byte("a"), r.Body...))}
	body, _ := json.Marshal(echoed)
	reply.Body = string(body)
	return reply
}

// No answer of a test contains a secret of the account, plain or encoded, although the
// server repeats what it was sent.
func TestNoSecretIsInTheAnswerOfAProviderTest(t *testing.T) {
	t.Parallel()
	web := sendertest.ServeHTTPS(t, true, repeatRequest)
	b := newTrials(t, wire.Operator{AllowPrivate: true, AllowStrange: true, ShowPrivate: true, Roots: web.Roots})
	const password, token = `p4ss"wörd & <more>/+?`, "tok-5e9e-deadbeef/77"
	for _, mechanism := range []string{"PLAIN", "LOGIN"} {
		t.Run("smtp "+mechanism, func(t *testing.T) {
			host, port := echoer(t, mechanism)
			answer := b.test(t, "smtp", fmt.Sprintf(`{"host":%q,"port":%s,"tls":"none","username":"lemma"}`, host, port),
				map[string]any{"password": password})
			b.clean(t, answer, password)
			b.shows(t, answer, `"outcome":"rejected"`, `"reason":"recipient_unknown"`, `"failure_of":"message"`, "220 echoer",
				"RCPT TO:<ada@shop.example>", map[string]string{"PLAIN": "AUTH PLAIN [redacted]", "LOGIN": "AUTH LOGIN"}[mechanism])
		})
	}
	t.Run("http", func(t *testing.T) {
		secret := signing.Secret([]byte("0123456789abcdef0123456789abcdef"))
		answer := b.test(t, "http", fmt.Sprintf(`{"url":%q,"headers":{"X-Tenant":"shop"}}`, web.URL+"/send?a=b"),
			map[string]any{"signing_secret": secret,
				"headers": map[string]string{"Authorization": "Bearer " + token, "X-Odd-Name": password[:4] + "123"}})
		b.clean(t, answer, secret, secret[6:], token, password[:4]+"123")
		b.shows(t, answer, `"reason":"access_denied"`, `"failure_of":"provider"`, `"definite":true`, "POST "+web.URL+"/send?a=b",
			"X-Tenant: shop", "Webhook-Signature: [redacted]", "HTTP/2.0 403", `"protocol":"h2"`, `\"subject\":\"Test message\"`)
		for _, r := range web.Received(func(r sendertest.Received) bool { return r.Header.Get("Webhook-Signature") != "" }) {
			b.clean(t, answer, strings.TrimPrefix(r.Header.Get("Webhook-Signature"), "v1,"))
		}
	})
	t.Run("twilio", func(t *testing.T) {
		answer := b.test(t, "twilio", fmt.Sprintf(`{"account_sid":"AC00000000000000000000000000000001",
			"messaging_service_sid":"MG00000000000000000000000000000001","endpoint":%q}`, web.URL), map[string]any{"auth_token": token})
		b.clean(t, answer, token)
		b.shows(t, answer, `"failure_of":"provider"`, "Authorization: [redacted]", "To=%2B4915100000001")
	})
	t.Run("ses", func(t *testing.T) {
		answer := b.test(t, "ses", fmt.Sprintf(`{"region":"eu-central-1","endpoint":%q}`, web.URL), map[string]any{
			"access_key_id": "AKIDEXAMPLE123456789", "secret_access_key": "wJalrXUtnFEMI/K7MDENG+bPxRfiCY", "session_token": token})
		b.clean(t, answer, "AKIDEXAMPLE123456789", "wJalrXUtnFEMI/K7MDENG+bPxRfiCY", token)
		b.shows(t, answer, `"reason":"credentials_refused"`, "Authorization: [redacted]", "X-Amz-Security-Token: [redacted]",
			"/v2/email/outbound-emails", "paused (provider_refused)")
		for _, r := range web.Received(func(r sendertest.Received) bool { return r.Header.Get("X-Amz-Date") != "" }) {
			_, signature, _ := strings.Cut(r.Header.Get("Authorization"), "Signature=")
			b.clean(t, answer, signature)
		}
	})
	b.cleanOfPushes(t, web)
}

// cleanOfPushes tests the carriers of pushes. They send no secret of the account, but
// tokens that are made of it, which the server repeats.
func (b trials) cleanOfPushes(t *testing.T, web *sendertest.HTTPServer) {
	inPEM, private, public := vapid(t)
	sent := func(path string) (credentials []string) {
		for _, r := range web.Received(func(r sendertest.Received) bool { return strings.HasPrefix(r.Path, path) }) {
			form, _ := url.ParseQuery(string(r.Body))
			for token := range strings.SplitSeq(r.Header.Get("Authorization")+" "+form.Get("assertion"), " ") {
				if parts := strings.Split(strings.Trim(token, "t=,"), "."); len(parts) == 3 {
					credentials = append(credentials, parts[0]+"."+parts[1], parts[2])
				}
			}
		}
		if len(credentials) == 0 {
			t.Errorf("no token was sent to %s", path)
		}
		return credentials
	}
	t.Run("apns", func(t *testing.T) {
		answer := b.test(t, "apns", fmt.Sprintf(`{"key_id":"ABC123DEFG","team_id":"DEF123GHIJ","topic":"com.example.shop","endpoint":%q}`,
			web.URL), map[string]any{"private_key": inPEM}, strings.Repeat("ab", 32))
		b.clean(t, answer, append(sent("/3/device/"), inPEM, private)...)
		b.shows(t, answer, `"reason":"access_denied"`, "Authorization: [redacted]", "/3/device/[redacted]")
	})
	t.Run("webpush", func(t *testing.T) {
		browser, err := ecdh.P256().GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		to, _ := json.Marshal(map[string]any{"endpoint": web.URL + "/push/1", "keys": map[string]string{
			"p256dh": base64.RawURLEncoding.EncodeToString(browser.PublicKey().Bytes()), "auth": "AAAAAAAAAAAAAAAAAAAAAA"}})
		answer := b.test(t, "webpush", fmt.Sprintf(`{"subject":"mailto:push@shop.example","vapid_public_key":%q}`, public),
			map[string]any{"vapid_private_key": private}, string(to))
		b.clean(t, answer, append(sent("/push/"), private)...)
		b.shows(t, answer, `"reason":"vapid_refused"`, "Authorization: [redacted]", "POST [redacted]")
	})
	for _, path := range []string{"/refuses", "/grants"} {
		t.Run("fcm"+path, func(t *testing.T) {
			key, inPEM := rsaKey(t)
			answer := b.test(t, "fcm", fmt.Sprintf(`{"endpoint":%q}`, web.URL), map[string]any{"service_account": map[string]string{
				"type": "service_account", "project_id": "shop-1234", "private_key_id": "6f1e0c5a9d", "private_key": inPEM,
				"client_email": "lemma@shop-1234.iam.gserviceaccount.com", "token_uri": web.URL + path}}, "device-token")
			b.clean(t, answer, append(sent(path), inPEM, key, grantedToken)...)
			b.shows(t, answer, "POST "+web.URL+path, map[string]string{"/refuses": `"reason":"credentials_refused"`,
				"/grants": "Authorization: [redacted]"}[path])
		})
	}
}

// rsaKey is a new key: the base64 of its bytes, and in PEM.
func rsaKey(t *testing.T) (text, inPEM string) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(der)[:48], string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// Of a server at a private address only the numbers of its answers are shown, so that no
// user reads the banners and pages of the operator's network.
func TestAnswersOfPrivateAddressesAreHidden(t *testing.T) {
	t.Parallel()
	web := sendertest.ServeHTTPS(t, true, func(sendertest.Received) sendertest.Reply {
		return sendertest.Reply{Status: 404, Header: map[string]string{"X-Internal": "internal-header"}, Body: "internal page"}
	})
	b := newTrials(t, wire.Operator{AllowPrivate: true, Roots: web.Roots})
	secret := signing.Secret([]byte("0123456789abcdef0123456789abcdef"))
	answer := b.test(t, "http", fmt.Sprintf(`{"url":%q}`, web.URL), map[string]any{"signing_secret": secret})
	b.shows(t, answer, "HTTP/2.0 404", "[hidden: the server has a private address]", `"version":"TLS 1.3"`, `"certificate_names":[]`)
	b.clean(t, answer, "internal-header", "internal page", "example.com", "Acme")
	host, port := echoer(t, "PLAIN")
	answer = b.test(t, "smtp", fmt.Sprintf(`{"host":%q,"port":%s,"tls":"none"}`, host, port), nil)
	b.shows(t, answer, "220 [hidden: the server has a private address]", "550 5.1.1 RCPT TO")
	b.clean(t, answer, "echoer", "250-hello")
	quiet := listenWith(t, func(conn net.Conn) {
		_, _ = io.WriteString(conn, "-ERR unknown command; redis 7.2 at db-17.internal\r\n")
	})
	host, port, _ = net.SplitHostPort(quiet)
	answer = b.test(t, "smtp", fmt.Sprintf(`{"host":%q,"port":%s,"tls":"none"}`, host, port), nil)
	b.shows(t, answer, `"reason":"greeting_refused"`)
	b.clean(t, answer, "redis", "internal", "unknown command")
	forbidden := newTrials(t, wire.Operator{AllowPrivate: false})
	answer = forbidden.test(t, "smtp", fmt.Sprintf(`{"host":%q,"port":%s,"tls":"none"}`, "localtest.invalid", port), nil)
	b.shows(t, answer, `"reason":"connect_failed"`, "the host name cannot be resolved")
}

// listenWith calls serve with each connection.
func listenWith(t *testing.T, serve func(net.Conn)) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				serve(conn)
				_ = conn.Close()
			}()
		}
	}()
	return listener.Addr().String()
}

// trials tests providers by the API.
type trials struct {
	server *Server
	web    *httptest.Server
	ws     uuid.UUID
	key    string
}

func newTrials(t *testing.T, o wire.Operator) trials {
	t.Helper()
	box, err := secrets.ParseKeys(secrets.NewKey())
	if err != nil {
		t.Fatal(err)
	}
	pool := pgtest.DB(t)
	s, err := New(Deps{Pool: pool, Box: box, Log: slog.New(slog.DiscardHandler)}, Config{Carriers: o})
	if err != nil {
		t.Fatal(err)
	}
	b := trials{server: s, web: httptest.NewServer(s.API), ws: pgtest.Workspace(t, pool)}
	t.Cleanup(b.web.Close)
	_, b.key, err = s.Workspaces.CreateKey(t.Context(), b.ws,
		workspaces.NewKey{ID: lemma.NewID(), Name: "test", Scopes: []string{"providers:test"}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// test makes a provider and tests it, and returns the answer. device is the recipient of a
// push.
func (b trials) test(t *testing.T, kind, config string, secret map[string]any, device ...string) string {
	t.Helper()
	push, _ := json.Marshal(map[string]string{"to": strings.Join(device, "")})
	var raw json.RawMessage
	if secret != nil {
		raw, _ = json.Marshal(secret)
	}
	made, err := b.server.Providers.Create(t.Context(), b.ws,
		providers.NewProvider{ID: lemma.NewID(), Name: uuid.NewString(), Kind: kind, Config: json.RawMessage(config), Secrets: raw})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		b.web.URL+"/v1/providers/"+lemma.FormatID(lemma.PrefixProvider, made.ID)+"/test",
		strings.NewReader(map[lemma.Channel]string{lemma.SMS: `{"to":"+4915100000001"}`, lemma.Push: string(push),
			lemma.Email: `{"to":"ada@shop.example","from":{"email":"news@shop.example"}}`}[made.Channel]))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+b.key)
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%d: %s, %v", answer.StatusCode, text, err)
	}
	return string(text)
}

func (trials) shows(t *testing.T, answer string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(answer, text) {
			t.Errorf("no %q in %s", text, answer)
		}
	}
}

var encodedRun = regexp.MustCompile(`[A-Za-z0-9+/_-]{8,}`)

// clean fails when an answer contains one of the texts, as it is or encoded, or if
// something in the answer is base64 of a text that contains it.
func (trials) clean(t *testing.T, answer string, texts ...string) {
	t.Helper()
	views := []string{answer}
	var decoded map[string]any
	if json.Unmarshal([]byte(answer), &decoded) == nil {
		for _, step := range decoded["conversation"].([]any) {
			text, _ := step.(map[string]any)["text"].(string)
			views = append(views, text)
		}
	}
	for _, run := range encodedRun.FindAllString(answer, -1) {
		for from := range 4 {
			for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
				part := run[from:]
				plain, _ := e.DecodeString(part[:len(part)/4*4])
				views = append(views, string(plain))
			}
		}
	}
	for _, text := range texts {
		quoted, _ := json.Marshal(text)
		for _, form := range []string{text, strings.Trim(string(quoted), `"`), url.QueryEscape(text), url.PathEscape(text),
			hex.EncodeToString([]byte(text)), base64.StdEncoding.EncodeToString([]byte(text))} {
			for _, view := range views {
				if text != "" && strings.Contains(view, form) {
					t.Errorf("%q is in the answer: %s\n%s", form, view, answer)
					return
				}
			}
		}
	}
}

package server

import (
	"bufio"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"lemma/pgtest"
	"lemma/sender/report"
	"lemma/sender/sendertest"
	"lemma/signing"
)

// The secrets of the providers. One contains an address to which messages are sent: a detail
// is without it.
const (
	echoedAddress  = "root@shop.example"
	echoedPassword = `p4ss"wörd & <more>/` + echoedAddress + `+?7`
	echoedToken    = `tok-5e9e/` + echoedAddress + `"+&deadbeef`
	echoedShort    = "s3cure7"
	echoedHook     = "Wh-Secret-0A1b2C3d4E"
)

var echoedKey = []byte("signing-key-7f3a9c-signing-key-7")

// echoes are how a server may repeat a secret.
var echoes = []func(secret string) string{
	func(s string) string { return s },
	func(s string) string { return `"` + s + `"` },
	func(s string) string { q, _ := json.Marshal(s); return string(q) },
	url.QueryEscape, url.PathEscape,
	func(s string) string { return hex.EncodeToString([]byte(s)) },
	func(s string) string { return strings.ToUpper(hex.EncodeToString([]byte(s))) },
	func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
	func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) },
	func(s string) string { return base64.StdEncoding.EncodeToString([]byte("\x00lemma\x00" + s)) },
	func(s string) string { return base64.StdEncoding.EncodeToString([]byte("x\x00" + s + "\x00")) },
	func(s string) string { return before(180) + s }, // a detail would be cut within the secret
	func(s string) string { return before(182) + base64.StdEncoding.EncodeToString([]byte(s)) },
	func(s string) string { return before(178) + url.QueryEscape(s) },
}

// before is text of so many bytes, of which the last is a blank.
func before(n int) string { return strings.Repeat("0 ", 100)[200-n:] }

// repeatingMail is a mail server that repeats the password, as the number in the subject or
// the recipient demands.
func repeatingMail(t *testing.T, password string, rejects bool) (host string, port int) {
	t.Helper()
	host, text, _ := net.SplitHostPort(listenWith(t, func(conn net.Conn) {
		in := bufio.NewReader(conn)
		fmt.Fprintf(conn, "220 repeats\r\n")
		echo, data := "", false
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			line = strings.TrimRight(line, "\r\n")
			switch verb, _, _ := strings.Cut(strings.ToUpper(line), " "); {
			case data && line != ".":
			case data:
				data = false
				fmt.Fprintf(conn, "250 2.0.0 Ok: queued as %s\r\n", echo)
			case verb == "EHLO":
				fmt.Fprintf(conn, "250-repeats\r\n250 AUTH PLAIN\r\n")
			case verb == "AUTH":
				fmt.Fprintf(conn, "235 %s\r\n", password)
			case verb == "RCPT":
				echo = echoes[numberOf(line)](password)
				if rejects {
					fmt.Fprintf(conn, "550 5.7.1 %s\r\n", echo)
					continue
				}
				fmt.Fprintf(conn, "250 ok\r\n")
			case verb == "DATA":
				data = true
				fmt.Fprintf(conn, "354 go\r\n")
			default:
				fmt.Fprintf(conn, "250 ok\r\n")
			}
		}
	}))
	port, _ = strconv.Atoi(text)
	return host, port
}

var echoNumber = regexp.MustCompile(`ada-([0-9]+)@`)

// numberOf is the number of the echo that a recipient demands.
func numberOf(text string) (n int) {
	if found := echoNumber.FindStringSubmatch(text); found != nil {
		n, _ = strconv.Atoi(found[1])
	}
	return n
}

// repeatingWeb answers a request with the token.
func repeatingWeb(r sendertest.Received) sendertest.Reply {
	echo := echoes[numberOf(string(r.Body))](echoedToken)
	body, _ := json.Marshal(map[string]string{"id": echo, "error": echo})
	status, _ := strconv.Atoi(strings.Trim(r.Path, "/"))
	return sendertest.Reply{Status: status, Body: string(body)}
}

// failBeforeMessages calls servers whose answers are only logged: one that refuses the login,
// and one whose answer is not HTTP.
func (b *echoed) failBeforeMessages() {
	b.t.Helper()
	for _, echo := range echoes[:4] {
		mail := listenWith(b.t, func(conn net.Conn) {
			in := bufio.NewReader(conn)
			for _, answer := range []string{"220 repeats", "250-repeats\r\n250 AUTH PLAIN", "535 " + echo(echoedPassword)} {
				fmt.Fprintf(conn, "%s\r\n", answer)
				_, _ = in.ReadString('\n')
			}
		})
		host, port, _ := net.SplitHostPort(mail)
		number, _ := strconv.Atoi(port)
		b.start(b.provider("smtp", map[string]any{"host": host, "port": number, "tls": "none", "username": "lemma"},
			map[string]any{"password": echoedPassword}), "ada@shop.example", "refused")
		web := listenWith(b.t, func(conn net.Conn) {
			if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				_, _ = io.Copy(io.Discard, r.Body) // what is not read would reset the connection
			}
			fmt.Fprintf(conn, "HTTP/1.1 %s no status\r\n\r\n", echo(echoedToken))
		})
		b.start(b.provider("http", map[string]any{"url": "http://" + web}, map[string]any{"signing_secret": signing.Secret(echoedKey),
			"headers": map[string]string{"Authorization": "Bearer " + echoedToken}}), "ada@shop.example", "no HTTP")
	}
	for _, what := range []string{"no connection to the mail server", "no answer of the provider"} {
		lines := regexp.MustCompile(what + `.* error=.*redacted`)
		pgtest.Eventually(b.t, 20*time.Second, "four lines of the log have: "+what, func() bool {
			return len(lines.FindAllString(b.log.text(), -1)) >= 4
		})
	}
}

var (
	hexRun  = regexp.MustCompile(`[0-9A-Fa-f]{8,}`)
	percent = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)
	unquote = strings.NewReplacer(`\"`, `"`, `\\`, `\`, `\u0026`, "&", `\u003c`, "<", `\u003e`, ">", `\/`, "/")
)

// decoded are a text and what it may be decoded to.
func decoded(text string) (views []string) {
	plain := unquote.Replace(text)
	views = append(views, text, plain, unquote.Replace(plain))
	escapes := func(text string) string {
		return percent.ReplaceAllStringFunc(text, func(e string) string { c, _ := hex.DecodeString(e[1:]); return string(c) })
	}
	views = append(views, escapes(plain), escapes(strings.ReplaceAll(plain, "+", " ")))
	for _, run := range hexRun.FindAllString(plain, -1) {
		for from := range 2 {
			raw, _ := hex.DecodeString(run[from : from+(len(run)-from)/2*2])
			views = append(views, string(raw))
		}
	}
	for _, run := range regexp.MustCompile(`[A-Za-z0-9+/_-]{8,}`).FindAllString(plain, -1) {
		for from := range 4 {
			for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
				raw, _ := e.DecodeString(run[from : from+(len(run)-from)/4*4])
				views = append(views, string(raw))
			}
		}
	}
	return views
}

// clean checks that a text contains no secret, and not its first bytes.
func (b *echoed) clean(what, text string) {
	b.t.Helper()
	key := base64.StdEncoding.EncodeToString(echoedKey)
	for _, view := range decoded(text) {
		for _, part := range []string{echoedPassword[:6], echoedPassword[len(echoedPassword)-9:], echoedToken[:8], "deadbeef", echoedShort,
			echoedHook[:9], report.Reason(echoedHook)[:12], string(echoedKey[:10]), key[:10],
			strings.ToLower(key)[:10]} {
			if strings.Contains(view, part) {
				b.t.Errorf("%s has %q: %.2000s", what, part, text)
				return
			}
		}
	}
}

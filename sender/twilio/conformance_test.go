package twilio

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"lemma"
	"lemma/sender"
	"lemma/sender/sendertest"
	"lemma/sender/wire"
)

const (
	testAccount = "AC00000000000000000000000000000001"
	testService = "MG00000000000000000000000000000002"
	testKey     = "SK00000000000000000000000000000003"
	testSecret  = "key-secret-0123456789"
	testToken   = "auth-token-0123456789"
	testSID     = "SM0000000000000000000000000000000a"
)

var testProvider = uuid.UUID{15: 7}

func number(n int) string { return fmt.Sprintf("+4915100%06d", n) }

// accountAt opens a carrier on a server.
func accountAt(t *testing.T, s *sendertest.HTTPServer, config, secrets, public string) *carrier {
	t.Helper()
	account := sender.Account{ProviderID: testProvider, Trace: s.Trace, Secrets: []byte(secrets),
		Config: fmt.Appendf(nil, `{"account_sid":%q,"endpoint":%q,"timeout_seconds":4,%s}`, testAccount, s.URL, config)}
	c, err := open(account, wire.Operator{AllowPrivate: true, ShowPrivate: !s.Hides, Roots: s.Roots,
		PublicURL: func() string { return public }, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

const (
	byService = `"messaging_service_sid":"` + testService + `"`
	byToken   = `{"auth_token":"` + testToken + `"}`
	byKey     = `{"auth_token":"` + testToken + `","api_key_sid":"` + testKey + `","api_key_secret":"` + testSecret + `"}`
	public    = "https://lemma.example"
)

// fields is the documented form of a request, or nothing if it is another one.
func fields(r sendertest.Received) url.Values {
	request := http.Request{Header: r.Header}
	user, password, ok := request.BasicAuth()
	form, err := url.ParseQuery(string(r.Body))
	allowed := []string{"To", "Body", "From", "MessagingServiceSid", "StatusCallback", "ValidityPeriod"}
	for name, values := range form {
		if !slices.Contains(allowed, name) || len(values) != 1 {
			return nil
		}
	}
	if !ok || err != nil || (user != testKey || password != testSecret) && (user != testAccount || password != testToken) || r.Query != "" ||
		r.Path != "/2010-04-01/Accounts/"+testAccount+"/Messages.json" || r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" ||
		form.Get("Body") == "" || form.Has("From") == form.Has("MessagingServiceSid") {
		return nil
	}
	return form
}

// refuse is an error as Twilio answers it.
func refuse(status, code int, message string) sendertest.Reply {
	body, _ := json.Marshal(map[string]any{"code": code, "message": message, "status": status,
		"more_info": "https://www.twilio.com/docs/errors/" + strconv.Itoa(code)})
	return sendertest.Reply{Status: status, Body: string(body)}
}

func made(status string) string {
	return `{"sid":"` + testSID + `","status":"` + status + `","error_code":null,"error_message":null,"date_sent":null}`
}

// withoutAttempt is a request's body without what may differ between attempts.
func withoutAttempt(r sendertest.Received) []byte {
	return regexp.MustCompile(`%26a%3D\d+`).ReplaceAll(r.Body, nil)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	cases := append(documented(), sendertest.OtherAnswers(sendertest.ByStatus)...)
	sendertest.HTTPConformance(t, sendertest.HTTPHarness{
		Open: func(t *testing.T, s *sendertest.HTTPServer) sender.Carrier {
			return accountAt(t, s, byService, byKey, public)
		},
		To:   func(r sendertest.Received) string { return fields(r).Get("To") },
		Same: withoutAttempt, Address: number, Reasons: sendertest.Reasons(t, "twilio.go", "../wire/wire.go"), Cases: cases,
		Replies: map[sendertest.Behaviour]sendertest.Reply{
			sendertest.Accept: {Status: 201, Body: made("accepted")},
			sendertest.Reject: refuse(400, 21211, "The 'To' number "+number(2)+" is not a valid phone number."),
			sendertest.Refuse: refuse(400, 14107, "SMS send rate limit exceeded"),
		},
	})
}

// documented are the answers of the table in the package's comment.
func documented() (cases []sendertest.HTTPCase) {
	add := func(r sender.Receipt, reply sendertest.Reply) {
		r.Code = reply.Status
		cases = append(cases, sendertest.HTTPCase{Name: fmt.Sprintf("%d %.40s", reply.Status, reply.Body), Reply: reply, Want: r})
	}
	statuses := map[int]int{20003: 401, 20005: 403, 20006: 403, 20403: 403, 21408: 403, 20404: 404, 20429: 429, 30001: 429, 63038: 429}
	for _, code := range slices.Sorted(maps.Keys(codes)) {
		status := statuses[code]
		if status == 0 {
			status = 400
		}
		add(codes[code], refuse(status, code, "no"))
	}
	refused := sender.Receipt{Outcome: sender.NotAccepted, Reason: "request_refused"}
	add(wire.OfProvider("credentials_refused", true), sendertest.Reply{Status: 401})
	add(wire.OfProvider("credentials_refused", true), refuse(401, 99999, "new"))
	add(wire.OfProvider("access_denied", true), sendertest.Reply{Status: 403})
	add(wire.OfProvider("not_found", true), sendertest.Reply{Status: 404, Body: "<html>"})
	add(wire.OfProvider("throttled", false), sendertest.Reply{Status: 429, Header: map[string]string{"Retry-After": "1"}})
	add(wire.OfProvider("unavailable", false), sendertest.Reply{Status: 503, Header: map[string]string{"Retry-After": "1"}})
	add(refused, refuse(400, 99999, "new"))
	add(refused, refuse(403, 99999, "new"))
	add(refused, refuse(404, 99999, "new"))
	add(refused, sendertest.Reply{Status: 400})
	add(wire.Rejected("message_rejected"), sendertest.Reply{Status: 201, Body: made("failed")})
	add(sender.Receipt{Outcome: sender.Unknown, Reason: "server_error"}, refuse(500, 20500, "Internal Server Error"))
	add(sender.Receipt{Outcome: sender.Unknown, Reason: "server_error"}, refuse(503, 20503, "Service unavailable"))
	add(sender.Receipt{Outcome: sender.Unknown, Reason: "server_error"}, refuse(500, 21211, "no"))
	add(sender.Receipt{Outcome: sender.Unknown, Reason: "protocol_error"}, sendertest.Reply{Status: 201, Body: `{"sid":"CA1"}`})
	return cases
}

// Every code has the outcome that the table in the package's comment gives it.
func TestEveryCodeIsDocumented(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("twilio.go")
	if err != nil {
		t.Fatal(err)
	}
	comment, _, _ := strings.Cut(string(source), "\npackage ")
	outcomes := map[string]sender.Outcome{"rejected": sender.Rejected, "not accepted": sender.NotAccepted}
	found := 0
	for line := range strings.SplitSeq(comment, "\n") {
		row := regexp.MustCompile(`\s{2,}|\t`).Split(line, -1)
		if len(row) < 5 {
			continue
		}
		for _, code := range regexp.MustCompile(`\b\d{5}\b`).FindAllString(row[1], -1) {
			n, _ := strconv.Atoi(code)
			want := codes[n]
			reason, definite := strings.CutSuffix(row[4], "; definite")
			found++
			if outcomes[row[2]] != want.Outcome || (row[3] == "yes") != want.Provider || definite != want.Definite ||
				reason != want.Reason {
				t.Errorf("%s is documented as %q: %+v", code, row, want)
			}
		}
	}
	if found != len(codes) {
		t.Errorf("%d of %d codes are documented", found, len(codes))
	}
}

func anything(sendertest.Received) bool { return true }

func TestRequest(t *testing.T) {
	t.Parallel()
	m := sender.Message{Notification: "ntf_0abc", Attempt: 2, To: number(1), Text: "Grüße & more"}
	callback := public + "/hooks/twilio/" + lemma.FormatID(lemma.PrefixProvider, testProvider) + "?n=ntf_0abc&a=2"
	for _, c := range []struct {
		name, config, secrets, public string
		want                          url.Values
	}{
		{"a Messaging Service", byService, byKey, public, url.Values{"MessagingServiceSid": {testService}, "StatusCallback": {callback}}},
		{"a number", `"from":"+15005550006","validity_seconds":60`, byToken, public,
			url.Values{"From": {"+15005550006"}, "ValidityPeriod": {"60"}, "StatusCallback": {callback}}},
		{"no public URL", byService, byKey, "", url.Values{"MessagingServiceSid": {testService}}},
		{"callbacks that cannot be verified", byService, strings.Replace(byKey, `"auth_token":"`+testToken+`",`, "", 1), public,
			url.Values{"MessagingServiceSid": {testService}}},
	} {
		s := sendertest.ServeHTTPS(t, true, func(sendertest.Received) sendertest.Reply {
			return sendertest.Reply{Status: 201, Body: made("queued")}
		})
		if r := accountAt(t, s, c.config, c.secrets, c.public).Send(t.Context(), []sender.Message{m})[0]; r.Outcome != sender.Accepted ||
			r.CarrierID != testSID {
			t.Fatalf("%s: %+v", c.name, r)
		}
		c.want["To"], c.want["Body"] = []string{m.To}, []string{m.Text}
		if got := fields(s.Received(anything)[0]); !maps.EqualFunc(got, c.want, slices.Equal) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	const sid = `"account_sid":"` + testAccount + `"`
	for _, c := range []struct{ name, config, secrets, faults string }{
		{"a Messaging Service", `{` + sid + `,` + byService + `}`, byToken, ""},
		{"an API key", `{` + sid + `,"from":"Shop"}`, strings.Replace(byKey, `"auth_token":"`+testToken+`",`, "", 1), ""},
		{"all", `{` + sid + `,"from":"12345","endpoint":"https://api.dublin.ie1.twilio.com","validity_seconds":1,"max_requests":1}`, byKey, ""},
		{"nothing", `{}`, ``, "/config/account_sid /config/messaging_service_sid /secrets/auth_token"},
		{"two senders", `{` + sid + `,` + byService + `,"from":"Shop"}`, byToken, "/config/messaging_service_sid"},
		{"a service that is none", `{` + sid + `,"messaging_service_sid":"MG1"}`, byToken, "/config/messaging_service_sid"},
		{"a long name", `{` + sid + `,"from":"A long sender"}`, byToken, "/config/from"},
		{"a number without a country", `{` + sid + `,"from":"+0123"}`, byToken, "/config/from"},
		{"half a key", `{` + sid + `,"from":"Shop"}`, `{"api_key_sid":"` + testKey + `"}`, "/secrets/api_key_secret"},
		{"a secret without its key", `{` + sid + `,"from":"Shop"}`, `{"api_key_secret":"` + testSecret + `"}`, "/secrets/api_key_sid"},
		{"an account with a path", `{"account_sid":"AC/../x","from":"Shop"}`, byToken, "/config/account_sid"},
		{"numbers", `{` + sid + `,"from":"Shop","validity_seconds":36001,"max_requests":257,"timeout_seconds":0}`, byToken,
			"/config/max_requests /config/timeout_seconds /config/validity_seconds"},
		{"an endpoint with a path", `{` + sid + `,"from":"Shop","endpoint":"https://x.example/2010"}`, byToken, "/config/endpoint"},
		{"a private endpoint", `{` + sid + `,"from":"Shop","endpoint":"https://10.0.0.1"}`, byToken, "/config/endpoint"},
	} {
		sendertest.CheckSettings(t, Kind(wire.Operator{}), c.name, c.config, c.secrets, c.faults)
	}
	if len(Warnings(json.RawMessage(`{"from":"Shop"}`))) != 1 || len(Warnings(json.RawMessage(`{"from":"+15005550006"}`))) != 0 {
		t.Error("warnings about a sender without replies")
	}
}

func TestMoves(t *testing.T) {
	t.Parallel()
	at := func(endpoint string) json.RawMessage { return fmt.Appendf(nil, `{"endpoint":%q}`, endpoint) }
	sendertest.CheckMoves(t, Moves, []sendertest.Move{
		{"nothing", json.RawMessage(`{}`), json.RawMessage(`{"from":"Shop"}`), 0},
		{"another region", json.RawMessage(`{}`), at("https://api.dublin.ie1.twilio.com"), 0},
		{"to another server", json.RawMessage(`{}`), at("https://a.example"), 1},
		{"to a server with a name like Twilio's", json.RawMessage(`{}`), at("https://api.twilio.com.example"), 1},
		{"to another port", at("https://a.example"), at("https://a.example:444"), 1},
	})
}

func FuzzAnswers(f *testing.F) {
	f.Add(201, made("queued"))
	f.Add(400, `{"code":21211,"message":"`+number(2)+` is not valid"}`)
	f.Add(400, `{"code":"21211"}`)
	f.Add(201, `{"sid":"`+testSID+`","status":"failed","error_code":30002,"error_message":"`+number(2)+`"}`)
	f.Add(307, `[]`)
	f.Fuzz(func(t *testing.T, status int, body string) {
		if status < 200 || status > 999 {
			return
		}
		m := sender.Message{To: number(2)}
		r := receiptFor(&wire.Answer{Status: status, Header: http.Header{}, Body: []byte(body), Whole: true}, &m)
		if r.Outcome == sender.Accepted && (status >= 300 || r.CarrierID == "") {
			t.Errorf("%+v for %d %q", r, status, body)
		}
		sendertest.CheckAnswer(t, r, status, m.To)
	})
}

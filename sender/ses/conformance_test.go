package ses

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"lemma/sender"
	"lemma/sender/sendertest"
	"lemma/sender/wire"
)

const (
	testKeyID  = "AKIDEXAMPLE123456789"
	testSecret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
	testToken  = "session-token=="
)

func address(n int) string { return fmt.Sprintf("user%d@example.test", n) }

// accountAt opens a carrier on a server.
func accountAt(t *testing.T, s *sendertest.HTTPServer, more string) *carrier {
	t.Helper()
	account := sender.Account{Trace: s.Trace,
		Config:  fmt.Appendf(nil, `{"region":"eu-central-1","endpoint":%q,"timeout_seconds":4%s}`, s.URL, more),
		Secrets: fmt.Appendf(nil, `{"access_key_id":%q,"secret_access_key":%q,"session_token":%q}`, testKeyID, testSecret, testToken),
	}
	c, err := open(account, wire.Operator{AllowPrivate: true, ShowPrivate: !s.Hides, Roots: s.Roots,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// request is the documented form of SendEmail.
type request struct {
	FromEmailAddress     string
	ConfigurationSetName string
	Destination          struct{ ToAddresses []string }
	Content              struct{ Raw struct{ Data string } }
	EmailTags            []struct{ Name, Value string }
}

func read(r sendertest.Received) (one request) {
	d := json.NewDecoder(strings.NewReader(string(r.Body)))
	d.DisallowUnknownFields()
	if d.Decode(&one) != nil || len(one.Destination.ToAddresses) != 1 {
		return request{Destination: struct{ ToAddresses []string }{[]string{""}}}
	}
	return one
}

func recipient(r sendertest.Received) string { return read(r).Destination.ToAddresses[0] }

func mailOf(r sendertest.Received) []byte {
	text, _ := base64.StdEncoding.DecodeString(read(r).Content.Raw.Data)
	return text
}

// refuse is an error as SES answers it.
func refuse(status int, kind, message string) sendertest.Reply {
	header := map[string]string{"X-Amzn-Requestid": "1"}
	if kind != "" {
		header["X-Amzn-Errortype"] = kind + ":http://internal.amazon.com/coral/com.amazonaws.ses/"
	}
	body, _ := json.Marshal(map[string]string{"message": message})
	return sendertest.Reply{Status: status, Header: header, Body: string(body)}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	cases := append(documented(), sendertest.OtherAnswers(sendertest.ByStatus)...)
	sendertest.HTTPConformance(t, sendertest.HTTPHarness{
		Open: func(t *testing.T, s *sendertest.HTTPServer) sender.Carrier { return accountAt(t, s, "") },
		To:   recipient, Same: mailOf, Address: address, Reasons: sendertest.Reasons(t, "ses.go", "../wire/wire.go"), Cases: cases,
		Verify: verify,
		Replies: map[sendertest.Behaviour]sendertest.Reply{
			sendertest.Accept: {Body: `{"MessageId":"0107018f-1"}`},
			sendertest.Reject: refuse(400, "MessageRejected", "no, USER2@example.test"),
			sendertest.Refuse: refuse(408, "RequestTimeoutException", "Timed out"),
		},
	})
}

// documented are the answers of the table in the package's comment.
func documented() (cases []sendertest.HTTPCase) {
	type answer struct {
		status int
		kind   string
	}
	add := func(r sender.Receipt, message string, answers ...answer) {
		for _, a := range answers {
			r.Code = a.status
			cases = append(cases, sendertest.HTTPCase{Name: fmt.Sprintf("%d %s %.30s", a.status, a.kind, message),
				Reply: refuse(a.status, a.kind, message), Want: r})
		}
	}
	rejected := func(reason string) sender.Receipt { return sender.Receipt{Outcome: sender.Rejected, Reason: reason} }
	provider := func(reason string, definite bool) sender.Receipt {
		return sender.Receipt{Outcome: sender.NotAccepted, Provider: true, Definite: definite, Reason: reason}
	}
	unverified := "Email address is not verified. The following identities failed the check in region EU-CENTRAL-1: "
	add(rejected("message_rejected"), "invalid content", answer{400, "MessageRejected"})
	add(rejected("recipient_rejected"), unverified+address(2), answer{400, "MessageRejected"})
	add(provider("sender_rejected", true), unverified+"news@shop.example", answer{400, "MessageRejected"})
	add(provider("sender_rejected", true), unverified+address(2)+", NEWS@shop.example", answer{400, "MessageRejected"})
	add(rejected("message_invalid"), "Illegal address", answer{400, "BadRequestException"}, answer{400, "ValidationError"},
		answer{400, "ValidationException"}, answer{400, "MalformedHttpRequestException"})
	add(rejected("message_too_large"), "too large", answer{413, "RequestEntityTooLargeException"}, answer{413, ""})
	add(provider("sender_rejected", true), "not verified", answer{400, "MailFromDomainNotVerifiedException"})
	add(provider("account_suspended", true), "", answer{400, "AccountSuspendedException"})
	add(provider("sending_paused", true), "paused", answer{400, "SendingPausedException"})
	add(provider("not_found", true), "no such set", answer{404, "NotFoundException"}, answer{404, "UnknownOperationException"})
	add(provider("access_denied", true), "not authorized", answer{403, "AccessDeniedException"}, answer{400, "AccessDeniedException"},
		answer{403, "AccessDenied"}, answer{401, "NotAuthorized"}, answer{403, "OptInRequired"}, answer{401, ""}, answer{403, ""})
	add(provider("credentials_refused", true), "expired", answer{403, "ExpiredTokenException"}, answer{403, "ExpiredToken"},
		answer{403, "UnrecognizedClientException"}, answer{403, "InvalidClientTokenId"}, answer{403, "InvalidSignatureException"},
		answer{403, "SignatureDoesNotMatch"}, answer{403, "IncompleteSignature"}, answer{403, "MissingAuthenticationToken"})
	add(provider("clock_skew", false), "Signature expired: 20261122T000000Z is now earlier", answer{403, "InvalidSignatureException"})
	add(provider("clock_skew", false), "Signature not yet current: 20261122T000000Z", answer{403, "SignatureDoesNotMatch"})
	add(provider("clock_skew", false), "", answer{400, "RequestExpired"})
	add(provider("throttled", false), "Maximum sending rate exceeded.", answer{429, "TooManyRequestsException"},
		answer{400, "ThrottlingException"}, answer{400, "Throttling"}, answer{429, ""})
	add(provider("limit_exceeded", false), "Daily message quota exceeded.", answer{400, "LimitExceededException"})
	add(provider("unavailable", false), "", answer{503, "ServiceUnavailable"}, answer{503, ""})
	add(sender.Receipt{Outcome: sender.NotAccepted, Reason: "request_refused"}, "", answer{408, "RequestTimeoutException"},
		answer{400, "NewException"}, answer{409, ""}, answer{403, "NewException"})
	add(sender.Receipt{Outcome: sender.Unknown, Reason: "server_error"}, "", answer{500, "InternalFailure"},
		answer{500, "InternalServiceErrorException"}, answer{400, "RequestAbortedException"}, answer{502, ""},
		answer{500, "MessageRejected"}, answer{500, "AccessDeniedException"})
	return cases
}

// Every type in the code has a case, and so has its row in the table.
func TestEveryTypeIsDocumented(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("ses.go")
	if err != nil {
		t.Fatal(err)
	}
	tested := map[string]bool{}
	for _, c := range documented() {
		tested[strings.Split(c.Name, " ")[1]] = true
	}
	for kind := range classes {
		if !regexp.MustCompile(`\b`+kind+`\b`).Match(source) || !tested[kind] {
			t.Errorf("%s is not documented, or not tested", kind)
		}
	}
}

// The types of errors come from the header or the body, with a namespace or a URL.
func TestTypesOfErrors(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]wire.Answer{
		"header":            {Header: http.Header{"X-Amzn-Errortype": {"MessageRejected:http://internal/"}}},
		"__type":            {Body: []byte(`{"__type":"com.amazonaws.sesv2#MessageRejected"}`)},
		"code":              {Body: []byte(`{"code":"MessageRejected","Message":"no"}`)},
		"header before all": {Header: http.Header{"X-Amzn-Errortype": {"MessageRejected"}}, Body: []byte(`{"code":"Other"}`)},
	} {
		if kind, _ := failureOf(&a); kind != "MessageRejected" {
			t.Errorf("%s: %q", name, kind)
		}
	}
}

func FuzzAnswers(f *testing.F) {
	f.Add(200, "", `{"MessageId":"1"}`)
	f.Add(400, "MessageRejected", `{"message":"Email address is not verified. user2@example.test"}`)
	f.Add(503, "a#b:c", `{"__type":null,"message":3}`)
	f.Add(307, "#", `[]`)
	f.Fuzz(func(t *testing.T, status int, kind, body string) {
		if status < 200 || status > 999 {
			return
		}
		m := sender.Message{To: address(2), FromEmail: "news@shop.example"}
		r := receiptFor(&wire.Answer{Status: status, Header: http.Header{"X-Amzn-Errortype": {kind}}, Body: []byte(body), Whole: true}, &m)
		if r.Outcome == sender.Accepted && (status >= 300 || r.CarrierID == "") {
			t.Errorf("%+v for %d %q", r, status, body)
		}
		sendertest.CheckAnswer(t, r, status, m.To)
	})
}

package ses

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"lemma/sender"
	"lemma/sender/wire"
)

// classes are the receipts of an error's types.
var classes = func() map[string]sender.Receipt {
	unknown := sender.Receipt{Outcome: sender.Unknown, Reason: "server_error"}
	return map[string]sender.Receipt{
		"MessageRejected":                    wire.Rejected("message_rejected"),
		"BadRequestException":                wire.Rejected("message_invalid"),
		"ValidationError":                    wire.Rejected("message_invalid"),
		"ValidationException":                wire.Rejected("message_invalid"),
		"MalformedHttpRequestException":      wire.Rejected("message_invalid"),
		"RequestEntityTooLargeException":     wire.Rejected("message_too_large"),
		"MailFromDomainNotVerifiedException": wire.OfProvider("sender_rejected", true),
		"AccountSuspendedException":          wire.OfProvider("account_suspended", true),
		"SendingPausedException":             wire.OfProvider("sending_paused", true),
		"NotFoundException":                  wire.OfProvider("not_found", true),
		"UnknownOperationException":          wire.OfProvider("not_found", true),
		"AccessDeniedException":              wire.OfProvider("access_denied", true),
		"AccessDenied":                       wire.OfProvider("access_denied", true),
		"NotAuthorized":                      wire.OfProvider("access_denied", true),
		"OptInRequired":                      wire.OfProvider("access_denied", true),
		"ExpiredTokenException":              wire.OfProvider("credentials_refused", true),
		"ExpiredToken":                       wire.OfProvider("credentials_refused", true),
		"UnrecognizedClientException":        wire.OfProvider("credentials_refused", true),
		"InvalidClientTokenId":               wire.OfProvider("credentials_refused", true),
		"InvalidSignatureException":          wire.OfProvider("credentials_refused", true),
		"SignatureDoesNotMatch":              wire.OfProvider("credentials_refused", true),
		"IncompleteSignature":                wire.OfProvider("credentials_refused", true),
		"MissingAuthenticationToken":         wire.OfProvider("credentials_refused", true),
		"RequestExpired":                     wire.OfProvider("clock_skew", false),
		"TooManyRequestsException":           wire.OfProvider("throttled", false),
		"ThrottlingException":                wire.OfProvider("throttled", false),
		"Throttling":                         wire.OfProvider("throttled", false),
		"LimitExceededException":             wire.OfProvider("limit_exceeded", false),
		"ServiceUnavailable":                 wire.OfProvider("unavailable", false),
		"InternalFailure":                    unknown,
		"InternalServiceErrorException":      unknown,
		"RequestAbortedException":            unknown,
	}
}()

// receiptFor is the table in the package's comment.
func receiptFor(a *wire.Answer, m *sender.Message) sender.Receipt {
	kind, text := failureOf(a)
	r := classify(a, kind, text, m)
	r.At = time.Now()
	if r.Outcome == sender.Accepted {
		return r
	}
	r.Code, r.RetryAfter = a.Status, a.RetryAfter()
	r.Detail = a.Text(strings.TrimPrefix(kind+": "+text, ": "), m.To)
	return r
}

func classify(a *wire.Answer, kind, text string, m *sender.Message) sender.Receipt {
	switch {
	case a.Status < 300:
		return accepted(a)
	case a.Status < 400:
		return wire.OfProvider("redirected", false)
	}
	r, known := classes[kind]
	if !known || a.Status >= 500 && r.Outcome != sender.Unknown && kind != "ServiceUnavailable" {
		return byStatus(a.Status, kind)
	}
	switch {
	case r.Reason == "credentials_refused" && skewed(text):
		r.Reason, r.Definite = "clock_skew", false
	case kind == "MessageRejected":
		r = unverified(r, text, m)
	}
	return r
}

// accepted is the receipt of a success. Only the message's id proves the acceptance: any
// server can answer 200.
func accepted(a *wire.Answer) sender.Receipt {
	var body struct{ MessageId string }
	if !a.Whole || json.Unmarshal(a.Body, &body) != nil || body.MessageId == "" || len(body.MessageId) > 200 {
		return sender.Receipt{Outcome: sender.Unknown, Reason: "protocol_error"}
	}
	return sender.Receipt{Outcome: sender.Accepted, CarrierID: body.MessageId}
}

// byStatus is the receipt of an error without a known type.
func byStatus(status int, kind string) sender.Receipt {
	switch {
	case status == http.StatusServiceUnavailable:
		return classes["ServiceUnavailable"]
	case status >= 500:
		return classes["InternalFailure"]
	case status == http.StatusTooManyRequests:
		return classes["Throttling"]
	case status == http.StatusRequestEntityTooLarge:
		return classes["RequestEntityTooLargeException"]
	case kind == "" && (status == http.StatusUnauthorized || status == http.StatusForbidden):
		return classes["AccessDenied"]
	}
	return sender.Receipt{Outcome: sender.NotAccepted, Reason: "request_refused"}
}

// failureOf is the type and the message of an error: the header X-Amzn-Errortype, or the
// members __type and code of the body. A type may have a namespace before # and a URL
// behind a colon.
func failureOf(a *wire.Answer) (kind, text string) {
	var body struct {
		Type    string `json:"__type"`
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	_ = json.Unmarshal(a.Body, &body) // without a type, the status decides
	for _, kind = range []string{a.Header.Get("X-Amzn-Errortype"), body.Type, body.Code} {
		kind, _, _ = strings.Cut(kind, ":")
		if kind = kind[strings.LastIndexByte(kind, '#')+1:]; kind != "" {
			break
		}
	}
	return kind, body.Message
}

// skewed reports that AWS refused the time of a signature.
func skewed(text string) bool {
	return strings.HasPrefix(text, "Signature expired") || strings.HasPrefix(text, "Signature not yet current")
}

// unverified distinguishes which identity is not verified. In the sandbox of SES that
// may be the recipient.
func unverified(r sender.Receipt, text string, m *sender.Message) sender.Receipt {
	lower := strings.ToLower(text)
	if !strings.HasPrefix(lower, "email address is not verified") {
		return r
	}
	_, domain, _ := strings.Cut(m.FromEmail, "@")
	ofRecipient := strings.Contains(lower, strings.ToLower(m.To))
	ofSender := strings.Contains(lower, strings.ToLower(m.FromEmail)) || strings.HasSuffix(lower, ": "+strings.ToLower(domain))
	if ofRecipient && !ofSender {
		return sender.Receipt{Outcome: sender.Rejected, Reason: "recipient_rejected"}
	}
	return classes["MailFromDomainNotVerifiedException"]
}

package webpush

import (
	"cmp"
	"encoding/json"
	"net/http"
	"path"
	"time"

	"lemma/sender"
	"lemma/sender/wire"
)

// receiptFor is the table in the package's comment.
func receiptFor(a *wire.Answer, s subscription) sender.Receipt {
	r := classify(a.Status)
	r.At = time.Now()
	if r.Outcome == sender.Accepted {
		r.CarrierID = clean(a, a.Header.Get("Location"), s)
		return r
	}
	r.Code, r.RetryAfter, r.Detail = a.Status, a.RetryAfter(), clean(a, reason(a.Body), s)
	return r
}

// reason is the text of an answer that refuses a message.
func reason(answer []byte) string {
	var body struct{ Message, Reason string }
	_ = json.Unmarshal(answer, &body) // the status decides
	return cmp.Or(body.Message, body.Reason)
}

func classify(status int) sender.Receipt {
	switch {
	case status <= http.StatusAccepted:
		return sender.Receipt{Outcome: sender.Accepted}
	case status < 300:
		return sender.Receipt{Outcome: sender.Unknown, Reason: "protocol_error"}
	case status < 400:
		return sender.Receipt{Outcome: sender.NotAccepted, Reason: "redirected"}
	case status >= 500 && status != http.StatusServiceUnavailable:
		return sender.Receipt{Outcome: sender.Unknown, Reason: "server_error"}
	}
	return refused(status)
}

func refused(status int) sender.Receipt {
	switch status {
	case http.StatusNotFound, http.StatusGone:
		return sender.Receipt{Outcome: sender.Rejected, Reason: sender.ReasonUnregistered}
	case http.StatusBadRequest:
		return sender.Receipt{Outcome: sender.Rejected, Reason: "message_rejected"}
	case http.StatusRequestEntityTooLarge:
		return sender.Receipt{Outcome: sender.Rejected, Reason: "message_too_large"}
	case http.StatusUnauthorized, http.StatusForbidden:
		return sender.Receipt{Outcome: sender.NotAccepted, Reason: "vapid_refused"}
	case http.StatusTooManyRequests, http.StatusNotAcceptable: // 406 is that of Windows' service
		return sender.Receipt{Outcome: sender.NotAccepted, Reason: "throttled"}
	case http.StatusServiceUnavailable:
		return sender.Receipt{Outcome: sender.NotAccepted, Reason: "unavailable"}
	}
	return sender.Receipt{Outcome: sender.NotAccepted, Reason: "request_refused"}
}

// ofEndpoint makes a call without an answer one of the recipient: the endpoint is theirs,
// and others have other ones.
func ofEndpoint(r sender.Receipt) sender.Receipt {
	if !r.Provider {
		return r
	}
	r.Provider, r.Definite, r.Outcome = false, false, sender.NotAccepted
	if r.Reason == "forbidden_address" {
		r.Outcome = sender.Rejected
	}
	return r
}

// clean is a text of a push service without the endpoint and its last part, which is a
// secret of the subscription.
func clean(a *wire.Answer, text string, s subscription) string {
	text = a.Text(text, s.endpoint.String())
	if last := path.Base(s.endpoint.Path); len(last) > 1 {
		text = sender.Detail(nil, text, last)
	}
	return text
}

package twilio

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"lemma/sender"
	"lemma/sender/wire"
)

// codes are the receipts of Twilio's error codes.
var codes = func() map[int]sender.Receipt {
	all := map[int]sender.Receipt{}
	add := func(r sender.Receipt, codes ...int) {
		for _, code := range codes {
			all[code] = r
		}
	}
	notAccepted := func(reason string) sender.Receipt { return sender.Receipt{Outcome: sender.NotAccepted, Reason: reason} }
	add(wire.Rejected("recipient_invalid"), 21211, 21214, 21217, 21265, 21266, 21614, 21635)
	add(wire.Rejected(sender.ReasonUnsubscribed), 21610)
	add(wire.Rejected("recipient_unreachable"), 21612)
	add(wire.Rejected("country_disabled"), 21408)
	add(wire.Rejected("recipient_unverified"), 21608)
	add(wire.Rejected("message_too_large"), 21617)
	add(wire.Rejected("message_invalid"), 21602, 21605, 21619)
	add(notAccepted("sender_refused"), 21606, 21659, 21703)
	add(notAccepted("recipient_throttled"), 14107)
	add(wire.OfProvider("sender_rejected", true), 21212, 21603, 21660, 21661, 21701, 21704, 21705)
	add(wire.OfProvider("callback_rejected", true), 21609)
	add(wire.OfProvider("account_suspended", true), 10001, 20005, 30002)
	add(wire.OfProvider("access_denied", true), 20006, 20008, 20403)
	add(wire.OfProvider("credentials_refused", true), 20003)
	add(wire.OfProvider("not_found", true), 20404)
	add(wire.OfProvider("throttled", false), 20429, 21611, 30001)
	add(wire.OfProvider("limit_exceeded", false), 63038)
	return all
}()

// failure is an error as Twilio answers it.
type failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// receiptFor is the table in the package's comment.
func receiptFor(a *wire.Answer, m *sender.Message) sender.Receipt {
	if a.Status < 300 {
		r := created(a, m)
		r.At = time.Now()
		return r
	}
	var f failure
	if json.Unmarshal(a.Body, &f) != nil {
		f = failure{} // the status decides
	}
	r := classify(a, f.Code)
	r.Code, r.RetryAfter, r.At = a.Status, a.RetryAfter(), time.Now()
	text := f.Message
	if f.Code != 0 {
		text = strconv.Itoa(f.Code) + ": " + text
	}
	r.Detail = a.Text(text, m.To)
	return r
}

var messageSID = regexp.MustCompile(`^(SM|MM)[0-9a-f]{32}$`)

// created is the receipt of a success. Only the sid proves the acceptance: any server can
// answer 200.
func created(a *wire.Answer, m *sender.Message) sender.Receipt {
	var body struct {
		SID     string `json:"sid"`
		Status  string `json:"status"`
		Code    int    `json:"error_code"`
		Message string `json:"error_message"`
	}
	if !a.Whole || json.Unmarshal(a.Body, &body) != nil || !messageSID.MatchString(body.SID) {
		return sender.Receipt{Outcome: sender.Unknown, Reason: "protocol_error", Code: a.Status}
	}
	switch body.Status {
	case "failed", "undelivered", "canceled":
		r := wire.Rejected("message_rejected")
		r.Code, r.CarrierID = a.Status, body.SID
		r.Detail = a.Text(strconv.Itoa(body.Code)+": "+body.Message, m.To)
		return r
	}
	return sender.Receipt{Outcome: sender.Accepted, CarrierID: body.SID}
}

func classify(a *wire.Answer, code int) sender.Receipt {
	switch {
	case a.Status < 400:
		return wire.OfProvider("redirected", false)
	case a.Status == http.StatusServiceUnavailable && strings.TrimSpace(a.Header.Get("Retry-After")) != "":
		return wire.OfProvider("unavailable", false)
	case a.Status >= 500:
		return sender.Receipt{Outcome: sender.Unknown, Reason: "server_error"}
	}
	if r, known := codes[code]; known {
		return r
	}
	switch {
	case a.Status == http.StatusUnauthorized:
		return codes[20003]
	case a.Status == http.StatusTooManyRequests:
		return codes[20429]
	case a.Status == http.StatusForbidden && code == 0:
		return codes[20403]
	case a.Status == http.StatusNotFound && code == 0:
		return codes[20404]
	}
	return sender.Receipt{Outcome: sender.NotAccepted, Reason: "request_refused"}
}

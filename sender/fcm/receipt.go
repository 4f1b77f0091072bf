package fcm

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"lemma/sender"
	"lemma/sender/wire"
)

// failure is an error as Google's APIs answer it.
type failure struct {
	Status  string
	Message string
	Details []detail
}

type detail struct {
	Type   string `json:"@type"`
	Code   string `json:"errorCode"` // of FCM
	Fields []struct {
		Field string `json:"field"`
	} `json:"fieldViolations"`
	Quotas []struct {
		Subject     string `json:"subject"`
		Description string `json:"description"`
	} `json:"violations"`
}

// failureOf reads as much of an error as is there. Without a code, the status decides.
func failureOf(a *wire.Answer) (f failure) {
	var body struct {
		Error struct {
			Status  string            `json:"status"`
			Message string            `json:"message"`
			Details []json.RawMessage `json:"details"`
		} `json:"error"`
	}
	_ = json.Unmarshal(a.Body, &body)
	f.Status, f.Message = body.Error.Status, body.Error.Message
	for _, raw := range body.Error.Details {
		var d detail
		_ = json.Unmarshal(raw, &d)
		f.Details = append(f.Details, d)
	}
	return f
}

// code is the error code of FCM, or the status of the error.
func (f failure) code() string {
	for _, d := range f.Details {
		if strings.HasPrefix(d.Type, "type.googleapis.com/google.firebase.fcm.v1.FcmError") && d.Code != "" {
			return d.Code
		}
	}
	return f.Status
}

// ofToken reports that an invalid argument is the device's token.
func (f failure) ofToken() bool {
	for _, d := range f.Details {
		for _, v := range d.Fields {
			if v.Field == "message.token" {
				return true
			}
		}
	}
	return strings.Contains(strings.ToLower(f.Message), "registration token")
}

// ofDevice reports that the quota is that of one device, not of the project.
func (f failure) ofDevice() bool {
	texts := []string{f.Message}
	for _, d := range f.Details {
		for _, q := range d.Quotas {
			texts = append(texts, q.Subject, q.Description)
		}
	}
	return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(strings.ToLower(text), "device") })
}

// receiptFor is the first table in the package's comment.
func receiptFor(a *wire.Answer, m *sender.Message) sender.Receipt {
	if a.Status < 300 {
		r := accepted(a)
		r.At = time.Now()
		return r
	}
	f := failureOf(a)
	r := classify(a, f)
	r.Code, r.RetryAfter, r.At = a.Status, a.RetryAfter(), time.Now()
	r.Detail = a.Text(strings.TrimPrefix(f.code()+": "+f.Message, ": "), m.To)
	return r
}

// accepted is the receipt of a success. Only the name of the message proves the
// acceptance: any server can answer 200.
func accepted(a *wire.Answer) sender.Receipt {
	var body struct{ Name string }
	if !a.Whole || json.Unmarshal(a.Body, &body) != nil || !strings.Contains(body.Name, "/messages/") || len(body.Name) > 200 {
		return sender.Receipt{Outcome: sender.Unknown, Reason: "protocol_error", Code: a.Status}
	}
	return sender.Receipt{Outcome: sender.Accepted, CarrierID: body.Name}
}

func classify(a *wire.Answer, f failure) sender.Receipt {
	code := f.code()
	switch {
	case a.Status < 400:
		return wire.OfProvider("redirected", false)
	case code == "UNAVAILABLE" && a.Status == http.StatusServiceUnavailable,
		a.Status == http.StatusServiceUnavailable && a.Header.Get("Retry-After") != "":
		return wire.OfProvider("unavailable", false)
	case a.Status >= 500:
		return sender.Receipt{Outcome: sender.Unknown, Reason: "server_error"}
	}
	if r, known := byCode(code, f); known {
		return r
	}
	return byStatus(a.Status)
}

// byCode is the receipt of a 4xx with a known code.
func byCode(code string, f failure) (sender.Receipt, bool) {
	switch code {
	case "UNREGISTERED":
		return wire.Rejected(sender.ReasonUnregistered), true
	case "SENDER_ID_MISMATCH":
		return wire.Rejected("token_mismatch"), true
	case "INVALID_ARGUMENT":
		if f.ofToken() {
			return wire.Rejected("token_invalid"), true
		}
		return wire.Rejected("message_invalid"), true
	case "QUOTA_EXCEEDED", "RESOURCE_EXHAUSTED":
		if f.ofDevice() {
			return sender.Receipt{Outcome: sender.NotAccepted, Reason: "device_throttled"}, true
		}
		return wire.OfProvider("throttled", false), true
	case "THIRD_PARTY_AUTH_ERROR":
		return wire.OfProvider("push_credentials_refused", true), true
	case "UNAUTHENTICATED":
		return wire.OfProvider("access_token_refused", false), true
	case "PERMISSION_DENIED":
		return wire.OfProvider("access_denied", true), true
	case "NOT_FOUND":
		return wire.OfProvider("not_found", true), true
	}
	return sender.Receipt{}, false
}

func byStatus(status int) sender.Receipt {
	switch status {
	case http.StatusUnauthorized:
		return wire.OfProvider("access_token_refused", false)
	case http.StatusForbidden:
		return wire.OfProvider("access_denied", true)
	case http.StatusNotFound:
		return wire.OfProvider("not_found", true)
	case http.StatusRequestEntityTooLarge:
		return wire.Rejected("message_too_large")
	case http.StatusTooManyRequests:
		return wire.OfProvider("throttled", false)
	}
	return sender.Receipt{Outcome: sender.NotAccepted, Reason: "request_refused"}
}

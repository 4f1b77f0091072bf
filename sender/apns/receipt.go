package apns

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"lemma/sender"
	"lemma/sender/wire"
)

// reasons are the receipts of Apple's reasons.
var reasons = func() map[string]sender.Receipt {
	return map[string]sender.Receipt{
		"Unregistered":                wire.Rejected(sender.ReasonUnregistered),
		"ExpiredToken":                wire.Rejected(sender.ReasonUnregistered),
		"BadDeviceToken":              wire.Rejected("token_invalid"),
		"DeviceTokenNotForTopic":      wire.Rejected("token_mismatch"),
		"MissingDeviceToken":          wire.Rejected("token_invalid"),
		"BadPath":                     wire.Rejected("token_invalid"),
		"PayloadTooLarge":             wire.Rejected("message_too_large"),
		"PayloadEmpty":                wire.Rejected("message_invalid"),
		"BadCollapseId":               wire.Rejected("message_invalid"),
		"BadExpirationDate":           wire.Rejected("message_invalid"),
		"BadMessageId":                wire.Rejected("message_invalid"),
		"BadPriority":                 wire.Rejected("message_invalid"),
		"DuplicateHeaders":            wire.Rejected("message_invalid"),
		"InvalidPushType":             wire.Rejected("message_invalid"),
		"BadTopic":                    wire.OfProvider("topic_refused", true),
		"MissingTopic":                wire.OfProvider("topic_refused", true),
		"TopicDisallowed":             wire.OfProvider("topic_refused", true),
		"InvalidProviderToken":        wire.OfProvider("credentials_refused", true),
		"MissingProviderToken":        wire.OfProvider("credentials_refused", true),
		"BadEnvironmentKeyIdInToken":  wire.OfProvider("credentials_refused", true),
		"BadEnvironmentKeyInToken":    wire.OfProvider("credentials_refused", true),
		"BadCertificate":              wire.OfProvider("credentials_refused", true),
		"BadCertificateEnvironment":   wire.OfProvider("credentials_refused", true),
		"UnrelatedKeyIdInToken":       wire.OfProvider("credentials_refused", false),
		"ExpiredProviderToken":        wire.OfProvider("clock_skew", false),
		"Forbidden":                   wire.OfProvider("access_denied", true),
		"MethodNotAllowed":            wire.OfProvider("not_found", true),
		"TooManyProviderTokenUpdates": wire.OfProvider("throttled", false),
		"TooManyRequests":             {Outcome: sender.NotAccepted, Reason: "device_throttled"},
		"ServiceUnavailable":          wire.OfProvider("unavailable", false),
		"Shutdown":                    wire.OfProvider("unavailable", false),
		"IdleTimeout":                 wire.OfProvider("unavailable", false),
		"InternalServerError":         {Outcome: sender.Unknown, Reason: "server_error"},
	}
}()

// receiptFor is the table in the package's comment.
func receiptFor(a *wire.Answer, m *sender.Message) sender.Receipt {
	var body struct{ Reason string }
	_ = json.Unmarshal(a.Body, &body) // without a reason, the status decides
	r := classify(a, body.Reason, m)
	r.At = time.Now()
	if r.Outcome == sender.Accepted {
		return r
	}
	r.Code, r.RetryAfter, r.Detail = a.Status, a.RetryAfter(), a.Text(body.Reason, m.To)
	return r
}

func classify(a *wire.Answer, reason string, m *sender.Message) sender.Receipt {
	switch {
	case a.Status < 300:
		return accepted(a, m)
	case a.Status < 400:
		return wire.OfProvider("redirected", false)
	case a.Status == http.StatusServiceUnavailable:
		return reasons["ServiceUnavailable"]
	case a.Status >= 500:
		return reasons["InternalServerError"]
	}
	if r, known := reasons[reason]; known {
		return r
	}
	return byStatus(a.Status)
}

// accepted is the receipt of a success. Only the repeated apns-id proves the acceptance:
// any server can answer 200.
func accepted(a *wire.Answer, m *sender.Message) sender.Receipt {
	id := messageID(m)
	if a.Status != http.StatusOK || !strings.EqualFold(a.Header.Get("Apns-Id"), id) {
		return sender.Receipt{Outcome: sender.Unknown, Reason: "protocol_error"}
	}
	return sender.Receipt{Outcome: sender.Accepted, CarrierID: id}
}

// byStatus is the receipt of a refusal without a known reason.
func byStatus(status int) sender.Receipt {
	switch status {
	case http.StatusForbidden:
		return reasons["Forbidden"]
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return reasons["MethodNotAllowed"]
	case http.StatusGone:
		return reasons["Unregistered"]
	case http.StatusRequestEntityTooLarge:
		return reasons["PayloadTooLarge"]
	case http.StatusTooManyRequests:
		return reasons["TooManyProviderTokenUpdates"]
	}
	return sender.Receipt{Outcome: sender.NotAccepted, Reason: "request_refused"}
}

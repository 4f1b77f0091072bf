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
	never := func(reason string) sender.Receipt { return sender.Receipt{Outcome: sender.Rejected, Reason: reason} }
	definite := func(reason string) sender.Receipt {
		return sender.Receipt{Outcome: sender.NotAccepted, Provider: true, Definite: true, Reason: reason}
	}
	forNow := func(reason string) sender.Receipt {
		return sender.Receipt{Outcome: sender.NotAccepted, Provider: true, Reason: reason}
	}
	return map[string]sender.Receipt{
		"Unregistered":                never(sender.ReasonUnregistered),
		"ExpiredToken":                never(sender.ReasonUnregistered),
		"BadDeviceToken":              never("token_invalid"),
		"DeviceTokenNotForTopic":      never("token_mismatch"),
		"MissingDeviceToken":          never("token_invalid"),
		"BadPath":                     never("token_invalid"),
		"PayloadTooLarge":             never("message_too_large"),
		"PayloadEmpty":                never("message_invalid"),
		"BadCollapseId":               never("message_invalid"),
		"BadExpirationDate":           never("message_invalid"),
		"BadMessageId":                never("message_invalid"),
		"BadPriority":                 never("message_invalid"),
		"DuplicateHeaders":            never("message_invalid"),
		"InvalidPushType":             never("message_invalid"),
		"BadTopic":                    definite("topic_refused"),
		"MissingTopic":                definite("topic_refused"),
		"TopicDisallowed":             definite("topic_refused"),
		"InvalidProviderToken":        definite("credentials_refused"),
		"MissingProviderToken":        definite("credentials_refused"),
		"BadEnvironmentKeyIdInToken":  definite("credentials_refused"),
		"BadEnvironmentKeyInToken":    definite("credentials_refused"),
		"BadCertificate":              definite("credentials_refused"),
		"BadCertificateEnvironment":   definite("credentials_refused"),
		"UnrelatedKeyIdInToken":       forNow("credentials_refused"),
		"ExpiredProviderToken":        forNow("clock_skew"),
		"Forbidden":                   definite("access_denied"),
		"MethodNotAllowed":            definite("not_found"),
		"TooManyProviderTokenUpdates": forNow("throttled"),
		"TooManyRequests":             {Outcome: sender.NotAccepted, Reason: "device_throttled"},
		"ServiceUnavailable":          forNow("unavailable"),
		"Shutdown":                    forNow("unavailable"),
		"IdleTimeout":                 forNow("unavailable"),
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
	r.Code, r.RetryAfter, r.Detail = a.Status, a.RetryAfter(), sender.Detail(body.Reason, m.To)
	return r
}

func classify(a *wire.Answer, reason string, m *sender.Message) sender.Receipt {
	switch {
	case a.Status < 300:
		return accepted(a, m)
	case a.Status < 400:
		return sender.Receipt{Outcome: sender.NotAccepted, Provider: true, Reason: "redirected"}
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

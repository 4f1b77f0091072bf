package gateway

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"lemma/sender"
	"lemma/sender/form"
	"lemma/sender/wire"
)

// responses map the answers of the service to outcomes.
type responses struct {
	statuses, values outcomes
	field            string // JSON pointer to the value that decides about a 2xx; empty: the status decides
	id, failure      string // JSON pointers to the service's id of the message, and to the text of an error
}

// outcomes are the statuses or values that are mapped.
type outcomes struct{ accepted, rejected, notAccepted []string }

func (o outcomes) of(value string) sender.Outcome {
	switch {
	case slices.Contains(o.accepted, value):
		return sender.Accepted
	case slices.Contains(o.rejected, value):
		return sender.Rejected
	case slices.Contains(o.notAccepted, value):
		return sender.NotAccepted
	}
	return ""
}

func (o outcomes) all() []string { return slices.Concat(o.accepted, o.rejected, o.notAccepted) }

func (r *responses) read(f *form.Form, raw json.RawMessage) {
	var statuses, values json.RawMessage
	const at = "/config/responses"
	f.Object(at, raw, map[string]any{"statuses": &statuses, "values": &values, "field": &r.field, "id": &r.id, "error": &r.failure})
	r.statuses = readOutcomes(f, at+"/statuses", statuses, func(codes []int) (texts []string) {
		for _, c := range codes {
			texts = append(texts, strconv.Itoa(c))
		}
		return texts
	})
	r.values = readOutcomes(f, at+"/values", values, func(texts []string) []string { return texts })
}

func readOutcomes[T any](f *form.Form, at string, raw json.RawMessage, texts func([]T) []string) outcomes {
	var accepted, rejected, notAccepted []T
	f.Object(at, raw, map[string]any{"accepted": &accepted, "rejected": &rejected, "not_accepted": &notAccepted})
	return outcomes{texts(accepted), texts(rejected), texts(notAccepted)}
}

func (r *responses) check(f *form.Form) {
	const at = "/config/responses"
	for _, code := range r.statuses.all() {
		if len(code) != 3 || code < "200" || code > "599" {
			f.Fault(at+"/statuses", "out_of_range", "must be status codes from 200 to 599")
			break
		}
	}
	for name, o := range map[string]outcomes{"/statuses": r.statuses, "/values": r.values} {
		all := o.all()
		slices.Sort(all)
		if len(slices.Compact(slices.Clone(all))) != len(all) {
			f.Fault(at+name, "duplicate", "must not map one answer twice")
		}
		if len(all) > mostMapped {
			f.Fault(at+name, "too_many", "must be at most 50 answers")
		}
	}
	for name, pointer := range map[string]string{"/field": r.field, "/id": r.id, "/error": r.failure} {
		if pointer != "" && pointer[0] != '/' || len(pointer) > 200 {
			f.Fault(at+name, "invalid_pointer", "must be a JSON pointer, such as /status")
		}
	}
	if (r.field == "") != (len(r.values.all()) == 0) {
		f.Fault(at+"/values", "required", "field and values need each other")
	}
}

// receipt is the table in the package's comment.
func (r *responses) receipt(a *wire.Answer, m *sender.Message) sender.Receipt {
	body := answered(a)
	one := r.classify(a, body)
	one.At = time.Now()
	if one.Outcome == sender.Accepted {
		one.CarrierID = a.Text(scalar(body, r.id), m.To)
		return one
	}
	one.Code, one.RetryAfter, one.Detail = a.Status, a.RetryAfter(), a.Text(scalar(body, r.failure), m.To)
	return one
}

// answered is the JSON value of an answer, or nil. Numbers stay as they are written: an id may
// have more digits than a float64.
func answered(a *wire.Answer) (body any) {
	d := json.NewDecoder(bytes.NewReader(a.Body))
	d.UseNumber()
	if !a.Whole || !json.Valid(a.Body) || d.Decode(&body) != nil {
		return nil
	}
	return body
}

func (r *responses) classify(a *wire.Answer, body any) sender.Receipt {
	mapped := r.statuses.of(strconv.Itoa(a.Status))
	if mapped == "" && a.Status >= 300 {
		return byStatus(a)
	}
	if mapped == "" && r.field != "" {
		if mapped = r.values.of(scalar(body, r.field)); mapped == "" {
			return sender.Receipt{Outcome: sender.Unknown, Reason: "protocol_error"}
		}
	}
	switch mapped {
	case sender.Rejected:
		return wire.Rejected("message_rejected")
	case sender.NotAccepted:
		return sender.Receipt{Outcome: sender.NotAccepted, Reason: "request_refused"}
	}
	return sender.Receipt{Outcome: sender.Accepted}
}

// byStatus is the receipt of a status other than 2xx that is not mapped.
func byStatus(a *wire.Answer) sender.Receipt {
	switch a.Status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusGone, http.StatusUnprocessableEntity:
		return wire.Rejected("message_rejected")
	case http.StatusRequestEntityTooLarge:
		return wire.Rejected("message_too_large")
	case http.StatusUnauthorized, http.StatusForbidden:
		return wire.OfProvider("access_denied", true)
	case http.StatusTooManyRequests:
		return wire.OfProvider("throttled", false)
	case http.StatusServiceUnavailable:
		if a.Header.Get("Retry-After") != "" {
			return wire.OfProvider("unavailable", false)
		}
	}
	return sender.Receipt{Outcome: sender.Unknown, Reason: "server_error"}
}

// scalar is the text, number (as it is written) or boolean at a JSON pointer (RFC 6901); empty
// for none.
func scalar(value any, pointer string) string {
	if pointer == "" {
		return ""
	}
	for token := range strings.SplitSeq(pointer[1:], "/") {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		switch in := value.(type) {
		case map[string]any:
			value = in[token]
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(in) {
				return ""
			}
			value = in[i]
		default:
			return ""
		}
	}
	switch value := value.(type) {
	case string:
		return value
	case bool:
		return strconv.FormatBool(value)
	case json.Number:
		return value.String()
	}
	return ""
}

package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"lemma"
	"lemma/address"
	"lemma/events"
	"lemma/sender"
	reports "lemma/sender/report"
	"lemma/sender/wire"
	"lemma/signing"
)

// NewReceiver reads webhooks of a provider of a channel in the format of
// docs/concepts/provider-events.md.
func NewReceiver(key []byte, channel lemma.Channel) sender.Receiver { return receiver{key, channel} }

// receiverOf returns ErrNoReceiver for an account without a webhook secret.
func receiverOf(a sender.Account, o wire.Operator) (sender.Receiver, error) {
	s, err := parse(a.Config, a.Secrets, o)
	if err != nil {
		return nil, err
	}
	if s.webhookKey == nil {
		return nil, fmt.Errorf("no webhook_secret: %w", sender.ErrNoReceiver)
	}
	return NewReceiver(s.webhookKey, cmp.Or(a.Channel, lemma.Email)), nil
}

type receiver struct {
	key     []byte
	channel lemma.Channel
}

// report is an event as a gateway sends it.
type report struct {
	ID           string      `json:"id"`
	Type         events.Type `json:"type"`
	Notification string      `json:"notification_id"`
	Attempt      int         `json:"attempt"`
	CarrierID    string      `json:"carrier_id"`
	Address      string      `json:"address"`
	Code         int         `json:"code"`
	Reason       string      `json:"reason"`
	Detail       string      `json:"detail"`
	OccurredAt   time.Time   `json:"occurred_at"`
}

// mostReports bounds the events of one request.
const mostReports = 1000

// Receive is part of sender.Receiver.
func (r receiver) Receive(_ context.Context, w sender.WebhookRequest) ([]events.Report, error) {
	signed, ok := signing.Verify(w.Header, r.key, w.Body)
	if !ok {
		return nil, sender.ErrForged
	}
	if age := w.At.Sub(signed.At); age > signing.Tolerance || age < -signing.Tolerance {
		return nil, sender.ErrReplayed
	}
	if reports.LongestArray(w.Body) > mostReports {
		return nil, tooMany()
	}
	var body struct {
		report
		Events []report `json:"events"`
	}
	if err := json.Unmarshal(w.Body, &body); err != nil {
		return nil, unreadable(fieldOf(err), "%s", remedy(err))
	}
	if pointer := unknownMember(w); pointer != "" {
		return nil, unreadable(pointer, "is not a member of the format; it has %s", strings.Join(members, ", "))
	}
	all, single := body.Events, false
	if body.Type != "" {
		all, single = append(all, body.report), len(all) == 0
	}
	if len(all) == 0 || len(all) > mostReports {
		return nil, tooMany()
	}
	signed.ID = events.ShortID(signed.ID) // each event that has none of its own has it
	out := make([]events.Report, len(all))
	for i, e := range all {
		at := ""
		if !single {
			at = fmt.Sprintf("/events/%d", i)
		}
		switch {
		case !slices.Contains(events.Types, e.Type):
			return nil, unreadable(at+"/type", "is %.50q; must be one of %s", w.Redact.Text(string(e.Type)), typeNames())
		case e.Notification == "" && e.Address == "":
			return nil, unreadable(at+"/notification_id", "must be given, or address for an event without a notification")
		case !r.namesRecipient(e):
			return nil, unreadable(at+"/address", "must be %s", addresses[r.channel])
		}
		out[i] = e.of(w, signed, i, single)
	}
	return out, nil
}

func tooMany() error { return unreadable("", "must have a type, or 1 to %d events", mostReports) }

// namesRecipient reports whether it is known who an event is about. An address is read only
// if no notification is named: that of the notification decides while it is stored.
func (r receiver) namesRecipient(e report) bool {
	if _, _, named := lemma.ParseNotificationID(e.Notification); named || e.Address == "" {
		return true
	}
	canonical, _ := address.Reported(r.channel, e.Address)
	return canonical != ""
}

// addresses describe the addresses of channels.
var addresses = map[lemma.Channel]string{
	lemma.Email: "one email address",
	lemma.SMS:   "a phone number with its country code, such as +4930123456",
	lemma.Push:  "the token of a device",
}

// members are those of an event. A request may have events instead.
var members = func() (names []string) {
	for f := range reflect.TypeFor[report]().Fields() {
		names = append(names, f.Tag.Get("json"))
	}
	return names
}()

// unknownMember is the pointer of the first member, by name, that the format does not
// have; empty for none. Package json accepts other spellings, such as Type.
func unknownMember(w sender.WebhookRequest) string {
	var request map[string]json.RawMessage
	if json.Unmarshal(w.Body, &request) != nil {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(request)) {
		if name != "events" && !slices.Contains(members, name) {
			return pointerTo("", w.Redact.Text(name))
		}
	}
	var list []map[string]json.RawMessage
	if len(request["events"]) == 0 || json.Unmarshal(request["events"], &list) != nil {
		return ""
	}
	for i, event := range list {
		for _, name := range slices.Sorted(maps.Keys(event)) {
			if !slices.Contains(members, name) {
				return pointerTo("/events/"+strconv.Itoa(i), w.Redact.Text(name))
			}
		}
	}
	return ""
}

// longestName is the most that an answer repeats of an unknown name, in bytes.
const longestName = 100

// pointerTo is a JSON pointer (RFC 6901).
func pointerTo(at, name string) string {
	if len(name) > longestName {
		name = strings.ToValidUTF8(name[:longestName], "") + "..."
	}
	return at + lemma.Pointer(name)
}

// unreadable is the refusal of a signed body, with what is wrong.
func unreadable(pointer, detail string, args ...any) error {
	return fmt.Errorf("%w: %w", sender.ErrUnreadable, lemma.Fault(pointer, "not_valid", detail, args...))
}

// fieldOf is the pointer of the field that an error of package json is about.
func fieldOf(err error) string {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
		return "/" + strings.ReplaceAll(strings.TrimPrefix(wrong.Field, "report."), ".", "/")
	}
	if _, ok := errors.AsType[*time.ParseError](err); ok {
		return "/occurred_at"
	}
	return ""
}

func remedy(err error) string {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		switch wrong.Type.Kind() {
		case reflect.Int:
			return "must be a whole number, not " + wrong.Value
		case reflect.String:
			return "must be a string, not " + wrong.Value
		}
		return "must be an object as in the description of the format"
	}
	if _, ok := errors.AsType[*time.ParseError](err); ok {
		return "must be a time such as 2026-07-01T12:00:00Z (RFC 3339)"
	}
	return "must be one JSON object"
}

func typeNames() string {
	var names []string
	for _, t := range events.Types {
		names = append(names, string(t))
	}
	return strings.Join(names, ", ")
}

// of is an event in the terms of package events. Without an id of its own it has that
// of the request, with its place if there are several.
func (e report) of(w sender.WebhookRequest, signed signing.Signed, place int, single bool) events.Report {
	id := e.ID
	switch {
	case id != "":
	case single:
		id = signed.ID
	default:
		id = signed.ID + "/" + strconv.Itoa(place)
	}
	at := e.OccurredAt
	if at.IsZero() {
		at = signed.At
	}
	return events.Report{ID: id, Notification: e.Notification, Attempt: e.Attempt, CarrierID: e.CarrierID, Address: e.Address, Type: e.Type,
		Code: e.Code, Reason: e.Reason, Detail: sender.Detail(w.Redact, e.Detail, e.Address), OccurredAt: at}
}

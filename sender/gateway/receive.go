package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"lemma/events"
	"lemma/sender"
	"lemma/sender/wire"
	"lemma/signing"
)

// NewReceiver reads webhooks in the generic format, which docs/concepts/provider-events.md
// describes: JSON, signed as Standard Webhooks describes with the key of a secret.
func NewReceiver(key []byte) sender.Receiver { return receiver{key} }

// receiverOf returns ErrNoReceiver for an account without a webhook secret.
func receiverOf(a sender.Account, o wire.Operator) (sender.Receiver, error) {
	s, err := parse(a.Config, a.Secrets, o)
	if err != nil {
		return nil, err
	}
	if s.webhookKey == nil {
		return nil, fmt.Errorf("no webhook_secret: %w", sender.ErrNoReceiver)
	}
	return NewReceiver(s.webhookKey), nil
}

type receiver struct{ key []byte }

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
	var body struct {
		report
		Events []report `json:"events"`
	}
	if err := json.Unmarshal(w.Body, &body); err != nil {
		return nil, fmt.Errorf("%w: %w", sender.ErrUnreadable, err)
	}
	all, single := body.Events, false
	if body.Type != "" {
		all, single = append(all, body.report), len(all) == 0
	}
	if len(all) == 0 || len(all) > mostReports {
		return nil, fmt.Errorf("%w: it has %d events, must have 1 to %d", sender.ErrUnreadable, len(all), mostReports)
	}
	out := make([]events.Report, len(all))
	for i, e := range all {
		if !slices.Contains(events.Types, e.Type) {
			return nil, fmt.Errorf("%w: an event has the type %.50q", sender.ErrUnreadable, e.Type)
		}
		out[i] = e.of(signed, i, single)
	}
	return out, nil
}

// of is an event in the terms of package events. Without an id of its own it has that
// of the request, with its place if there are several.
func (e report) of(signed signing.Signed, place int, single bool) events.Report {
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
		Code: e.Code, Reason: e.Reason, Detail: e.Detail, OccurredAt: at}
}

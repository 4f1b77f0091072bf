package sender

import (
	"context"
	"errors"
	"net/http"
	"time"

	"lemma/events"
	"lemma/sender/redact"
)

// Receiver reads the webhooks of one provider account: what the carrier reports about
// messages after the call. It is safe for concurrent use.
type Receiver interface {
	// Receive checks that a request comes from the carrier and returns what it reports.
	// It reads nothing of a body before its signature is checked. A refusal is one of
	// the errors below, wrapped with what is wrong.
	Receive(ctx context.Context, r WebhookRequest) ([]events.Report, error)
}

// SelfSigned is a Receiver for which the body alone proves that it comes from the carrier,
// since the signature is in it. A body that was stored is then known when it is repeated,
// and need not be checked again.
type SelfSigned interface {
	Receiver
	SelfSigned()
}

// WebhookRequest is a request to the webhook URL of a provider.
type WebhookRequest struct {
	URLs   []string // that the carrier may have called, with their query, the current public URL first: some carriers sign it
	Header http.Header
	Body   []byte
	At     time.Time // when it came, by the clock of the database

	Redact *redact.Secrets // removes the secrets of the account from texts, before they become a detail or a reason; nil: none
}

// Why a request of a carrier is refused. Nothing of it is stored.
var (
	ErrForged     = errors.New("the signature is missing or wrong")
	ErrReplayed   = errors.New("the signature is too old or from the future")
	ErrUnreadable = errors.New("the body cannot be read")
	ErrForeign    = errors.New("the request is for another account")
	ErrNoReceiver = errors.New("the provider receives no webhooks")
)

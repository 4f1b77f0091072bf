package sender

import (
	"context"
	"time"

	"lemma/sender/redact"
)

// redacted is a carrier whose answers have no secret of its account. All answers of an
// opened carrier enter Lemma through it, so that no carrier can forget to remove one: it
// removes what is whole in a receipt. What a detail cuts off is removed by Detail.
//
// Receipt.Reason is of a closed list and is not changed.
type redacted struct {
	Carrier
	secrets *redact.Secrets
}

// redactedLookup is redacted for a carrier that can be asked for its messages.
type redactedLookup struct {
	redacted
	lookup Lookup
}

// withoutSecrets returns a carrier of an account as redacted.
func withoutSecrets(carrier Carrier, secrets *redact.Secrets) Carrier {
	r := redacted{carrier, secrets}
	if lookup, ok := carrier.(Lookup); ok {
		return redactedLookup{r, lookup}
	}
	return r
}

// Send is part of Carrier.
func (r redacted) Send(ctx context.Context, messages []Message) []Receipt {
	receipts := r.Carrier.Send(ctx, messages)
	for i := range receipts {
		one := &receipts[i]
		one.Detail, one.CarrierID = r.secrets.Text(one.Detail), r.secrets.Text(one.CarrierID)
	}
	return receipts
}

// Lookup is part of Lookup. The error is logged.
func (r redactedLookup) Lookup(ctx context.Context, m *Message, since, until time.Time) ([]string, error) {
	ids, err := r.lookup.Lookup(ctx, m, since, until)
	for i := range ids {
		ids[i] = r.secrets.Text(ids[i])
	}
	return ids, r.secrets.Error(err)
}

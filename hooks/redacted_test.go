package hooks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"lemma/events"
	"lemma/sender"
	"lemma/sender/redact"
)

const hookSecret = "hook-secret-0a1b2c3d"

// repeating is a receiver that removes nothing itself.
type repeating struct{}

var errRepeated = fmt.Errorf("no %s: %w", hookSecret, sender.ErrUnreadable)

func (repeating) Receive(context.Context, sender.WebhookRequest) ([]events.Report, error) {
	return []events.Report{
		{ID: "1 " + hookSecret, CarrierID: hookSecret, Reason: hookSecret, Detail: "no " + hookSecret, Address: hookSecret + "@shop.example"},
		{ID: "2 " + hookSecret, Notification: "ntf", Address: "ada@shop.example", Detail: "nothing"},
	}, errRepeated
}

// A receiver that forgets to remove the secrets of its account still reports none.
func TestNoReceiverCanForgetToRemoveSecrets(t *testing.T) {
	t.Parallel()
	a := &account{receiver: repeating{}, secrets: redact.Of([]byte(`{"webhook_secret":"` + hookSecret + `","short":"shop"}`))}
	reports, err := a.receive(t.Context(), sender.WebhookRequest{})
	if all := fmt.Sprintf("%+v", reports); strings.Contains(all, hookSecret) || reports[0].ID == reports[1].ID {
		t.Error(all)
	}
	if r := reports[0]; r.Detail != "no [redacted]" || r.Address != "" {
		t.Errorf("%+v", r)
	}
	if r := reports[1]; r.Detail != "nothing" || r.Address != "ada@shop.example" || r.Notification != "ntf" {
		t.Errorf("too much is removed: %+v", r)
	}
	if strings.Contains(err.Error(), hookSecret) || !errors.Is(err, sender.ErrUnreadable) || Refusal(err) != "unreadable" {
		t.Error(err)
	}
}

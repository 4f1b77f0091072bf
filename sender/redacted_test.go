package sender

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"lemma/sender/redact"
)

const keptSecret = "correct horse ada@shop.example battery"

func secretsOf(secret string) *redact.Secrets { return redact.Of(fmt.Appendf(nil, "[%q]", secret)) }

// echoing is a carrier that removes nothing itself.
type echoing struct{}

func (echoing) Send(_ context.Context, messages []Message) []Receipt {
	all := make([]Receipt, len(messages))
	for i := range all {
		all[i] = Receipt{Reason: "recipient_rejected", Detail: "no " + keptSecret, CarrierID: keptSecret + "/1"}
	}
	return all
}

func (echoing) Close() {}

type echoingList struct{ echoing }

var errListed = errors.New("no list for " + keptSecret)

func (echoingList) Lookup(context.Context, *Message, time.Time, time.Time) ([]string, error) {
	return []string{"1", keptSecret}, errListed
}

// A carrier that forgets to remove the secrets of its account still shows none.
func TestNoCarrierCanForgetToRemoveSecrets(t *testing.T) {
	t.Parallel()
	secrets := secretsOf(keptSecret)
	for _, r := range withoutSecrets(echoing{}, secrets).Send(t.Context(), make([]Message, 3)) {
		if r.Detail != "no [redacted]" || r.CarrierID != "[redacted]/1" || r.Reason != "recipient_rejected" {
			t.Errorf("%+v", r)
		}
	}
	if _, ok := withoutSecrets(echoing{}, secrets).(Lookup); ok {
		t.Error("a carrier without a list has one")
	}
	ids, err := withoutSecrets(echoingList{}, secrets).(Lookup).Lookup(t.Context(), nil, time.Time{}, time.Time{})
	if fmt.Sprint(ids) != "[1 [redacted]]" || err == nil || strings.Contains(err.Error(), "horse") || !errors.Is(err, errListed) {
		t.Error(ids, err)
	}
}

// Secrets are removed from the whole text: before it is cut, before the address is blanked
// and before the line is made, and once more after that.
func TestADetailHasNoPartOfASecret(t *testing.T) {
	t.Parallel()
	secrets := secretsOf(keptSecret)
	const address = "ada@shop.example"
	for text, want := range map[string]string{
		"no " + keptSecret + " for " + address:                             "no [redacted] for [address]",
		strings.Repeat("x", 185) + " " + keptSecret:                        strings.Repeat("x", 185) + " [redacted]",
		strings.ReplaceAll("550 "+keptSecret, " ", "\r\n\t"):               "550 [redacted]",
		"correct\nhorse " + address + "\nbattery staple " + keptSecret[9:]: "[redacted] staple orse [address] battery",
	} {
		if got := Detail(secrets, text, address); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
	double := secretsOf("two  blanks\tand a tab")
	if got := Detail(double, "a two  blanks\tand a tab b", ""); got != "a [redacted] b" {
		t.Error(got)
	}
}

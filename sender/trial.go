package sender

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"lemma"
	addresses "lemma/address"
	"lemma/providers"
	"lemma/sender/redact"
	"lemma/sender/trace"
	"lemma/suppression"
)

// How long the test of a provider may take. A step that hangs ends before the whole test,
// so that the answer names the step.
const (
	trialTime     = 30 * time.Second
	trialStepTime = 20 * time.Second
)

// Trial is the result of a test message.
type Trial struct {
	Receipt
	Took      time.Duration
	Effect    string // what this outcome means for campaigns and flows
	Steps     []trace.Step
	Truncated bool // steps or texts are left out for their size
}

// Test sends one message over a provider, once and at once, and returns the conversation.
// The message is no notification: it has no attempts, and its outcome changes neither the
// circuit nor the rate. It is like a transactional message: an address that is suppressed
// for a bounce, a complaint or an unregistered token is refused. A workspace has few tests
// a minute. begin is called immediately before the call, which its error prevents.
func (s *Sender) Test(ctx context.Context, ws, provider uuid.UUID, m Message, begin func(context.Context) error) (Trial, error) {
	a, err := s.accounts.Account(ctx, ws, provider)
	if err != nil {
		return Trial{}, err
	}
	if err := s.checkTrial(ctx, ws, a.Channel, &m); err != nil {
		return Trial{}, err
	}
	trace := trace.New(a.Secrets)
	if a.Channel == lemma.Push {
		trace.Secret(m.To) // the token of a device is a credential
	}
	carrier, err := s.openCarrier(ws, provider, a, trace)
	if err != nil {
		return Trial{}, err
	}
	if err := s.accounts.AcquireTest(ctx, ws); err != nil {
		carrier.Close()
		return Trial{}, err
	}
	if err := begin(ctx); err != nil {
		carrier.Close()
		return Trial{}, err
	}
	made := s.try(ctx, carrier, m, trace)
	s.metrics.tested(made.Outcome)
	s.log.Info("provider tested", "workspace_id", ws, "provider_id", provider, "kind", a.Kind, "outcome", made.Outcome,
		"reason", made.Reason, "code", made.Code, "of_provider", made.Provider, "took", made.Took)
	return made, nil
}

// checkTrial makes the address canonical, and refuses one that is suppressed.
func (s *Sender) checkTrial(ctx context.Context, ws uuid.UUID, channel lemma.Channel, m *Message) error {
	to := addresses.Parse(channel, m.To)
	if to.Fault != "" {
		return lemma.Fault("/to", "invalid_address", "must be an address of the channel %s", channel)
	}
	m.To = to.Text
	found, err := suppression.Check(ctx, s.pool, ws, suppression.Message{Channel: channel, Transactional: true}, []string{m.To})
	if err != nil || len(found) == 0 {
		return err
	}
	return &lemma.Error{Kind: lemma.Conflict, Code: "suppressed",
		Message: fmt.Sprintf("the address is suppressed (%s), so nothing was sent; test with another address", found[0].Cause)}
}

// try calls the carrier for one message and closes it.
func (s *Sender) try(ctx context.Context, carrier Carrier, m Message, trace *trace.Trace) Trial {
	ctx, cancel := context.WithTimeout(ctx, trialTime)
	defer cancel()
	begun := time.Now()
	r := carrier.Send(ctx, []Message{m})[0]
	made := Trial{Receipt: r, Took: time.Since(begun), Effect: s.effect(r)}
	carrier.Close()
	made.Detail, made.CarrierID = trace.Redact(r.Detail), trace.Redact(r.CarrierID)
	made.Steps, made.Truncated = trace.Steps()
	return made
}

// openCarrier opens a carrier of its own for an account.
func (s *Sender) openCarrier(ws, provider uuid.UUID, a providers.Account, trace *trace.Trace) (Carrier, error) {
	kind, ok := s.kinds[a.Kind]
	if !ok {
		return nil, unknownKind(a.Kind)
	}
	opened := Account{WorkspaceID: ws, ProviderID: provider, Kind: a.Kind, Channel: a.Channel, Config: a.Config, Secrets: a.Secrets,
		Redact: redact.Of(a.Secrets), Version: a.Version, CallTimeout: s.cfg.CallTimeout, Trace: trace}
	if trace != nil {
		opened.CallTimeout = min(opened.CallTimeout, trialStepTime)
	}
	carrier, err := kind.Open(opened)
	if err != nil {
		return nil, &lemma.Error{Kind: lemma.Invalid, Code: "provider_unusable", Message: "the provider's settings cannot be used",
			Cause: err}
	}
	return withoutSecrets(carrier, opened.Redact), nil
}

func unknownKind(name string) error {
	return &lemma.Error{Kind: lemma.Invalid, Code: "provider_unusable",
		Message: fmt.Sprintf("this program has no carrier of kind %q", name)}
}

// effect is what a receipt means for the campaigns and flows of a provider.
func (s *Sender) effect(r Receipt) string {
	switch r.Outcome {
	case Accepted:
		return "The provider accepts messages: campaigns and flows send over it."
	case Rejected:
		return fmt.Sprintf("Only this message failed: a campaign counts it as failed and continues, and is paused (provider_refused) "+
			"when %d messages are rejected with no acceptance in between.", s.cfg.CircuitAfter)
	case Unknown:
		return "The message may have arrived: a campaign waits for the lease to expire, and then sends it once more, or orphans it " +
			"under at_most_once."
	case NotCalled:
		if r.spared() {
			return "Nothing was sent, since the server was slow before: a campaign calls the message later."
		}
		return "Nothing was sent, since the time was over before the server was ready: a campaign calls the message again."
	}
	switch {
	case r.Definite:
		return "The provider refuses the account or the sender: campaigns and flows are paused (provider_refused) at their next " +
			"message, until the cause is removed and they are resumed."
	case r.Provider:
		return fmt.Sprintf("The provider fails: its circuit opens, probes and closes by itself, and campaigns and flows wait; they are "+
			"paused (provider_errors) when it fails for %s.", s.cfg.PauseAfter)
	}
	return fmt.Sprintf("Only this message is not accepted for now: a campaign calls it again later, at most %d times.", s.cfg.MaxDeferrals)
}

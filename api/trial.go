package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/client"
	"lemma/mail"
	"lemma/message"
	"lemma/providers"
	"lemma/sender"
	"lemma/sender/trace"
)

type trialRequest struct {
	To         string          `json:"to"`
	From       *newFrom        `json:"from"`
	Subject    string          `json:"subject" validate:"single_line"`
	Text       string          `json:"text"`
	TemplateID string          `json:"template_id"`
	Version    int             `json:"version"`
	Data       json.RawMessage `json:"data"` // unparsed, so that a long number keeps its digits
}

type trialBody struct{ client.ProviderTest }

// redact leaves the conversation out of what is kept for a replay: it has the recipient's
// address, which the erasure of a profile would not find there.
func (b trialBody) redact() any {
	b.Conversation, b.Truncated = []client.ProviderTestStep{}, true
	return b
}

// testProvider sends one message and returns the conversation with the server.
func (s *server) testProvider(ctx context.Context, c *call, in trialRequest) (trialBody, error) {
	provider, err := s.Providers.Get(ctx, c.workspace(), c.id)
	if err != nil {
		return trialBody{}, err
	}
	m, err := s.trialMessage(ctx, c, provider, in)
	if err != nil {
		return trialBody{}, err
	}
	m.Notification = lemma.FormatID(lemma.PrefixNotification, c.newID)
	m.Attempt, m.To, m.Date, m.Seed = 1, in.To, time.Now(), c.newID
	made, err := s.Sender.Test(ctx, c.workspace(), c.id, m, func(ctx context.Context) error {
		first, err := s.answers.CallOnce(ctx, c.held)
		if err == nil && !first {
			err = errCalledBefore
		}
		return err
	})
	if errors.Is(err, errCalledBefore) {
		return calledBefore, nil
	}
	return showTrial(made), err
}

// errCalledBefore ends a test under an Idempotency-Key whose earlier test ended without an
// answer, as when its process was killed.
var errCalledBefore = errors.New("an earlier request under the key may have sent the message")

// calledBefore is its answer.
var calledBefore = trialBody{client.ProviderTest{Outcome: string(sender.Unknown), Reason: new("earlier_request"),
	Conversation: []client.ProviderTestStep{},
	Effect: "An earlier request under this Idempotency-Key ended without an answer. Its message may have arrived, and no other was " +
		"sent: test with a new key."}}

func (s *server) trialMessage(ctx context.Context, c *call, p providers.Provider, in trialRequest) (sender.Message, error) {
	var m sender.Message
	switch {
	case p.Channel == lemma.Email && in.From == nil:
		return m, lemma.Fault("/from", "required", "this field is required for email, the channel of the provider")
	case p.Channel != lemma.Email && in.From != nil:
		return m, lemma.Fault("/from", "not_allowed", "only an email has a sender")
	case p.Channel == lemma.SMS && in.Subject != "":
		return m, lemma.Fault("/subject", "not_allowed", "an SMS has no subject")
	case in.From != nil:
		e := mail.Envelope{FromEmail: in.From.Email, FromName: in.From.Name}.Canonical()
		m.FromEmail, m.FromName = e.FromEmail, e.FromName
	}
	if in.TemplateID == "" {
		m.Text = cmp.Or(in.Text, "This is a test message of Lemma.")
		if p.Channel != lemma.SMS {
			m.Subject = cmp.Or(in.Subject, "Test message")
		}
		return m, nil
	}
	made, err := s.renderTrial(ctx, c, p.Channel, in)
	m.Subject, m.HTML, m.Text, m.Link, m.Data = made.Subject, made.HTML, made.Text, made.Link, made.Data
	return m, err
}

func (s *server) renderTrial(ctx context.Context, c *call, channel lemma.Channel, in trialRequest) (message.Content, error) {
	if in.Subject != "" || in.Text != "" {
		return message.Content{}, lemma.Fault("/template_id", "not_allowed", "give either template_id or subject and text")
	}
	id, ok := lemma.ParseID(lemma.PrefixTemplate, in.TemplateID)
	if !ok {
		return message.Content{}, unknownID("/template_id", "template")
	}
	compiled, err := s.trialTemplate(ctx, c.workspace(), id, in.Version)
	if err != nil {
		return message.Content{}, err
	}
	if compiled.Channel() != channel {
		return message.Content{}, lemma.Fault("/template_id", "wrong_channel",
			"must be a template for %s, the channel of the provider", channel)
	}
	data := string(in.Data)
	made, _, err := compiled.RenderMessage(cmp.Or(data, "{}"), message.SampleUnsubscribeURL(s.PublicURL()))
	return made, err
}

func (s *server) trialTemplate(ctx context.Context, ws, id uuid.UUID, version int) (*message.Compiled, error) {
	now, err := s.Templates.Get(ctx, ws, id)
	switch {
	case lemma.KindOf(err) == lemma.NotFound:
		return nil, unknownID("/template_id", "template")
	case err != nil:
		return nil, err
	case version > now.Version:
		return nil, lemma.Fault("/version", "unknown_version", "the template does not have this version")
	}
	return s.Templates.Compiled(ctx, ws, id, cmp.Or(version, now.Version))
}

func showTrial(t sender.Trial) trialBody {
	b := trialBody{client.ProviderTest{Outcome: string(t.Outcome), Reason: orNull(t.Reason), Definite: t.Definite, Detail: orNull(t.Detail),
		CarrierID: orNull(t.CarrierID), Effect: t.Effect, DurationMs: milliseconds(t.Took), Truncated: t.Truncated,
		Conversation: each(t.Steps, showTrialStep)}}
	if t.Code != 0 {
		b.Code = &t.Code
	}
	if t.RetryAfter > 0 {
		b.RetryAfterSeconds = new(t.RetryAfter.Seconds())
	}
	switch {
	case t.Outcome == sender.Accepted:
		b.Reason = nil
	case t.Provider:
		b.FailureOf = new("provider")
	case t.Outcome == sender.Rejected, t.Outcome == sender.NotAccepted:
		b.FailureOf = new("message")
	}
	return b
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func showTrialStep(s trace.Step) client.ProviderTestStep {
	shown := client.ProviderTestStep{OffsetMs: milliseconds(s.After), Type: s.Type, Part: orNull(s.Part), Text: orNull(s.Text)}
	if s.Part == trace.PartBody {
		shown.Bytes = &s.Bytes
	}
	if t := s.TLS; t != nil {
		shown.TLS = &client.ProviderTestTLS{Version: t.Version, Cipher: t.Cipher, Protocol: orNull(t.Protocol),
			CertificateNames: each(t.Names, asIs), CertificateIssuer: orNull(t.Issuer)}
		if !t.NotAfter.IsZero() {
			shown.TLS.CertificateExpiresAt = utc(&t.NotAfter)
		}
	}
	return shown
}

package campaigns

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/mail"
	"lemma/message"
)

// templateVersion returns the channel and the version that a campaign sends: for 0 the
// newest one.
func (c *Campaigns) templateVersion(
	ctx context.Context, workspaceID, template uuid.UUID, version int,
) (lemma.Channel, int, error) {
	t, err := c.templates.Get(ctx, workspaceID, template)
	if lemma.KindOf(err) == lemma.NotFound {
		return "", 0, lemma.Fault("/template_id", "unknown_id", "must be a template of this workspace")
	}
	if err != nil {
		return "", 0, err
	}
	if version == 0 {
		return t.Channel, t.Version, nil
	}
	if version > t.Version {
		return "", 0, lemma.Fault("/template_version", "unknown_version", "must be at most %d, the newest version of the template", t.Version)
	}
	return t.Channel, version, nil
}

// checkCarried checks that the provider carries a channel and that the audience has
// addresses for it. An id that does not exist is found when the campaign is saved.
func (c *Campaigns) checkCarried(ctx context.Context, workspaceID uuid.UUID, channel lemma.Channel, provider, aud uuid.UUID) error {
	account, err := c.accounts.Get(ctx, workspaceID, provider)
	if err == nil && account.Channel != channel {
		err = lemma.Fault("/provider_id", "wrong_channel", "must be a provider for %s, the channel of the template; it carries %s",
			channel, account.Channel)
	}
	if err != nil && lemma.KindOf(err) != lemma.NotFound {
		return err
	}
	now, err := c.audiences.Get(ctx, workspaceID, aud)
	if err == nil {
		err = addressed(now, channel)
	}
	if lemma.KindOf(err) == lemma.NotFound {
		return nil
	}
	return err
}

// addressed checks that an audience has addresses for a channel.
func addressed(aud audience.Audience, channel lemma.Channel) error {
	if aud.AddressColumn(channel) != "" {
		return nil
	}
	return unaddressed(channel)
}

func unaddressed(channel lemma.Channel) error {
	return lemma.Fault("/audience_id", "wrong_channel", "must be an audience with addresses for %s, the channel of the template", channel)
}

// checkEnvelope checks the envelope and the Liquid of its headers, and makes the
// addresses canonical. Only an email has one.
func checkEnvelope(channel lemma.Channel, fromEmail *string, fromName string, replyTo *string, headers map[string]string) error {
	if channel != lemma.Email {
		return noEnvelope(channel, *fromEmail+fromName, *replyTo, headers)
	}
	if *fromEmail == "" && fromName == "" {
		return lemma.Fault("/from", "required", "this field is required for email, the channel of the template")
	}
	e := mail.Envelope{FromEmail: *fromEmail, FromName: fromName, ReplyTo: *replyTo, Headers: headers}
	faults := e.Faults()
	_, err := message.CheckHeaders(headers)
	if liquid, ok := errors.AsType[*lemma.Error](err); ok {
		faults = append(faults, liquid.Fields...)
	}
	if len(faults) > 0 {
		return &lemma.Error{Kind: lemma.Invalid, Message: "the request is not valid", Fields: faults}
	}
	e = e.Canonical()
	*fromEmail, *replyTo = e.FromEmail, e.ReplyTo
	return nil
}

// noEnvelope finds fields that only an email has.
func noEnvelope(channel lemma.Channel, from, replyTo string, headers map[string]string) error {
	fault := &lemma.Error{Kind: lemma.Invalid, Message: "the request is not valid"}
	for _, f := range []struct {
		pointer string
		given   bool
	}{{"/from", from != ""}, {"/headers", len(headers) > 0}, {"/reply_to", replyTo != ""}} {
		if f.given {
			fault.Fields = append(fault.Fields, lemma.Field{Pointer: f.pointer, Code: "wrong_channel",
				Detail: fmt.Sprintf("must not be given for %s, the channel of the template", channel)})
		}
	}
	if len(fault.Fields) > 0 {
		return fault
	}
	return nil
}

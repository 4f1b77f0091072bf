package ses

import (
	"context"
	"log/slog"

	"github.com/google/uuid"

	"lemma/events"
	"lemma/sender"
	"lemma/sender/ses/sns"
	"lemma/sender/wire"
)

// receiver reads the events of a configuration set, which Amazon SES publishes to a
// topic of Amazon SNS.
type receiver struct {
	topic    sns.Topic
	client   *sns.Client
	log      *slog.Logger
	provider uuid.UUID
}

// receive makes the receiver of an account.
func receive(a sender.Account, o wire.Operator, client *sns.Client) (sender.Receiver, error) {
	s, err := parse(a.Config, a.Secrets, o)
	if err != nil {
		return nil, err
	}
	topic, ok := sns.ParseTopic(s.topic)
	if !ok {
		return nil, sender.ErrNoReceiver
	}
	topic.Workspace = a.WorkspaceID
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &receiver{topic: topic, client: client, log: log, provider: a.ProviderID}, nil
}

// SelfSigned is part of sender.SelfSigned: a message of Amazon SNS contains its signature.
func (r *receiver) SelfSigned() {}

// Receive returns the reports of a notification, and confirms a subscription to the
// topic. An error that is not a refusal means that Amazon SNS cannot be reached.
func (r *receiver) Receive(ctx context.Context, w sender.WebhookRequest) ([]events.Report, error) {
	m, err := r.client.Open(ctx, r.topic, w.Body, w.At)
	if err != nil {
		return nil, err
	}
	switch m.Type {
	case sns.Subscription:
		if err := r.client.Confirm(ctx, r.topic, m); err != nil {
			return nil, err
		}
		r.log.Info("confirmed the subscription to the topic of a provider", "provider_id", r.provider, "topic_arn", m.TopicARN)
		return nil, nil
	case sns.Unsubscription:
		r.log.Warn("the subscription to the topic of a provider has ended: it reports nothing any more",
			"provider_id", r.provider, "topic_arn", m.TopicARN)
		return nil, nil
	}
	return reports(m, w.Redact)
}

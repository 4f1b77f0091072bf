package api

import (
	"context"

	"lemma"
	"lemma/client"
	"lemma/webhooks"
)

type endpointBody struct {
	client.WebhookEndpoint
	version int
}

func (b endpointBody) etag() int        { return b.version }
func (b endpointBody) location() string { return "/v1/webhook_endpoints/" + b.ID }

func showEndpoint(e webhooks.Endpoint) endpointBody {
	return endpointBody{client.WebhookEndpoint{ID: lemma.FormatID(lemma.PrefixEndpoint, e.ID), Name: e.Name, URL: e.URL,
		Subscriptions: each(e.Subscriptions, showSubscription), Sequence: e.Sequence, Status: e.Status, StatusReason: e.StatusReason,
		DisabledAt: utc(e.DisabledAt), CreatedAt: e.CreatedAt.UTC(), UpdatedAt: e.UpdatedAt.UTC()}, e.Version}
}

// endpointWithSecret is an answer with the secret. The answer that is kept for a replay
// has none.
type endpointWithSecret struct {
	endpointBody
	Secret *string `json:"secret"`
}

func (b endpointWithSecret) redact() any { return endpointWithSecret{endpointBody: b.endpointBody} }

// endpointWithHealth is an endpoint with the state of its deliveries.
type endpointWithHealth struct {
	endpointBody
	Health client.WebhookHealth `json:"health"`
}

func showHealth(h webhooks.Health) client.WebhookHealth {
	b := client.WebhookHealth{Pending: h.Pending, OldestPending: utc(h.OldestPending), LastDeliveredAt: utc(h.LastDelivered)}
	if f := h.LastFailure; f != nil {
		b.LastFailure = &client.WebhookFailure{At: f.At.UTC(), StatusCode: answerOrNull(f.Status), Reason: f.Reason}
	}
	return b
}

// answerOrNull returns the status code of an answer, nil without one.
func answerOrNull(status int) *int {
	if status == 0 {
		return nil
	}
	return &status
}

// showDelivery formats the delivery of a message. One that was deleted has no status, and how often it
// was called is not known.
func showDelivery(m webhooks.Delivery) client.WebhookMessage {
	var attempts *int
	if m.Status != "" {
		attempts = &m.Attempts
	}
	return client.WebhookMessage{ID: webhooks.MessageID(m.ID), Status: orNull(m.Status), Attempts: attempts,
		StatusCode: answerOrNull(m.StatusCode), Reason: orNull(m.Reason), CalledAt: utc(m.CalledAt), NextAt: utc(m.NextAt)}
}

func showMessage(m webhooks.Delivery) client.WebhookDelivery {
	return client.WebhookDelivery{ID: webhooks.MessageID(m.ID), Status: m.Status, Attempts: m.Attempts,
		StatusCode: answerOrNull(m.StatusCode), Reason: orNull(m.Reason), CalledAt: utc(m.CalledAt), NextAt: utc(m.NextAt),
		EventID: idOrNull(lemma.PrefixEventOut, m.EventID), Type: m.Type, Sequence: m.Sequence, FlowID: idOrNull(lemma.PrefixFlow, m.FlowID),
		EnrollmentID: idOrNull(lemma.PrefixEnrollment, m.EnrollmentID), CreatedAt: m.CreatedAt.UTC(), FinishedAt: utc(m.FinishedAt)}
}

func (s *server) listEndpoints(ctx context.Context, c *call, _ none) (list[endpointBody], error) {
	found, next, err := s.Webhooks.List(ctx, c.workspace(), c.page())
	return listOf(found, next, err, showEndpoint)
}

func (s *server) createEndpoint(ctx context.Context, c *call, in client.NewWebhookEndpoint) (endpointWithSecret, error) {
	subscriptions, err := readSubscriptions(in.Subscriptions)
	if err != nil {
		return endpointWithSecret{}, err
	}
	made, secret, err := s.Webhooks.Create(ctx, c.workspace(),
		webhooks.NewEndpoint{ID: c.newID, Name: in.Name, URL: in.URL, Subscriptions: subscriptions})
	return endpointWithSecret{showEndpoint(made), &secret}, err
}

func (s *server) getEndpoint(ctx context.Context, c *call, _ none) (endpointWithHealth, error) {
	found, err := s.Webhooks.Get(ctx, c.workspace(), c.id)
	if err != nil {
		return endpointWithHealth{}, err
	}
	health, err := s.Webhooks.Health(ctx, c.workspace(), c.id)
	return endpointWithHealth{showEndpoint(found), showHealth(health)}, err
}

func (s *server) listMessages(ctx context.Context, c *call, _ none) (list[client.WebhookDelivery], error) {
	found, next, err := s.Webhooks.Messages(ctx, c.workspace(), c.id, c.query("type"), c.page())
	return listOf(found, next, err, showMessage)
}

func (s *server) updateEndpoint(ctx context.Context, c *call, in client.WebhookEndpointPatch) (endpointBody, error) {
	p := webhooks.Patch{Name: in.Name, URL: in.URL, Status: in.Status}
	if in.Subscriptions != nil {
		subscriptions, err := readSubscriptions(*in.Subscriptions)
		if err != nil {
			return endpointBody{}, err
		}
		p.Subscriptions = &subscriptions
	}
	changed, err := s.Webhooks.Update(ctx, c.workspace(), c.id, c.ifMatch, p)
	return showEndpoint(changed), err
}

func (s *server) deleteEndpoint(ctx context.Context, c *call, _ none) (none, error) {
	return none{}, s.usedBy(ctx, c, s.Webhooks.Delete(ctx, c.workspace(), c.id))
}

func (s *server) rotateEndpoint(ctx context.Context, c *call, _ none) (endpointWithSecret, error) {
	now, secret, err := s.Webhooks.Rotate(ctx, c.workspace(), c.id, c.newID)
	return endpointWithSecret{showEndpoint(now), &secret}, err
}

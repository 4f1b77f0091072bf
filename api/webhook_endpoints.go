package api

import (
	"context"
	"time"

	"lemma"
	"lemma/client"
	"lemma/webhooks"
)

type endpointBody struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	URL  string `json:"url"`

	Subscriptions []subscriptionBody `json:"subscriptions"`
	Sequence      int64              `json:"sequence"`
	Status        string             `json:"status"`
	StatusReason  *string            `json:"status_reason"`
	DisabledAt    *time.Time         `json:"disabled_at"`

	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	version   int
}

func (b endpointBody) etag() int        { return b.version }
func (b endpointBody) location() string { return "/v1/webhook_endpoints/" + b.ID }

func showEndpoint(e webhooks.Endpoint) endpointBody {
	return endpointBody{ID: lemma.FormatID(lemma.PrefixEndpoint, e.ID), Name: e.Name, URL: e.URL,
		Subscriptions: each(e.Subscriptions, showSubscription), Sequence: e.Sequence, Status: e.Status, StatusReason: e.StatusReason,
		DisabledAt: utc(e.DisabledAt), CreatedAt: e.CreatedAt.UTC(),
		UpdatedAt: e.UpdatedAt.UTC(), version: e.Version}
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
	Health healthBody `json:"health"`
}

type healthBody struct {
	Pending       int          `json:"pending"`
	OldestPending *time.Time   `json:"oldest_pending_since"`
	LastDelivered *time.Time   `json:"last_delivered_at"`
	LastFailure   *failureBody `json:"last_failure"`
}

type failureBody struct {
	At         time.Time `json:"at"`
	StatusCode *int      `json:"status_code"`
	Reason     string    `json:"reason"`
}

func showHealth(h webhooks.Health) healthBody {
	b := healthBody{Pending: h.Pending, OldestPending: utc(h.OldestPending), LastDelivered: utc(h.LastDelivered)}
	if f := h.LastFailure; f != nil {
		b.LastFailure = &failureBody{f.At.UTC(), answerOrNull(f.Status), f.Reason}
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

func showDelivery(m webhooks.Delivery) client.WebhookMessage {
	return client.WebhookMessage{ID: webhooks.MessageID(m.ID), Status: orNull(m.Status), Attempts: m.Attempts,
		StatusCode: answerOrNull(m.StatusCode), Reason: orNull(m.Reason), CalledAt: utc(m.CalledAt), NextAt: utc(m.NextAt)}
}

// messageBody is a message in an endpoint's list.
type messageBody struct {
	client.WebhookMessage
	EventID      *string    `json:"event_id"`
	Type         *string    `json:"type"`
	Sequence     *int64     `json:"sequence"`
	FlowID       *string    `json:"flow_id"`
	EnrollmentID *string    `json:"enrollment_id"`
	CreatedAt    time.Time  `json:"created_at"`
	FinishedAt   *time.Time `json:"finished_at"`
}

func showMessage(m webhooks.Delivery) messageBody {
	return messageBody{showDelivery(m), idOrNull(lemma.PrefixEventOut, m.EventID), m.Type, m.Sequence,
		idOrNull(lemma.PrefixFlow, m.FlowID), idOrNull(lemma.PrefixEnrollment, m.EnrollmentID),
		m.CreatedAt.UTC(), utc(m.FinishedAt)}
}

type newEndpoint struct {
	Name string `json:"name"`
	URL  string `json:"url"`

	Subscriptions []subscriptionBody `json:"subscriptions"`
}

type endpointPatch struct {
	Name *string `json:"name"`
	URL  *string `json:"url"`

	Subscriptions *[]subscriptionBody `json:"subscriptions"`
	Status        *string             `json:"status"`
}

func (s *server) listEndpoints(ctx context.Context, c *call, _ none) (list[endpointBody], error) {
	found, next, err := s.Webhooks.List(ctx, c.workspace(), c.page())
	return listOf(found, next, err, showEndpoint)
}

func (s *server) createEndpoint(ctx context.Context, c *call, in newEndpoint) (endpointWithSecret, error) {
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

func (s *server) listMessages(ctx context.Context, c *call, _ none) (list[messageBody], error) {
	found, next, err := s.Webhooks.Messages(ctx, c.workspace(), c.id, c.query("type"), c.page())
	return listOf(found, next, err, showMessage)
}

func (s *server) updateEndpoint(ctx context.Context, c *call, in endpointPatch) (endpointBody, error) {
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

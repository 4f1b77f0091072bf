package api

import (
	"context"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/webhooks"
)

type endpointBody struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	URL       string    `json:"url"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	version   int
}

func (b endpointBody) etag() int        { return b.version }
func (b endpointBody) location() string { return "/v1/webhook_endpoints/" + b.ID }

func showEndpoint(e webhooks.Endpoint) endpointBody {
	return endpointBody{ID: lemma.FormatID(lemma.PrefixEndpoint, e.ID), Name: e.Name, URL: e.URL, CreatedAt: e.CreatedAt.UTC(), UpdatedAt: e.UpdatedAt.UTC(), version: e.Version}
}

// endpointWithSecret is an answer that has the secret in it. What is kept for
// a replay does not.
type endpointWithSecret struct {
	endpointBody
	Secret *string `json:"secret"`
}

func (b endpointWithSecret) hush() any { return endpointWithSecret{endpointBody: b.endpointBody} }

type newEndpoint struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

type endpointPatch struct {
	Name *string `json:"name"`
	URL  *string `json:"url"`
}

func (c *call) endpointID() (uuid.UUID, error) { return c.id(lemma.PrefixEndpoint, "webhook endpoint") }

func (s *server) listEndpoints(ctx context.Context, c *call, _ none) (list[endpointBody], error) {
	found, next, err := s.Webhooks.List(ctx, c.workspace(), c.page())
	return listOf(found, next, err, showEndpoint)
}

func (s *server) createEndpoint(ctx context.Context, c *call, in newEndpoint) (endpointWithSecret, error) {
	made, secret, err := s.Webhooks.Create(ctx, c.workspace(), webhooks.NewEndpoint{ID: c.newID, Name: in.Name, URL: in.URL})
	return endpointWithSecret{showEndpoint(made), &secret}, err
}

func (s *server) getEndpoint(ctx context.Context, c *call, _ none) (endpointBody, error) {
	id, err := c.endpointID()
	if err != nil {
		return endpointBody{}, err
	}
	found, err := s.Webhooks.Get(ctx, c.workspace(), id)
	return showEndpoint(found), err
}

func (s *server) updateEndpoint(ctx context.Context, c *call, in endpointPatch) (endpointBody, error) {
	id, err := c.endpointID()
	if err != nil {
		return endpointBody{}, err
	}
	version, err := c.ifMatch()
	if err != nil {
		return endpointBody{}, err
	}
	changed, err := s.Webhooks.Update(ctx, c.workspace(), id, version, webhooks.Patch(in))
	return showEndpoint(changed), err
}

func (s *server) deleteEndpoint(ctx context.Context, c *call, _ none) (none, error) {
	id, err := c.endpointID()
	if err != nil {
		return none{}, err
	}
	return none{}, s.Webhooks.Delete(ctx, c.workspace(), id)
}

func (s *server) rotateEndpoint(ctx context.Context, c *call, _ none) (endpointWithSecret, error) {
	id, err := c.endpointID()
	if err != nil {
		return endpointWithSecret{}, err
	}
	now, secret, err := s.Webhooks.Rotate(ctx, c.workspace(), id, c.newID)
	return endpointWithSecret{showEndpoint(now), &secret}, err
}

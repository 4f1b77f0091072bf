package api

import (
	"context"

	"github.com/google/uuid"

	"lemma"
	"lemma/client"
	"lemma/flows"
)

type flowBody struct {
	client.Flow
	version int
}

func (b flowBody) etag() int        { return b.version }
func (b flowBody) location() string { return "/v1/flows/" + b.ID }

func showFlow(f flows.Flow) flowBody {
	return flowBody{client.Flow{ID: lemma.FormatID(lemma.PrefixFlow, f.ID), Name: f.Name, Status: string(f.Status),
		StatusReason: orNull(f.StatusReason), StatusDetail: orNull(f.StatusDetail), LiveVersion: f.LiveVersion, Metadata: neverNull(f.Metadata),
		PausedAt: utc(f.PausedAt), ResumedAt: utc(f.ResumedAt), CatchUpUntil: utc(f.CatchUpUntil), AllowedActions: each(f.Allowed, asIs),
		CreatedAt: f.CreatedAt.UTC(), UpdatedAt: f.UpdatedAt.UTC()}, f.Version}
}

// actor returns the API key and the id of the request.
func (c *call) actor() *flows.Actor {
	return &flows.Actor{APIKeyID: c.key.ID, Request: c.newID}
}

func (s *server) listFlows(ctx context.Context, c *call, _ none) (list[flowBody], error) {
	found, next, err := s.Flows.List(ctx, c.workspace(), c.page())
	return listOf(found, next, err, showFlow)
}

func (s *server) createFlow(ctx context.Context, c *call, in client.NewFlow) (flowBody, error) {
	if err := s.mayQuery(ctx, c, uuid.Nil, 0, in.Definition); err != nil {
		return flowBody{}, err
	}
	made, err := s.Flows.Create(ctx, c.workspace(),
		flows.NewFlow{ID: c.newID, Name: in.Name, Metadata: in.Metadata, Definition: in.Definition})
	return showFlow(made), inDefinition(err)
}

func (s *server) getFlow(ctx context.Context, c *call, _ none) (flowBody, error) {
	found, err := s.Flows.Get(ctx, c.workspace(), c.id)
	return showFlow(found), err
}

func (s *server) updateFlow(ctx context.Context, c *call, in client.FlowPatch) (flowBody, error) {
	changed, err := s.Flows.Update(ctx, c.workspace(), c.id, c.ifMatch, flows.Patch(in))
	return showFlow(changed), err
}

func (s *server) deleteFlow(ctx context.Context, c *call, _ none) (none, error) {
	return none{}, s.Flows.Delete(ctx, c.workspace(), c.id)
}

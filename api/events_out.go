package api

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/webhooks"
)

// subscriptionBody selects events for an endpoint.
type subscriptionBody struct {
	Types       []string          `json:"types"`
	CampaignIDs []string          `json:"campaign_ids,omitempty"`
	FlowIDs     []string          `json:"flow_ids,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
}

func showSubscription(s webhooks.Subscription) subscriptionBody {
	return subscriptionBody{s.Types, formatIDs(lemma.PrefixCampaign, s.CampaignIDs), formatIDs(lemma.PrefixFlow, s.FlowIDs), s.Metadata}
}

func formatIDs(prefix string, ids []uuid.UUID) (all []string) {
	for _, id := range ids {
		all = append(all, lemma.FormatID(prefix, id))
	}
	return all
}

func readSubscriptions(in []subscriptionBody) ([]webhooks.Subscription, error) {
	all := make([]webhooks.Subscription, len(in))
	for i, s := range in {
		at := fmt.Sprintf("/subscriptions/%d", i)
		campaigns, err := parseIDs(lemma.PrefixCampaign, at+"/campaign_ids", s.CampaignIDs)
		if err != nil {
			return nil, err
		}
		flows, err := parseIDs(lemma.PrefixFlow, at+"/flow_ids", s.FlowIDs)
		if err != nil {
			return nil, err
		}
		all[i] = webhooks.Subscription{Types: s.Types, CampaignIDs: campaigns, FlowIDs: flows, Metadata: s.Metadata}
	}
	return all, nil
}

func parseIDs(prefix, at string, texts []string) (ids []uuid.UUID, err error) {
	for i, text := range texts {
		id, ok := lemma.ParseID(prefix, text)
		if !ok {
			return nil, lemma.Fault(fmt.Sprintf("%s/%d", at, i), "invalid", "must be an id that begins with %s_", prefix)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// resend is the body of a request to send messages again.
type resend struct {
	MessageID     *string    `json:"message_id"`
	CreatedAfter  *time.Time `json:"created_after"`
	CreatedBefore *time.Time `json:"created_before"`
	Statuses      []string   `json:"statuses"`
}

type resentBody struct {
	Resent int64 `json:"resent"`
}

func (s *server) resendMessages(ctx context.Context, c *call, in resend) (resentBody, error) {
	if in.MessageID == nil {
		r := webhooks.Range{After: in.CreatedAfter, Before: in.CreatedBefore, Statuses: in.Statuses}
		n, err := s.Webhooks.ResendAll(ctx, c.workspace(), c.id, r)
		return resentBody{n}, err
	}
	if in.CreatedAfter != nil || in.CreatedBefore != nil || in.Statuses != nil {
		return resentBody{}, lemma.Fault("/message_id", "invalid", "must be the only field; a range has none")
	}
	message, ok := webhooks.ParseMessageID(*in.MessageID)
	if !ok {
		return resentBody{}, lemma.Missing("message of this webhook endpoint")
	}
	_, err := s.Webhooks.Resend(ctx, c.workspace(), c.id, message)
	return resentBody{1}, err
}

func (s *server) testEndpoint(ctx context.Context, c *call, _ none) (messageBody, error) {
	written, err := s.Webhooks.Test(ctx, c.workspace(), c.id, c.newID)
	return showMessage(written), err
}

type eventOutBody struct {
	ID         string         `json:"id"`
	Type       string         `json:"type"`
	OccurredAt time.Time      `json:"occurred_at"`
	CampaignID *string        `json:"campaign_id"`
	FlowID     *string        `json:"flow_id"`
	Count      int            `json:"count"`
	Data       map[string]any `json:"data"`
	Items      []eventOutItem `json:"items"`
}

type eventOutItem struct {
	ID         string  `json:"id"`
	Detail     *string `json:"detail"`
	ProfileKey *string `json:"profile_key"`
	Status     *string `json:"status"`
	Reason     *string `json:"reason"`
}

// itemScopes are what a key needs to read the items of an event, by what its type begins with.
var itemScopes = map[string]string{"notification": "notifications:read", "enrollment": "enrollments:read"}

// getEventOut needs the scope of the items too.
func (s *server) getEventOut(ctx context.Context, c *call, _ none) (eventOutBody, error) {
	e, err := s.Webhooks.Event(ctx, c.workspace(), c.id)
	if err != nil {
		return eventOutBody{}, err
	}
	kind, _, _ := strings.Cut(e.Type, ".")
	if scope, has := itemScopes[kind]; has {
		if err := c.need(scope); err != nil {
			return eventOutBody{}, err
		}
	}
	items := each(e.Items, func(i webhooks.EventItem) eventOutItem {
		return eventOutItem{i.ID, orNull(i.Detail), i.ProfileKey, i.Status, i.Reason}
	})
	return eventOutBody{lemma.FormatID(lemma.PrefixEventOut, e.ID), e.Type, e.OccurredAt.UTC(), idOrNull(lemma.PrefixCampaign, e.CampaignID),
		idOrNull(lemma.PrefixFlow, e.FlowID), len(items), e.Data, items}, nil
}

package api

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/client"
	"lemma/webhooks"
)

func showSubscription(s webhooks.Subscription) client.WebhookSubscription {
	return client.WebhookSubscription{Types: s.Types, CampaignIDs: formatIDs(lemma.PrefixCampaign, s.CampaignIDs),
		FlowIDs: formatIDs(lemma.PrefixFlow, s.FlowIDs), Metadata: s.Metadata}
}

func formatIDs(prefix string, ids []uuid.UUID) (all []string) {
	for _, id := range ids {
		all = append(all, lemma.FormatID(prefix, id))
	}
	return all
}

func readSubscriptions(in []client.WebhookSubscription) ([]webhooks.Subscription, error) {
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

func (s *server) resendMessages(ctx context.Context, c *call, in resend) (client.WebhookResent, error) {
	if in.MessageID == nil {
		r := webhooks.Range{After: in.CreatedAfter, Before: in.CreatedBefore, Statuses: in.Statuses}
		n, err := s.Webhooks.ResendAll(ctx, c.workspace(), c.id, r)
		return client.WebhookResent{Resent: n}, err
	}
	if in.CreatedAfter != nil || in.CreatedBefore != nil || in.Statuses != nil {
		return client.WebhookResent{}, lemma.Fault("/message_id", "invalid", "must be the only field; a range has none")
	}
	message, ok := webhooks.ParseMessageID(*in.MessageID)
	if !ok {
		return client.WebhookResent{}, lemma.Missing("message of this webhook endpoint")
	}
	_, err := s.Webhooks.Resend(ctx, c.workspace(), c.id, message)
	return client.WebhookResent{Resent: 1}, err
}

func (s *server) testEndpoint(ctx context.Context, c *call, _ none) (client.WebhookDelivery, error) {
	written, err := s.Webhooks.Test(ctx, c.workspace(), c.id, c.newID)
	return showMessage(written), err
}

// itemScopes are what a key needs to read the items of an event, by what its type begins with.
var itemScopes = map[string]string{"notification": "notifications:read", "enrollment": "enrollments:read",
	"suppression": "suppressions:read"}

// getEventOut needs the scope of the items too.
func (s *server) getEventOut(ctx context.Context, c *call, _ none) (client.EventOut, error) {
	e, err := s.Webhooks.Event(ctx, c.workspace(), c.id)
	if err != nil {
		return client.EventOut{}, err
	}
	kind, _, _ := strings.Cut(e.Type, ".")
	if scope, has := itemScopes[kind]; has {
		if err := c.need(scope); err != nil {
			return client.EventOut{}, err
		}
	}
	items := each(e.Items, func(i webhooks.EventItem) client.EventOutItem {
		return client.EventOutItem{ID: i.ID, Detail: orNull(i.Detail), ProfileKey: i.ProfileKey, Status: i.Status, Reason: i.Reason,
			Channel: i.Channel, Address: i.Address}
	})
	return client.EventOut{ID: lemma.FormatID(lemma.PrefixEventOut, e.ID), Type: e.Type, OccurredAt: e.OccurredAt.UTC(),
		CampaignID: idOrNull(lemma.PrefixCampaign, e.CampaignID), FlowID: idOrNull(lemma.PrefixFlow, e.FlowID), Count: len(items),
		Data: e.Data, Items: items}, nil
}

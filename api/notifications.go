package api

import (
	"context"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"lemma"
	"lemma/client"
	"lemma/notifications"
)

func showNotification(n notifications.Notification) client.Notification {
	return client.Notification{ID: lemma.FormatNotificationID(n.OriginID, n.Key), CampaignID: campaignOf(n),
		FlowID: idOrNull(lemma.PrefixFlow, n.FlowID), EnrollmentID: idOrNull(lemma.PrefixEnrollment, n.EnrollmentID), Node: n.Node,
		Channel: string(n.Channel), ProfileKey: n.ProfileKey, Address: n.Address, Status: n.Status, Reason: n.Reason, Attempts: n.Attempts,
		ReplyCode: n.Code, CarrierID: n.CarrierID, CarrierDetail: n.Detail, CreatedAt: n.CreatedAt.UTC(), EndedAt: utc(n.EndedAt),
		Resolution: n.Resolution, ResolvedAt: utc(n.ResolvedAt),
		Delivery: n.Delivery, DeliveryAt: utc(n.DeliveryAt),
		Origin: originOf(n), Metadata: neverNull(n.Metadata), DueAt: utc(n.DueAt), ExpiresAt: utc(n.ExpiresAt)}
}

// originOf is what decided on a notification.
func originOf(n notifications.Notification) string {
	switch {
	case notifications.IsDirect(n.OriginID):
		return "direct"
	case n.FlowID != nil || n.EnrollmentID != nil:
		return "flow"
	}
	return "campaign"
}

// campaignOf returns the id of a notification's campaign, nil for others.
func campaignOf(n notifications.Notification) *string {
	if originOf(n) != "campaign" {
		return nil
	}
	return idOrNull(lemma.PrefixCampaign, &n.OriginID)
}

func (s *server) listNotifications(ctx context.Context, c *call, _ none) (list[client.Notification], error) {
	f := notifications.Filter{Channel: lemma.Channel(c.query("channel")), Status: c.query("status"),
		Resolution: c.query("resolution"), Delivery: c.query("delivery"), Reason: c.query("reason"), ProfileKey: c.query("profile_key"),
		Address: c.query("address"), Direct: c.query("origin") == "direct"}
	var ok bool
	if f.OriginID, ok = c.filterID("campaign_id", lemma.PrefixCampaign); !ok {
		return nothing[client.Notification](), nil
	}
	if f.FlowID, ok = c.filterID("flow_id", lemma.PrefixFlow); !ok {
		return nothing[client.Notification](), nil
	}
	found, next, err := s.Ledger.List(ctx, c.workspace(), f, c.page())
	return listOf(found, next, err, showNotification)
}

// notificationID reads the origin and the key from the id in the path.
func (c *call) notificationID() (origin, key uuid.UUID, err error) {
	origin, key, ok := lemma.ParseNotificationID(chi.URLParam(c.request, "id"))
	if !ok {
		return origin, key, lemma.Missing("notification")
	}
	return origin, key, nil
}

func (s *server) getNotification(ctx context.Context, c *call, _ none) (client.Notification, error) {
	origin, key, err := c.notificationID()
	if err != nil {
		return client.Notification{}, err
	}
	e, err := s.Ledger.Explain(ctx, c.workspace(), origin, key)
	return s.showExplained(e), err
}

// showExplained has the bound, which follows from the whole history.
func (s *server) showExplained(e notifications.Explanation) client.Notification {
	b := showNotification(e.Notification)
	b.EffectiveBound = s.boundOf(e)
	return b
}

type explanationBody struct {
	Notification client.Notification `json:"notification"`
	Summary      string              `json:"summary"`
	Deliveries   deliveryRange       `json:"deliveries"`
	Bound        int                 `json:"bound"`
	Waiting      *waitingBody        `json:"waiting"`
	Steps        []stepBody          `json:"steps"`
	Assignment   *client.Assignment  `json:"assignment"`
}

// deliveryRange is how often a notification may have been delivered.
type deliveryRange struct {
	AtLeast  int `json:"at_least"`
	AtMost   int `json:"at_most"`
	Possible int `json:"possible"`
}

type waitingBody struct {
	For    string     `json:"for"`
	Until  *time.Time `json:"until"`
	Detail string     `json:"detail"`
}

func showWaiting(w *notifications.Waiting) *waitingBody {
	if w == nil {
		return nil
	}
	return &waitingBody{w.For, utc(w.Until), w.Detail}
}

type stepBody struct {
	At      time.Time         `json:"at"`
	Event   string            `json:"event"`
	Detail  string            `json:"detail"`
	Attempt *int              `json:"attempt"`
	Data    map[string]string `json:"data"`
}

func (s *server) explainNotification(ctx context.Context, c *call, _ none) (explanationBody, error) {
	origin, key, err := c.notificationID()
	if err != nil {
		return explanationBody{}, err
	}
	e, err := s.Ledger.Explain(ctx, c.workspace(), origin, key)
	if err != nil {
		return explanationBody{}, err
	}
	b := explanationBody{Notification: s.showExplained(e), Summary: e.Summary,
		Deliveries: deliveryRange{e.DeliveriesAtLeast, e.DeliveriesAtMost, e.DeliveriesPossible},
		Waiting:    showWaiting(e.Waiting), Bound: e.Bound, Steps: each(e.Steps, showStep)}
	assigned, err := s.Campaigns.AssignmentOf(ctx, c.workspace(), origin, key, e.Notification.ProfileKey)
	if assigned != nil {
		shown := showAssignment(e.Notification.ProfileKey, *assigned)
		b.Assignment = &shown
	}
	return b, err
}

func showStep(n notifications.Step) stepBody {
	b := stepBody{At: n.At.UTC(), Event: n.Event, Detail: n.Detail, Data: neverNull(n.Data)}
	if n.Attempt != 0 {
		b.Attempt = &n.Attempt
	}
	return b
}

type resolution struct {
	Resolution string `json:"resolution"`
	Note       string `json:"note"`
}

func (s *server) resolveNotification(ctx context.Context, c *call, in resolution) (client.Notification, error) {
	origin, key, err := c.notificationID()
	if err != nil {
		return client.Notification{}, err
	}
	settled, err := s.Ledger.Resolve(ctx, c.workspace(), origin, key,
		notifications.Resolution{Resolution: in.Resolution, Note: in.Note, APIKeyID: c.key.ID})
	return showNotification(settled), err
}

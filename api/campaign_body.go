package api

import (
	"math"
	"time"

	"lemma"
	"lemma/campaigns"
	"lemma/client"
)

type campaignBody struct {
	ID              string               `json:"id"`
	Name            string               `json:"name"`
	Status          campaigns.Status     `json:"status"`
	StatusReason    *string              `json:"status_reason"`
	StatusDetail    *string              `json:"status_detail"`
	Channel         lemma.Channel        `json:"channel"`
	AudienceID      string               `json:"audience_id"`
	TemplateID      string               `json:"template_id"`
	TemplateVersion int                  `json:"template_version"`
	ProviderID      string               `json:"provider_id"`
	Strategy        string               `json:"strategy"`
	Guarantee       guarantee            `json:"guarantee"`
	EffectiveBound  client.DeliveryBound `json:"effective_bound"`
	From            *fromBody            `json:"from"`
	ReplyTo         *string              `json:"reply_to"`
	Headers         map[string]string    `json:"headers"`
	Metadata        map[string]string    `json:"metadata"`
	Transactional   bool                 `json:"transactional"`
	TopicID         *string              `json:"topic_id"`
	Conversion      *conversionBody      `json:"conversion"`
	ErrorLimit      *float64             `json:"template_error_limit"`
	ScheduledAt     *time.Time           `json:"scheduled_at"`
	SendDeadline    *time.Time           `json:"send_deadline"`
	StartedAt       *time.Time           `json:"started_at"`
	SendingAt       *time.Time           `json:"sending_at"`
	FannedOutAt     *time.Time           `json:"fanned_out_at"`
	FinishedAt      *time.Time           `json:"finished_at"`
	RowsRead        *int64               `json:"rows_read"`
	IterationID     *string              `json:"iteration_id"`
	Counts          campaignCounts       `json:"counts"`
	Progress        progress             `json:"progress"`
	Allowed         []string             `json:"allowed_actions"`
	CreatedAt       time.Time            `json:"created_at"`
	UpdatedAt       time.Time            `json:"updated_at"`
	version         int
}

func (b campaignBody) etag() int        { return b.version }
func (b campaignBody) location() string { return "/v1/campaigns/" + b.ID }

// guarantee is how many times a notification is delivered at most, whatever crashes.
type guarantee struct {
	Strategy string `json:"strategy"`
	Bound    int    `json:"bound"`
}

type fromBody struct {
	Email string `json:"email"`
	Name  string `json:"name"`
}

type campaignCounts struct {
	client.NotificationCounts
	Retried   int64            `json:"retried"`
	SkippedBy map[string]int64 `json:"skipped_by"`
	Balanced  bool             `json:"balanced"`
	Profiles  *int64           `json:"profiles"`
}

func (s *server) showCampaign(c campaigns.Campaign) campaignBody {
	return campaignBody{ID: lemma.FormatID(lemma.PrefixCampaign, c.ID), Name: c.Name,
		Status: c.Status, StatusReason: orNull(c.StatusReason), StatusDetail: orNull(c.StatusDetail),
		Channel: c.Channel, AudienceID: lemma.FormatID(lemma.PrefixAudience, c.AudienceID),
		TemplateID: lemma.FormatID(lemma.PrefixTemplate, c.TemplateID), TemplateVersion: c.TemplateVersion,
		ProviderID: lemma.FormatID(lemma.PrefixProvider, c.ProviderID), Strategy: c.Strategy, Guarantee: guarantee{c.Strategy, bound(c.Strategy)},
		EffectiveBound: s.boundOfCampaign(c),
		From:           showFrom(c), ReplyTo: orNull(c.ReplyTo), Headers: neverNull(c.Headers), Metadata: neverNull(c.Metadata),
		Transactional: c.Transactional, TopicID: idOrNull(lemma.PrefixTopic, c.TopicID), Conversion: showConversion(c.Conversion),
		ErrorLimit: c.TemplateErrorLimit, ScheduledAt: utc(c.ScheduledAt), SendDeadline: utc(c.SendDeadline), StartedAt: utc(c.StartedAt),
		SendingAt: utc(c.SendingAt), FannedOutAt: utc(c.FannedOutAt), FinishedAt: utc(c.FinishedAt), RowsRead: c.RowsRead,
		IterationID: idOrNull(lemma.PrefixIteration, c.IterationID),
		Counts:      showCounts(c), Progress: s.progressOf(c), Allowed: each(c.Allowed, asIs),
		CreatedAt: c.CreatedAt.UTC(), UpdatedAt: c.UpdatedAt.UTC(), version: c.Version}
}

// bound is how many deliveries of a notification a strategy allows.
func bound(strategy string) int {
	if strategy == "at_most_once" {
		return 1
	}
	return 2
}

// showFrom is the sender of an email.
func showFrom(c campaigns.Campaign) *fromBody {
	if c.Channel != lemma.Email {
		return nil
	}
	return &fromBody{c.FromEmail, c.FromName}
}

func showCounts(c campaigns.Campaign) campaignCounts {
	b := c.Counts
	return campaignCounts{client.NotificationCounts{Total: b.Audience, Sent: b.Sent, Failed: b.Failed, Skipped: b.Skipped,
		Orphaned: b.Orphaned, Cancelled: b.Cancelled, Pending: b.Pending, Processing: b.Processing, Deliveries: showDeliveries(b.Deliveries),
		Engagement: client.Engagement(b.Engagement)}, b.Retried, present(b.SkippedBy), b.Balanced, c.Profiles}
}

// progress is derived from the counts: the rate and the time that is left.
type progress struct {
	Ended         int64    `json:"ended"`
	RatePerSecond *float64 `json:"rate_per_second"`
	ETASeconds    *int64   `json:"eta_seconds"`
}

// progressOf uses the mean rate of notifications that were not skipped, since sending
// began.
func (s *server) progressOf(c campaigns.Campaign) progress {
	b := c.Counts
	p := progress{Ended: b.Sent + b.Failed + b.Skipped + b.Orphaned + b.Cancelled}
	called := b.Sent + b.Failed + b.Orphaned
	if c.Status != campaigns.Sending || c.SendingAt == nil || called == 0 {
		return p
	}
	seconds := max(s.Now().Sub(*c.SendingAt).Seconds(), 0.001)
	rate := math.Round(float64(called)/seconds*10) / 10
	p.RatePerSecond = &rate
	if c.FannedOutAt != nil {
		left := int64(math.Ceil(float64(b.Pending+b.Processing) * seconds / float64(called)))
		p.ETASeconds = &left
	}
	return p
}

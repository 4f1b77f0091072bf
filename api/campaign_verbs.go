package api

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"lemma/campaigns"
	"lemma/notifications"
)

// verb is the handler of a verb that takes an id and returns the campaign.
func (s *server) verb(ctx context.Context, c *call,
	do func(ctx context.Context, ws, campaign, request uuid.UUID) (campaigns.Campaign, error)) (campaignBody, error) {
	now, err := do(ctx, c.workspace(), c.id, c.newID)
	return s.showCampaign(now), err
}

// sendCampaign returns the campaign, or with dry_run a preview.
func (s *server) sendCampaign(ctx context.Context, c *call, _ none) (any, error) {
	if !c.dryRun() {
		return s.verb(ctx, c, s.Campaigns.Send)
	}
	if err := c.need("audiences:query"); err != nil {
		return nil, err
	}
	now, err := s.Campaigns.Get(ctx, c.workspace(), c.id)
	if err != nil {
		return nil, err
	}
	if err := now.Check("send"); err != nil {
		return nil, err
	}
	if err := s.Campaigns.CheckSend(ctx, c.workspace(), c.id); err != nil {
		return nil, err
	}
	return s.previewCampaign(ctx, c, none{})
}

type schedule struct {
	At       string `json:"at"`
	Timezone string `json:"timezone" validate:"omitempty,zone"`
}

func (s *server) scheduleCampaign(ctx context.Context, c *call, in schedule) (campaignBody, error) {
	at, err := in.instant()
	if err != nil {
		return campaignBody{}, err
	}
	now, err := s.Campaigns.Schedule(ctx, c.workspace(), c.id, at, c.newID)
	return s.showCampaign(now), err
}

func (s *server) unscheduleCampaign(ctx context.Context, c *call, _ none) (campaignBody, error) {
	return s.verb(ctx, c, s.Campaigns.Unschedule)
}

func (s *server) pauseCampaign(ctx context.Context, c *call, _ none) (campaignBody, error) {
	return s.verb(ctx, c, s.Campaigns.Pause)
}

type campaignResumption struct {
	ErrorLimit *float64 `json:"template_error_limit"`
}

func (s *server) resumeCampaign(ctx context.Context, c *call, in campaignResumption) (campaignBody, error) {
	return s.verb(ctx, c, func(ctx context.Context, ws, campaign, request uuid.UUID) (campaigns.Campaign, error) {
		return s.Campaigns.ResumeWith(ctx, ws, campaign, request, in.ErrorLimit)
	})
}

type cancellation struct {
	Campaign   campaignBody `json:"campaign"`
	Processing int64        `json:"processing"`
	Cancelled  int64        `json:"cancelled"`
	dry        bool
}

func (b cancellation) location() string { return b.Campaign.location() }
func (b cancellation) status() int {
	if b.dry {
		return http.StatusOK
	}
	return 0
}

func (s *server) cancelCampaign(ctx context.Context, c *call, _ none) (cancellation, error) {
	if c.dryRun() {
		now, err := s.Campaigns.Get(ctx, c.workspace(), c.id)
		if err != nil {
			return cancellation{}, err
		}
		if err := now.Check("cancel"); err != nil {
			return cancellation{}, err
		}
		found, err := notifications.ReadCancelled(ctx, s.Pool, c.workspace(), c.id)
		return cancellation{s.showCampaign(now), found.InFlight, found.Cancelled, true}, err
	}
	now, found, err := s.Campaigns.Cancel(ctx, c.workspace(), c.id, c.newID)
	return cancellation{s.showCampaign(now), found.InFlight, found.Cancelled, false}, err
}

type campaignPreview struct {
	Rows      int64            `json:"rows"`
	Sendable  int64            `json:"sendable"`
	SkippedBy map[string]int64 `json:"skipped_by"`
	renderedRows
	Variants []variantPreview `json:"variants"`
	Warnings []string         `json:"warnings"`
}

type variantPreview struct {
	Variant string `json:"variant"`
	renderedRows
}

type renderedRows struct {
	Sample       []sampleBody        `json:"sample"`
	Truncated    bool                `json:"truncated"`
	Rendered     int64               `json:"rendered"`
	Failed       int64               `json:"failed"`
	FailedAtMost float64             `json:"failed_share_at_most"`
	Failures     []renderFailureBody `json:"failures"`
}

type renderFailureBody struct {
	Error       string   `json:"error"`
	Rows        int64    `json:"rows"`
	ProfileKeys []string `json:"profile_keys"`
}

// status is 200 for a preview, where a send is 202.
func (campaignPreview) status() int { return http.StatusOK }

type sampleBody struct {
	ProfileKey string `json:"profile_key"`
	Address    string `json:"address"`
	renderedContent
	Headers map[string]string `json:"headers"`
	Error   *string           `json:"error"`
}

func headersOf(rendered [][2]string) map[string]string {
	headers := make(map[string]string, len(rendered))
	for _, one := range rendered {
		headers[one[0]] = one[1]
	}
	return headers
}

func (s *server) previewCampaign(ctx context.Context, c *call, _ none) (campaignPreview, error) {
	var r campaigns.Preview
	var err error
	if c.request.URL.Query().Has("variant") {
		r, err = s.Campaigns.PreviewVariant(ctx, c.workspace(), c.id, c.query("variant"))
	} else {
		r, err = s.Campaigns.Preview(ctx, c.workspace(), c.id)
	}
	variants := func(v campaigns.VariantPreview) variantPreview {
		return variantPreview{v.Name, showRenderedRows(v.RenderedRows)}
	}
	return campaignPreview{Rows: r.Rows, Sendable: r.Sendable, SkippedBy: present(r.SkippedBy), renderedRows: showRenderedRows(r.RenderedRows),
		Variants: each(r.Variants, variants), Warnings: each(r.Warnings, asIs)}, sourced(err)
}

func showRenderedRows(r campaigns.RenderedRows) renderedRows {
	return renderedRows{Sample: each(r.Sample, showSample), Truncated: r.Truncated, Rendered: r.Rendered, Failed: r.Failed,
		FailedAtMost: r.FailedAtMost, Failures: each(r.Faults, showRenderFailure)}
}

func showRenderFailure(f *campaigns.RenderFault) renderFailureBody {
	return renderFailureBody{f.Error, f.Rows, f.ProfileKeys}
}

func showSample(r campaigns.Rendered) sampleBody {
	return sampleBody{ProfileKey: r.ProfileKey, Address: r.Address, renderedContent: showRendered(r.Content), Headers: headersOf(r.Headers),
		Error: orNull(r.Error)}
}

// sourced gives the error of a data source the pointer of the audience.
func sourced(err error) error { return blame(err, "/audience_id") }

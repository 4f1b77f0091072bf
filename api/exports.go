package api

import (
	"context"
	"slices"
	"time"

	"lemma"
	"lemma/exports"
)

// linkTime is how long the link to a file is valid.
const linkTime = time.Hour

type exportFilters struct {
	CampaignID    string     `json:"campaign_id,omitempty"`
	FlowID        string     `json:"flow_id,omitempty"`
	Status        string     `json:"status,omitempty"`
	Outcome       string     `json:"outcome,omitempty"`
	Reason        string     `json:"reason,omitempty"`
	Name          string     `json:"name,omitempty"`
	ProfileKey    string     `json:"profile_key,omitempty"`
	Channel       string     `json:"channel,omitempty"`
	Cause         string     `json:"cause,omitempty"`
	CreatedAfter  *time.Time `json:"created_after,omitempty"`
	CreatedBefore *time.Time `json:"created_before,omitempty"`
}

type newExport struct {
	Type        string        `json:"type"`
	Format      string        `json:"format"`
	CSVFormulas string        `json:"csv_formulas"`
	Filters     exportFilters `json:"filters"`
}

type exportBody struct {
	ID           string          `json:"id"`
	Type         string          `json:"type"`
	Format       string          `json:"format"`
	CSVFormulas  string          `json:"csv_formulas"`
	Filters      exportFilters   `json:"filters"`
	Status       string          `json:"status"`
	StatusReason *string         `json:"status_reason"`
	StatusDetail *string         `json:"status_detail"`
	Progress     exportProgress  `json:"progress"`
	Download     *exportDownload `json:"download"`
	CreatedAt    time.Time       `json:"created_at"`
	StartedAt    *time.Time      `json:"started_at"`
	FinishedAt   *time.Time      `json:"finished_at"`
	ExpiresAt    *time.Time      `json:"expires_at"`
}

type exportProgress struct {
	Rows    int64 `json:"rows"`
	Bytes   int64 `json:"bytes"`
	Attempt int   `json:"attempt"`
}

type exportDownload struct {
	URL       string    `json:"url"`
	ExpiresAt time.Time `json:"expires_at"`
	Bytes     int64     `json:"bytes"`
	SHA256    string    `json:"sha256"`
}

func (b exportBody) location() string { return "/v1/exports/" + b.ID }

func showExport(x exports.Export) exportBody {
	f := x.Filters
	shown := exportFilters{Status: f.Status, Outcome: f.Outcome, Reason: f.Reason, Name: f.Name, ProfileKey: f.ProfileKey, Channel: f.Channel,
		Cause: f.Cause, CreatedAfter: utc(f.CreatedAfter), CreatedBefore: utc(f.CreatedBefore)}
	if f.CampaignID != nil {
		shown.CampaignID = lemma.FormatID(lemma.PrefixCampaign, *f.CampaignID)
	}
	if f.FlowID != nil {
		shown.FlowID = lemma.FormatID(lemma.PrefixFlow, *f.FlowID)
	}
	return exportBody{ID: lemma.FormatID(lemma.PrefixExport, x.ID), Type: x.Type, Format: x.Format, CSVFormulas: x.CSVFormulas, Filters: shown,
		Status: x.Status, StatusReason: x.StatusReason, StatusDetail: x.StatusDetail,
		Progress:  exportProgress{Rows: x.RowCount, Bytes: x.ByteCount, Attempt: x.Attempts},
		CreatedAt: x.CreatedAt.UTC(), StartedAt: utc(x.StartedAt), FinishedAt: utc(x.FinishedAt), ExpiresAt: utc(x.ExpiresAt)}
}

// filters reads the filters of a request. An id that is none is the id of nothing.
func (n newExport) filters() (exports.Filters, error) {
	f := exports.Filters{Status: n.Filters.Status, Outcome: n.Filters.Outcome, Reason: n.Filters.Reason, Name: n.Filters.Name,
		ProfileKey: n.Filters.ProfileKey, Channel: n.Filters.Channel, Cause: n.Filters.Cause, CreatedAfter: n.Filters.CreatedAfter,
		CreatedBefore: n.Filters.CreatedBefore}
	if text := n.Filters.CampaignID; text != "" {
		id, ok := lemma.ParseID(lemma.PrefixCampaign, text)
		if !ok {
			return f, unknownID("/filters/campaign_id", "campaign")
		}
		f.CampaignID = &id
	}
	if text := n.Filters.FlowID; text != "" {
		id, ok := lemma.ParseID(lemma.PrefixFlow, text)
		if !ok {
			return f, unknownID("/filters/flow_id", "flow")
		}
		f.FlowID = &id
	}
	return f, nil
}

func (s *server) listExports(ctx context.Context, c *call, _ none) (list[exportBody], error) {
	found, next, err := s.Exports.List(ctx, c.workspace(), c.page())
	return listOf(found, next, err, showExport)
}

// createExport needs the scope of the rows too.
func (s *server) createExport(ctx context.Context, c *call, in newExport) (exportBody, error) {
	if slices.Contains(exports.Types(), in.Type) {
		if err := c.need(exports.Scope(in.Type)); err != nil {
			return exportBody{}, err
		}
	}
	filters, err := in.filters()
	if err != nil {
		return exportBody{}, err
	}
	made, err := s.Exports.Create(ctx, c.workspace(),
		exports.NewExport{ID: c.newID, Type: in.Type, Format: in.Format, CSVFormulas: in.CSVFormulas, Filters: filters})
	return showExport(made), err
}

// getExport has a link to the file if the key may read its rows.
func (s *server) getExport(ctx context.Context, c *call, _ none) (exportBody, error) {
	found, err := s.Exports.Get(ctx, c.workspace(), c.id)
	if err != nil {
		return exportBody{}, err
	}
	body := showExport(found)
	if found.Status != exports.Completed || !c.key.Has(exports.Scope(found.Type)) {
		return body, nil
	}
	link, err := s.Exports.Link(ctx, c.workspace(), c.id, linkTime)
	if err != nil {
		return exportBody{}, err
	}
	body.Download = &exportDownload{URL: link.URL, ExpiresAt: link.ExpiresAt, Bytes: link.Bytes, SHA256: link.SHA256}
	return body, nil
}

func (s *server) cancelExport(ctx context.Context, c *call, _ none) (exportBody, error) {
	done, err := s.Exports.Cancel(ctx, c.workspace(), c.id)
	return showExport(done), err
}

func (s *server) deleteExport(ctx context.Context, c *call, _ none) (none, error) {
	return none{}, s.Exports.Delete(ctx, c.workspace(), c.id)
}

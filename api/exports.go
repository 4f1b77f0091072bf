package api

import (
	"context"
	"slices"
	"time"

	"lemma"
	"lemma/client"
	"lemma/exports"
)

// linkTime is how long the link to a file is valid.
const linkTime = time.Hour

type exportBody struct{ client.Export }

func (b exportBody) location() string { return "/v1/exports/" + b.ID }

func showExport(x exports.Export) exportBody {
	f := x.Filters
	shown := client.ExportFilters{Status: f.Status, Outcome: f.Outcome, Reason: f.Reason, Name: f.Name, ProfileKey: f.ProfileKey,
		Channel: f.Channel, Cause: f.Cause, CreatedAfter: utc(f.CreatedAfter), CreatedBefore: utc(f.CreatedBefore)}
	if f.CampaignID != nil {
		shown.CampaignID = lemma.FormatID(lemma.PrefixCampaign, *f.CampaignID)
	}
	if f.FlowID != nil {
		shown.FlowID = lemma.FormatID(lemma.PrefixFlow, *f.FlowID)
	}
	return exportBody{client.Export{ID: lemma.FormatID(lemma.PrefixExport, x.ID), Type: x.Type, Format: x.Format, CSVFormulas: x.CSVFormulas,
		Filters: shown, Status: x.Status, StatusReason: x.StatusReason, StatusDetail: x.StatusDetail,
		Progress:  client.ExportProgress{Rows: x.RowCount, Bytes: x.ByteCount, Attempt: x.Attempts},
		CreatedAt: x.CreatedAt.UTC(), StartedAt: utc(x.StartedAt), FinishedAt: utc(x.FinishedAt), ExpiresAt: utc(x.ExpiresAt)}}
}

// filtersOf reads the filters of a request. An id that is none is the id of nothing.
func filtersOf(in client.ExportFilters) (exports.Filters, error) {
	f := exports.Filters{Status: in.Status, Outcome: in.Outcome, Reason: in.Reason, Name: in.Name,
		ProfileKey: in.ProfileKey, Channel: in.Channel, Cause: in.Cause, CreatedAfter: in.CreatedAfter,
		CreatedBefore: in.CreatedBefore}
	if text := in.CampaignID; text != "" {
		id, ok := lemma.ParseID(lemma.PrefixCampaign, text)
		if !ok {
			return f, unknownID("/filters/campaign_id", "campaign")
		}
		f.CampaignID = &id
	}
	if text := in.FlowID; text != "" {
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
func (s *server) createExport(ctx context.Context, c *call, in client.NewExport) (exportBody, error) {
	if slices.Contains(exports.Types(), in.Type) {
		if err := c.need(exports.Scope(in.Type)); err != nil {
			return exportBody{}, err
		}
	}
	filters, err := filtersOf(in.Filters)
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
	body.Download = &client.ExportDownload{URL: link.URL, ExpiresAt: link.ExpiresAt, Bytes: link.Bytes, SHA256: link.SHA256}
	return body, nil
}

func (s *server) cancelExport(ctx context.Context, c *call, _ none) (exportBody, error) {
	done, err := s.Exports.Cancel(ctx, c.workspace(), c.id)
	return showExport(done), err
}

func (s *server) deleteExport(ctx context.Context, c *call, _ none) (none, error) {
	return none{}, s.Exports.Delete(ctx, c.workspace(), c.id)
}

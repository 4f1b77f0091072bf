package client

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"time"
)

// NewExport is a file of rows that is to be made.
type NewExport struct {
	Type        string        `json:"type"`                   // such as notifications; see the contract
	Format      string        `json:"format"`                 // csv, ndjson, parquet
	CSVFormulas string        `json:"csv_formulas,omitempty"` // escape (default), keep
	Filters     ExportFilters `json:"filters"`
}

// ExportFilters select rows. Empty ones select all. Each type has filters of its own.
type ExportFilters struct {
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

// Export is an export with its progress.
type Export struct {
	ID           string          `json:"id"`
	Type         string          `json:"type"`
	Format       string          `json:"format"`
	CSVFormulas  string          `json:"csv_formulas"`
	Filters      ExportFilters   `json:"filters"`
	Status       string          `json:"status"` // queued, running, publishing, completed, failed, cancelled
	StatusReason *string         `json:"status_reason"`
	StatusDetail *string         `json:"status_detail"`
	Progress     ExportProgress  `json:"progress"`
	Download     *ExportDownload `json:"download"` // of a completed one, by GetExport
	CreatedAt    time.Time       `json:"created_at"`
	StartedAt    *time.Time      `json:"started_at"`
	FinishedAt   *time.Time      `json:"finished_at"`
	ExpiresAt    *time.Time      `json:"expires_at"` // when it is deleted
}

// Ended reports whether the export changes no more.
func (e Export) Ended() bool { return e.FinishedAt != nil }

// ExportProgress is what the current attempt has written.
type ExportProgress struct {
	Rows    int64 `json:"rows"`
	Bytes   int64 `json:"bytes"`
	Attempt int   `json:"attempt"`
}

// ExportDownload is a link to a file, which needs no API key.
type ExportDownload struct {
	URL       string    `json:"url"`
	ExpiresAt time.Time `json:"expires_at"`
	Bytes     int64     `json:"bytes"`
	SHA256    string    `json:"sha256"` // in hexadecimal
}

// ExportStatus filters ListExports by status.
func ExportStatus(status string) CallOption { return func(r *request) { r.set("status", status) } }

// ListExports lists exports, without links.
func (c *Client) ListExports(ctx context.Context, options ...CallOption) iter.Seq2[Export, error] {
	return each[Export](ctx, c, nil, options, "/v1/exports")
}

// CreateExport queues an export.
func (c *Client) CreateExport(ctx context.Context, n NewExport, options ...CallOption) (Export, error) {
	return call[Export](ctx, c, n, options, http.MethodPost, "/v1/exports")
}

// GetExport reads an export. A completed one has a new link to its file.
func (c *Client) GetExport(ctx context.Context, id string, options ...CallOption) (Export, error) {
	return call[Export](ctx, c, nil, options, http.MethodGet, "/v1/exports/%s", id)
}

// CancelExport ends an export that is queued, running or publishing.
func (c *Client) CancelExport(ctx context.Context, id string, options ...CallOption) (Export, error) {
	return call[Export](ctx, c, nil, options, http.MethodPost, "/v1/exports/%s/cancel", id)
}

// DeleteExport deletes an export with its file.
func (c *Client) DeleteExport(ctx context.Context, id string, options ...CallOption) error {
	_, err := call[struct{}](ctx, c, nil, options, http.MethodDelete, "/v1/exports/%s", id)
	return err
}

// downloads begins the path of links to files, as exports.DownloadPath does.
const downloads = "/downloads/"

// Open opens the file, at the server that the client calls: the link has its public URL, which
// may lead elsewhere, or be out of reach. It does not send the API key.
func (d ExportDownload) Open(ctx context.Context, c *Client) (io.ReadCloser, error) {
	i := strings.LastIndex(d.URL, downloads)
	if i < 0 {
		return nil, fmt.Errorf("the link of an export has no %s", downloads)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+d.URL[i:], nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("User-Agent", c.agent)
	answer, err := (&http.Client{Transport: c.http.Transport}).Do(r) // a store may serve the file, and a file takes its time
	if err != nil {
		return nil, fmt.Errorf("download: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		_ = answer.Body.Close()
		return nil, fmt.Errorf("download: the server answers %s", answer.Status)
	}
	return answer.Body, nil
}

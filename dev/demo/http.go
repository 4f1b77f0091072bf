package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"lemma/client"
)

// httpClient calls the HTTP API, for what package client does not have.
type httpClient struct {
	base string // ends in /v1
	key  string
	http http.Client
}

// call makes one request; in and out are JSON, nil for none.
func (c *httpClient) call(ctx context.Context, method, path, idempotency string, in, out any) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.key)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if idempotency != "" {
		req.Header.Set("Idempotency-Key", idempotency)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, path, res.Status, raw)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(raw, out)
}

// resource has the fields that all resources have.
type resource struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Version int    `json:"version"`
}

// ensure returns the resource with a name, and creates it if there is none.
func (c *httpClient) ensure(ctx context.Context, path, name string, body map[string]any) (resource, error) {
	found, err := c.find(ctx, path, name)
	if err != nil || found.ID != "" {
		return found, err
	}
	body["name"] = name
	err = c.call(ctx, http.MethodPost, path, "", body, &found)
	return found, err
}

func (c *httpClient) find(ctx context.Context, path, name string) (resource, error) {
	next := path + "?limit=200"
	for {
		var page struct {
			Data       []resource `json:"data"`
			NextCursor *string    `json:"next_cursor"`
		}
		if err := c.call(ctx, http.MethodGet, next, "", nil, &page); err != nil {
			return resource{}, err
		}
		for _, t := range page.Data {
			if t.Name == name {
				return t, nil
			}
		}
		if page.NextCursor == nil {
			return resource{}, nil
		}
		next = path + "?limit=200&cursor=" + url.QueryEscape(*page.NextCursor)
	}
}

// campaignView is the part of a campaign that the demo reads.
type campaignView struct {
	ID         string     `json:"id"`
	Iteration  string     `json:"iteration_id"` // of an A/B test
	Status     string     `json:"status"`
	Reason     *string    `json:"status_reason"`
	Detail     *string    `json:"status_detail"`
	StartedAt  *time.Time `json:"started_at"`
	FinishedAt *time.Time `json:"finished_at"`
	Counts     struct {
		client.NotificationCounts
		Retried   int64            `json:"retried"`
		SkippedBy map[string]int64 `json:"skipped_by"`
		Balanced  bool             `json:"balanced"`
	} `json:"counts"`
}

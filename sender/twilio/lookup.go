package twilio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"

	"lemma/sender"
)

const (
	pageSize  = 10 // so that a page of long messages is within the size of an answer
	mostPages = 10
)

// record is a message in Twilio's list.
type record struct {
	SID     string `json:"sid"`
	To      string `json:"to"`
	From    string `json:"from"`
	Service string `json:"messaging_service_sid"`
	Body    string `json:"body"`
	Created string `json:"date_created"` // RFC 2822
}

func (r record) created() (time.Time, error) { return time.Parse(time.RFC1123Z, r.Created) }

// Lookup is part of sender.Lookup. It reads the list of messages to the recipient, newest
// first, and returns those with the same text and sender. A text that Twilio has changed,
// as Smart Encoding does, is not found.
func (c *carrier) Lookup(ctx context.Context, m *sender.Message, since, until time.Time) (ids []string, err error) {
	next := *c.url
	next.RawQuery = url.Values{"To": {m.To}, "PageSize": {fmt.Sprint(pageSize)}}.Encode()
	for range mostPages {
		page, more, err := c.page(ctx, &next)
		if err != nil {
			return nil, err
		}
		for _, r := range page {
			at, err := r.created()
			switch {
			case err != nil:
				return nil, fmt.Errorf("read the list of messages: %w", err)
			case at.Before(since):
				return ids, nil
			case !at.After(until) && c.isOf(r, m):
				ids = append(ids, r.SID)
			}
		}
		if more == nil {
			return ids, nil
		}
		next.Path, next.RawQuery = more.Path, more.RawQuery
	}
	return ids, nil
}

// page reads a page of the list, and where the next one is.
func (c *carrier) page(ctx context.Context, u *url.URL) ([]record, *url.URL, error) {
	a, err := c.Get(ctx, u, c.header)
	if err != nil {
		return nil, nil, err
	}
	var body struct {
		Messages []record `json:"messages"`
		Next     string   `json:"next_page_uri"`
	}
	if a.Status != 200 || !a.Whole || json.Unmarshal(a.Body, &body) != nil {
		return nil, nil, fmt.Errorf("the list of messages cannot be read: status %d", a.Status)
	}
	if body.Next == "" {
		return body.Messages, nil, nil
	}
	next, err := url.Parse(body.Next)
	if err != nil || next.Path != c.url.Path {
		return nil, nil, errors.New("the list of messages names a wrong next page")
	}
	return body.Messages, next, nil
}

// isOf reports that a message in the list may be one that was sent for m.
func (c *carrier) isOf(r record, m *sender.Message) bool {
	bySender := r.Service == c.service
	if c.service == "" {
		bySender = r.From == c.from
	}
	return bySender && r.To == m.To && r.Body == m.Text && messageSID.MatchString(r.SID)
}

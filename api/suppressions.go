package api

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/client"
	"lemma/suppression"
)

type suppressionBody struct {
	ID        string        `json:"id"`
	Channel   lemma.Channel `json:"channel"`
	Address   string        `json:"address"`
	Cause     string        `json:"cause"`
	Detail    *string       `json:"detail"`
	CreatedAt time.Time     `json:"created_at"`
	known     bool
}

func (b suppressionBody) location() string { return "/v1/suppressions/" + b.ID }

// status is 200 for an address that has the cause already.
func (b suppressionBody) status() int {
	if b.known {
		return http.StatusOK
	}
	return 0
}

func showSuppression(s suppression.Suppression) suppressionBody {
	return suppressionBody{ID: lemma.FormatID(lemma.PrefixSuppression, s.ID), Channel: s.Channel, Address: s.Address, Cause: s.Cause,
		Detail: orNull(s.Detail), CreatedAt: s.CreatedAt.UTC()}
}

type newSuppression struct {
	Channel lemma.Channel `json:"channel"`
	Address string        `json:"address"`
	Cause   string        `json:"cause"`
	Detail  string        `json:"detail"`
}

// suppressionFilter reads the filter of the list and of the export.
func (c *call) suppressionFilter() suppression.Filter {
	return suppression.Filter{Channel: lemma.Channel(c.query("channel")), Address: c.query("address"), Cause: c.query("cause")}
}

func (s *server) listSuppressions(ctx context.Context, c *call, _ none) (list[suppressionBody], error) {
	found, next, err := s.Suppressions.List(ctx, c.workspace(), c.suppressionFilter(), c.page())
	return listOf(found, next, err, showSuppression)
}

func (s *server) createSuppression(ctx context.Context, c *call, in newSuppression) (suppressionBody, error) {
	if in.Cause == "" {
		in.Cause = suppression.Manual
	}
	made, added, err := s.Suppressions.Add(ctx, c.workspace(), suppression.Entry{ID: c.newID, Channel: in.Channel, Address: in.Address,
		Cause: in.Cause, Detail: in.Detail})
	body := showSuppression(made)
	body.known = !added && made.ID != c.newID // a request that is done again has added it
	return body, err
}

func (s *server) getSuppression(ctx context.Context, c *call, _ none) (suppressionBody, error) {
	found, err := s.Suppressions.Get(ctx, c.workspace(), c.id)
	return showSuppression(found), err
}

func (s *server) deleteSuppression(ctx context.Context, c *call, _ none) (none, error) {
	return none{}, s.Suppressions.Delete(ctx, c.workspace(), c.id)
}

type importedBody struct {
	Counts importedCounts `json:"counts"`
	Errors []client.Fault `json:"errors"`
}

type importedCounts struct {
	Read    int `json:"read"`
	Added   int `json:"added"`
	Known   int `json:"known"`
	Invalid int `json:"invalid"`
}

func (s *server) importSuppressions(ctx context.Context, c *call, body io.Reader) (importedBody, error) {
	done, err := s.Suppressions.Import(ctx, c.workspace(), body,
		suppression.Defaults{Channel: lemma.Channel(c.defaulted("channel", "email")), Cause: c.defaulted("cause", suppression.Manual)})
	if err != nil {
		return importedBody{}, err
	}
	return importedBody{Counts: importedCounts{done.Read, done.Added, done.Known, done.Invalid},
		Errors: each(done.Faults, func(f lemma.Field) client.Fault { return client.Fault(f) })}, nil
}

func (s *server) exportSuppressions(ctx context.Context, c *call, _ none) (csvBody, error) {
	var text bytes.Buffer
	last := uuid.Nil
	if after := c.query("after"); after != "" {
		var ok bool
		if last, ok = lemma.ParseID(lemma.PrefixSuppression, after); !ok {
			return csvBody{}, lemma.Fault("?after", "bad_format", "must be the last id of the page before")
		}
	}
	last, err := s.Suppressions.Export(ctx, c.workspace(), c.suppressionFilter(), last, &text)
	if err != nil || last == uuid.Nil {
		return csvBody{text: text.Bytes()}, err
	}
	query := c.request.URL.Query()
	query.Set("after", lemma.FormatID(lemma.PrefixSuppression, last))
	return csvBody{text.Bytes(), c.request.URL.Path + "?" + query.Encode()}, nil
}

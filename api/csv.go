package api

import (
	"bytes"
	"context"
	"io"
	"net/http"
)

// maxUpload is the longest CSV body, in bytes. It is read before the work begins: a
// body must arrive in 30 s, and the work may take longer.
const maxUpload = 48 << 20

// csvBody is an answer in CSV. next is where the following rows are; empty: nowhere.
type csvBody struct {
	text []byte
	next string
}

// upload is an action whose body is CSV. It keeps nothing under an Idempotency-Key, so
// the work itself must be repeatable.
func upload[Out any](handle func(context.Context, *call, io.Reader) (Out, error)) action {
	return action{writes: true, uploads: true, cost: imports, handle: func(ctx context.Context, c *call) (any, error) {
		body, err := io.ReadAll(io.LimitReader(c.request.Body, maxUpload+1))
		switch {
		case err != nil:
			return nil, incomplete(err)
		case len(body) > maxUpload:
			return nil, &refusal{status: http.StatusRequestEntityTooLarge, code: "body_too_large", detail: "the body is longer than 48 MiB"}
		}
		return handle(ctx, c, bytes.NewReader(body))
	}}
}

// checkCSV refuses a body that is not CSV in UTF-8.
func checkCSV(h http.Header) error {
	media, _, err := mediaType(h.Get("Content-Type"))
	if err != nil || media != "text/csv" || h.Get("Content-Encoding") != "" {
		return &refusal{status: http.StatusUnsupportedMediaType, code: "unsupported_media_type",
			detail: "send CSV in UTF-8 with Content-Type: text/csv, not compressed"}
	}
	return nil
}

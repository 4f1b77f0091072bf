package api

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"

	"lemma/api/strict"
)

// maxBody is the size of the largest body, in bytes.
const maxBody = 1 << 20

// read checks a request against the contract and reads its body. Faults of the path, query
// and headers are returned together, before the body is checked. leave releases the
// memory of the body.
func (s *server) read(c *call, e endpoint) (leave func(), err error) {
	op := e.operation
	if err := strict.CheckParameters(c.request, op); err != nil {
		return nil, err
	}
	if e.do.uploads {
		return func() {}, checkCSV(c.request.Header)
	}
	schema, required := bodySchema(op)
	if schema == nil {
		return func() {}, checkNoBody(c.request)
	}
	leave, err = s.enterBody(c)
	if err != nil {
		return nil, err
	}
	if c.body, err = readBody(c.request); err == nil && len(c.body) == 0 && required {
		err = &strict.Malformed{Code: "body_required", Detail: "this request needs a JSON body"}
	}
	if err == nil && len(c.body) > 0 {
		err = s.checkBody(c, op, schema)
	}
	if err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// checkBody checks a body against the schema of its operation.
func (s *server) checkBody(c *call, op *openapi3.Operation, schema *openapi3.Schema) error {
	leave, err := s.enterDecoding(c.request.Context(), c)
	if err != nil {
		return err
	}
	defer leave()
	value, err := decodeFor(op, c.body)
	if err != nil {
		return err
	}
	return strict.CheckSchema(schema, value)
}

// decodeFor decodes a body. The items of a bulk (x-items names the list) are decoded later.
func decodeFor(op *openapi3.Operation, body []byte) (any, error) {
	if list, ok := op.Extensions["x-items"].(string); ok {
		return strict.DecodeAround(body, list)
	}
	return strict.Decode(body)
}

// checkNoBody refuses a body of an operation without one, and does not wait for it. It
// reads a byte only of a body without a length, which may be empty, and not for GET or
// HEAD.
func checkNoBody(r *http.Request) error {
	if r.ContentLength == 0 {
		return nil
	}
	if r.ContentLength < 0 && r.Method != http.MethodGet && r.Method != http.MethodHead {
		switch _, err := io.ReadFull(r.Body, make([]byte, 1)); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return incomplete(err)
		}
	}
	return &refusal{status: http.StatusBadRequest, code: "body_not_allowed", detail: "this request has no body"}
}

// readBody reads at most maxBody bytes, and refuses a body of another type.
func readBody(r *http.Request) ([]byte, error) {
	tooLarge := &refusal{status: http.StatusRequestEntityTooLarge, code: "body_too_large", detail: "the body is longer than 1 MiB"}
	if r.ContentLength > maxBody {
		return nil, tooLarge
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, incomplete(err)
	case len(body) > maxBody:
		return nil, tooLarge
	case len(body) == 0:
		return nil, nil
	}
	return body, checkType(r.Header)
}

// incomplete refuses a body that did not arrive completely.
func incomplete(err error) error {
	detail := "the body could not be read to its end"
	if errors.Is(err, os.ErrDeadlineExceeded) {
		detail = "the body did not arrive in time"
	}
	return &refusal{status: http.StatusBadRequest, code: "bad_body", detail: detail}
}

func checkType(h http.Header) error {
	media, params, err := mediaType(h.Get("Content-Type"))
	charset, encoding := params["charset"], h.Get("Content-Encoding")
	switch {
	case err != nil, media != "application/json", charset != "" && !strings.EqualFold(charset, "utf-8"):
		return &refusal{status: http.StatusUnsupportedMediaType, code: "unsupported_media_type",
			detail: "send JSON in UTF-8 with Content-Type: application/json"}
	case encoding != "" && !strings.EqualFold(encoding, "identity"):
		return &refusal{status: http.StatusUnsupportedMediaType, code: "unsupported_encoding", detail: "send the body as it is, not compressed"}
	}
	return nil
}

// maxMedia is how many bytes of a media type, or of Accept, are parsed. Accept is parsed before
// the key is read, and 60 KB of it take 10 ms.
const maxMedia = 2000

// mediaType is mime.ParseMediaType for a text of at most maxMedia bytes.
func mediaType(text string) (media string, params map[string]string, err error) {
	if len(text) > maxMedia {
		return "", nil, errors.New("the media type is too long")
	}
	return mime.ParseMediaType(text)
}

// acceptable refuses a request that does not accept JSON, or what its operation
// answers instead (RFC 9110, 12.5.1).
func acceptable(r *http.Request, op *openapi3.Operation) error {
	accepted := strings.Join(r.Header.Values("Accept"), ",")
	if strings.TrimSpace(accepted) == "" {
		return nil
	}
	if len(accepted) > maxMedia {
		return &refusal{status: http.StatusNotAcceptable, code: "not_acceptable",
			detail: fmt.Sprintf("Accept is longer than %d bytes; answers are application/json and application/problem+json", maxMedia)}
	}
	for part := range strings.SplitSeq(accepted, ",") {
		media, params, err := mediaType(part)
		if err == nil && params["q"] != "0" && (produces(op, media) ||
			slices.Contains([]string{"*/*", "application/*", "application/json", "application/problem+json"}, media)) {
			return nil
		}
	}
	return &refusal{status: http.StatusNotAcceptable, code: "not_acceptable",
		detail: "answers are application/json and application/problem+json"}
}

// defaulted is a query parameter with the default that the contract has for it.
func (c *call) defaulted(name, otherwise string) string {
	if text := c.query(name); text != "" {
		return text
	}
	return otherwise
}

// produces reports whether the contract has a media type for the success of an operation.
func produces(op *openapi3.Operation, media string) bool {
	ok := op.Responses.Status(http.StatusOK)
	return ok != nil && ok.Value.Content[media] != nil
}

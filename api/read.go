package api

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"

	"lemma"
)

// maxBody is the size of the largest body, in bytes.
const maxBody = 1 << 20

// read checks a request against the contract and reads its body. Faults of the path, query
// and headers are returned together, before the body is checked. leave releases the
// memory of the body.
func (s *server) read(c *call, e endpoint) (leave func(), err error) {
	op := e.operation
	if err := checkParameters(c.request, op); err != nil {
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
		err = malformed("body_required", "this request needs a JSON body", 0, 0)
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
	return checkSchema(schema, value)
}

// decodeFor decodes a body. The items of a bulk (x-items names the list) are decoded later.
func decodeFor(op *openapi3.Operation, body []byte) (any, error) {
	if list, ok := op.Extensions["x-items"].(string); ok {
		return decodeAround(body, list)
	}
	return decode(body)
}

// checkParameters checks query and headers against the contract. It refuses unknown query
// parameters, since a misspelt filter would have no effect, and If-Match where the
// operation does not support it. Ids in the path are not checked: a text that is no id is
// an unknown id.
func checkParameters(r *http.Request, op *openapi3.Operation) error {
	query, err := parseQuery(r)
	if err != nil {
		return err
	}
	var fields []lemma.Field
	known, conditional := []string{}, false
	input := &openapi3filter.RequestValidationInput{Request: r, QueryParams: query,
		Options: &openapi3filter.Options{MultiError: true, SkipSettingDefaults: true}}
	for _, ref := range op.Parameters {
		p := ref.Value
		if p.In == openapi3.ParameterInPath {
			continue
		}
		if p.In == openapi3.ParameterInQuery {
			known = append(known, p.Name)
		}
		conditional = conditional || p.Name == "If-Match"
		if err := openapi3filter.ValidateParameter(r.Context(), input, p); err != nil {
			fields = append(fields, parameterFault(p, err))
		}
	}
	if len(r.Header.Values("Idempotency-Key")) > 1 {
		fields = append(fields, lemma.Field{Pointer: "Idempotency-Key:", Code: "repeated", Detail: "is given more than once"})
	}
	if !conditional && r.Header.Values("If-Match") != nil {
		fields = append(fields, lemma.Field{Pointer: "If-Match:", Code: "not_supported",
			Detail: "this operation does not support it; leave it out"})
	}
	for name, values := range query {
		if !slices.Contains(known, name) {
			fields = append(fields, lemma.Field{Pointer: "?" + name, Code: "unknown_parameter",
				Detail: "there is no such parameter here" + listed("; there are ", known)})
		} else if len(values) > 1 {
			fields = append(fields, lemma.Field{Pointer: "?" + name, Code: "repeated", Detail: "is given more than once"})
		} else if p := op.Parameters.GetByInAndName(openapi3.ParameterInQuery, name); !plain(p.Schema.Value, values[0]) {
			fields = append(fields, lemma.Field{Pointer: "?" + name, Code: "wrong_type", Detail: "must be " + typeName(p.Schema.Value)})
		}
	}
	return invalid(distinct(fields))
}

// plain reports whether a parameter has the one spelling that the handlers read.
// Otherwise True or 2.0 would pass the contract and then be ignored.
func plain(s *openapi3.Schema, text string) bool {
	switch {
	case s.Type.Is("boolean"):
		return text == "true" || text == "false"
	case s.Type.Is("integer"):
		n, err := strconv.Atoi(text)
		return err == nil && strconv.Itoa(n) == text
	}
	return true
}

// distinct keeps the first fault of each place.
func distinct(fields []lemma.Field) (kept []lemma.Field) {
	for _, f := range fields {
		if !slices.ContainsFunc(kept, func(k lemma.Field) bool { return k.Pointer == f.Pointer }) {
			kept = append(kept, f)
		}
	}
	return kept
}

// parseQuery refuses parts of a query that net/url would drop without an error, and texts
// that Postgres cannot store.
func parseQuery(r *http.Request) (map[string][]string, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, faultAt("?", "bad_query", "the query string cannot be read")
	}
	for name, values := range query {
		for _, text := range append([]string{name}, values...) {
			if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
				return nil, faultAt("?", "bad_query", "the query string must be UTF-8 without NUL")
			}
		}
	}
	return query, nil
}

func parameterFault(p *openapi3.Parameter, err error) lemma.Field {
	pointer := "?" + p.Name
	if p.In == openapi3.ParameterInHeader {
		pointer = p.Name + ":"
	}
	var broken *openapi3.SchemaError
	var unread *openapi3filter.ParseError
	switch {
	case errors.As(err, &broken):
		code, detail := sentence(broken)
		return lemma.Field{Pointer: pointer, Code: code, Detail: detail}
	case errors.As(err, &unread):
		return lemma.Field{Pointer: pointer, Code: "wrong_type", Detail: "must be " + typeName(p.Schema.Value)}
	case errors.Is(err, openapi3filter.ErrInvalidRequired):
		return lemma.Field{Pointer: pointer, Code: "required", Detail: "this parameter is required"}
	}
	return lemma.Field{Pointer: pointer, Code: "empty", Detail: "must not be empty"}
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
	media, params, err := mime.ParseMediaType(h.Get("Content-Type"))
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

// acceptable refuses a request that does not accept JSON, or what its operation
// answers instead (RFC 9110, 12.5.1).
func acceptable(r *http.Request, op *openapi3.Operation) error {
	accepted := strings.Join(r.Header.Values("Accept"), ",")
	if strings.TrimSpace(accepted) == "" {
		return nil
	}
	for part := range strings.SplitSeq(accepted, ",") {
		media, params, err := mime.ParseMediaType(part)
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

package strict

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"

	"lemma"
)

// CheckParameters checks query and headers against the contract. It refuses unknown query
// parameters, since a misspelt filter would have no effect, and If-Match where the
// operation does not support it. Ids in the path are not checked: a text that is no id is
// an unknown id.
func CheckParameters(r *http.Request, op *openapi3.Operation) error {
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
	return Invalid(distinct(fields))
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

// Limits of a query. Checking thousands of parameters, or a long one, takes much time, and no
// slot bounds how many requests are checked together.
const (
	maxParameters = 100
	maxQuery      = 16 << 10 // bytes
)

// parseQuery refuses queries with too many parameters, parts of a query that net/url would
// drop without an error, and texts that Postgres cannot store.
func parseQuery(r *http.Request) (map[string][]string, error) {
	if len(r.URL.RawQuery) > maxQuery || strings.Count(r.URL.RawQuery, "&") >= maxParameters {
		return nil, lemma.Fault("?", "bad_query", "the query string must have at most %d parameters and %d bytes", maxParameters, maxQuery)
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, lemma.Fault("?", "bad_query", "the query string cannot be read")
	}
	for name, values := range query {
		for _, text := range append([]string{name}, values...) {
			if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
				return nil, lemma.Fault("?", "bad_query", "the query string must be UTF-8 without NUL")
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

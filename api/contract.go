package api

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"lemma"
)

// agreement is openapi.yaml, read once.
type agreement struct{ *openapi3.T }

// contract reads openapi.yaml at its first call: that takes longer than the start of a command
// that does not serve the API.
var contract = sync.OnceValue(readContract)

// latest is the end of the times that a request can name. A later one could not be
// answered: JSON has four digits for a year, also where an offset moves it.
var latest = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// representable reports whether a time can be stored and answered in UTC.
func representable(at time.Time) bool { return at.UTC().Year() > 0 && at.Before(latest) }

// checkTime returns an error unless text is a time by RFC 3339 that an answer can show.
func checkTime(text string) error {
	at, err := parseTime(text)
	if err == nil && !representable(at) {
		err = errors.New("the year is out of range")
	}
	return err
}

// parseTime reads a time by RFC 3339.
func parseTime(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err == nil {
		_, err = at.MarshalText() // refuses an offset of a day and more, which Parse accepts
	}
	return at, err
}

func readContract() agreement {
	openapi3.DefineStringFormatValidator("date-time", openapi3.NewCallbackValidator(checkTime))
	doc, err := openapi3.NewLoader().LoadFromData(lemma.OpenAPI)
	if err != nil {
		panic("openapi.yaml: " + err.Error())
	}
	return agreement{doc}
}

// operation returns the contract's operation for a route. It panics when they differ in
// scopes, or in whether answers are kept.
func (a agreement) operation(r route) *openapi3.Operation {
	item := a.Paths.Value(r.path)
	if item == nil || item.GetOperation(r.method) == nil {
		panic(fmt.Sprintf("openapi.yaml does not have %s %s", r.method, r.path))
	}
	op := item.GetOperation(r.method)
	if listed := scopesOf(op); !slices.Equal(listed, strings.Fields(r.scopes)) {
		panic(fmt.Sprintf("openapi.yaml has x-scopes %v for %s %s, the route has %q", listed, r.method, r.path, r.scopes))
	}
	if writes := r.method != http.MethodPost || r.do.writes; writes == keepsNothing(op) {
		panic(fmt.Sprintf("openapi.yaml and the route differ on whether %s %s writes", r.method, r.path))
	}
	return op
}

// keepsNothing reports whether the operation has an Idempotency-Key without effect.
func keepsNothing(op *openapi3.Operation) bool {
	return slices.ContainsFunc(op.Parameters, func(p *openapi3.ParameterRef) bool {
		return p.Ref == "#/components/parameters/NoIdempotencyKey"
	})
}

func scopesOf(op *openapi3.Operation) []string {
	var scopes []string
	listed, _ := op.Extensions["x-scopes"].([]any)
	for _, s := range listed {
		scopes = append(scopes, s.(string))
	}
	return scopes
}

// bodySchema is the schema of a request's body, nil without one. It accepts any items of
// a bulk, since each of them is checked alone.
func bodySchema(op *openapi3.Operation) (schema *openapi3.Schema, required bool) {
	if op.RequestBody == nil {
		return nil, false
	}
	body := op.RequestBody.Value
	if body.Content["application/json"] == nil { // an upload
		return nil, false
	}
	schema = body.Content.Get("application/json").Schema.Value
	if list, bulk := op.Extensions["x-items"].(string); bulk {
		open, items := *schema, *schema.Properties[list].Value
		items.Items = openapi3.NewSchemaRef("", &openapi3.Schema{Nullable: true})
		open.Properties = openapi3.Schemas{list: openapi3.NewSchemaRef("", &items)}
		schema = &open
	}
	return schema, body.Required
}

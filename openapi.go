package lemma

import _ "embed"

// OpenAPI is the contract of the HTTP API, openapi.yaml: what requests and
// answers are held to, and what the API shows of itself.
//
//go:embed openapi.yaml
var OpenAPI []byte

package lemma

import _ "embed"

// OpenAPI is openapi.yaml, the contract of the HTTP API. Package api checks requests
// against it and serves it. It is here because go:embed reads no parent directory.
//
//go:embed openapi.yaml
var OpenAPI []byte

package api

import (
	"net/http"
	"strings"

	"lemma"
	"lemma/workspaces"
)

// authenticate reads the key of a request, which must have all of the scopes (separated
// by spaces).
func (s *server) authenticate(r *http.Request, scopes string) (workspaces.Key, error) {
	token, err := bearer(r)
	if err != nil {
		return workspaces.Key{}, err
	}
	key, err := s.Workspaces.Authenticate(r.Context(), token)
	if err != nil {
		return workspaces.Key{}, err
	}
	recordKey(r.Context(), key)
	if s.Known != nil {
		s.Known(r.Context())
	}
	for scope := range strings.FieldsSeq(scopes) {
		if !key.Has(scope) {
			return workspaces.Key{}, missingScope(scope)
		}
	}
	return key, nil
}

// bearer reads the token (RFC 6750, 2.1). Without one, WWW-Authenticate has no error
// (RFC 6750, 3).
func bearer(r *http.Request) (string, error) {
	sent := r.Header.Values("Authorization")
	if len(sent) == 1 {
		scheme, token, _ := strings.Cut(sent[0], " ")
		if token = strings.TrimSpace(token); strings.EqualFold(scheme, "Bearer") && token != "" {
			return token, nil
		}
	}
	return "", &refusal{status: http.StatusUnauthorized, code: string(lemma.Unauthenticated),
		detail: "send an API key: Authorization: Bearer lk_...",
		header: map[string]string{"WWW-Authenticate": `Bearer realm="lemma"`}}
}

func missingScope(scope string) error {
	return lacking(scope, "the key does not have the scope "+scope)
}

func lacking(scope, detail string) *refusal {
	return &refusal{status: http.StatusForbidden, code: "missing_scope", detail: detail,
		header: map[string]string{"WWW-Authenticate": `Bearer realm="lemma", error="insufficient_scope", scope="` + scope + `"`}}
}

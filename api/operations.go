package api

import (
	"net/http"

	"github.com/go-chi/chi/v5"

	"lemma"
	"lemma/exports"
)

// mountOperations adds the paths that need no key: health, readiness,
// metrics, the contract, and the pages and links of recipients.
func (s *server) mountOperations(r chi.Router) {
	r.Get("/healthz", s.healthz)
	r.Get("/readyz", s.readyz)
	if s.Metrics != nil {
		r.Method(http.MethodGet, "/metrics", s.Metrics)
	}
	if s.Pages != nil {
		r.Method(http.MethodGet, "/u/{token}", s.Pages)
		r.Method(http.MethodPost, "/u/{token}", s.Pages)
	}
	if s.Tracking != nil {
		r.Method(http.MethodGet, "/o/{token}", s.Tracking)
		r.Method(http.MethodGet, "/c/{token}", s.Tracking)
	}
	if s.Exports != nil {
		r.Method(http.MethodGet, exports.DownloadPath+"{token}", s.Exports)
	}
	r.Get("/openapi.yaml", serveContract)
	r.Post("/hooks/{carrier}/{provider}", s.receiveHook)
	docs := newDocs()
	r.Method(http.MethodGet, "/docs", docs)
	r.Method(http.MethodGet, "/docs/", docs)
	r.Method(http.MethodGet, "/docs/*", docs)
}

type health struct {
	Status string `json:"status"`
}

func (s *server) healthz(w http.ResponseWriter, _ *http.Request) {
	render(http.StatusOK, health{"ok"}).write(w)
}

func (s *server) readyz(w http.ResponseWriter, r *http.Request) {
	if err := s.Ready(r.Context()); err != nil {
		s.Log.WarnContext(r.Context(), "not ready", "error", err)
		s.fail(r, &lemma.Error{Kind: lemma.Unavailable, Code: "not_ready", Message: "the server cannot work now; see its log", Cause: err}).
			write(w)
		return
	}
	render(http.StatusOK, health{"ok"}).write(w)
}

func serveContract(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(lemma.OpenAPI)
}

package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/swaggest/swgui"
	"github.com/swaggest/swgui/v5emb"

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

// docs shows the contract as a page. All its files are embedded, and its policy lets a
// browser load nothing from other servers.
type docs struct {
	ui     http.Handler
	page   []byte
	policy string
}

func newDocs() http.Handler {
	ui := v5emb.NewHandlerWithConfig(swgui.Config{Title: "Lemma", SwaggerJSON: "/openapi.yaml", BasePath: "/docs/",
		SettingsUI: map[string]string{
			"validatorUrl": "null", "tryItOutEnabled": "true", "persistAuthorization": "false", "displayRequestDuration": "true",
			"defaultModelsExpandDepth": "0",
		}})
	rendered := &paper{header: http.Header{}}
	ui.ServeHTTP(rendered, &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/docs/"}})
	page := bytes.TrimSpace(rendered.Bytes())
	return docs{ui: ui, page: page, policy: policyFor(page)}
}

// paper records the rendered page, from whose scripts the policy is made.
type paper struct {
	bytes.Buffer
	header http.Header
}

// Header returns the headers, which are not used.
func (p *paper) Header() http.Header { return p.header }

// WriteHeader does nothing.
func (p *paper) WriteHeader(int) {}

var inlineScript = regexp.MustCompile(`(?s)<script>(.*?)</script>`)

// policyFor allows the page's own scripts by their hashes and everything else
// from this server alone. Swagger UI sets styles inline.
func policyFor(page []byte) string {
	scripts := []string{"script-src 'self'"}
	for _, script := range inlineScript.FindAllSubmatch(page, -1) {
		sum := sha256.Sum256(script[1])
		scripts = append(scripts, "'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
	}
	return strings.Join(scripts, " ") +
		"; default-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; connect-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

func (d docs) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Security-Policy", d.policy)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Referrer-Policy", "no-referrer")
	if r.URL.Path != "/docs" && r.URL.Path != "/docs/" {
		d.ui.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(d.page)
}

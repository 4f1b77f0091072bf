package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/swaggest/swgui"
	"github.com/swaggest/swgui/v5emb"
)

// docs shows the contract as a page. All its files are embedded, and its policy lets a
// browser load nothing from other servers.
type docs struct {
	ui     http.Handler
	page   []byte
	policy string

	mu    sync.Mutex
	files map[string]*paper // that were decompressed, by path
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
	return &docs{ui: ui, page: page, policy: policyFor(page), files: map[string]*paper{}}
}

// paper records an answer: the rendered page, from whose scripts the policy is made, or a file.
type paper struct {
	bytes.Buffer
	header http.Header
	failed bool
}

// Header returns the headers.
func (p *paper) Header() http.Header { return p.header }

// WriteHeader records whether the answer is a success.
func (p *paper) WriteHeader(status int) { p.failed = status != http.StatusOK }

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

func (d *docs) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Security-Policy", d.policy)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Referrer-Policy", "no-referrer")
	if r.URL.Path != "/docs" && r.URL.Path != "/docs/" {
		d.serveFile(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(d.page) //nolint:gosec // it is rendered at the start from settings that are constant
}

// serveFile serves a file as it is stored, compressed, or decompressed to clients that do not
// accept that.
func (d *docs) serveFile(w http.ResponseWriter, r *http.Request) {
	f := d.plain(r)
	if f == nil {
		d.ui.ServeHTTP(w, r)
		return
	}
	for _, name := range []string{"Content-Type", "Etag"} {
		w.Header().Set(name, f.header.Get(name))
	}
	http.ServeContent(w, r, r.URL.Path, time.Time{}, bytes.NewReader(f.Bytes()))
}

const mostFiles = 30 // the page has a dozen

// plain returns a file that is decompressed once, since that takes 45 ms of the largest and needs
// no key. It is nil for clients that accept gzip, and without such a file.
func (d *docs) plain(r *http.Request) *paper {
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.files[r.URL.Path]; f != nil {
		return f
	}
	f := &paper{header: http.Header{}}
	d.ui.ServeHTTP(f, &http.Request{Method: http.MethodGet, URL: &url.URL{Path: r.URL.Path}, Header: http.Header{}})
	if f.failed || len(d.files) >= mostFiles {
		return nil
	}
	d.files[r.URL.Path] = f
	return f
}

package catcher

import (
	"bytes"
	"embed"
	"encoding/base64"
	"encoding/json"
	"html/template"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/http"
	"net/mail"
	"strconv"
	"strings"
)

//go:embed page/*
var files embed.FS

var pages = template.Must(template.ParseFS(files, "page/*.html"))

const rowsShown = 100

// page is the handler of the web page.
func (c *Catcher) page() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", c.showList)
	mux.HandleFunc("GET /messages/{n}", c.showMessage)
	mux.HandleFunc("GET /messages/{n}/html", c.showHTML)
	mux.HandleFunc("GET /messages/{n}/source", c.showSource)
	mux.HandleFunc("GET /api/stats", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, c.Stats()) })
	mux.HandleFunc("GET /api/messages", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, map[string]any{"data": c.ledger.find(r.FormValue("q"), limit(r))})
	})
	mux.Handle("GET /page/", http.FileServerFS(files))
	return protect(mux)
}

// protect prevents messages from loading anything, and other sites from reading them
// through a host name that resolves to this machine.
func protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLocal(r.Host) {
			http.Error(w, "this page is available on loopback only", http.StatusMisdirectedRequest)
			return
		}
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; "+
			"connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		next.ServeHTTP(w, r)
	})
}

func isLocal(host string) bool {
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		host = host[:i]
	}
	return host == "localhost" || host == "127.0.0.1" || host == "[::1]"
}

func limit(r *http.Request) int {
	n, err := strconv.Atoi(r.FormValue("limit"))
	if err != nil || n < 1 || n > 1000 {
		return rowsShown
	}
	return n
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a client that has gone
}

func (c *Catcher) showList(w http.ResponseWriter, r *http.Request) {
	show(w, "list.html", map[string]any{
		"Stats": c.Stats(), "Rows": c.ledger.find(r.FormValue("q"), limit(r)), "Query": r.FormValue("q"), "Address": c.Addr(),
	})
}

func show(w http.ResponseWriter, name string, data any) {
	var b bytes.Buffer
	if err := pages.ExecuteTemplate(&b, name, data); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(b.Bytes())
}

// find returns the message of a request, or responds with 404.
func (c *Catcher) find(w http.ResponseWriter, r *http.Request) (row, []byte, bool) {
	n, _ := strconv.Atoi(r.PathValue("n"))
	row, raw, ok := c.ledger.message(n)
	if !ok {
		http.Error(w, "no such message", http.StatusNotFound)
	}
	return row, raw, ok
}

func (c *Catcher) showMessage(w http.ResponseWriter, r *http.Request) {
	if row, raw, ok := c.find(w, r); ok {
		show(w, "message.html", map[string]any{"Row": row, "Message": read(raw), "Source": string(raw)})
	}
}

// showHTML responds with the HTML of the message, sandboxed: no script, no request. Its links
// open in another tab: the policy of the page allows no other server in a frame.
func (c *Catcher) showHTML(w http.ResponseWriter, r *http.Request) {
	if _, raw, ok := c.find(w, r); ok {
		w.Header().Set("Content-Security-Policy",
			"sandbox allow-popups allow-popups-to-escape-sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:")
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, `<base target="_blank">`+read(raw).HTML)
	}
}

func (c *Catcher) showSource(w http.ResponseWriter, r *http.Request) {
	if _, raw, ok := c.find(w, r); ok {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write(raw)
	}
}

// message is a decoded message.
type message struct {
	From, To, Subject, Date string
	HTML, Text              string
	Headers                 [][2]string
}

// read decodes as much as it can. What it cannot read is in the source.
func read(raw []byte) message {
	m, err := mail.ReadMessage(bytes.NewReader(raw))
	if err != nil {
		return message{Text: string(raw)}
	}
	l := message{From: decode(m.Header.Get("From")), To: decode(m.Header.Get("To")), Subject: decode(m.Header.Get("Subject")),
		Date: m.Header.Get("Date")}
	l.part(m.Header.Get("Content-Type"), m.Header.Get("Content-Transfer-Encoding"), m.Body, mostNested)
	return l
}

// mostNested is how deeply nested parts of a message are read. Each level reads all
// levels below it.
const mostNested = 10

func (l *message) part(contentType, encoding string, body io.Reader, deeper int) {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		kind = "text/plain"
	}
	if strings.HasPrefix(kind, "multipart/") {
		if deeper == 0 {
			return
		}
		for parts := multipart.NewReader(body, params["boundary"]); ; {
			p, err := parts.NextRawPart()
			if err != nil {
				return
			}
			l.part(p.Header.Get("Content-Type"), p.Header.Get("Content-Transfer-Encoding"), p, deeper-1)
		}
	}
	switch strings.ToLower(encoding) {
	case "quoted-printable":
		body = quotedprintable.NewReader(body)
	case "base64":
		body = base64.NewDecoder(base64.StdEncoding, body)
	}
	text, _ := io.ReadAll(body) // as far as it can be read
	switch {
	case kind == "text/html" && l.HTML == "":
		l.HTML = string(text)
	case kind == "text/plain" && l.Text == "":
		l.Text = string(text)
	}
}

func decode(header string) string {
	var d mime.WordDecoder
	if s, err := d.DecodeHeader(header); err == nil {
		return s
	}
	return header
}

// subjectOf reads the subject out of a header without parsing the rest.
func subjectOf(raw []byte) string {
	head, _, _ := bytes.Cut(raw, []byte("\r\n\r\n"))
	m, err := mail.ReadMessage(io.MultiReader(bytes.NewReader(head), strings.NewReader("\r\n\r\n")))
	if err != nil {
		return ""
	}
	return decode(m.Header.Get("Subject"))
}

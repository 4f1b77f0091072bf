package tracking

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"lemma"
	"lemma/links"
)

const (
	maxVerify = 2 * time.Second        // to find a key; those in memory need no time
	maxStore  = 500 * time.Millisecond // that an answer waits until its event is stored
)

// pixel is a transparent GIF of 1x1 (GIF89a).
const pixel = "GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff!\xf9\x04\x01\x00\x00\x00\x00," +
	"\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"

// ServeHTTP answers GET and HEAD of a pixel or a link, and records it. It answers
// also when the event cannot be stored.
func (t *Tracking) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token, click := strings.CutPrefix(r.URL.Path, ClickPath)
	purpose := links.Click
	if !click {
		token, purpose = strings.TrimPrefix(r.URL.Path, OpenPath), links.Open
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Robots-Tag", "noindex, nofollow")
	ctx, cancel := context.WithTimeout(r.Context(), maxVerify)
	defer cancel()
	ws, payload, err := t.Links.VerifyAt(ctx, purpose, r.Host, token)
	if err != nil && lemma.KindOf(err) != lemma.NotFound {
		if r.Context().Err() == nil { // the client waits for the answer
			t.Log.ErrorContext(ctx, "verify the token of a link", "error", err)
		}
		h.Set("Retry-After", "10")
		plain(w, http.StatusServiceUnavailable, "This link does not work now. Please try again in a minute.")
		return
	}
	to, ok := parse(payload, click)
	if err != nil || !ok {
		plain(w, http.StatusNotFound, "This link is not valid, or no longer valid.")
		return
	}
	t.record(r, ws, to, click)
	if click {
		h.Set("Location", location(to.url))
		w.WriteHeader(http.StatusFound)
		return
	}
	h.Set("Content-Type", "image/gif")
	_, _ = io.WriteString(w, pixel)
}

// location is a URL as a header may contain it: other bytes than ASCII are encoded.
func location(url string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(url) {
		if c := url[i]; c > ' ' && c < 0x7f {
			b.WriteByte(c)
		} else {
			b.WriteString("%" + hex[c>>4:c>>4+1] + hex[c&15:c&15+1])
		}
	}
	return b.String()
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n")
}

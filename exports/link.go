package exports

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/blobs"
	"lemma/exports/format"
	"lemma/links"
	"lemma/slots"
)

// DownloadPath is where links to files lead; the token follows.
const DownloadPath = "/downloads/"

// Link is how a file is downloaded.
type Link struct {
	URL       string // without PublicURL, a path on this server
	ExpiresAt time.Time
	Bytes     int64
	SHA256    string // in hexadecimal
}

// Link signs a link to the file of a completed export. Any client that has it can
// download the file until it expires.
func (e *Exports) Link(ctx context.Context, ws, id uuid.UUID, valid time.Duration) (Link, error) {
	x, err := e.Get(ctx, ws, id)
	if err != nil {
		return Link{}, err
	}
	if x.Status != Completed {
		return Link{}, &lemma.Error{Kind: lemma.WrongStatus, Message: "the export has no file", Status: x.Status, Allowed: allowed(x.Status)}
	}
	file, err := e.Blobs.Published(ctx, blobs.Owner{Workspace: ws, ID: id})
	if err != nil {
		return Link{}, err
	}
	now, err := e.now(ctx)
	if err != nil {
		return Link{}, err
	}
	expires := now.Add(valid).UTC().Truncate(time.Second)
	signer, err := e.Links.Signer(ctx, ws, now)
	if err != nil {
		return Link{}, err
	}
	token := signer.Sign(links.Download, binary.BigEndian.AppendUint64(id[:], uint64(expires.Unix())))
	return Link{URL: e.cfg.PublicURL() + DownloadPath + token, ExpiresAt: expires, Bytes: file.Bytes,
		SHA256: file.Checksum()}, nil
}

// now is the time of the database: a link that one process has signed expires in all at once.
func (e *Exports) now(ctx context.Context) (at time.Time, err error) {
	err = e.Pool.QueryRow(ctx, `select now()`).Scan(&at)
	return at, lemma.Wrap(err, "read the time")
}

// allowed are the actions that a status allows.
func allowed(status string) []string {
	switch status {
	case Queued, Running, Publishing:
		return []string{"cancel", "delete"}
	case Completed:
		return []string{"download", "delete"}
	}
	return []string{"delete"}
}

// ServeHTTP serves the file of a token, from the byte that the header Range names. A store
// that signs links itself serves it instead.
func (e *Exports) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "private, no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	x, file, left, err := e.open(r)
	switch {
	case lemma.KindOf(err) == lemma.NotFound:
		http.Error(w, "This link is not valid, has expired, or its file was deleted.", http.StatusNotFound)
	case errors.Is(err, errBusy):
		w.Header().Set("Retry-After", "5")
		http.Error(w, "Too many downloads begin now. Try again in a moment.", http.StatusServiceUnavailable)
	case err == nil && file.Store != e.Blobs.At:
		e.Log.ErrorContext(r.Context(), "the file of an export is in another store", "store", file.Store, "configured", e.Blobs.At)
		http.Error(w, "The file cannot be read here. Try again later.", http.StatusServiceUnavailable)
	case err != nil || e.Blobs.Store == nil:
		if r.Context().Err() == nil { // the client waits for the answer
			e.Log.ErrorContext(r.Context(), "download", "error", err)
		}
		http.Error(w, "The file cannot be read now. Try again later.", http.StatusServiceUnavailable)
	default:
		e.serve(w, r, x, file, left)
	}
}

// newLookups are the places of requests that look a file up: a link needs no key, so that
// the limits of keys do not hold for it. A file that is being received has none.
func newLookups(m *Metrics) *slots.Slots {
	return slots.New(slots.Limits{Process: 8, Workspace: 2}, func(limit string) error {
		m.busy.WithLabelValues(limit).Inc()
		return errBusy
	})
}

var errBusy = errors.New("too many downloads begin at a time")

// open returns the export and the file of a token, and how long it is valid.
func (e *Exports) open(r *http.Request) (x Export, file blobs.Blob, left time.Duration, err error) {
	token := strings.TrimPrefix(r.URL.Path, DownloadPath)
	ws, payload, err := e.Links.VerifyAt(r.Context(), links.Download, r.Host, token)
	if err != nil {
		return x, file, 0, err
	}
	if len(payload) != 24 {
		return x, file, 0, lemma.Missing("file")
	}
	leave, err := e.lookups.Enter(r.Context(), slots.Resource{Workspace: ws})
	if err != nil {
		return x, file, 0, err
	}
	defer leave()
	now, err := e.now(r.Context())
	if err != nil {
		return x, file, 0, err
	}
	id := uuid.UUID(payload[:16])
	left = time.Unix(int64(binary.BigEndian.Uint64(payload[16:])), 0).Sub(now)
	if left <= 0 {
		return x, file, 0, lemma.Missing("file")
	}
	if x, err = e.Get(r.Context(), ws, id); err != nil {
		return x, file, 0, err
	}
	file, err = e.Blobs.Published(r.Context(), blobs.Owner{Workspace: ws, ID: id})
	return x, file, left, err
}

func (e *Exports) serve(w http.ResponseWriter, r *http.Request, x Export, file blobs.Blob, left time.Duration) {
	name := x.Type + "-" + x.CreatedAt.UTC().Format("2006-01-02") + format.Extension(x.Format)
	if direct, ok := e.Blobs.Store.(blobs.Signer); ok {
		link, err := direct.Link(r.Context(), file.Name, name, left)
		if err != nil {
			e.Log.ErrorContext(r.Context(), "sign link", "error", err)
			http.Error(w, "The file cannot be read now. Try again later.", http.StatusServiceUnavailable)
			return
		}
		http.Redirect(w, r, link.String(), http.StatusTemporaryRedirect)
		return
	}
	w.Header().Set("Content-Type", format.MediaType(x.Format))
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
	w.Header().Set("ETag", `"`+file.Checksum()+`"`)
	content := &content{ctx: r.Context(), store: e.Blobs.Store, file: file}
	defer content.Close()
	http.ServeContent(&patient{w, http.NewResponseController(w)}, r, "", time.Time{}, content)
}

// patient extends the time of an answer while its client receives it: a file takes as long
// as its size needs, and each part of it has partTime.
type patient struct {
	http.ResponseWriter
	control *http.ResponseController
}

const partTime = 30 * time.Second

func (p *patient) Write(b []byte) (int, error) {
	_ = p.control.SetWriteDeadline(time.Now().Add(partTime)) // without it, the time of every answer holds
	return p.ResponseWriter.Write(b)
}

// content reads a file from where it is sought.
type content struct {
	ctx   context.Context //nolint:containedctx // io.ReadSeeker has none: that of the request
	store blobs.Store
	file  blobs.Blob
	at    int64
	open  io.ReadCloser
}

func (c *content) Read(p []byte) (int, error) {
	if c.at >= c.file.Bytes {
		return 0, io.EOF
	}
	if c.open == nil {
		var err error
		if c.open, err = c.store.Open(c.ctx, c.file.Name, c.at); err != nil {
			return 0, err
		}
	}
	n, err := c.open.Read(p)
	c.at += int64(n)
	return n, err
}

// Seek is part of io.Seeker.
func (c *content) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += c.at
	case io.SeekEnd:
		offset += c.file.Bytes
	}
	if offset != c.at {
		c.Close()
	}
	c.at = offset
	return offset, nil
}

// Close closes what is open.
func (c *content) Close() {
	if c.open != nil {
		_ = c.open.Close()
		c.open = nil
	}
}

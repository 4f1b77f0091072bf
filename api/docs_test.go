package api

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// A file of the page is decompressed once for all clients that do not accept gzip.
func TestFilesOfTheDocsAreDecompressedOnce(t *testing.T) {
	t.Parallel()
	d := newDocs().(*docs)
	const file = "/docs/swagger-ui-bundle.js"
	get := func(path, encoding, part string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Header.Set("Accept-Encoding", encoding)
		if part != "" {
			r.Header.Set("Range", part)
		}
		w := httptest.NewRecorder()
		d.ServeHTTP(w, r)
		return w
	}
	compressed := get(file, "gzip", "")
	z, err := gzip.NewReader(compressed.Body)
	if err != nil {
		t.Fatal(err)
	}
	want, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	first := get(file, "identity", "")
	d.ui = http.NotFoundHandler()
	second := get(file, "identity", "")
	part := get(file, "identity", "bytes=0-0")
	if !bytes.Equal(first.Body.Bytes(), want) || !bytes.Equal(second.Body.Bytes(), want) || part.Body.Len() != 1 {
		t.Errorf("%d, %d and %d bytes of %d", first.Body.Len(), second.Body.Len(), part.Body.Len(), len(want))
	}
	if kind := second.Header().Get("Content-Type"); kind != compressed.Header().Get("Content-Type") || kind == "" {
		t.Errorf("the type is %q", kind)
	}
	if got := get("/docs/missing", "identity", ""); got.Code != http.StatusNotFound || len(d.files) != 1 {
		t.Errorf("%d, and %d files are kept", got.Code, len(d.files))
	}
}

package blobs

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rclone/gofakes3"
	"github.com/rclone/gofakes3/s3mem"
)

// slowly is a body that is read slowly: with a pause for each MiB.
type slowly struct {
	io.ReadCloser
	pause time.Duration
	read  int
}

func (s *slowly) Read(b []byte) (int, error) {
	n, err := s.ReadCloser.Read(b)
	if s.read += n; s.read > 1<<20 {
		s.read = 0
		time.Sleep(s.pause)
	}
	return n, err
}

// A store that takes or sends a part of a body, and then nothing, ends the call. One that is only
// slow does not.
func TestAStoreThatStalls(t *testing.T) {
	t.Parallel()
	const stall = 500 * time.Millisecond
	kept := s3mem.New()
	if err := kept.CreateBucket(t.Context(), "lemma"); err != nil {
		t.Fatal(err)
	}
	s3, over := gofakes3.New(kept).Server(), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hangs := strings.HasSuffix(r.URL.Path, "/hangs")
		switch {
		case hangs && r.Method == http.MethodPut:
			_, _ = io.ReadFull(r.Body, make([]byte, 64<<10))
			<-over
		case r.Method == http.MethodGet:
			w.Header().Set("Content-Length", "1000")
			w.Header().Set("ETag", `"x"`)
			w.Header().Set("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
			for range 10 {
				_, _ = w.Write(make([]byte, 100))
				_ = http.NewResponseController(w).Flush()
				if time.Sleep(stall / 5); hangs {
					<-r.Context().Done()
				}
			}
		default:
			r.Body = &slowly{ReadCloser: r.Body, pause: stall / 8}
			s3.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() { close(over); server.Close() })
	endpoint, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	b, err := openBucket(&url.URL{Host: "lemma", RawQuery: "region=eu-1"}, endpoint, Credentials{"access", "secret"}, stall)
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string) error { return b.Put(t.Context(), name, bytes.NewReader(make([]byte, 12<<20))) }
	get := func(name string) error {
		body, err := b.Open(t.Context(), name, 0)
		if err == nil {
			_, err = io.Copy(io.Discard, body)
		}
		return err
	}
	for name, call := range map[string]func(string) error{"takes nothing": put, "sends nothing": get} {
		ended := make(chan error, 1)
		go func() { ended <- call("hangs") }()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s: no error", name)
			}
		case <-time.After(30 * time.Second):
			t.Errorf("%s: the call goes on", name)
		}
	}
	for name, call := range map[string]func(string) error{"takes slowly": put, "sends slowly": get} {
		begun := time.Now()
		if err := call("slow"); err != nil || time.Since(begun) < stall {
			t.Errorf("%s: %v after %v", name, err, time.Since(begun))
		}
	}
}

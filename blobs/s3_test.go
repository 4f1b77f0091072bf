package blobs_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rclone/gofakes3"
	"github.com/rclone/gofakes3/s3mem"

	"lemma/blobs"
)

// bucket is a bucket of a new S3 server, which checks signatures, and its address.
func bucket(t *testing.T, c blobs.Credentials) (blobs.Store, string, *s3mem.Backend) {
	t.Helper()
	kept := s3mem.New()
	if err := kept.CreateBucket(t.Context(), "lemma"); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(gofakes3.New(kept, gofakes3.WithV4Auth(map[string]string{"access": "secret-of-the-test"})).Server())
	t.Cleanup(s.Close)
	store, err := blobs.OpenURL("s3://lemma/of/tests?region=us-east-1&endpoint="+s.URL, c)
	if err != nil {
		t.Fatal(err)
	}
	return store, s.URL, kept
}

var good = blobs.Credentials{AccessKey: "access", SecretKey: "secret-of-the-test"}

func TestStores(t *testing.T) {
	t.Parallel()
	folder, err := blobs.OpenURL("file://"+t.TempDir(), blobs.Credentials{})
	if err != nil {
		t.Fatal(err)
	}
	s3, _, _ := bucket(t, good)
	for name, store := range map[string]blobs.Store{"folder": folder, "s3": s3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, size := range []int{0, 10, 40 << 20} { // the last one has three parts
				keep(t, store, size)
			}
		})
	}
}

// keep stores, reads and deletes content.
func keep(t *testing.T, store blobs.Store, size int) {
	t.Helper()
	ctx, content := t.Context(), make([]byte, size)
	_, _ = rand.Read(content)
	name := "exports/" + rand.Text()
	if _, err := store.Size(ctx, name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the size of nothing: %v", err)
	}
	if err := store.Delete(ctx, name); err != nil {
		t.Errorf("delete nothing: %v", err)
	}
	if err := store.Put(ctx, name, bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	if n, err := store.Size(ctx, name); n != int64(size) || err != nil {
		t.Errorf("%d bytes instead of %d, %v", n, size, err)
	}
	for _, from := range []int{0, size / 2} {
		r, err := store.Open(ctx, name, int64(from))
		if err != nil {
			t.Fatal(err)
		}
		read, err := io.ReadAll(r)
		_ = r.Close()
		if err != nil || !bytes.Equal(read, content[from:]) {
			t.Errorf("read %d of %d bytes from %d, %v", len(read), size, from, err)
		}
	}
	if err := store.Delete(ctx, name); err != nil {
		t.Error(err)
	}
	if _, err := store.Size(ctx, name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is deleted: %v", err)
	}
}

// An upload that breaks off leaves no object, and what it leaves is deleted.
func TestBrokenUploads(t *testing.T) {
	t.Parallel()
	store, _, _ := bucket(t, good)
	broken := io.MultiReader(bytes.NewReader(make([]byte, 20<<20)), failing{})
	if err := store.Put(t.Context(), "x", broken); !errors.Is(err, errBroken) {
		t.Errorf("stored: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := store.Put(ctx, "x", bytes.NewReader(make([]byte, 20<<20))); err == nil {
		t.Error("stored after the end of its context")
	}
	if _, err := store.Size(t.Context(), "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a part is stored as a whole: %v", err)
	}
	if err := store.Delete(t.Context(), "x"); err != nil {
		t.Error(err)
	}
}

var errBroken = errors.New("broken")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errBroken }

func TestSignatures(t *testing.T) {
	t.Parallel()
	wrong, _, _ := bucket(t, blobs.Credentials{AccessKey: "access", SecretKey: "another"})
	if err := wrong.Put(t.Context(), "x", strings.NewReader("x")); err == nil {
		t.Error("the server checks no signature")
	}
	store, address, _ := bucket(t, good)
	if err := store.Put(t.Context(), "x", strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	link, err := store.(blobs.Signer).Link(t.Context(), "x", "events.csv", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if body, status := fetch(t, link.String()); body != "content" || status != http.StatusOK {
		t.Errorf("by its link: %d %s", status, body)
	}
	if body, status := fetch(t, strings.Replace(link.String(), "/x?", "/y?", 1)); status == http.StatusOK {
		t.Errorf("by the link of another: %s", body)
	}
	if body, status := fetch(t, address+"/lemma/of/tests/x"); status == http.StatusOK {
		t.Errorf("without a link: %s", body)
	}
}

func fetch(t *testing.T, url string) (string, int) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body), answer.StatusCode
}

func TestURLsOfStores(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "x", "file://host/x", "file:x", "s3://", "s3:bucket", "http://x", "s3://user:pass@bucket",
		"s3://bucket?endpoint=x", "s3://bucket?endpoint=https://x/path", "s3://bucket?endpoint=ftp://x",
		"s3://bucket?endpoint=https://user:hunter2@x", "s3://bucket?endpoint=https://x?key=hunter2", "s3://bucket?endpoint=https://x%23hunter2",
		"s3://bucket?secret_key=hunter2", "s3://bucket?region=a&region=hunter2", "s3://bucket?a;hunter2", "file:///x?key=hunter2",
		"file:///x#hunter2"} {
		store, err := blobs.OpenURL(text, good)
		if err == nil || blobs.CheckURL(text) == nil {
			t.Errorf("%s: %v", text, store)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error has the secret: %v", text, err)
		}
	}
	if _, err := blobs.OpenURL("s3://bucket", blobs.Credentials{}); err == nil {
		t.Error("no keys")
	}
	if _, err := blobs.OpenURL("s3://bucket", good); err != nil {
		t.Error(err)
	}
}

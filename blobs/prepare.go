package blobs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
)

// Prepare stores what write writes under the name of the attempt. Nothing refers to it
// before Commit. Its memory does not grow with the content. An error of write is
// returned as it is.
func (b *Blobs) Prepare(ctx context.Context, a Attempt, write func(io.Writer) error) (Content, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	r, w := io.Pipe()
	m := &measured{to: w, sum: sha256.New()}
	failed := make(chan error, 1)
	go func() {
		err := write(m)
		failed <- err
		_ = w.CloseWithError(err) // nil: the content ends
	}()
	err := b.Store.Put(ctx, a.Name, r)
	stop()
	_ = r.CloseWithError(errStopped) // write ends if the store has failed
	if wrote := <-failed; wrote != nil && !errors.Is(wrote, errStopped) {
		return Content{}, wrote
	}
	if err != nil {
		return Content{}, fmt.Errorf("store %s: %w: %w", a.Name, ErrStore, err)
	}
	b.Metrics.bytes.Add(float64(m.bytes))
	return Content{Bytes: m.bytes, SHA256: m.sum.Sum(nil)}, nil
}

// ErrStore is an error of the store.
var ErrStore = errors.New("the blob store failed")

// errStopped is what write gets when the store takes no more.
var errStopped = errors.New("the store takes no more")

// measured counts and hashes what is written.
type measured struct {
	to    io.Writer
	sum   hash.Hash
	bytes int64
}

func (m *measured) Write(p []byte) (int, error) {
	n, err := m.to.Write(p)
	m.sum.Write(p[:n])
	m.bytes += int64(n)
	return n, err
}

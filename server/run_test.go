package server

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"lemma/blobs"
	"lemma/pgtest"
)

// The workers stop while a client of the listener is slow.
func TestWorkersStopBesideASlowClient(t *testing.T) {
	t.Parallel()
	store, err := blobs.OpenFolder(t.TempDir())
	must(t, err)
	var log lockedBuffer
	s, err := New(Deps{Pool: pgtest.DB(t), Box: pgtest.Box(t), Blobs: store, Log: slog.New(slog.NewTextHandler(&log, nil))}, Config{})
	must(t, err)
	must(t, s.StartWorkers(context.WithoutCancel(t.Context())))
	ctx, terminate := context.WithCancel(t.Context())
	slow, failed := make(chan struct{}), errors.New("the listener failed")
	ended := make(chan error)
	go func() {
		ended <- s.Run(ctx, func(ctx context.Context) error {
			<-ctx.Done()
			<-slow
			return failed
		})
	}()
	terminate()
	select {
	case <-s.river.Stopped():
	case <-time.After(20 * time.Second):
		t.Error("the workers wait for a client")
	}
	s.loopsEnd(t.Context())
	if strings.Contains(log.text(), "msg=stopped") {
		t.Error("it has stopped before the listener")
	}
	close(slow)
	if err := <-ended; !errors.Is(err, failed) || !strings.Contains(log.text(), "msg=stopped") {
		t.Errorf("it ends with %v", err)
	}
}

package api

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lemma"
)

// A workspace reads data sources a few times at once, and what a caller no
// longer waits for ends.
func TestReadsAreBounded(t *testing.T) {
	var refused atomic.Int64
	b := setup(t, func(o *Options) { o.ReadWait, o.ReadRefused = 50*time.Millisecond, func() { refused.Add(1) } })
	w := b.world()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	b.must(err)
	defer silent.Close()
	arrived := make(chan struct{}, 100)
	go func() {
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			arrived <- struct{}{}
		}
	}()
	draft := b.draft(w)
	b.do("PATCH", "/v1/data_sources/"+w.source, object{"dsn": "postgres://u:p@" + silent.Addr().String() + "/x"}).is(200)

	ctx, hangUp := context.WithCancel(t.Context())
	waiting := func(r *http.Request) { *r = *r.WithContext(ctx) }
	var all sync.WaitGroup
	for range readsPerWorkspace {
		all.Go(func() { b.do("POST", "/v1/audiences/"+w.audience+"/count", nil, waiting) })
	}
	for range readsPerWorkspace {
		<-arrived
	}
	for _, path := range []string{"/v1/audiences/" + w.audience + "/preview", "/v1/campaigns/" + draft + "/preview", "/v1/campaigns/" + draft + "/send?dry_run=true",
		"/v1/data_sources/" + w.source + "/test"} {
		if got := b.do("POST", path, nil).is(503); got.problem.Code != "too_many_reads" || got.header.Get("Retry-After") == "" {
			t.Errorf("%s: %s", path, got.body)
		}
	}
	if n := refused.Load(); n != 4 {
		t.Errorf("%d refused", n)
	}
	hangUp()
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(8 * time.Second): // a source may be silent for 10 s
		t.Error("counts go on that nobody waits for")
	}
}

// However many requests of one workspace read and wait, another one has a place.
func TestReadsOfWorkspaces(t *testing.T) {
	t.Parallel()
	r := newReaders(20*time.Millisecond, func() {})
	greedy, other := lemma.NewID(), lemma.NewID()
	var leave []func()
	for range 3 * readsAtOnce {
		if l, err := r.enter(t.Context(), greedy); err == nil {
			leave = append(leave, l)
		}
	}
	if len(leave) != readsPerWorkspace {
		t.Errorf("one workspace has %d places", len(leave))
	}
	l, err := r.enter(t.Context(), other)
	if err != nil {
		t.Fatalf("the other has none: %v", err)
	}
	for _, l := range append(leave, l) {
		l()
	}
	if len(r.lines) != 0 || len(r.all) != 0 {
		t.Errorf("%d workspaces and %d places are left", len(r.lines), len(r.all))
	}
}

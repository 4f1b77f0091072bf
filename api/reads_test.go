package api

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// A source serves two counts at once. Others are refused after a moment, and a count ends
// when its caller closes the connection.
func TestReadsAreBounded(t *testing.T) {
	b := setup(t)
	w := b.world()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	b.Must(err)
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
	for range 2 {
		all.Go(func() { b.do("GET", "/v1/audiences/"+w.audience+"/counts", nil, waiting) })
	}
	for range 2 {
		<-arrived
	}
	for path, method := range map[string]string{"/v1/audiences/" + w.audience + "/counts": "GET", "/v1/campaigns/" + draft + "/preview": "GET",
		"/v1/campaigns/" + draft + "/send?dry_run=true": "POST"} {
		if got := b.do(method, path, nil).is(503); got.problem.Code != "overloaded" || got.header.Get("Retry-After") == "" {
			t.Errorf("%s: %s", path, got.body)
		}
	}
	hangUp()
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(8 * time.Second): // a source may be silent for 10 s
		t.Error("counts continue after their callers have left")
	}
}

package api

import (
	"context"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"lemma/pgtest"
)

// Requests of one workspace that work on the database hold a share of its connections:
// those of another workspace do not wait for them. Others of the first wait, and are then
// refused. A read has a bound in time.
func TestRequestsShareTheDatabase(t *testing.T) {
	b := setup(t, func(o *Options) { o.Connections, o.Timeout = 12, 5*time.Second })
	w := b.world()
	share := limitsOfDatabase(12).Workspace
	lock, err := b.Pool.Begin(t.Context())
	b.Must(err)
	t.Cleanup(func() { _ = lock.Rollback(context.Background()) })
	_, err = lock.Exec(t.Context(), `lock table campaigns, templates in access exclusive mode`)
	b.Must(err)
	var all sync.WaitGroup
	codes := make(chan string, 30)
	for i := range 15 {
		all.Go(func() {
			if i%2 == 0 {
				codes <- b.do("GET", "/v1/campaigns", nil).problem.Code
				return
			}
			codes <- b.do("PATCH", "/v1/templates/"+w.template, object{"name": "Other"}).problem.Code
		})
	}
	pgtest.WaitForLocks(t, b.Pool, share)
	begun := time.Now()
	for range 5 {
		b.do("GET", "/v1/providers", nil, as(b.other)).is(200)
		b.do("POST", "/v1/providers", object{}, as(b.other)).is(422)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("requests of another workspace took %s", took)
	}
	b.WantCount(share, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
	all.Wait()
	close(codes)
	got := map[string]int{}
	for code := range codes {
		got[code]++
	}
	if got["timeout"] != share || got["overloaded"] != 15-share {
		t.Errorf("answers: %v", got)
	}
	b.Must(lock.Rollback(t.Context()))
	b.do("GET", "/v1/campaigns", nil).is(200)
}

// A request that only reads the database has 10 s; one that writes, or waits for a data
// source, has longer.
func TestReadsHaveLessTime(t *testing.T) {
	t.Parallel()
	s := &server{Options: Options{Timeout: time.Minute}}
	for _, one := range []struct {
		method string
		do     action
		want   time.Duration
	}{
		{"GET", action{writes: true}, readTime}, {"GET", action{writes: true, cost: renders}, readTime}, {"POST", action{}, readTime},
		{"POST", action{writes: true}, time.Minute}, {"GET", action{writes: true, cost: queriesSource}, time.Minute},
		{"GET", action{writes: true, cost: previews}, time.Minute},
	} {
		c := &call{request: httptest.NewRequest(one.method, "/", nil)}
		if got := s.timeout(endpoint{route: route{method: one.method, do: one.do}}, c); got != one.want {
			t.Errorf("%s of cost %d: %s, want %s", one.method, one.do.cost, got, one.want)
		}
	}
}

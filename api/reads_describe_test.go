package api

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lemma/audience"
)

// placesOfSource is how many reads for callers one source has at a time.
const placesOfSource = 4

// Requests that describe a query take a place of its source like all reads for callers.
// While the places are taken, saving an audience and validating, planning and publishing
// a flow are refused with 503 and change nothing.
func TestDescribingIsBounded(t *testing.T) {
	registry := prometheus.NewRegistry()
	b := setupWith(t, audience.Options{AllowPrivate: true, AllowUnix: true, ConnectTimeout: 5 * time.Minute, QueryTimeout: 5 * time.Minute,
		Metrics: audience.NewMetrics(registry)}, func(o *Options) { o.Timeout = 5 * time.Minute })
	w := b.world()
	definition := w.definition(nil)
	definition["nodes"].(object)["rest"] = object{"type": "branch", "cases": []object{{"sql": "select id from customers", "next": "done"}},
		"else": "done"}
	flow := "/v1/flows/" + b.do("POST", "/v1/flows", object{"name": "Asks", "definition": definition}).is(201).id()
	version := flow + "/versions/1"
	b.do("GET", version+"/validate", nil).is(200)
	release := b.takePlaces(w.source)

	saved := object{"name": "More", "data_source_id": w.source, "sql": goodSQL, "key_column": "id", "email_column": "email"}
	requests := []struct {
		method, path string
		body         any
	}{
		{"POST", "/v1/audiences", saved}, {"PATCH", "/v1/audiences/" + w.audience, object{"sql": goodSQL + " limit 3"}},
		{"GET", version + "/validate", nil}, {"POST", version + "/plan", nil}, {"POST", version + "/publish?dry_run=true", nil},
		{"POST", version + "/publish", nil},
	}
	answers := make([]answered, len(requests))
	var all sync.WaitGroup
	for i, r := range requests { // each waits for a place for a moment
		all.Go(func() { answers[i] = b.do(r.method, r.path, r.body, header("Idempotency-Key", r.method+r.path)) })
	}
	all.Wait()
	for i, got := range answers {
		if got.status != 503 || got.problem.Code != "overloaded" || got.header.Get("Retry-After") == "" {
			t.Errorf("%s: %d, %s", requests[i].path, got.status, got.body)
		}
	}
	if n := refusedReads(t, registry); n != len(requests) {
		t.Errorf("%d refused reads are counted", n)
	}
	b.WantCount(1, `select count(*) from audiences where workspace_id = $1`, b.Workspace)
	b.do("GET", "/v1/flows/"+w.flow+"/versions/1/validate", nil).is(200) // it reads no source

	release()
	b.do("PATCH", "/v1/data_sources/"+w.source, object{"dsn": b.DSN}).is(200)
	b.do("POST", "/v1/audiences", saved, header("Idempotency-Key", "POST/v1/audiences")).is(201)
	b.do("POST", version+"/publish", nil, header("Idempotency-Key", "POST"+version+"/publish")).is(202)
}

// takePlaces takes all places of a source by reads that wait.
func (b *bundle) takePlaces(source string) (release func()) {
	b.T.Helper()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	b.Must(err)
	b.T.Cleanup(func() { silent.Close() })
	arrived := make(chan net.Conn, placesOfSource)
	go func() {
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			arrived <- conn
		}
	}()
	b.do("PATCH", "/v1/data_sources/"+source, object{"dsn": "postgres://u:p@" + silent.Addr().String() + "/x?sslmode=disable"}).is(200)
	ctx, hangUp := context.WithCancel(b.T.Context())
	var all sync.WaitGroup
	for range placesOfSource {
		all.Go(func() {
			b.do("GET", "/v1/data_sources/"+source+"/schema", nil, within(ctx))
		})
	}
	for range placesOfSource {
		conn := <-arrived
		b.T.Cleanup(func() { conn.Close() })
	}
	return func() { hangUp(); all.Wait() }
}

// within gives a request the context of a caller that closes the connection with it.
func within(ctx context.Context) option {
	return func(r *http.Request) { *r = *r.WithContext(ctx) }
}

func refusedReads(t *testing.T, r *prometheus.Registry) int {
	t.Helper()
	return counted(t, r, "lemma_source_reads_refused_total")
}

// counted is the sum of a counter over its labels.
func counted(t *testing.T, r *prometheus.Registry, name string) int {
	t.Helper()
	found, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := 0.0
	for _, family := range found {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			n += m.GetCounter().GetValue()
		}
	}
	return int(n)
}

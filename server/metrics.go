package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lemma"
)

// newRegistry collects the metrics of a process, of the Go runtime, and of the
// queue, which is read from Postgres.
func newRegistry(pool *pgxpool.Pool) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), &queue{pool: pool})
	return r
}

func metricsHandler(r *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, Timeout: 10 * time.Second})
}

// publicMetrics is the handler of /metrics on the API's listener: none, unless the
// metrics have the API's own address.
func (s *Server) publicMetrics() http.Handler {
	if s.cfg.MetricsListen != s.cfg.Listen {
		return nil
	}
	return metricsHandler(s.metrics)
}

// queue reports what waits in the database, for all processes together: scraping
// one of them is enough. It reads all batches that have not ended, so a scrape gets the
// numbers of the one before until twenty times the duration of that read has passed.
type queue struct {
	pool *pgxpool.Pool

	mu   sync.Mutex
	last []prometheus.Metric
	next time.Time // when they are read again
}

const (
	queueShare   = 20 // reads take at most this part of the time
	queueOldMost = time.Minute
)

var (
	queueDepth = prometheus.NewDesc("lemma_queue_notifications",
		"Notifications in batches that have not ended, by status of the batch (ready, held, leased).", []string{"status"}, nil)
	queueOldest = prometheus.NewDesc("lemma_queue_oldest_due_seconds",
		"How long the oldest due batch has waited whose provider does not fail; 0 when none is due.", nil, nil)
	leasesExpired = prometheus.NewDesc("lemma_leases_expired", "Batches whose lease has expired and that were not reaped yet.", nil, nil)
	flowOldest    = prometheus.NewDesc("lemma_flow_oldest_due_seconds",
		"How long the enrollment that has been due longest waits to be advanced, in flows that are live or draining; 0 when none is due.",
		nil, nil)
	campaignOldest = prometheus.NewDesc("lemma_campaign_oldest_due_seconds",
		"How long the scheduled campaign that has been due longest waits to be started; 0 when none is due.", nil, nil)
	iterationsInconclusive = prometheus.NewDesc("lemma_iterations_inconclusive",
		"A/B tests that wait for the decision of a person.", nil, nil)
	pausedObjects = prometheus.NewDesc("lemma_paused",
		"Campaigns and flows that Lemma has paused, by object (campaign, flow) and reason: they wait for a person.",
		[]string{"object", "reason"}, nil)
	eventQueue = prometheus.NewDesc("lemma_event_queue_oldest_seconds",
		"How long the oldest stored event of a carrier waits to be applied; 0 when none waits.", nil, nil)
	eventLag = prometheus.NewDesc("lemma_event_lag_seconds",
		"How late the newest event of a provider came, of the slowest with events in the last hour.", nil, nil)
	circuitsOpen = prometheus.NewDesc("lemma_circuits_open",
		"Providers whose circuit is open, since they fail, while messages are due over them.", nil, nil)
	orphanRate = prometheus.NewDesc("lemma_orphan_rate",
		"Orphaned notifications as a fraction of all notifications of campaigns that ended in the last hour.", nil, nil)
)

// Describe is part of prometheus.Collector.
func (q *queue) Describe(ch chan<- *prometheus.Desc) {
	ch <- queueDepth
	ch <- queueOldest
	ch <- leasesExpired
	ch <- orphanRate
	ch <- circuitsOpen
	ch <- flowOldest
	ch <- campaignOldest
	ch <- iterationsInconclusive
	ch <- pausedObjects
	ch <- eventQueue
	ch <- eventLag
}

// Collect is part of prometheus.Collector.
func (q *queue) Collect(ch chan<- prometheus.Metric) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if begun := time.Now(); !begun.Before(q.next) {
		q.last = q.read()
		q.next = time.Now().Add(min(queueShare*time.Since(begun), queueOldMost))
	}
	for _, m := range q.last {
		ch <- m
	}
}

// read reads the metrics, or one that is invalid.
func (q *queue) read() (all []prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var ready, held, leased, oldest, expired, orphans, overdue, unstarted, undecided, circuits, waiting, lag float64
	err := q.pool.QueryRow(ctx, `
		with live as (
			select status, gate, due_at, lease_until, size - sent - failed - orphaned - skipped - cancelled - retried as rows,
				workspace_id, provider_id, m.opened_at is not null as fails, m.open_until
			from batches left join provider_meters m using (workspace_id, provider_id) where status in ('ready', 'leased')
		), ended as (
			select sum(b.orphaned) as orphaned, sum(b.all) as all from campaigns c
			cross join lateral ( -- by the key of each, which a planner would do for all batches otherwise
				select b.orphaned, b.sent + b.failed + b.orphaned + b.skipped as all from batches b
				where b.workspace_id = c.workspace_id and b.origin_id = c.id and b.status = 'done' and b.finished_at > now() - interval '1 hour'
				offset 0
			) b
			where c.status in ('preparing', 'sending', 'paused') or c.finished_at > now() - interval '1 hour'
		)
		select coalesce(sum(rows) filter (where status = 'ready' and gate = 'open'), 0)::float8,
			coalesce(sum(rows) filter (where status = 'ready' and gate <> 'open'), 0)::float8,
			coalesce(sum(rows) filter (where status = 'leased'), 0)::float8,
			coalesce(greatest(extract(epoch from
				now() - min(due_at) filter (where status = 'ready' and gate = 'open' and not fails)), 0), 0)::float8,
			(count(*) filter (where status = 'leased' and lease_until < now()))::float8,
			coalesce((select orphaned::float8 / nullif("all", 0) from ended), 0)::float8,
			coalesce((select greatest(extract(epoch from now() - min(e.resume_at)), 0) from flow_shards t
				join flows f on f.workspace_id = t.workspace_id and f.id = t.flow_id and f.status in ('live', 'draining')
				cross join lateral (select resume_at from enrollments e
					where e.workspace_id = t.workspace_id and e.flow_id = t.flow_id and e.shard = t.shard
					and e.resume_at > coalesce(f.resumed_at, '-infinity') order by e.resume_at limit 1) e
				where t.next_due_at <= now()), 0)::float8,
			coalesce((select greatest(extract(epoch from now() - min(scheduled_at)), 0) from campaigns where status = 'scheduled'), 0)::float8,
			(select count(*) from iterations where status = 'inconclusive')::float8,
			(count(distinct (workspace_id, provider_id)) filter (where fails and gate = 'open'
				and due_at < greatest(now(), open_until) + interval '5 minutes'))::float8, -- due again after its wait
			coalesce((select extract(epoch from now() - min(recorded_at)) from event_queue), 0)::float8,
			coalesce((select max(extract(epoch from recorded_at - occurred_at)) from provider_watermarks
				where recorded_at > now() - interval '1 hour'), 0)::float8
		from live`).Scan(&ready, &held, &leased, &oldest, &expired, &orphans, &overdue, &unstarted, &undecided, &circuits, &waiting, &lag)
	if err != nil {
		return []prometheus.Metric{prometheus.NewInvalidMetric(queueDepth, err)}
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		all = append(all, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...))
	}
	gauge(queueDepth, ready, "ready")
	gauge(queueDepth, held, "held")
	gauge(queueDepth, leased, "leased")
	gauge(queueOldest, oldest)
	gauge(leasesExpired, expired)
	gauge(orphanRate, orphans)
	gauge(circuitsOpen, circuits)
	gauge(flowOldest, overdue)
	gauge(campaignOldest, unstarted)
	gauge(iterationsInconclusive, undecided)
	gauge(eventQueue, waiting)
	gauge(eventLag, lag)
	paused, err := q.readPaused(ctx)
	if err != nil {
		return []prometheus.Metric{prometheus.NewInvalidMetric(pausedObjects, err)}
	}
	return append(all, paused...)
}

// readPaused reads what Lemma has paused. A pause by a request waits for nobody.
func (q *queue) readPaused(ctx context.Context) (all []prometheus.Metric, err error) {
	rows, _ := q.pool.Query(ctx, `
		select 'campaign', status_reason, count(*)::float8 from campaigns
		where status = 'paused' and status_reason <> 'requested' group by status_reason
		union all
		select 'flow', status_reason, count(*)::float8 from flows
		where status = 'paused' and status_reason <> 'requested' group by status_reason`)
	var object, reason string
	var n float64
	_, err = pgx.ForEachRow(rows, []any{&object, &reason, &n}, func() error {
		all = append(all, prometheus.MustNewConstMetric(pausedObjects, prometheus.GaugeValue, n, object, reason))
		return nil
	})
	return all, lemma.Wrap(err, "read what is paused")
}

package retention_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/migrations"
	"lemma/notifications"
	"lemma/pgtest"
	"lemma/pgtest/shop"
	"lemma/retention"
)

const day = 24 * time.Hour

// month has the data of the tests; now is long after it.
var (
	month = time.Date(2019, 5, 1, 0, 0, 0, 0, time.UTC)
	now   = month.AddDate(0, 6, 0)
	all   = retention.Config{Notifications: 60 * day, ProviderEvents: 60 * day, BatchLog: 60 * day, Steps: 60 * day}
)

// old is a workspace with a campaign of a month: a notification with an attempt, a log, an
// event, a delivery state, an engagement and a click, and an enrollment with a step.
type old struct {
	*shop.Fixture
	campaign, enrollment uuid.UUID
}

func setup(t *testing.T) *old {
	t.Helper()
	t.Parallel()
	o := &old{Fixture: shop.New(pgtest.NewShop(t), shop.Local, nil),
		campaign: pgtest.IDAt(month.Add(day)), enrollment: pgtest.IDAt(month.Add(2 * day))}
	o.OpenDB(`create table people (id int, email text, name text)`)
	o.Fill(`select id, email, name from people`)
	o.Must(migrations.Partitions(t.Context(), o.Pool, month))
	o.Exec(`do $$ declare name text; begin
		for name in select relname from pg_class where relname ~ '_2019_0[678]$' and relkind = 'r' loop execute 'drop table ' || name; end loop;
	end $$`)
	o.Exec(`insert into campaigns (workspace_id, id, name, audience_id, template_id, template_version, provider_id, from_email,
			status, finished_at)
		values ($1, $2, 'May', $3, $4, 1, $5, 'news@shop.example', 'completed', $6)`,
		o.Workspace, o.campaign, o.Audience, o.Template, o.Provider, month.Add(20*day))
	o.Exec(`insert into contents (workspace_id, id, channel, template_id, template_version, from_name, from_email, reply_to, headers)
		values ($1, $2, 'email', $3, 1, '', 'news@shop.example', '', '{}')`, o.Workspace, o.campaign, o.Template)
	o.Must(pgx.BeginFunc(t.Context(), o.Pool, func(tx pgx.Tx) error {
		_, err := o.Ledger.Insert(t.Context(), tx, notifications.Chunk{WorkspaceID: o.Workspace, OriginID: o.campaign,
			ProviderID: o.Provider, ContentID: o.campaign, Run: 1, MaxAttempts: 2, BatchSize: 5,
			Recipients: []notifications.Recipient{{Key: lemma.Key("test/1"), ProfileKey: "1", Address: "p@shop.example"}}})
		return err
	}))
	batch := pgtest.IDAt(month.Add(3 * day))
	o.Exec(`update notifications set batch_id = $1`, batch)
	o.Exec(`update batches set id = $1, root_id = $1, status = 'done', sent = size, finished_at = $2`, batch, month.Add(20*day))
	o.Exec(`insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis)
		values ($1, $2, 0, 1, 'accepted', true, 'response')`, o.Workspace, batch)
	o.Exec(`insert into batch_log (workspace_id, batch_id, event) values ($1, $2, 'finished')`, o.Workspace, batch)
	o.Exec(`insert into provider_events (workspace_id, origin_id, id, provider_id, source, source_event_id, batch_id, ordinal,
			kind, occurred_at)
		values ($1, $2, $2, $3, 'webhook', 'e', $4, 0, 'accepted', now())`, o.Workspace, o.campaign, o.Provider, batch)
	o.Exec(`insert into deliveries (workspace_id, origin_id, key, state, rank, at) values ($1, $2, $2, 'delivered', 4, now())`,
		o.Workspace, o.campaign)
	o.Exec(`insert into engagements (workspace_id, origin_id, key, content_id, opens, clicks) values ($1, $2, $2, $2, 1, 1)`,
		o.Workspace, o.campaign)
	o.Exec(`insert into tracking_events (workspace_id, origin_id, key, id, type, link, occurred_at)
		values ($1, $2, $2, $2, 'clicked', 1, now())`, o.Workspace, o.campaign)
	o.Exec(`insert into enrollments (workspace_id, id, flow_id, version, shard, uniqueness_key, overlap_key, profile_key,
			status, node, source, ended_at)
		values ($1, $2, $2, 1, 0, $2, $2, '1', 'completed', 'n', 'event', $3)`, o.Workspace, o.enrollment, month.Add(20*day))
	o.Exec(`insert into enrollment_steps (workspace_id, enrollment_id, step, version, node, event)
		values ($1, $2, 0, 1, 'n', 'enrolled')`, o.Workspace, o.enrollment)
	return o
}

func (o *old) run(cfg retention.Config, at time.Time) retention.Done {
	o.T.Helper()
	pgtest.SetClock(o.T, o.Pool, at)
	done, err := o.retention(cfg).Run(o.T.Context())
	o.Must(err)
	return done
}

func (o *old) retention(cfg retention.Config) *retention.Retention {
	return retention.New(o.Pool, slog.New(slog.DiscardHandler), retention.NewMetrics(nil), cfg)
}

// left lists the tables whose partition of the month is there.
func (o *old) left() (tables []string) {
	o.T.Helper()
	parts, err := migrations.Months(o.T.Context(), o.Pool)
	o.Must(err)
	for _, p := range parts {
		if p.Month.Equal(month) {
			tables = append(tables, p.Table)
		}
	}
	slices.Sort(tables)
	return tables
}

func (o *old) wantLeft(want ...string) {
	o.T.Helper()
	if diff := cmp.Diff(want, o.left()); diff != "" {
		o.T.Errorf("left of the month (-want +got):\n%s", diff)
	}
}

var (
	ledger = []string{"attempts", "deliveries", "engagements", "notifications"}
	events = []string{"provider_events", "tracking_events"}
	others = []string{"batch_log", "enrollment_steps"}
)

// except are all tables but some.
func except(tables ...[]string) []string {
	rest := migrations.Partitioned()
	slices.Sort(rest)
	return slices.DeleteFunc(rest, func(t string) bool { return slices.Contains(slices.Concat(tables...), t) })
}

func TestEveryTableHasARule(t *testing.T) {
	t.Parallel()
	retention.CheckRules(t)
}

func TestMonthsAreDroppedByKind(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  retention.Config
		at   time.Time
		gone [][]string
	}{
		"nothing without a setting": {retention.Config{}, now, nil},
		"provider events":           {retention.Config{ProviderEvents: 60 * day}, now, [][]string{events}},
		"the batch log":             {retention.Config{BatchLog: 60 * day}, now, [][]string{{"batch_log"}}},
		"steps":                     {retention.Config{Steps: 60 * day}, now, [][]string{{"enrollment_steps"}}},
		"notifications":             {retention.Config{Notifications: 60 * day}, now, [][]string{ledger}},
		"all but batches":           {all, now, [][]string{ledger, events, others}},
		"nothing a moment before":   {all, month.AddDate(0, 1, 60).Add(-time.Second), nil},
		"all from then on":          {all, month.AddDate(0, 1, 60), [][]string{ledger, events, others}},
	} {
		t.Run(name, func(t *testing.T) {
			o := setup(t)
			if done := o.run(c.cfg, c.at); len(done.Held) > 0 {
				t.Errorf("held: %v", done.Held)
			}
			o.wantLeft(except(c.gone...)...)
			o.run(c.cfg, c.at)
			o.wantLeft(except(c.gone...)...)
			counts, err := o.Ledger.Counts(t.Context(), o.Workspace, o.campaign)
			o.Must(err)
			if counts.Sent != 1 {
				t.Errorf("the counts are %+v", counts)
			}
		})
	}
}

func TestWhatIsNeededIsKept(t *testing.T) {
	recently := now.Add(-59 * day)
	ofOrigins := [][]string{others}
	for name, c := range map[string]struct {
		sql  string
		args []any
		gone [][]string
	}{
		"of a campaign that is sending":                     {`update campaigns set status = 'sending', finished_at = null`, nil, ofOrigins},
		"of a campaign that is paused":                      {`update campaigns set status = 'paused', finished_at = null`, nil, ofOrigins},
		"of a campaign that ended recently":                 {`update campaigns set finished_at = $1`, []any{recently}, ofOrigins},
		"of a batch that is ready":                          {ready, nil, [][]string{{"enrollment_steps"}}},
		"of a batch that ended recently":                    {`update batches set finished_at = $1`, []any{recently}, ofOrigins},
		"of an enrollment that ended recently":              {`update enrollments set ended_at = $1`, []any{recently}, [][]string{{"batch_log"}}},
		"of an active enrollment":                           {active, nil, [][]string{{"batch_log"}}},
		"of an event that is not applied":                   {queued, nil, ofOrigins},
		"of an open that is not applied":                    {queuedOpen, nil, ofOrigins},
		"nothing of a draft":                                {`update campaigns set status = 'draft'`, nil, [][]string{ledger, events, others}},
		"states of a notification of the default partition": {ofDefault, nil, [][]string{{"notifications"}, events, others}},
	} {
		t.Run(name, func(t *testing.T) {
			o := setup(t)
			o.Exec(c.sql, c.args...)
			done := o.run(all, now)
			o.wantLeft(except(c.gone...)...)
			if len(done.Held) != len(o.left())-2 { // all but the batches and the audit log
				t.Errorf("dropped %v, held %v", done.Dropped, done.Held)
			}
			state, err := retention.Inspect(t.Context(), o.Pool, all)
			o.Must(err)
			var held int
			for _, s := range state {
				held += len(s.Held)
				if s.NextMonth != true || len(s.Detached) > 0 {
					t.Errorf("%+v", s)
				}
			}
			if held != len(done.Held) {
				t.Errorf("%d partitions are held: %+v", held, state)
			}
		})
	}
}

const (
	active = `update enrollments set status = 'active', ended_at = null, resume_at = now()`
	ready  = `update batches set status = 'ready', sent = 0`
	queued = `insert into event_queue (workspace_id, id, provider_id, origin_id, type, occurred_at)
		select workspace_id, id, provider_id, origin_id, 'delivered', now() from provider_events`
	queuedOpen = `insert into tracking_queue (workspace_id, id, origin_id, key, type, occurred_at)
		select workspace_id, id, origin_id, key, 'opened', now() from tracking_events`
	// The row stays when the partition of its month is gone, as of a draft that is sent later.
	ofDefault = `do $$ begin
		create table kept as select * from notifications;
		alter table notifications detach partition notifications_2019_05;
		drop table notifications_2019_05;
		insert into notifications select * from kept;
	end $$`
)

// A month is dropped by the clock of the database: that of a process, such as one that is
// four months ahead, drops nothing early and makes no partitions.
func TestTheClockOfTheDatabaseDecides(t *testing.T) {
	o := setup(t)
	o.Exec(`update campaigns set finished_at = $1`, month.AddDate(0, 1, 0))
	recent := retention.Config{Notifications: 31 * day, ProviderEvents: 31 * day, BatchLog: 31 * day, Steps: 31 * day}
	if done := o.run(recent, month.AddDate(0, 1, 30)); len(done.Dropped)+len(done.Held) > 0 {
		t.Errorf("a month after the month ended: %+v", done)
	}
	o.wantLeft(except()...)
	o.WantCount(0, `select count(*) from pg_class where relname like '%\_2019\_11'`)
	if done := o.run(recent, month.AddDate(0, 1, 31)); len(done.Dropped) != len(slices.Concat(ledger, events, others)) {
		t.Errorf("a day later: %+v", done)
	}
}

// A draft that is sent after the decision keeps its month, also if it has ended: the lock is
// taken before.
func TestADraftThatIsSentMeanwhileKeepsItsMonth(t *testing.T) {
	t.Run("sending", func(t *testing.T) { sentMeanwhile(t, `update campaigns set status = 'sending'`) })
	t.Run("completed", func(t *testing.T) {
		sentMeanwhile(t, fmt.Sprintf(`update campaigns set status = 'completed', finished_at = '%s'`, now.Format(time.RFC3339)))
	})
}

func sentMeanwhile(t *testing.T, sent string) {
	o := setup(t)
	o.Exec(`update campaigns set status = 'draft', finished_at = null`)
	o.run(retention.Config{}, now) // the coming months
	run := o.retention(all)
	tx, err := o.Pool.Begin(t.Context())
	o.Must(err)
	defer tx.Rollback(context.Background())
	// A writer of notifications holds the tables until the campaign has begun.
	_, err = tx.Exec(t.Context(), `lock table notifications, provider_events, tracking_events, deliveries, engagements in row exclusive mode`)
	o.Must(err)
	_, err = tx.Exec(t.Context(), sent)
	o.Must(err)
	ended := make(chan retention.Done)
	go func() {
		done, err := run.Run(t.Context())
		o.Must(err)
		ended <- done
	}()
	o.WaitForLocks(1)
	o.Must(tx.Commit(t.Context()))
	done := <-ended
	o.wantLeft(except(others)...)
	if len(done.Dropped) != 2 {
		t.Errorf("dropped: %v", done.Dropped)
	}
}

// A partition that cannot be archived stays detached, and the next run archives it.
func TestArchivingComesBeforeDropping(t *testing.T) {
	o := setup(t)
	cfg := retention.Config{BatchLog: 60 * day}
	fails := true
	cfg.Archive = func(ctx context.Context, p migrations.Partition) error {
		if p.Attached && !fails {
			t.Error("the partition of the second run is attached")
		}
		if n := o.Count("select count(*) from " + p.Name()); n != 1 {
			t.Errorf("%d rows to archive", n)
		}
		if fails {
			return fmt.Errorf("no disk")
		}
		return nil
	}
	r := o.retention(cfg)
	pgtest.SetClock(t, o.Pool, now)
	if _, err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no disk") {
		t.Errorf("archiving failed: %v", err)
	}
	o.WantCount(0, `select count(*) from batch_log`)
	o.wantLeft(except()...)
	fails = false
	_, err := r.Run(t.Context())
	o.Must(err)
	o.wantLeft(except([]string{"batch_log"})...)
}

func TestTheComingMonthsAreCreated(t *testing.T) {
	o := setup(t)
	o.run(all, now)
	o.WantCount(len(migrations.Partitioned()), `
		select count(*) from pg_class where relname like '%\_2020\_02' and relispartition and relkind = 'r'`)
}

package retention_test

import (
	"context"
	"testing"
	"time"

	"lemma/migrations"
	"lemma/pgtest"
	"lemma/retention"
)

// states stores the value of a setting of a process that was seen some time ago.
func (o *old) states(name, value string, ago time.Duration) {
	o.T.Helper()
	o.Exec(`insert into settings (name, value, started_at, seen_at) values ($1, $2, now() - $3::interval, now() - $3::interval)`,
		name, value, ago)
}

const never = "0s"

// The longest retention of all processes holds, also of those that have ended.
func TestTheLongestRetentionHolds(t *testing.T) {
	long, short := (200 * day).String(), (40 * day).String()
	for name, c := range map[string]struct {
		setting, value string
		ago            time.Duration
		kept           [][]string
	}{
		"of notifications, for ever":  {"LEMMA_NOTIFICATION_RETENTION", never, 0, [][]string{ledger}},
		"of notifications, longer":    {"LEMMA_NOTIFICATION_RETENTION", long, 0, [][]string{ledger}},
		"of provider events":          {"LEMMA_PROVIDER_EVENT_RETENTION", long, 0, [][]string{events}},
		"of the batch log":            {"LEMMA_BATCH_LOG_RETENTION", long, 0, [][]string{{"batch_log"}}},
		"of steps":                    {"LEMMA_ENROLLMENT_STEP_RETENTION", long, 0, [][]string{{"enrollment_steps"}}},
		"of a process that has ended": {"LEMMA_BATCH_LOG_RETENTION", long, 9 * day, [][]string{{"batch_log"}}},
	} {
		t.Run(name, func(t *testing.T) {
			o := setup(t)
			o.states(c.setting, c.value, c.ago)
			o.run(all, now)
			gone := except(append(c.kept, []string{"batches", "audit_log"})...)
			o.wantLeft(except(gone)...)
		})
	}
	t.Run("of this process", func(t *testing.T) {
		o := setup(t)
		o.states("LEMMA_BATCH_LOG_RETENTION", short, 0)
		o.run(retention.Config{BatchLog: 60 * day}, month.AddDate(0, 1, 50))
		o.wantLeft(except()...)
	})
	t.Run("for ever in this process", func(t *testing.T) {
		o := setup(t)
		o.states("LEMMA_BATCH_LOG_RETENTION", short, 0)
		o.run(retention.Config{}, now)
		o.wantLeft(except()...)
	})
}

// Nothing is dropped without a copy while a process archives, or did.
func TestAProcessThatDoesNotArchiveDropsNothing(t *testing.T) {
	o := setup(t)
	o.states("LEMMA_ARCHIVE", "true", 9*day)
	if done := o.run(all, now); len(done.Held) == 0 {
		t.Error("nothing is held")
	}
	o.wantLeft(except()...)
	state, err := retention.Inspect(t.Context(), o.Pool, all)
	o.Must(err)
	for _, s := range state {
		const held = "2019-05: the next run of a worker with LEMMA_ARCHIVE archives and drops it"
		if s.Table == "batch_log" && (len(s.Held) != 1 || s.Held[0] != held) {
			t.Errorf("%+v", s)
		}
	}
	o.direct(month, 1, "done")
	o.Exec(`alter table notifications detach partition notifications_2019_05`)
	o.run(all, now) // another process may be archiving it
	o.WantCount(1, directContents, contentOf(month, 0))
	archives := all
	copied := 0
	archives.Archive = func(context.Context, migrations.Partition) error { copied++; return nil }
	if done := o.run(archives, now); copied == 0 || copied != len(done.Dropped) {
		t.Errorf("%d are copied, %v are dropped", copied, done.Dropped)
	}
	o.wantLeft("audit_log", "batches")
}

// A process with another setting that starts meanwhile counts: when a partition is detached,
// and when it is dropped.
func TestSettingsAreReadAgain(t *testing.T) {
	for name, c := range map[string]struct{ setting, value string }{
		"a longer retention": {"LEMMA_BATCH_LOG_RETENTION", never}, "an archive": {"LEMMA_ARCHIVE", "true"},
	} {
		t.Run("before it is detached: "+name, func(t *testing.T) {
			o := setup(t)
			o.run(retention.Config{}, now) // the coming months
			run := o.retention(retention.Config{BatchLog: 60 * day})
			tx, err := o.Pool.Begin(t.Context())
			o.Must(err)
			defer tx.Rollback(context.Background())
			_, err = tx.Exec(t.Context(), `lock table batch_log in row exclusive mode`)
			o.Must(err)
			ended := make(chan retention.Done)
			go func() {
				done, err := run.Run(context.Background())
				o.Must(err)
				ended <- done
			}()
			o.WaitForLocks(1)
			o.states(c.setting, c.value, 0)
			o.Must(tx.Commit(t.Context()))
			if done := <-ended; len(done.Dropped) > 0 {
				t.Errorf("dropped: %v", done.Dropped)
			}
			o.wantLeft(except()...)
			o.WantCount(1, `select count(*) from pg_inherits where inhrelid = to_regclass('batch_log_2019_05')`)
		})
	}
	t.Run("before it is dropped", func(t *testing.T) {
		o := setup(t)
		pgtest.SetClock(t, o.Pool, now)
		o.direct(month, 1, "done")
		o.Exec(`alter table notifications detach partition notifications_2019_05`)
		o.Exec(`create function starts() returns trigger language plpgsql as $$ begin
			insert into settings (name, value, started_at) values ('LEMMA_ARCHIVE', 'true', now()) on conflict do nothing; return old; end $$`)
		o.Exec(`create trigger starts before delete on contents for each row execute function starts()`)
		_, err := o.retention(all).Run(t.Context())
		o.Must(err)
		o.WantCount(1, `select count(*) from pg_class where relname = 'notifications_2019_05'`)
	})
}

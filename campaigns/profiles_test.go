package campaigns

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// push is a push campaign of three profiles that is being sent.
func push(t *testing.T, change ...func(*Config)) (*reached, uuid.UUID) {
	t.Helper()
	b := reach(t, `(id, tokens) select i, array['a' || i, 'b' || i] from generate_series(1, 3) i`, change...)
	c, err := b.Create(t.Context(), b.Workspace, b.new(lemma.Push))
	b.Must(err)
	_, err = b.Send(t.Context(), b.Workspace, c.ID, uuid.Nil)
	b.Must(err)
	return b, c.ID
}

// The profiles of a large push campaign are counted for longer than other statements may take.
func TestTheCountOfProfilesMayTakeLong(t *testing.T) {
	b, id := push(t)
	b.deps.Pool = b.connect(nil, map[string]string{"statement_timeout": "1s"})
	b.Campaigns = New(b.deps, b.cfg)
	var lock pgx.Tx
	b.Hook = func(ctx context.Context, at string, _ uuid.UUID) {
		if at == "streamed" {
			var err error
			lock, err = b.Pool.Begin(ctx)
			b.Must(err)
			_, err = lock.Exec(ctx, `lock table notifications`)
			b.Must(err)
		}
	}
	done := make(chan error, 1)
	go func() { _, err := b.Fanout(context.Background(), b.Workspace, id); done <- err }()
	b.Eventually("the count has waited for more than the limit", func() bool {
		return b.Count(`select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
			and clock_timestamp() - query_start > interval '1.5 s'`) == 1
	})
	b.Must(lock.Rollback(t.Context()))
	b.Must(<-done)
	if got := b.get(id); got.FannedOutAt == nil || got.Profiles == nil || *got.Profiles != 3 {
		t.Errorf("%+v", got)
	}
}

// Profiles that cannot be counted are no reason to read the audience again.
func TestProfilesThatCannotBeCounted(t *testing.T) {
	b, id := push(t, func(c *Config) { c.CountFor = time.Nanosecond })
	b.fanout(id)
	if got := b.get(id); got.FannedOutAt == nil || got.Profiles != nil || got.Counts.Pending != 6 {
		t.Errorf("%+v", got)
	}
}

// A fan-out whose end cannot be recorded is released and repeated: no process has crashed.
func TestTheEndOfAFanoutIsRecordedLater(t *testing.T) {
	b := setup(t, 10)
	id := b.sent().ID
	b.Exec(`alter table fanouts add constraint refused check (finished_at is null)`)
	again, err := b.Fanout(context.Background(), b.Workspace, id)
	if l := b.lease(id); err != nil || again <= 0 || l.LeasedBy != nil || l.Failures != 1 {
		t.Errorf("%v, %v, %+v", again, err, l)
	}
	b.Exec(`alter table fanouts drop constraint refused`)
	b.Exec(`update fanouts set retry_at = now()`)
	b.fanout(id)
	if got := b.get(id); got.FannedOutAt == nil || got.Counts.Pending != 10 {
		t.Errorf("%+v", got)
	}
}

package sender

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/notifications"
)

// later makes a batch of 10 messages due each minute, in the order of refs.
func (b *bundle) later(n int, rate float64) []notifications.Ref {
	b.T.Helper()
	refs := b.insert(10*n, 10, 2)
	for i, ref := range refs {
		b.Exec(`update batches set due_at = now() + make_interval(mins => $2) where id = $1`, ref.BatchID, 1+i)
	}
	b.Exec(`update providers set rate_per_second = nullif($2::float8, 0) where id = $1`, b.provider, rate)
	b.Exec(`truncate river_job`)
	return refs
}

func (b *bundle) fillRate(s *Sender, want int) {
	b.T.Helper()
	if n, err := s.FillRate(b.T.Context()); err != nil || n != want {
		b.T.Errorf("made %d batches due, want %d, %v", n, want, err)
	}
}

// idle lets the tokens of the provider's rate be used up.
func (b *bundle) idle() { b.Exec(`update provider_meters set next_free_at = now()`) }

const dueWithJob = `status = 'ready' and due_at <= now() and exists (select from river_job j
	where j.state = 'available' and (j.args->>'batch_id')::uuid = batches.id)`

// The next batches, of ten seconds of the rate as it is now, are made due and get a job. The
// following ones are not, until these were sent and the rate is unused again.
func TestAnUnusedRateMakesTheNextBatchesDue(t *testing.T) {
	b := setup(t)
	refs := b.later(8, 2.5)
	s := b.sender()
	b.fillRate(s, 3) // the third begins within the 25 messages
	if due := b.batches(dueWithJob); !slices.Equal(due, refs[:3]) {
		t.Errorf("due are %v, of %v", due, refs)
	}
	b.idle()
	b.fillRate(s, 0)
	b.Exec(`update batches set status = 'done', sent = size, finished_at = now() where due_at <= now()`)
	b.fillRate(s, 3)
}

// A rate that was removed limits nothing.
func TestARemovedRateMakesAllBatchesDue(t *testing.T) {
	b := setup(t)
	b.later(8, 0)
	b.fillRate(b.sender(), 8)
}

// A raised rate, and rows that are skipped without a call, end a campaign before the due times of
// its fan-out.
func TestACampaignUsesTheWholeRate(t *testing.T) {
	b := setup(t)
	b.later(6, 1000)
	s := b.sender(func(c *Config) { c.MaxWindow = 500 })
	for range 6 {
		b.idle()
		_, err := s.FillRate(t.Context())
		b.Must(err)
		for _, ref := range b.batches(dueWithJob) {
			_, err := s.Work(t.Context(), ref)
			b.Must(err)
		}
	}
	b.wantCounts(notifications.Counts{Sent: 60})
}

// What is due later for another reason than the rate stays so, and so does all of a provider that
// cannot send more now.
func TestBatchesThatAnUnusedRateLeaves(t *testing.T) {
	const all = `update batches set `
	const meter = `update provider_meters set `
	const first = ` where id = (select id from batches order by due_at limit 1)`
	claimed := func(ago, through string) string { // with a lease of a minute
		return all + `status = 'leased', leased_by = 'x', lease_until = now() + interval '1 min' - interval '` + ago +
			`', called_through = ` + through + first
	}
	for name, c := range map[string]struct {
		state string
		want  int
	}{
		"never claimed":                    {`select 1`, 2},
		"given back":                       {all + `open = '{1,2}'`, 0},
		"a second attempt":                 {all + `attempt = 2, root_id = gen_random_uuid(), open = '{1}', members = '{1}'`, 0},
		"of a paused campaign":             {all + `gate = 'held'`, 0},
		"direct":                           {all + `origin_id = '00000000-0000-8000-8000-000000000001'`, 0},
		"one is due":                       {all + `due_at = now()` + first, 0},
		"the rate is used":                 {meter + `next_free_at = now() + interval '1 minute'`, 0},
		"the circuit is open":              {meter + `opened_at = now(), open_until = now() - interval '1 second'`, 0},
		"one is claimed, without a window": {claimed("20 s", "-1"), 0},
		"one is claimed, with a window":    {claimed("20 s", "1"), 1},
		"its worker was killed":            {claimed("40 s", "-1"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.later(2, 100)
			b.Exec(c.state)
			b.fillRate(b.sender(), c.want)
		})
	}
}

// A process decides by the state of the provider when it makes batches due, and not by that when
// it searched for providers.
func TestAnotherProcessHasUsedTheRate(t *testing.T) {
	b := setup(t)
	refs := b.later(8, 2.5)
	s := b.sender()
	p := idleProvider{b.Workspace, b.provider}
	next := func(want int) {
		t.Helper()
		if n, err := s.makeNextDue(t.Context(), p); err != nil || n != want {
			t.Errorf("made %d due, want %d, %v", n, want, err)
		}
	}
	next(3)
	next(0)
	b.Exec(`update batches set status = 'leased', leased_by = 'x', lease_until = now() + interval '1 hour' where due_at <= now()`)
	next(0)
	b.Exec(`update batches set called_through = 1 where status = 'leased'`)
	b.Exec(`update provider_meters set next_free_at = now() + interval '1 minute'`)
	next(0)
	b.Exec(`update provider_meters set next_free_at = now(), opened_at = now(), open_until = now()`)
	next(0)
	b.Exec(`update provider_meters set opened_at = null, open_until = null`)
	next(3)
	if due := b.batches(`due_at <= now()`); !slices.Equal(due, refs[:6]) {
		t.Errorf("due are %v, of %v", due, refs)
	}
}

// Of several processes at once, one makes a batch due and enqueues it.
func TestProcessesThatFillTheRateAtOnce(t *testing.T) {
	b := setup(t)
	b.later(40, 1000)
	var all sync.WaitGroup
	for range 4 {
		s := b.sender()
		all.Go(func() { _, err := s.FillRate(context.Background()); b.Must(err) })
	}
	all.Wait()
	b.WantCount(40, `select count(*) from river_job`)
}

// A process whose transaction is older than that of one that has made batches due makes none of
// them due again.
func TestATransactionThatBeganBeforeAnotherProcess(t *testing.T) {
	b := setup(t)
	b.later(4, 1000)
	b.Must(pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `select now()`); err != nil {
			return err
		}
		if n, err := b.sender().FillRate(t.Context()); err != nil || n != 4 {
			t.Errorf("made %d due, %v", n, err)
		}
		rows, _ := tx.Query(t.Context(), lockNext, b.Workspace, b.provider, fillAmong, fillFor.Seconds(), fillMost, time.Minute)
		again, err := pgx.CollectRows(rows, pgx.RowToStructByPos[notifications.Ref])
		if len(again) > 0 {
			t.Errorf("%d batches are made due again", len(again))
		}
		return err
	}))
}

// Batches that another transaction has locked, such as a pause, are left to the next run.
func TestAnUnusedRateWaitsForNoLock(t *testing.T) {
	b := setup(t)
	refs := b.later(3, 1000)
	tx, err := b.Pool.Begin(t.Context())
	b.Must(err)
	_, err = tx.Exec(t.Context(), `select from batches where id = $1 for update`, refs[0].BatchID)
	b.Must(err)
	s := b.sender()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if n, err := s.FillRate(ctx); n != 2 || err != nil {
		t.Errorf("made %d due, %v", n, err)
	}
	b.Must(tx.Rollback(t.Context()))
}

// The messages of a variant with a send_offset are not earlier than that.
func TestAnUnusedRateKeepsTheSendOffset(t *testing.T) {
	b := setup(t)
	refs := b.later(4, 1000)
	b.Exec(`with s as (insert into data_sources (workspace_id, id, name, kind, address, dsn) values ($1, $2, 's', 'postgres', 'a', '')),
		a as (insert into audiences (workspace_id, id, data_source_id, name, sql, key_column, email_column, columns)
		values ($1, $2, $2, 'a', 'q', 'k', 'e', '[]'))
		insert into campaigns (workspace_id, id, name, audience_id, template_id, template_version, provider_id, from_email)
		values ($1, $2, 'c', $2, $3, 1, $3, 'a@example.com')`, b.Workspace, b.origin, b.provider)
	b.Exec(`insert into iterations (workspace_id, id, campaign_id, sample_percent, holdout_percent) values ($1, $2, $2, 100, 0)`,
		b.Workspace, b.origin)
	offset := lemma.NewID()
	b.Exec(`insert into iteration_variants (workspace_id, iteration_id, ordinal, name, weight, content_id, send_offset)
		values ($1, $2, 0, 'a', 50, $2, default), ($1, $2, 1, 'b', 50, $3, interval '1 hour')`, b.Workspace, b.origin, offset)
	for _, i := range []int{0, 2} {
		b.Exec(`update batches set content_id = $2 where id = $1`, refs[i].BatchID, offset)
	}
	b.Exec(`update batches set created_at = now() - interval '2 hours'`) // the fan-out began then
	b.Exec(`update batches set enqueued_at = now() - interval '2 hours' where id = $1`, refs[2].BatchID)
	b.inTx(func(tx pgx.Tx) error { return b.ledger.Hold(t.Context(), tx, b.Workspace, b.origin) })
	b.inTx(func(tx pgx.Tx) error { return b.ledger.Unhold(t.Context(), tx, b.Workspace, b.origin) }) // its offset has passed all the same
	b.fillRate(b.sender(), 3)
	if left := b.batches(`due_at > now()`); !slices.Equal(left, refs[:1]) {
		t.Errorf("%v are due later, of %v", left, refs)
	}
}

// The campaigns of a provider take turns by their due times, and no provider or workspace waits
// for another. A run visits a bounded number of providers, and the next one those after them.
func TestUnusedRatesOfManyProviders(t *testing.T) {
	b := setup(t)
	b.Exec(`with p as (
			insert into providers (workspace_id, id, name, channel, kind, config, rate_per_second)
			select $1, gen_random_uuid(), 'p' || i, 'email', 'scripted', '{}', 1 from generate_series(1, $2::int) i returning workspace_id, id
		), m as (insert into provider_meters (workspace_id, provider_id) select workspace_id, id from p)
		insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, max_attempts, due_at)
		select workspace_id, id, id, id, id, id, 1, 2, now() + interval '1 hour' from p`, b.Workspace, fillProviders+5)
	s := b.sender()
	b.fillRate(s, fillProviders)
	b.fillRate(s, 5)
	b.WantCount(0, `select count(*) from batches where due_at > now()`)
	if s.filled.provider != uuid.Nil {
		t.Error("the next run does not begin with the first provider")
	}
}

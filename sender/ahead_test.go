package sender

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/notifications"
	"lemma/pgtest"
)

func (b *bundle) repair(s *Sender) (rows int64) {
	b.T.Helper()
	for _, r := range s.Repairs() {
		n, err := r.Run(b.T.Context())
		b.Must(err)
		rows += n
	}
	return rows
}

// due is in how many minutes a batch is due; negative: it is due.
func (b *bundle) due(id uuid.UUID) float64 {
	b.T.Helper()
	return pgtest.One[float64](b.T, b.Pool, `select (extract(epoch from due_at - now()) / 60)::float8 from batches where id = any($1)`,
		[]uuid.UUID{id})
}

// wasClaimed writes the log of a claim.
func (b *bundle) wasClaimed(id uuid.UUID) {
	b.T.Helper()
	b.Exec(`insert into batch_log (workspace_id, batch_id, event) values ($1, $2, 'claimed')`, b.Workspace, id)
}

// Batches that wait for a time that Lemma cannot have set by the present clock become due and
// get a job. A time that may be right is kept, as is one that a user chose.
func TestBatchesWithTimesTooFarAheadAreDue(t *testing.T) {
	const created = `created_at = now() + interval '1 day', due_at = now() + interval '1 day'`
	direct := notifications.DirectOrigin(lemma.NewID(), time.Now())
	for name, c := range map[string]struct {
		set    string
		never  bool // claimed
		direct bool
		rate   float64
		due    float64 // minutes
		jobs   int
	}{
		"waits for a rate":                   {set: `open = '{0}', due_at = now() + interval '1 day'`, rate: 30, jobs: 1},
		"waits for a slow rate":              {set: `open = '{0}', due_at = now() + interval '50 minutes'`, rate: 1. / 3600, due: 50},
		"waits too long for a slow rate":     {set: `open = '{0}', due_at = now() + interval '80 minutes'`, rate: 1. / 3600, jobs: 1},
		"waits for a back-off":               {set: `open = '{0}', due_at = now() + interval '1 minute'`, due: 1},
		"waits after refusals":               {set: `open = '{0}', refusals = '{9}', due_at = now() + interval '1 hour'`, due: 60},
		"waits too long after refusals":      {set: `open = '{0}', refusals = '{9}', due_at = now() + interval '1 day'`, jobs: 1},
		"was created by a wrong clock":       {set: created, jobs: 1},
		"was created by one, with an offset": {set: created + ` + interval '2 hours'`, due: 120, jobs: 1},
		"has an offset":                      {set: `due_at = now() + interval '2 hours'`, due: 120},
		"a second attempt waits": {set: `root_id = gen_random_uuid(), members = '{0}', open = '{0}', due_at = now() + interval '1 day'`,
			never: true, jobs: 1},
		"direct, has a send_at, and one was cancelled": {set: `open = '{0}', due_at = now() + interval '1 day'`, never: true, direct: true,
			due: 24 * 60},
		"has an offset, and one was cancelled":   {set: `open = '{0}', due_at = now() + interval '2 hours'`, never: true, due: 120},
		"direct, and has a send_at":              {set: `due_at = now() + interval '1 day'`, direct: true, due: 24 * 60},
		"direct, created by a wrong clock":       {set: created, direct: true, jobs: 1},
		"direct, created by one, with a send_at": {set: created + ` + interval '2 hours'`, direct: true, due: 26 * 60},
		"direct, and waits for a rate":           {set: `open = '{0}', due_at = now() + interval '1 day'`, direct: true, rate: 30, jobs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			if c.direct {
				b.origin = direct
				b.Exec(`insert into contents (workspace_id, id, channel, template_id, template_version, from_name, from_email, reply_to, headers)
					select workspace_id, $1, channel, template_id, template_version, from_name, from_email, reply_to, headers from contents`, direct)
			}
			if c.rate > 0 {
				b.Exec(`update providers set rate_per_second = $1::float8`, c.rate)
			}
			ref := b.insert(1, 1, 2)[0]
			s := b.sender()
			b.Exec(`update batches set ` + c.set)
			if !c.never {
				b.wasClaimed(ref.BatchID)
			}
			b.Exec(`truncate river_job`)
			b.repair(s)
			if got := b.due(ref.BatchID); got < c.due-.5 || got > c.due+.5 {
				t.Errorf("it is due in %.1f min instead of %.1f", got, c.due)
			}
			b.WantCount(c.jobs, `select count(*) from river_job`)
			if n := b.repair(s); n != 0 {
				t.Errorf("%d rows are repaired again", n)
			}
		})
	}
}

// However many batches wait for a time that was chosen, those with a wrong one are found. The
// runs go on where the one before ended.
func TestBatchesBehindManyThatWaitAreRepaired(t *testing.T) {
	b := setup(t)
	ref := b.insert(1, 1, 2)[0]
	b.Exec(`update batches set open = '{0}', due_at = now() + interval '1 day'`)
	b.wasClaimed(ref.BatchID)
	b.Exec(`insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, max_attempts, due_at)
		select $1, $2, id, id, $3, $2, 1, 2, now() + interval '1 hour' + i * interval '1 second'
		from (select gen_random_uuid() as id, i from generate_series(1, $4::int) i) b`, b.Workspace, b.origin, b.provider, aheadAmong)
	s := b.sender()
	for run, want := range []int64{0, 1, 0} {
		if n := b.repair(s); n != want {
			t.Errorf("run %d repairs %d rows, want %d", run, n, want)
		}
	}
	if due := b.due(ref.BatchID); due > 0 {
		t.Errorf("it is due in %.1f minutes", due)
	}
}

// A lease that is further ahead than any ends after the longest one. A holder that works loses
// nothing by that, and renews it.
func TestLeasesTooFarAheadEnd(t *testing.T) {
	b := setup(t)
	refs := b.insert(2, 1, 2)
	s := b.sender()
	for i, until := range []string{"1 year", "59 minutes"} {
		_, err := s.Claim(bg, refs[i])
		b.Must(err)
		b.Exec(`update batches set lease_until = now() + $2::interval where id = $1`, refs[i].BatchID, until)
	}
	if n := b.repair(s); n != 1 {
		t.Errorf("%d rows are repaired", n)
	}
	b.WantCount(2, `select count(*) from batches where lease_until between now() + interval '58 minutes' and now() + interval '61 minutes'`)
	if n := b.repair(s); n != 0 {
		t.Errorf("%d rows are repaired again", n)
	}
	if err := (Config{Lease: MostLease + 1}).Check(); err == nil {
		t.Error("a lease may be longer than MostLease")
	}
}

// A worker whose lease is lowered loses nothing: it commits and renews.
func TestAWorkerKeepsALeaseThatIsLowered(t *testing.T) {
	b := setup(t)
	ref := b.insert(20, 20, 2)[0] // two windows
	s := b.sender()
	finish := b.pausedWork(s, ref, "called", 1)
	b.Exec(`update batches set lease_until = now() + interval '1 year'`)
	if n := b.repair(b.sender()); n != 1 {
		t.Errorf("%d rows are repaired", n)
	}
	finish()
	b.wantCounts(notifications.Counts{Sent: 20})
	b.wantCalledOnce(20)
}

// The meter of a provider that is further ahead than its rate allows is free, its circuit is
// due for a probe, and a probe ends. Times that may be right are kept.
func TestMetersTooFarAheadAreFree(t *testing.T) {
	for name, c := range map[string]struct {
		rate      float64
		set, want string
	}{
		"rate": {30, `next_free_at = now() + interval '1 day'`, `next_free_at <= now()`},
		"slow rate": {1. / 3600, `next_free_at = now() + interval '59 minutes'`,
			`next_free_at > now() + interval '58 minutes'`},
		"circuit": {30, `opened_at = now() + interval '1 day', failing_since = now() + interval '1 day', open_until = now() + interval '1 day'`,
			`open_until <= now() and opened_at <= now() and failing_since <= now()`},
		"Retry-After": {30, `opened_at = now(), open_until = now() + interval '15 minutes'`, `open_until > now() + interval '14 minutes'`},
		"probe": {30, `opened_at = now(), open_until = now(), probe_token = 'x', probe_until = now() + interval '1 day'`,
			`probe_until < now() + interval '2 minutes' and probe_token = 'x'`},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.Exec(`update providers set rate_per_second = $1::float8`, c.rate)
			b.Exec(`update provider_meters set ` + c.set)
			b.repair(b.sender())
			b.WantCount(1, `select count(*) from provider_meters where `+c.want)
			if n := b.repair(b.sender()); n != 0 {
				t.Errorf("%d rows are repaired again", n)
			}
		})
	}
}

// A batch that was resumed by a clock that was set back is sent at once, and its rows are read
// again before. So are those that it has written.
func TestBatchesOfAWrongClockAreReadAgain(t *testing.T) {
	for name, set := range map[string]string{
		"resumed": `resumed_at = now() + interval '1 day'`,
		"written": `created_at = now() + interval '1 day'`,
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.insert(2, 2, 2)
			s, a := b.readAgain(2, anHour)
			b.Exec(`update batches set ` + set)
			a.set(1, AudienceRow{Addresses: []string{addressOf(1)}, OptedOut: true})
			b.work(s)
			b.wantCounts(notifications.Counts{Sent: 1, Skipped: 1})
		})
	}
}

// A batch without a job is enqueued also if its last job is of a clock that was set back.
func TestSweepEnqueuesBatchesThatWereEnqueuedByAWrongClock(t *testing.T) {
	b := setup(t)
	b.insert(50, 25, 2)
	s := b.sender(func(c *Config) { c.SweepGrace = time.Minute })
	b.Exec(`truncate river_job`)
	for _, c := range []struct {
		enqueued string
		want     int
	}{{"0", 0}, {"30 seconds", 0}, {"1 day", 2}} {
		b.Exec(`update batches set due_at = now() - interval '2 hours', enqueued_at = now() + $1::interval`, c.enqueued)
		if n, err := s.Sweep(bg); err != nil || n != c.want {
			t.Errorf("enqueued %s ahead: %d times, want %d, %v", c.enqueued, n, c.want, err)
		}
	}
}

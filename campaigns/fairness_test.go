package campaigns

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"lemma/audience"
	"lemma/pgtest"
)

// hang makes queries of the shop wait until the end of the test.
func (b *bundle) hang() {
	b.T.Helper()
	lock, err := b.DB.Begin(context.Background())
	b.Must(err)
	b.T.Cleanup(func() { _ = lock.Rollback(context.Background()) })
	_, err = lock.Exec(context.Background(), `lock table customers in access exclusive mode`)
	b.Must(err)
}

// hangs waits until a query of the customer's database waits.
func (b *bundle) hangs() {
	b.T.Helper()
	pgtest.WaitForLocks(b.T, b.DB, 1)
}

// waitForSources replaces the audiences by ones that wait for a source for an hour.
func (b *bundle) waitForSources() {
	b.T.Helper()
	b.deps.Audiences = b.NewAudiences(audience.Options{AllowPrivate: true, AllowUnix: true, FetchTimeout: time.Hour})
	b.Campaigns = New(b.deps, b.cfg)
	b.fill(10)
}

// Cancel and pause end the stream at once, even if the source does not respond.
func TestAStopEndsAStreamThatHangs(t *testing.T) {
	for name, stop := range map[string]func(*bundle, uuid.UUID) error{
		"cancel": func(b *bundle, id uuid.UUID) error {
			_, _, err := b.Cancel(context.Background(), b.Workspace, id, uuid.Nil)
			return err
		},
		"pause": func(b *bundle, id uuid.UUID) error {
			_, err := b.Pause(context.Background(), b.Workspace, id, uuid.Nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 1, func(c *Config) { c.TickEvery = 20 * time.Millisecond; c.Lease = time.Hour })
			b.waitForSources()
			b.hang()
			id := b.sent().ID
			ended := make(chan error, 1)
			go func() { _, err := b.Fanout(context.Background(), b.Workspace, id); ended <- err }()
			b.hangs()
			b.Must(stop(b, id))
			select {
			case err := <-ended:
				b.Must(err)
			case <-time.After(20 * time.Second):
				t.Fatal("the stream went on")
			}
			if got := b.lease(id); got.LeasedBy != nil {
				t.Errorf("the lease is still held: %+v", got)
			}
		})
	}
}

// work runs River with a number of workers for fan-outs.
func (b *bundle) work(places int) {
	b.T.Helper()
	workers := river.NewWorkers()
	b.Register(workers)
	client, err := river.NewClient(riverpgxv5.New(b.Pool), &river.Config{Workers: workers, Logger: slog.New(slog.DiscardHandler),
		Queues: map[string]river.QueueConfig{QueueFanout: {MaxWorkers: places}}, FetchCooldown: 5 * time.Millisecond,
		FetchPollInterval: 50 * time.Millisecond})
	b.Must(err)
	b.Must(client.Start(context.Background()))
	b.T.Cleanup(func() {
		b.Drain()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := client.StopAndCancel(ctx); err != nil {
			b.T.Error(err)
		}
	})
}

func (b *bundle) reads() int {
	b.T.Helper()
	return b.Count(`select count(*) from fanouts where workspace_id = $1 and leased_by is not null`, b.Workspace)
}

// A workspace whose sources hang does not delay other workspaces, nor does one
// source delay the others of its workspace.
func TestSourcesThatHangDoNotDelayOthers(t *testing.T) {
	b := setup(t, 1, func(c *Config) { c.TickEvery = 50 * time.Millisecond; c.PerWorkspace, c.PerSource = 2, 1 })
	b.waitForSources()
	b.hang()
	other := b.another(pgtest.Workspace(t, b.Pool), 40)
	hung := []uuid.UUID{b.sent().ID, b.sent().ID, b.sent().ID, b.sent().ID}
	own := b.anotherSource(25)
	b.work(2)
	b.hangs()
	b.Must(pgx.BeginFunc(context.Background(), b.Pool, func(tx pgx.Tx) error { // many jobs before those of the other workspace
		for range 20 {
			for _, id := range hung {
				_, err := b.Campaigns.jobs.InsertTx(context.Background(), tx, FanoutArgs{b.Workspace, id}, &river.InsertOpts{Queue: QueueFanout})
				if err != nil {
					return err
				}
			}
		}
		return nil
	}))
	quick := other.sent()
	other.Eventually("the other workspace's audience is read", func() bool { return other.get(quick.ID).FannedOutAt != nil })
	b.Eventually("the workspace's other source is read", func() bool { return b.get(own).FannedOutAt != nil })
	if n := b.reads(); n != 1 {
		t.Errorf("%d audiences of the source that hangs are read at a time", n)
	}
	b.Eventually("fan-outs that wait show the reason", func() bool {
		n := 0
		for _, id := range hung {
			if c := b.get(id); c.Status == Preparing && c.StatusReason == queued && c.StatusDetail != "" {
				n++
			}
		}
		return n == len(hung)-1
	})
	for _, id := range hung { // and continues when the limit allows it
		_, _, err := b.Cancel(context.Background(), b.Workspace, id, uuid.Nil)
		b.Must(err)
	}
	b.Eventually("no audience is being read", func() bool { return b.reads() == 0 })
}

// anotherSource adds a second data source to the workspace and sends a campaign
// to its n profiles.
func (b *bundle) anotherSource(n int) uuid.UUID {
	b.T.Helper()
	return b.another(b.Workspace, n).sent().ID
}

// Of many claims of one workspace at once, no more succeed than PerWorkspace.
func TestConcurrentClaimsKeepTheLimit(t *testing.T) {
	b := setup(t, 1, func(c *Config) { c.PerWorkspace, c.PerSource = 3, 3 })
	ids := make([]uuid.UUID, 12)
	for i := range ids {
		ids[i] = b.sent().ID
	}
	runs := make(chan int)
	for i, id := range ids {
		go func() {
			run, again, err := b.claimFanout(context.Background(), lease{b.Workspace, id, uuid.NewString()})
			if err != nil || (run == 0) != (again > 0) {
				t.Errorf("claim %d: run %d, again in %v, %v", i, run, again, err)
			}
			runs <- run
		}()
	}
	got := 0
	for range ids {
		got += <-runs
	}
	if got != 3 {
		t.Errorf("%d of 12 claims got one of 3 places", got)
	}
	b.Exec(`update fanouts set leased_by = null, lease_until = null where workspace_id = $1`, b.Workspace)
	waiting := pgtest.One[uuid.UUID](b.T, b.Pool, `select id from campaigns where workspace_id = $1 and status_reason = $2 limit 1`,
		b.Workspace,
		queued)
	b.fanout(waiting)
	if c := b.get(waiting); c.Status != Sending || c.StatusReason != "" {
		t.Errorf("with its place it is %s (%s)", c.Status, c.StatusReason)
	}
}

// Of a thousand due campaigns of one workspace and one of another, the other's
// is among the first.
func TestDueCampaignsAreStartedFairly(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	b.Exec(`
		insert into campaigns (
			workspace_id, id, name, status, scheduled_at, audience_id, template_id, template_version, provider_id, from_email)
		select $1, ('00' || substr(gen_random_uuid()::text, 3))::uuid, 'c' || i, 'scheduled', now() - interval '1 second',
			$2, $3, 1, $4, 'a@shop.example' from generate_series(1, 300) i`,
		b.Workspace, b.Audience, b.Template, b.Provider)
	other := b.another(pgtest.Workspace(t, b.Pool), 1)
	c, err := other.Schedule(ctx, other.Workspace, other.draft().ID, time.Now().Add(time.Hour), uuid.Nil)
	b.Must(err)
	b.Exec(`update campaigns set scheduled_at = now() where id = $1`, c.ID)
	if n, err := b.FireDue(ctx); n != 100 || err != nil {
		t.Fatal(n, err)
	}
	if got := other.get(c.ID); got.Status != Preparing {
		t.Errorf("the other workspace's campaign is %s", got.Status)
	}
}

// Due campaigns wait for a lock of their audience, which is being changed. Those of other workspaces start.
func TestDueCampaignsOfOthersDoNotWait(t *testing.T) {
	b := setup(t, 1)
	other := b.another(pgtest.Workspace(t, b.Pool), 1)
	ids := map[uuid.UUID]*bundle{}
	for range 10 {
		ids[b.draft().ID] = b
	}
	ids[other.draft().ID] = other
	for id, of := range ids {
		_, err := of.Schedule(t.Context(), of.Workspace, id, time.Now().Add(time.Hour), uuid.Nil)
		b.Must(err)
	}
	b.Exec(`update campaigns set scheduled_at = now()`)
	lock, err := b.Pool.Begin(t.Context())
	b.Must(err)
	_, err = lock.Exec(t.Context(), `select from audiences where workspace_id = $1 for update`, b.Workspace)
	b.Must(err)
	if n, err := b.FireDue(t.Context()); n != 1 || err != nil {
		t.Errorf("%d campaigns were started, %v", n, err)
	}
	b.Must(lock.Rollback(t.Context()))
	if n, err := b.FireDue(t.Context()); n != 10 || err != nil {
		t.Errorf("%d campaigns were started then, %v", n, err)
	}
}

// A fan-out whose job cannot be inserted does not stop the others from being enqueued.
func TestASweepWithAFanoutThatFails(t *testing.T) {
	b := setup(t, 10)
	first := b.sent()
	b.sent()
	b.sent()
	b.Exec(`truncate river_job`)
	b.Exec(`update fanouts set retry_at = now() - interval '1 minute' where workspace_id = $1`, b.Workspace)
	b.Exec(`alter table river_job add constraint refused check (args->>'campaign_id' <> '` + first.ID.String() + `')`)
	n, err := b.Sweep(context.Background())
	if n != 2 || err == nil {
		t.Errorf("%d were enqueued, %v", n, err)
	}
	b.WantCount(2, `select count(*) from river_job where kind = 'campaign_fanout' and $1::uuid is not null`, b.Workspace)
}

// Guardrails whose check is claimed, or whose check has failed a moment ago, do not keep
// another from being checked.
func TestAGuardrailBehindManyThatAreClaimed(t *testing.T) {
	b := experiments(t, 200) // so that no sample is so small that its test ends at once
	var its []Iteration
	for range guardrailsAtOnce + 1 {
		_, it := b.guarded(Complaints)
		its = append(its, it)
	}
	last := its[guardrailsAtOnce]
	b.Exec(`update iterations set guardrail_at = now() - interval '1 hour', evaluating_by = 'other',
			evaluating_until = now() + interval '1 hour'
		where workspace_id = $1 and id <> $2 and guardrail_at is not null`, b.Workspace, last.ID) // rarely one has ended
	b.guardrailDue(last)
	b.checkGuardrails()
	b.WantCount(1, `select count(*) from iterations where workspace_id = $1 and guardrail_checks = 1`, b.Workspace)
}

// More due campaigns of a workspace than one run starts, all of which fail each time, do not
// keep its other campaigns from being started.
func TestDueCampaignsThatFailHideNoOther(t *testing.T) {
	b := setup(t, 1)
	b.Exec(`
		insert into campaigns (
			workspace_id, id, name, status, scheduled_at, audience_id, template_id, template_version, provider_id, from_email)
		select $1, ('00' || substr(gen_random_uuid()::text, 3))::uuid, 'fails ' || i, 'scheduled', now() - interval '1 second',
			$2, $3, 1, $4, 'a@shop.example' from generate_series(1, 110) i`,
		b.Workspace, b.Audience, b.Template, b.Provider)
	b.Exec(`alter table campaigns add constraint refused check (status <> 'preparing' or name not like 'fails%')`)
	c, err := b.Schedule(t.Context(), b.Workspace, b.draft().ID, time.Now().Add(time.Hour), uuid.Nil)
	b.Must(err)
	b.Exec(`update campaigns set scheduled_at = now() where id = $1`, c.ID)
	for range 30 { // each starts it with a probability of 0.9
		if n, err := b.FireDue(t.Context()); err == nil {
			t.Error("no error")
		} else if n == 1 {
			break
		}
	}
	if got := b.get(c.ID); got.Status != Preparing {
		t.Errorf("it is %s", got.Status)
	}
}

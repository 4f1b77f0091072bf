package campaigns

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/abtest"
	"lemma/mail"
	"lemma/notifications"
	"lemma/pgtest"
)

// optOuts adds rows that are opted out, behind the customers that have the same
// addresses (of another profile, of the same, of two more, without a key), and one
// of a customer at another address.
func (b *bundle) optOuts() {
	b.T.Helper()
	b.ExecDB(`insert into customers values ('o1', ' C1@SHOP.example', 'x', true), ('2', 'c2@shop.example', 'x', true),
		('o3', 'c3@shop.example', 'x', true), ('p3', 'C3@shop.example', 'x', true), ('', 'c4@shop.example', 'x', true),
		('o5', 'out@shop.example', 'x', true), ('o6', null, 'x', true), ('6', 'other@shop.example', 'x', true)`)
}

// An address that is opted out in any row of the audience gets no message, whatever
// the chunk and the order of the rows, and however often the audience is read.
func TestAnOptOutWins(t *testing.T) {
	for name, chunk := range map[string]int{"in one chunk": 5000, "across chunks": 3} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 20, func(cfg *Config) { cfg.Chunk = chunk })
			b.optOuts()
			c := b.sent()
			b.fanout(c.ID)
			// Customer 6 is opted out with both addresses. Customer 2 has one address, and so one row.
			want := map[string]int64{"unsubscribed": 8, "duplicate_address": 3, "invalid_key": 1}
			first := b.get(c.ID).Counts
			if d := cmp.Diff(want, first.SkippedBy); d != "" || first.Audience != 27 || first.Pending != 15 || !first.Balanced {
				t.Errorf("%+v %s", first, d)
			}
			for i, address := range []string{"c1@shop.example", "c2@shop.example", "c3@shop.example", "c4@shop.example",
				"c6@shop.example"} {
				if b.addresses(c.ID)[address] != 0 {
					t.Errorf("address %d (%s) has a notification", i+1, address)
				}
			}
			for range 2 {
				b.Exec(`update fanouts set finished_at = null where workspace_id = $1`, b.Workspace)
				b.fanout(c.ID)
			}
			if d := cmp.Diff(first, b.get(c.ID).Counts); d != "" {
				t.Errorf("a repetition changed the counts: %s", d)
			}
			preview, err := b.Preview(context.Background(), b.Workspace, b.draft().ID)
			b.Must(err)
			if preview.Sendable != 15 || preview.Rows != 27 || !cmp.Equal(want, preview.SkippedBy) {
				t.Errorf("the preview counts %+v", preview)
			}
			if i := slices.IndexFunc(preview.Sample, func(r Rendered) bool { return r.Address == "c1@shop.example" }); i >= 0 {
				t.Error("the preview shows a message to an opted-out address")
			}
		})
	}
}

// A row without a key that is opted out excludes its address also from the sample of an experiment.
func TestAnOptOutWithoutAKeyWinsInASample(t *testing.T) {
	b := experiments(t, 40)
	b.ExecDB(`insert into customers select '', email, 'x', true from customers`)
	for c := b.experiment(ab()); ; c = b.experiment(ab()) {
		if it := b.iteration(c); assignmentPlan(it.ID, it.Experiment).Assign("").Group == abtest.Rest {
			b.fanout(c.ID)
			if got := b.addresses(c.ID); len(got) > 0 {
				t.Errorf("the sample is sent to %v", got)
			}
			return
		}
	}
}

// Runs at once: each writes the opt-outs before its first notification.
func TestAnOptOutWinsWhenRunsAreAtOnce(t *testing.T) {
	b := setup(t, 2000)
	b.ExecDB(`insert into customers select 'o' || i, 'C' || i || '@shop.example', 'x', true from generate_series(1, 2000, 7) i`)
	c := b.sent()
	var runs sync.WaitGroup
	for i := range 3 {
		p := b.plans(c.ID, 1+i%2)
		runs.Go(func() {
			if _, err := b.readAll(p); err != nil {
				t.Error(err)
			}
		})
	}
	runs.Wait()
	got := b.get(c.ID).Counts
	if got.Audience != 2286 || got.SkippedBy["unsubscribed"] != 286 || got.SkippedBy["duplicate_address"] != 286 || got.Pending != 1714 ||
		!got.Balanced {
		t.Errorf("%+v", got)
	}
}

// A campaign that was begun before an opt-out continues without a second row for
// recipients that it has written, and skips the opt-out among the others.
func TestAnOptOutBetweenTwoRuns(t *testing.T) {
	b := setup(t, 10)
	c := b.sent()
	ctx := context.Background()
	b.Must(b.WriteChunk(ctx, b.plans(c.ID, 1), someRecipients(c.ID, 1, 3)))
	written := b.addresses(c.ID)
	b.ExecDB(`update customers set opted_out = true where id in ('9', '10')`)
	b.ExecDB(`insert into customers values ('o8', 'c8@shop.example', 'x', true), ('o1', $1, 'x', true)`, slices.Sorted(maps.Keys(written))[0])
	if _, err := b.readAll(b.plans(c.ID, 2)); err != nil {
		t.Fatal(err)
	}
	got := b.get(c.ID).Counts
	if got.SkippedBy["unsubscribed"] != 4 || got.SkippedBy["duplicate_address"] != 1 || !got.Balanced {
		t.Errorf("%+v", got)
	}
	for _, gone := range []string{"c8@shop.example", "c9@shop.example", "c10@shop.example"} {
		if b.addresses(c.ID)[gone] != 0 {
			t.Errorf("%s has a notification", gone)
		}
	}
}

// Rows that are opted out do not count for the provider's rate.
func TestOptOutsDelayNoBatch(t *testing.T) {
	b := setup(t, 10)
	b.ExecDB(`insert into customers select 'o' || i, 'o' || i || '@shop.example', 'x', true from generate_series(1, 1000) i`)
	b.Exec(`update providers set rate_per_second = 1 where workspace_id = $1`, b.Workspace)
	c := b.sent()
	b.fanout(c.ID)
	last := pgtest.One[time.Duration](b.T, b.Pool, `select max(due_at) - now() from batches where workspace_id = $1`, b.Workspace)
	if last > time.Minute {
		t.Errorf("ten messages are due within %v", last)
	}
}

// notSent are the intents that are marked as opted out, by their key or their profile.
func (b *bundle) notSent(id uuid.UUID) []pair {
	b.T.Helper()
	ids := pgtest.Column[uuid.UUID](b.T, b.Pool, `select id from opt_outs where workspace_id = $1 and origin_id = $2`, b.Workspace, id)
	return slices.DeleteFunc(b.intents(id), func(p pair) bool {
		a, _ := mail.ParseAddress(p.Address)
		return !slices.Contains(ids, Key(id, lemma.Email, a.Canonical)) && !slices.Contains(ids, notifications.OptOutOf(p.Profile))
	})
}

// A profile has two rows. A run is paused after the first one, and the profile
// opts out in it. The next run skips the other one, and marks the first.
func TestAnOptOutInARowThatIsWritten(t *testing.T) {
	b := setup(t, 0, func(cfg *Config) { cfg.Chunk, cfg.BatchSize, cfg.Writers = 1, 1, 1 })
	ctx := context.Background()
	b.ExecDB(`insert into customers values ('p', 'home@shop.example', 'P'), ('p', 'work@shop.example', 'P'), ('q', 'work@shop.example', 'Q')`)
	id := b.sent().ID
	b.pauseAtChunk(id, 2)
	b.fanout(id)
	b.Hook = nil
	b.ExecDB(`update customers set opted_out = true where email = 'home@shop.example'`)
	for range 2 {
		_, err := b.Resume(ctx, b.Workspace, id, uuid.Nil)
		b.Must(err)
		b.fanout(id)
		if d := cmp.Diff([]pair{{"p", "home@shop.example"}}, b.notSent(id)); d != "" {
			t.Error(d)
		}
		want := []pair{{"p", "home@shop.example"}, {"q", "work@shop.example"}}
		if d := cmp.Diff(want, b.intents(id)); d != "" {
			t.Error(d)
		}
		if got := b.get(id).Counts; got.Audience != 3 || got.SkippedBy["unsubscribed"] != 1 || !got.Balanced {
			t.Errorf("%+v", got)
		}
		_, err = b.Pause(ctx, b.Workspace, id, uuid.Nil)
		b.Must(err)
		b.Exec(`update fanouts set finished_at = null where workspace_id = $1`, b.Workspace)
	}
}

// A run is paused after the first row of a profile. The profile opts out and changes
// that row's address, or another row remains. The next run ids what is written.
func TestAnOptOutAtAnotherAddressThanIsWritten(t *testing.T) {
	for name, change := range map[string]string{
		"address unchanged": `update customers set opted_out = true where id = '1'`,
		"address changed":   `update customers set opted_out = true, email = 'new@shop.example' where id = '1'`,
		"address removed":   `update customers set opted_out = true, email = null where id = '1'`,
		"another row": `with other as (insert into customers values ('1', 'other@shop.example', 'x', true))
			delete from customers where id = '1'`,
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 2, func(cfg *Config) { cfg.Chunk, cfg.BatchSize, cfg.Writers = 1, 1, 1 })
			id := b.sent().ID
			b.pauseAtChunk(id, 2)
			b.fanout(id)
			b.Hook = nil
			b.ExecDB(change)
			_, err := b.Resume(context.Background(), b.Workspace, id, uuid.Nil)
			b.Must(err)
			b.fanout(id)
			if d := cmp.Diff([]pair{{"1", "c1@shop.example"}}, b.notSent(id)); d != "" || !b.lease(id).Finished {
				t.Errorf("finished: %t, %s", b.lease(id).Finished, d)
			}
		})
	}
}

// pauseAtChunk pauses a campaign before its fan-out writes the nth chunk.
func (b *bundle) pauseAtChunk(id uuid.UUID, nth int) {
	written := 0
	b.Hook = func(ctx context.Context, at string, _ uuid.UUID) {
		if at == "writing" {
			if written++; written == nth {
				_, err := b.Pause(context.WithoutCancel(ctx), b.Workspace, id, uuid.Nil)
				b.Must(err)
			}
		}
	}
}

// Opt-outs change while the audience is read: one expires, and another one begins, in
// the second row of a profile. Each row has one notification, and neither is sent to.
func TestAnOptOutWhileTheAudienceIsRead(t *testing.T) {
	b := setup(t, 0, func(cfg *Config) { cfg.Chunk, cfg.BatchSize, cfg.Writers = 1, 1, 1 })
	ctx := context.Background()
	b.ExecDB(`alter table customers add nr int`)
	b.ExecDB(`insert into customers (nr, id, email) values (1, 'out', 'out@shop.example'), (2, 'in', 'in@shop.example'),
		(3, 'late', 'home@shop.example'), (4, 'late', 'work@shop.example'), (5, 'expires', 'expires@shop.example')`)
	b.Audience = b.NewAudience(b.Source, `
		select id, email, name, exists (select from pg_locks l where l.locktype = 'advisory' and l.objid = nr
			and l.database = (select oid from pg_database where datname = current_database())) as opted_out
		from customers order by nr`) // no snapshot has locks
	other, err := b.DB.Acquire(ctx)
	b.Must(err)
	defer other.Release()
	lock := func(sql string) { _, err := other.Exec(ctx, sql); b.Must(err) }
	lock(`select pg_advisory_lock(1), pg_advisory_lock(5)`)
	id := b.sent().ID
	b.Hook = func(_ context.Context, at string, _ uuid.UUID) {
		if at == "writing" { // the first opt-out
			b.Hook = nil
			lock(`select pg_advisory_lock(4), pg_advisory_unlock(5)`)
		}
	}
	b.fanout(id)
	if d := cmp.Diff([]pair{{"in", "in@shop.example"}, {"late", "home@shop.example"}}, b.intents(id)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]pair{{"late", "home@shop.example"}}, b.notSent(id)); d != "" {
		t.Error(d)
	}
	got := b.get(id)
	if n := got.Counts; n.Audience != 5 || n.SkippedBy["unsubscribed"] != 3 || !n.Balanced || *got.RowsRead != 5 {
		t.Errorf("%d rows were read: %+v", *got.RowsRead, n)
	}
}

// pair is a profile key and an address.
type pair struct{ Profile, Address string }

func (b *bundle) pairs(pool *pgxpool.Pool, sql string, args ...any) []pair {
	b.T.Helper()
	rows, err := pool.Query(context.Background(), sql, args...)
	b.Must(err)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[pair])
	b.Must(err)
	return all
}

func (b *bundle) intents(id uuid.UUID) []pair {
	b.T.Helper()
	return b.pairs(b.Pool, `select profile_key, address from notifications
		where workspace_id = $1 and origin_id = $2 and skip_reason is null order by 1, 2`, b.Workspace, id)
}

// excludes reports whether an opted-out row excludes an intent.
func (out pair) excludes(p pair) bool {
	ours, _ := mail.ParseAddress(p.Address)
	theirs, ok := mail.ParseAddress(out.Address)
	return out.Profile == p.Profile || ok && ours.Canonical == theirs.Canonical
}

// A run is killed at any chunk, the random audience changes, and another run reads
// it. Every intent that an opt-out of now excludes was written before and is marked.
// No recipient has a row beside its intent.
func TestAnOptOutBetweenTwoRunsOfRandomAudiences(t *testing.T) {
	b := setup(t, 0, func(cfg *Config) { cfg.Chunk, cfg.BatchSize, cfg.Writers = 2, 2, 1 })
	ctx, ids := context.Background(), 0
	for seed := range 40 {
		r := rand.New(rand.NewPCG(uint64(seed), 9))
		b.randomAudience(r, []any{"a", "b", "c", "d", "e", "f"}, []any{"x@shop.example", "X@Shop.example", "y@shop.example", " y@shop.example ",
			"u@shop.example", "w@shop.example", "v@shop.example", "s@shop.example"})
		id := b.sent().ID
		dying, chunks := New(b.deps, b.cfg), 1+r.IntN(4)
		run, kill := context.WithCancel(ctx)
		dying.Hook = func(_ context.Context, at string, _ uuid.UUID) {
			if at == "writing" && chunksLeft(&chunks) {
				kill()
			}
		}
		_, _ = dying.Fanout(run, b.Workspace, id)
		kill()
		if b.lease(id).Finished { // before it was killed
			continue
		}
		before := b.intents(id)
		for _, row := range b.pairs(b.DB, `select id, email from customers`) {
			for _, change := range []string{`update customers set opted_out = not opted_out`,
				`update customers set email = 'new' || id || '@shop.example'`, `delete from customers`} {
				if r.IntN(3) == 0 {
					b.ExecDB(change+` where id = $1 and email = $2`, row.Profile, row.Address)
				}
			}
		}
		b.Exec(`update fanouts set lease_until = null, leased_by = null, retry_at = now() where campaign_id = $1`, id)
		b.fanout(id)

		outs := b.pairs(b.DB, `select id, email from customers where opted_out`)
		marked := b.notSent(id)
		ids += len(marked)
		for _, p := range b.intents(id) {
			excluded := slices.ContainsFunc(outs, func(out pair) bool { return out.excludes(p) })
			was, is := slices.Contains(before, p), slices.Contains(marked, p)
			if excluded && (!was || !is) {
				t.Errorf("seed %d: %v is opted out; written before: %t, marked: %t", seed, p, was, is)
			}
			if !excluded && is {
				t.Errorf("seed %d: %v is marked and not opted out", seed, p)
			}
		}
		different := map[uuid.UUID]bool{}
		for _, p := range b.pairs(b.DB, `select id, email from customers`) {
			a, _ := mail.ParseAddress(p.Address)
			different[lemma.Key(p.Profile, a.Canonical)] = true
		}
		rows := pgtest.One[int64](b.T, b.Pool, `select count(*) from notifications where workspace_id = $1 and origin_id = $2`, b.Workspace, id)
		// of a recipient that an earlier run skipped, an opt-out has a second row, which holds the address
		doubled := b.Count(`
			select count(*) from (select from notifications where workspace_id = $1 and origin_id = $2
			group by profile_key, trim(lower(address)) having count(*) > 1 and (count(*) filter (where skip_reason is null) > 0 or count(*) > 2))
				d`, b.Workspace, id)
		if got := b.get(id).Counts; got.Audience != rows || rows < int64(len(different)) || doubled > 0 || !got.Balanced {
			t.Errorf("seed %d: %d rows of %d recipients, %+v", seed, rows, len(different), got)
		}
	}
	if ids == 0 {
		t.Error("no intent was opted out after it was written")
	}
}

var chunksMu sync.Mutex

// chunksLeft counts down, and reports whether no chunk is left.
func chunksLeft(left *int) bool {
	chunksMu.Lock()
	defer chunksMu.Unlock()
	*left--
	return *left < 0
}

// randomAudience replaces the customers by up to 14 rows of these keys and
// addresses, some of them opted out.
func (b *bundle) randomAudience(r *rand.Rand, keys, addresses []any) {
	b.T.Helper()
	b.ExecDB(`truncate customers`)
	for range 1 + r.IntN(14) {
		b.ExecDB(`insert into customers values ($1, $2, 'N', $3)`, keys[r.IntN(len(keys))], addresses[r.IntN(len(addresses))], r.IntN(6) == 0)
	}
}

// A preview counts what a fan-out writes, whatever the chunks and the order.
func TestAPreviewCountsWhatAFanoutWrites(t *testing.T) {
	b := setup(t, 0, func(cfg *Config) { cfg.Chunk, cfg.BatchSize = 3, 2 })
	for seed := range 100 {
		b.randomAudience(rand.New(rand.NewPCG(uint64(seed), 3)), []any{"a", "b", "c", "d", "", nil, strings.Repeat("k", 256), "e"},
			[]any{"x@shop.example", "X@Shop.example", "y@shop.example", " y@shop.example ", nil, "", "  ", "no address", " no address",
				"z@bücher.example", "z@xn--bcher-kva.example", "w@shop.example", "v@shop.example"})
		p, err := b.Preview(context.Background(), b.Workspace, b.draft().ID)
		b.Must(err)
		id := b.sent().ID
		b.fanout(id)
		got := b.get(id).Counts
		if got.Audience != p.Rows || got.Pending != p.Sendable || fmt.Sprint(got.SkippedBy) != fmt.Sprint(p.SkippedBy) {
			t.Errorf("seed %d: the preview counts %d rows, %d sendable, %v, the fan-out %+v: %v", seed, p.Rows, p.Sendable, p.SkippedBy, got,
				b.pairs(b.DB, `select coalesce(left(id, 5), 'null'), coalesce(email, 'null') || coalesce(opted_out, false) from customers`))
		}
	}
}

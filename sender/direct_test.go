package sender

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/notifications"
)

// A direct notification has a queue and slots of its own: it is sent while the batches of a
// campaign have all others, and its job is not among theirs.
func TestDirectNotificationsHaveTheirOwnSlots(t *testing.T) {
	b := setup(t)
	s := b.sender()
	for range s.cfg.Workers {
		s.slots.hold(b.Workspace, b.provider)
	}
	ref := b.insertDirect(1)[0]
	b.WantCount(1, `select count(*) from river_job where queue = $1`, notifications.QueueDirect)
	if again, err := s.Work(context.Background(), ref); again != 0 || err != nil {
		t.Fatalf("it waits for %s, %v", again, err)
	}
	if b.carrier.called("ada@shop.example") != 1 {
		t.Error("it was not sent")
	}
	campaign := ref
	campaign.OriginID = b.origin
	if p := s.acquireNow(context.Background(), campaign); p != nil {
		t.Error("a campaign has a slot of direct notifications")
	}
}

// insertDirect inserts batches of one direct notification each, with contents of their own.
func (b *bundle) insertDirect(n int) (refs []notifications.Ref) {
	b.T.Helper()
	ctx := context.Background()
	all := make([]notifications.Direct, n)
	for i := range all {
		all[i] = notifications.Direct{OriginID: notifications.DirectOrigin(b.Workspace, time.Now()), Key: lemma.NewID(), ProviderID: b.provider,
			ContentID: b.origin, ProfileKey: "ada", Address: "ada@shop.example", Payload: `{"name":"Ada"}`, MaxAttempts: 1,
			ExpiresAt: time.Now().Add(time.Hour + time.Duration(i)*time.Second)} // another time: another batch
	}
	b.Must(pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error {
		_, err := b.ledger.InsertDirect(ctx, tx, b.Workspace, all)
		return err
	}))
	rows, err := b.Pool.Query(ctx, `select workspace_id, origin_id, id from batches where workspace_id = $1 order by id`, b.Workspace)
	b.Must(err)
	refs, err = pgx.CollectRows(rows, pgx.RowToStructByPos[notifications.Ref])
	b.Must(err)
	return refs
}

// A bulk leaves a slot of its provider to single requests, does not make them wait longer, and does not
// run as far ahead of the rate.
func TestABulkMakesRoomForSingleRequests(t *testing.T) {
	b := setup(t)
	refs := b.insertDirect(6)
	bulk, single := refs[:4], refs[4:]
	for _, ref := range bulk {
		b.Exec(`update batches set bulk = true where id = $1`, ref.BatchID)
	}
	s := b.sender()
	s.paceOf(b.provider).took.Store(int64(2 * slowAfter))
	acquire := func(ref notifications.Ref) (*slot, time.Duration) {
		p, again, err := s.acquire(t.Context(), ref)
		b.Must(err)
		if p != nil {
			p.claim(b.provider, slices.Contains(bulk, ref))
		}
		return p, again
	}
	if p, _ := acquire(bulk[0]); p == nil {
		t.Fatal("a bulk has no slot")
	}
	if p, _ := acquire(bulk[1]); p != nil {
		t.Fatal("a bulk has all slots of a slow provider")
	}
	p, _ := acquire(single[0])
	if p == nil {
		t.Fatal("a single request has no slot")
	}
	for range 200 {
		acquire(bulk[2])
	}
	if p, again := acquire(single[1]); p != nil || again > time.Second {
		t.Errorf("another waits for %s", again)
	}
	p.release()
	for _, c := range []struct {
		ref  notifications.Ref
		want time.Duration
	}{{bulk[0], bulkBurst}, {single[0], directBurst}} {
		claim, err := s.Claim(t.Context(), c.ref)
		b.Must(err)
		if claim.burst() != c.want {
			t.Errorf("its calls may run %s ahead of the rate, want %s", claim.burst(), c.want)
		}
	}
}

// When the provider of a bulk turns out to be slow, all of its batches but one are given back after
// their windows, so that a single request finds a slot.
func TestABulkGivesSlotsBack(t *testing.T) {
	b := setup(t)
	s := b.sender()
	refs := b.insertDirect(5)
	b.Exec(`update batches set bulk = true where workspace_id = $1`, b.Workspace)
	s.paceOf(b.provider).took.Store(int64(time.Millisecond))
	var claims []*claim
	for _, ref := range refs {
		c, err := s.Claim(t.Context(), ref)
		b.Must(err)
		if c.slot, _, _ = s.tryAcquire(&s.direct, b.Workspace, b.provider, true); c.slot == nil {
			t.Fatal("a quick provider has no slot left")
		}
		c.slot.claim(b.provider, c.bulk)
		claims = append(claims, c)
	}
	given := func() (n int) {
		for _, c := range claims {
			if s.makeRoom(c, false) {
				n++
			}
		}
		return n
	}
	if n := given(); n != 0 {
		t.Errorf("%d batches are given back to a quick provider", n)
	}
	s.paceOf(b.provider).took.Store(int64(2 * slowAfter))
	if n := given(); n != 4 {
		t.Errorf("%d of five batches are given back", n)
	}
	c := claims[0]
	c.slot.bulk = true
	again, err := s.windows(t.Context(), c, nil, &content{}, nil)
	b.Must(err)
	b.WantCount(1, `select count(*) from batches where id = $1 and status = 'ready' and due_at > now()`, c.BatchID)
	b.WantCount(1, `select count(*) from batch_log where batch_id = $1 and detail like 'makes room%'`, c.BatchID)
	if again == 0 || again > time.Second {
		t.Errorf("it is due again in %s", again)
	}
}

// Single requests do not take the slot of a bulk either.
func TestABulkHasASlotBesideSingleRequests(t *testing.T) {
	t.Parallel()
	s, workspace, provider := &Sender{cache: newCaches()}, uuid.New(), uuid.New()
	s.direct.limit(8, 6, 6)
	s.paceOf(provider).took.Store(int64(2 * slowAfter))
	for _, c := range []struct{ bulk, want bool }{{false, true}, {true, true}, {true, false}, {false, false}} {
		if p, limit, _ := s.tryAcquire(&s.direct, workspace, provider, c.bulk); (p != nil) != c.want {
			t.Errorf("bulk %t: a slot: %t (%s)", c.bulk, p != nil, limit)
		}
	}
}

// Where a slow provider has one slot only, a bulk gives it back after a window if a single request has
// found none lately: once, and not before its first window.
func TestABulkWithTheOnlySlot(t *testing.T) {
	t.Parallel()
	s, workspace, provider := &Sender{cache: newCaches()}, uuid.New(), uuid.New()
	s.direct.limit(4, 3, 3)
	s.paceOf(provider).took.Store(int64(2 * slowAfter))
	c := &claim{providerID: provider, bulk: true}
	if c.slot, _, _ = s.tryAcquire(&s.direct, workspace, provider, true); c.slot == nil {
		t.Fatal("a bulk has no slot")
	}
	if s.makeRoom(c, true) {
		t.Error("it is given back to nobody")
	}
	if p, _, _ := s.tryAcquire(&s.direct, workspace, provider, false); p != nil {
		t.Fatal("a slow provider has two slots")
	}
	if s.makeRoom(c, false) {
		t.Error("it is given back before a window")
	}
	if !s.makeRoom(c, true) {
		t.Error("it is not given back")
	}
	c.slot.bulk = true
	if s.makeRoom(c, true) {
		t.Error("it is given back twice")
	}
	s.direct.refusedSingle(provider)
	s.direct.singles[provider] = time.Now().Add(-2 * singleWaits)
	if s.makeRoom(c, true) {
		t.Error("it is given back for a request of long ago")
	}
}

// What is requested as a bulk is stored as one.
func TestBatchesOfABulk(t *testing.T) {
	b := setup(t)
	all := make([]notifications.Direct, 2)
	for i := range all {
		all[i] = notifications.Direct{OriginID: notifications.DirectOrigin(b.Workspace, time.Now()), Key: lemma.NewID(), ProviderID: b.provider,
			ContentID: b.origin, ProfileKey: "ada", Address: "ada@shop.example", Payload: `{}`, MaxAttempts: 1, Last: i == 0}
	}
	b.Must(pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		_, err := b.ledger.InsertDirect(t.Context(), tx, b.Workspace, all)
		return err
	}))
	b.WantCount(1, `select count(*) from batches where workspace_id = $1 and bulk`, b.Workspace)
	b.WantCount(1, `select count(*) from batches where workspace_id = $1 and not bulk`, b.Workspace)
}

// A workspace that requests many direct notifications first is not served first each time,
// also when its jobs come before a bulk of another workspace. Batches of campaigns are not
// worked in their place.
func TestDirectNotificationsAreServedFairly(t *testing.T) {
	a := setup(t)
	b := a.tenant()
	s := a.sender(func(c *Config) { c.DirectWorkers = 1 })
	refs := a.insertDirect(100)
	b.insertDirect(1)
	b.insert(1, 1, 2)
	sent := `select sum(sent)::int from batches where workspace_id = $1 and origin_id `
	served := 0
	for _, ref := range refs {
		_, err := s.Work(t.Context(), ref)
		b.Must(err)
		if served++; b.Count(sent+`<> $2`, b.Workspace, b.origin) == 1 {
			break
		}
	}
	if served > 30 {
		t.Errorf("the other workspace was served after %d jobs", served)
	}
	for range 2 { // jobs that gave way are enqueued again
		for _, ref := range refs {
			_, err := s.Work(t.Context(), ref)
			a.Must(err)
		}
	}
	a.WantCount(len(refs), sent+`<> $2`, a.Workspace, a.origin)
	b.WantCount(0, sent+`= $2`, b.Workspace, b.origin)
}

// directOverTwo inserts two direct notifications: the first over another provider than the bundle's.
func (b *bundle) directOverTwo() (refs []notifications.Ref, other uuid.UUID) {
	b.T.Helper()
	refs, other = b.insertDirect(2), b.NewProvider("scripted")
	b.Exec(`insert into provider_meters (workspace_id, provider_id) values ($1, $2) on conflict do nothing`, b.Workspace, other)
	b.Exec(`update batches set provider_id = $1 where id = $2`, other, refs[0].BatchID)
	return refs, other
}

// takeSlots takes the slots of a provider for direct notifications.
func (b *bundle) takeSlots(s *Sender, provider uuid.UUID) {
	for p := new(slot); p != nil; {
		p, _, _ = s.tryAcquire(&s.direct, b.Workspace, provider, false)
	}
}

// Jobs of a provider that is down, or has no slot, work what is due over another one of the
// workspace: its own jobs come after thousands of them.
func TestAProviderThatIsDownDelaysNoOther(t *testing.T) {
	for name, wait := range map[string]func(*bundle, *Sender, uuid.UUID){
		"open circuit": func(b *bundle, _ *Sender, provider uuid.UUID) {
			b.Exec(`update provider_meters set failures = 1, opened_at = now(), open_until = now() + interval '1 hour' where provider_id = $1`,
				provider)
		},
		"no slot": func(b *bundle, s *Sender, provider uuid.UUID) {
			b.takeSlots(s, provider)
			s.direct.waiting = map[uuid.UUID]int{provider: 1000} // batches that wait for one
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			s := b.sender()
			refs, down := b.directOverTwo()
			s.direct.most.ofProvider = 2
			s.paceOf(b.provider).took.Store(int64(time.Millisecond))
			s.paceOf(down).took.Store(int64(2 * slowAfter))
			wait(b, s, down)
			if again, err := s.Work(t.Context(), refs[0]); again == 0 || err != nil {
				t.Errorf("again in %s, %v", again, err)
			}
			if n := b.carrier.called("ada@shop.example"); n != 1 {
				t.Errorf("%d messages are sent", n)
			}
			b.WantCount(1, `select count(*) from batches where status = 'ready' and id = $1`, refs[0].BatchID)
		})
	}
}

// A job whose own batch waits for a moment, or with a large batch of another provider, works none besides.
func TestAJobThatWaitsForAMomentWorksNoOther(t *testing.T) {
	for name, c := range map[string]struct{ waiting, size, want int }{
		"a moment": {0, 1, 0}, "a large batch": {1000, smallBatch + 1, 0}, "a small one": {1000, smallBatch, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			s := b.sender()
			refs, busy := b.directOverTwo()
			b.Exec(`update batches set size = $1 where id = $2`, c.size, refs[1].BatchID)
			s.direct.most.ofProvider = 2
			s.paceOf(busy).took.Store(int64(2 * slowAfter))
			s.paceOf(b.provider).took.Store(int64(time.Millisecond))
			b.takeSlots(s, busy)
			s.direct.waiting = map[uuid.UUID]int{busy: c.waiting}
			if _, err := s.Work(t.Context(), refs[0]); err != nil {
				t.Error(err)
			}
			if n := b.carrier.called("ada@shop.example"); n != c.want {
				t.Errorf("%d messages are sent", n)
			}
		})
	}
}

// A job that waits for a slot when the process stops claims nothing any more.
func TestNothingIsClaimedAfterADrain(t *testing.T) {
	b := setup(t)
	s := b.sender()
	refs, busy := b.directOverTwo()
	s.direct.most.ofProvider = 2
	for _, provider := range []uuid.UUID{b.provider, busy} {
		s.paceOf(provider).took.Store(int64(time.Millisecond))
	}
	b.takeSlots(s, busy)
	waits := make(chan error)
	go func() {
		_, err := s.Work(t.Context(), refs[0])
		waits <- err
	}()
	b.Eventually("the job waits", func() bool {
		s.direct.mu.Lock()
		defer s.direct.mu.Unlock()
		return s.direct.freed != nil
	})
	s.Drain()
	b.Must(<-waits)
	b.WantCount(0, `select count(*) from batch_log where event = 'claimed'`)
}

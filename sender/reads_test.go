package sender

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/notifications"
	"lemma/pgtest"
)

// A slot whose audience is read again counts as slow while that is slow, also of a quick
// provider, and as unknown before the first read.
func TestSlotsOfReads(t *testing.T) {
	const fast, long, unknown = 50 * time.Millisecond, 2 * time.Second, 0
	p := func(n byte) uuid.UUID { return uuid.UUID{15: n} }
	for _, c := range []struct {
		name               string
		provider, audience time.Duration // of the last window and read
		reads              []byte        // workspace and audience, in pairs
		want               int
		limit              string
		slow               int // slots that a slow provider of another workspace then gets
	}{
		{"one audience", fast, fast, repeat(12, 1, 1), 4, limitAudience, 4},
		{"quick ones", fast, fast, append(repeat(8, 1, 1), append(repeat(4, 1, 2), repeat(4, 2, 3)...)...), 12, limitAudience, 4},
		{"slow ones of a workspace", fast, long, append(repeat(4, 1, 1), repeat(8, 1, 2)...), 6, limitWorkspace, 2},
		{"unknown ones of a workspace", fast, unknown,
			append(repeat(4, 1, 1), append(repeat(4, 1, 2), repeat(4, 1, 3)...)...), 9, limitWorkspace, 4},
		{"unknown ones of unknown providers", unknown, unknown,
			append(repeat(4, 1, 1), append(repeat(4, 1, 2), repeat(4, 1, 3)...)...), 9, limitWorkspace, 4},
		{"unknown ones of slow providers", long, unknown, append(repeat(4, 1, 1), repeat(4, 1, 2)...), 6, limitWorkspace, 2},
		{"many slow ones", fast, long, append(repeat(4, 1, 1), append(repeat(4, 2, 2), repeat(4, 3, 3)...)...), 8, limitSlow, 0},
		{"many that are unknown", fast, unknown,
			append(append(append(repeat(4, 1, 1), repeat(4, 2, 2)...), repeat(4, 3, 3)...), repeat(4, 4, 4)...), 12, limitSlow, 4},
	} {
		s := &Sender{cfg: Config{}.withDefaults(), metrics: NewMetrics(nil), cache: newCaches()}
		s.slots.limit(s.cfg.Workers, s.cfg.PerProvider, s.cfg.PerWorkspace)
		got, last := 0, ""
		for i := 0; i < len(c.reads); i += 2 {
			workspace, audience, provider := p(100+c.reads[i]), p(c.reads[i+1]), p(50+c.reads[i+1])
			s.paceOf(provider).took.Store(int64(c.provider))
			s.paceOf(audience).took.Store(int64(c.audience))
			held, limit, _ := s.tryAcquire(&s.slots, workspace, provider, false)
			if held == nil {
				last = limit
				continue
			}
			if limit, _ := s.tryRead(held, notifications.Ref{OriginID: audience}); limit != "" {
				last = limit
				held.release() // its batch is given back
				continue
			}
			got++
		}
		if got != c.want || last != c.limit {
			t.Errorf("%s: %d reads, then %q; want %d, then %q", c.name, got, last, c.want, c.limit)
		}
		s.paceOf(p(99)).took.Store(int64(long))
		more := 0
		for range 10 {
			if held, _, _ := s.tryAcquire(&s.slots, p(120), p(99), false); held != nil {
				more++
			}
		}
		if more != c.slow {
			t.Errorf("%s: then a slow provider has %d slots, want %d", c.name, more, c.slow)
		}
	}
}

// A read that lasts makes its audience slow before it ends, and not its provider. Its end lets
// others begin.
func TestAReadThatLasts(t *testing.T) {
	s := &Sender{cfg: Config{}.withDefaults(), metrics: NewMetrics(nil), cache: newCaches()}
	s.slots.limit(s.cfg.Workers, s.cfg.PerProvider, s.cfg.PerWorkspace)
	workspace, provider, audience := uuid.New(), uuid.New(), uuid.New()
	s.paceOf(provider).took.Store(int64(time.Millisecond))
	s.paceOf(audience).took.Store(int64(time.Millisecond))
	held, _, _ := s.tryAcquire(&s.slots, workspace, provider, false)
	if limit, _ := s.tryRead(held, notifications.Ref{OriginID: audience}); limit != "" {
		t.Fatal(limit)
	}
	held.busy(time.Now().Add(-2 * slowAfter))
	if a, p := s.speed(&s.slots, audience), s.speed(&s.slots, provider); a != slow || p != quick {
		t.Errorf("the speed of the audience is %d, of the provider %d", a, p)
	}
	freed := s.slots.next()
	held.readEnded()
	select {
	case <-freed:
	default:
		t.Error("others wait")
	}
	if a := s.speed(&s.slots, audience); a != quick || !held.since.IsZero() {
		t.Errorf("after the read: %d", a)
	}
}

// Slow data sources of four tenants hold half of a process's slots while their audiences are
// read again. Another tenant's mail is sent meanwhile.
func TestSlowSourcesLeaveSlotsToOthers(t *testing.T) {
	quickOne := setup(t)
	carrier := &scripted{calls: map[string]int{}, then: map[string][]Outcome{}, sent: map[string][]Message{}}
	s := quickOne.senderOf(Kind{Name: "scripted", Open: func(Account) (Carrier, error) { return carrier, nil }},
		func(c *Config) { c.RecheckAfter = time.Nanosecond })
	_, audience := quickOne.readAgain(40)
	begun, release := make(chan struct{}, 1000), make(chan struct{})
	s.again = func(ctx context.Context, ws, origin, content uuid.UUID, channel lemma.Channel, profiles []string,
		yield func(string, AudienceRow)) (bool, error) {
		if ws != quickOne.Workspace {
			begun <- struct{}{}
			<-release
		}
		return audience.again(ctx, ws, origin, content, channel, profiles, yield)
	}
	q, tenants := &jobQueue{}, []*bundle{quickOne}
	for range 4 {
		slowOne := quickOne.tenant()
		s.paceOf(slowOne.origin).took.Store(int64(2 * slowAfter))
		tenants = append(tenants, slowOne)
	}
	for i, tenant := range tenants {
		for j, ref := range tenant.insert(40, 1, 2) {
			q.enqueue(queued{n: 100*(len(tenants)-i) + j, ref: ref})
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	wait := q.serve(ctx, t, s, s.cfg.Workers)
	pgtest.Eventually(t, 20*time.Second, "the mail of the quick source is out", func() bool { return quickOne.counts().Sent == 40 })
	if n := len(begun); n != s.cfg.Workers/2 {
		t.Errorf("%d slow reads, want %d", n, s.cfg.Workers/2)
	}
	close(release)
	stop()
	wait()
}

// A batch that finds no read is claimed once without one, and then holds no slot. Its origin's batches
// that need no read are sent meanwhile.
func TestBatchesThatWaitForAReadHoldNoSlots(t *testing.T) {
	b := setup(t)
	s, audience := b.readAgain(21, func(c *Config) { c.RecheckAfter = time.Hour })
	s.slots.limit(s.cfg.Workers, s.cfg.PerProvider, s.cfg.PerWorkspace)
	s.paceOf(b.origin).took.Store(int64(2 * slowAfter))
	s.paceOf(b.provider).took.Store(int64(time.Millisecond))
	refs := b.insert(21, 1, 2)
	old, fresh := refs[:20], refs[20]
	b.Exec(`update batches set created_at = created_at - interval '2 hours' where workspace_id = $1 and id <> $2`, b.Workspace, fresh.BatchID)
	audience.hangs, audience.received = make(chan struct{}), make(chan struct{}, 20)
	var reading sync.WaitGroup
	for _, ref := range old[:readsAtOnce] {
		reading.Go(func() { _, _ = s.Work(context.Background(), ref) })
		<-audience.received
	}
	claims := 0
	s.Hook = func(_ context.Context, at string, _ notifications.Ref) {
		if at == "claimed" {
			claims++
		}
	}
	waiting := old[readsAtOnce:]
	for range 3 {
		b.makeDue()
		for _, ref := range waiting {
			again, err := s.Work(context.Background(), ref)
			if err != nil || again <= 0 {
				t.Fatal(again, err)
			}
		}
	}
	if claims != len(waiting) || s.slots.waiting[b.origin] != 3*len(waiting) {
		t.Errorf("%d claims without a read of %d batches, of which %d wait", claims, len(waiting), s.slots.waiting[b.origin])
	}
	if _, err := s.Work(context.Background(), fresh); err != nil || b.counts().Sent != 1 {
		t.Errorf("a fresh one: %v, %d are sent", err, b.counts().Sent)
	}
	close(audience.hangs)
	reading.Wait()
	audience.hangs = nil
	b.makeDue()
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 21})
	if n := len(s.slots.refused); n != 0 {
		t.Errorf("%d batches are remembered", n)
	}
}

// Batches that wait for a read are not chosen at each turn when another workspace's jobs serve
// theirs: the other batches of their workspace have their share.
func TestBatchesThatWaitForAReadAreNotChosenAgain(t *testing.T) {
	b := setup(t)
	busy := b.tenant()
	s, _ := b.readAgain(40, func(c *Config) { c.RecheckAfter = time.Hour })
	s.slots.limit(s.cfg.Workers, s.cfg.PerProvider, s.cfg.PerWorkspace)
	s.paceOf(b.origin).took.Store(int64(2 * slowAfter))
	s.paceOf(b.provider).took.Store(int64(time.Millisecond))
	s.paceOf(busy.provider).took.Store(int64(time.Millisecond))
	waiting := b.insert(40, 1, 2)
	b.Exec(`update batches set created_at = created_at - interval '2 hours' where workspace_id = $1`, b.Workspace)
	for range readsAtOnce {
		held, _, _ := s.tryAcquire(&s.slots, b.Workspace, b.provider, false)
		if limit, _ := s.tryRead(held, notifications.Ref{WorkspaceID: b.Workspace, OriginID: b.origin, BatchID: uuid.New()}); limit != "" {
			t.Fatal(limit)
		}
	}
	for _, ref := range waiting {
		_, err := s.Work(context.Background(), ref)
		b.Must(err)
	}
	slowOrigin := b.origin
	b.origin = lemma.NewID()
	b.Exec(`insert into contents (workspace_id, id, channel, template_id, template_version, from_name, from_email, reply_to, headers)
		select workspace_id, $2, channel, template_id, template_version, from_name, from_email, reply_to, headers from contents
		where workspace_id = $1 and id = $3`, b.Workspace, b.origin, slowOrigin)
	b.insert(20, 1, 2)
	b.Exec(`update batches set due_at = now() - interval '1 hour' where workspace_id = $1 and origin_id = $2`, b.Workspace, slowOrigin)
	refs := busy.insert(100, 1, 2)
	const sent = `select count(*) from notification_status where workspace_id = $1 and origin_id = $2 and status = 'sent'`
	for i := 0; i < 2000 && b.Count(sent, b.Workspace, b.origin) < 20; i++ {
		_, err := s.Work(context.Background(), refs[i%len(refs)])
		b.Must(err)
	}
	if n := b.Count(sent, b.Workspace, b.origin); n < 20 {
		t.Errorf("%d of 20 are sent", n)
	}
}

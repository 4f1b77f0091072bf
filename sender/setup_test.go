package sender

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/lifecycle"
	"lemma/message"
	"lemma/notifications"
	"lemma/pgtest"
	"lemma/providers"
	"lemma/suppression"
)

// bundle is a workspace with one provider, one origin and a scripted carrier.
type bundle struct {
	pgtest.Shop
	origin   uuid.UUID
	provider uuid.UUID
	ledger   *notifications.Ledger
	carrier  *scripted
	paused   []string // reasons
	details  []string
	seen     []time.Time // since when each reason exists
}

// scripted is a carrier that accepts all, unless a script has other outcomes for an
// address, one by call.
type scripted struct {
	mu    sync.Mutex
	calls map[string]int
	then  map[string][]Outcome
	sent  map[string][]Message
	down  *Receipt // the result of every call while the provider fails

	rest    Outcome       // of calls without a script; accepted when empty
	reason  string        // of calls; "scripted" when empty
	later   time.Duration // for which the carrier asks when it does not accept a message
	hangsUp string        // an address for which the provider fails each time
	hangs   string        // an address for which the server does not answer; the time of the window ends meanwhile
	allHang bool          // the same for every address
}

func (c *scripted) Send(_ context.Context, messages []Message) []Receipt {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Receipt, len(messages))
	for i, l := range messages {
		if c.down != nil {
			out[i] = *c.down
			if i > 0 { // as after a failure to connect
				out[i].Outcome = NotCalled
			}
			continue
		}
		if l.To == c.hangsUp {
			out[i] = Receipt{Outcome: NotAccepted, Provider: true, Reason: "connection_lost", RetryAfter: c.later}
			continue
		}
		if c.allHang || l.To == c.hangs {
			for i := range out[i:] {
				out[len(out)-1-i] = Receipt{Outcome: NotCalled, Reason: "call_ended"}
			}
			out[i] = *noAnswer
			c.calls[l.To]++
			return out
		}
		n := c.calls[l.To]
		c.calls[l.To]++
		c.sent[l.To] = append(c.sent[l.To], l)
		outcome := cmp.Or(c.rest, Accepted)
		if script := c.then[l.To]; n < len(script) {
			outcome = script[n]
		}
		out[i] = Receipt{Outcome: outcome, Code: 250, CarrierID: "q1", Reason: cmp.Or(c.reason, "scripted"), At: time.Now()}
		if outcome == NotAccepted {
			out[i].RetryAfter = c.later
		}
	}
	return out
}

func (c *scripted) Close() {}

// fail makes the provider fail from now on; nil makes it work again.
func (c *scripted) fail(r *Receipt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = r
}

func (c *scripted) called(to string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[to]
}

func setup(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	return newBundle(t)
}

func newBundle(t testing.TB) *bundle {
	t.Helper()
	b := newTenant(pgtest.NewShop(t))
	b.carrier = &scripted{calls: map[string]int{}, then: map[string][]Outcome{}, sent: map[string][]Message{}}
	return b
}

// newTenant makes a provider and a content of a workspace.
func newTenant(s pgtest.Shop) *bundle {
	s.T.Helper()
	b := &bundle{Shop: s, origin: lemma.NewID(), provider: s.NewProvider("scripted"), ledger: notifications.New(s.Pool)}
	b.Exec(`insert into templates (workspace_id, id, name, channel) values ($1, $2, 't', 'email')`, b.Workspace, b.provider)
	b.Exec(`insert into template_versions (workspace_id, template_id, version, subject, html, text, variables)
		values ($1, $2, 1, 'Hi {{ name }}', '<p>{{ name }}</p>', '{{ name }}', '{name}')`, b.Workspace, b.provider)
	b.Exec(`insert into contents (workspace_id, id, channel, template_id, template_version, from_name, from_email, reply_to, headers)
		values ($1, $2, 'email', $3, 1, 'Shop', 'news@shop.example', '', '{"X-Shop": "1"}')`, b.Workspace, b.origin, b.provider)
	b.Subscribe("notification.sent", "notification.failed", "notification.skipped", "notification.orphaned", "provider.failing")
	return b
}

// sender makes a sender with a short lease. There may be several.
func (b *bundle) sender(change ...func(*Config)) *Sender {
	b.T.Helper()
	return b.senderOf(Kind{Name: "scripted", Open: func(Account) (Carrier, error) { return b.carrier, nil }}, change...)
}

func (b *bundle) senderOf(kind Kind, change ...func(*Config)) *Sender {
	b.T.Helper()
	cfg := Config{Lease: time.Minute, CallTimeout: time.Second, MaxWindow: 10, SweepGrace: time.Millisecond}
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(Deps{Pool: b.Pool, Ledger: b.ledger, Templates: message.New(b.Pool), Providers: providers.New(b.Pool, nil, nil),
		Kinds: []Kind{kind}, Checker: suppression.NewChecker(b.Pool, nil, suppression.Config{Checks: 1}),
		Pause: func(ctx context.Context, ws, origin, _ uuid.UUID, cause lifecycle.Cause) (bool, error) {
			b.paused, b.details, b.seen = append(b.paused, cause.Reason), append(b.details, cause.Detail), append(b.seen, cause.SeenAt)
			return true, pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error { return b.ledger.Hold(ctx, tx, ws, origin) })
		}, Log: slog.New(slog.DiscardHandler)}, cfg)
	b.Must(err)
	return s
}

func keyOf(i int) uuid.UUID { return lemma.Key("test/1", addressOf(i)) }

func addressOf(i int) string { return fmt.Sprintf("p%d@shop.example", i) }

// insert inserts n intents in batches of size and returns their batches.
func (b *bundle) insert(n, size, maxAttempts int) []notifications.Ref {
	b.T.Helper()
	ctx := context.Background()
	all := make([]notifications.Recipient, n)
	for i := range all {
		all[i] = notifications.Recipient{Key: keyOf(i), ProfileKey: fmt.Sprint(i), Address: addressOf(i),
			Payload: fmt.Sprintf(`{"name":"N%d"}`, i)}
	}
	err := pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error {
		_, err := b.ledger.Insert(ctx, tx,
			notifications.Chunk{WorkspaceID: b.Workspace, OriginID: b.origin, ProviderID: b.provider, ContentID: b.origin,
				Run: 1, MaxAttempts: maxAttempts, BatchSize: size, Recipients: all})
		return err
	})
	b.Must(err)
	return b.batches("attempt = 1")
}

func (b *bundle) batches(where string) []notifications.Ref {
	b.T.Helper()
	rows, _ := b.Pool.Query(context.Background(),
		`select workspace_id, origin_id, id from batches where workspace_id = $1 and `+where+` order by id`, b.Workspace)
	refs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[notifications.Ref])
	b.Must(err)
	return refs
}

// work works every ready batch once.
func (b *bundle) work(s *Sender) {
	b.T.Helper()
	for _, ref := range b.batches("status = 'ready'") {
		if _, err := s.Work(context.Background(), ref); err != nil {
			b.T.Fatal(err)
		}
	}
}

// expireLeases lets time pass for leases alone.
func (b *bundle) expireLeases() {
	b.Exec(`update batches set lease_until = now() - interval '1 second' where status = 'leased'`)
	b.Exec(`update batch_log set until = now() - interval '1 second' where event = 'window' and until > now()`)
}

// makeDue lets time pass for what is due later.
func (b *bundle) makeDue() {
	b.Exec(`update batches set due_at = now(), retry_at = null where status = 'ready'`)
}

func (b *bundle) reap(s *Sender) Reaped {
	b.T.Helper()
	b.expireLeases()
	r, err := s.Reap(context.Background())
	b.Must(err)
	return r
}

func (b *bundle) counts() notifications.Counts {
	b.T.Helper()
	counts, err := b.ledger.Counts(context.Background(), b.Workspace, b.origin)
	b.Must(err)
	return counts
}

// statuses are the counts by the view.
func (b *bundle) statuses() map[string]int64 {
	b.T.Helper()
	rows, err := b.Pool.Query(context.Background(),
		`select status, count(*) from notification_status where workspace_id = $1 group by status`, b.Workspace)
	b.Must(err)
	counts := map[string]int64{}
	var status string
	var n int64
	if _, err := pgx.ForEachRow(rows, []any{&status, &n}, func() error { counts[status] = n; return nil }); err != nil {
		b.T.Fatal(err)
	}
	return counts
}

// status is the derived status and reason of one recipient.
func (b *bundle) status(i int) (status, reason string) {
	b.T.Helper()
	n, err := b.ledger.Get(context.Background(), b.Workspace, b.origin, keyOf(i))
	b.Must(err)
	if n.Reason != nil {
		reason = *n.Reason
	}
	return n.Status, reason
}

// wantCalledOnce checks that the carrier was called once for each of the first n rows.
func (b *bundle) wantCalledOnce(n int) {
	b.T.Helper()
	for i := range n {
		if calls := b.carrier.called(addressOf(i)); calls != 1 {
			b.T.Errorf("%s was called %d times", addressOf(i), calls)
		}
	}
}

func (b *bundle) wantCounts(want notifications.Counts) {
	b.T.Helper()
	got := b.counts()
	if !got.Balanced {
		b.T.Errorf("counts do not balance: %+v", got)
	}
	sum := got.Sent + got.Failed + got.Orphaned + got.Cancelled + got.Skipped + got.Pending + got.Processing
	if sum != got.Audience {
		b.T.Errorf("audience %d is not the sum %d: %+v", got.Audience, sum, got)
	}
	if got.Sent != want.Sent || got.Failed != want.Failed || got.Orphaned != want.Orphaned || got.Cancelled != want.Cancelled ||
		got.Skipped != want.Skipped || got.Pending != want.Pending || got.Processing != want.Processing {
		b.T.Errorf("counts are %+v, want %+v", got, want)
	}
	view := b.statuses()
	for status, n := range map[string]int64{"sent": got.Sent, "failed": got.Failed, "orphaned": got.Orphaned, "cancelled": got.Cancelled,
		"skipped": got.Skipped, "pending": got.Pending, "processing": got.Processing} {
		if view[status] != n {
			b.T.Errorf("the view counts %d %s, the counts %d", view[status], status, n)
		}
	}
	b.wantEvents(view)
}

// stop makes a sender's worker stop for ever at a point, as a crash would.
func stop(s *Sender, at string, nth int) (reached chan struct{}) {
	reached = make(chan struct{})
	var mu sync.Mutex
	n := 0
	s.Hook = func(ctx context.Context, point string, _ notifications.Ref) {
		mu.Lock()
		defer mu.Unlock()
		if point != at {
			return
		}
		if n++; n == nth {
			close(reached)
			mu.Unlock()
			<-ctx.Done()
			select {}
		}
	}
	return reached
}

// kill works a batch by a worker that is killed at a point.
func (b *bundle) kill(ref notifications.Ref, at string, nth int) {
	killed := b.sender()
	reached := stop(killed, at, nth)
	go func() { _, _ = killed.Work(bg, ref) }()
	<-reached
}

// pauseAt stops a worker at a point until release is closed.
func pauseAt(s *Sender, at string, nth int) (reached, release chan struct{}) {
	reached, release = make(chan struct{}), make(chan struct{})
	n := 0
	s.Hook = func(_ context.Context, point string, _ notifications.Ref) {
		if point != at {
			return
		}
		if n++; n == nth {
			close(reached)
			<-release
		}
	}
	return reached, release
}

// pausedWork starts work on a batch, and returns once the worker is paused at a hook.
// finish lets it continue, and waits for its end.
func (b *bundle) pausedWork(s *Sender, ref notifications.Ref, at string, nth int) (finish func()) {
	b.T.Helper()
	reached, release := pauseAt(s, at, nth)
	done := make(chan error, 1)
	go func() { _, err := s.Work(context.Background(), ref); done <- err }()
	<-reached
	return func() {
		b.T.Helper()
		close(release)
		b.Must(<-done)
	}
}

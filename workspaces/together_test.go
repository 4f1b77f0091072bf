package workspaces

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/pgtest"
)

// lookupsAtOnce is the number of lookups that a Gatherer runs at a time.
const lookupsAtOnce = 2

// lookups stops lookups of keys after they have read, or before.
type lookups struct {
	before, after func(ctx context.Context, hashes int) context.Context
	n             atomic.Int32
}

type looking struct{}

func (l *lookups) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if !strings.Contains(q.SQL, "hash = any") {
		return ctx
	}
	l.n.Add(1)
	n := len(q.Args[0].([][]byte)) //nolint:forcetypeassert // of the statement above
	if l.before != nil {
		ctx = l.before(ctx, n)
	}
	return context.WithValue(ctx, looking{}, n)
}

func (l *lookups) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if n, ok := ctx.Value(looking{}).(int); ok && l.after != nil {
		l.after(ctx, n)
	}
}

// authenticateWith makes Authenticate use a pool whose lookups stop.
func (b bundle) authenticateWith(l *lookups) {
	b.AuthenticateOn(b.Connect(func(c *pgxpool.Config) { c.ConnConfig.Tracer = l }))
}

// stop is a point at which lookups wait until it is opened.
type stop struct{ reached, open chan struct{} }

func newStop() stop { return stop{make(chan struct{}, 100), make(chan struct{})} }

func (s stop) wait(ctx context.Context, _ int) context.Context {
	s.reached <- struct{}{}
	<-s.open
	return ctx
}

// request is a request that is being authenticated.
type request struct {
	key  Key
	err  error
	done chan struct{}
}

func (r *request) wants(t *testing.T, what, code string) {
	t.Helper()
	<-r.done
	got := ""
	if e := new(lemma.Error); errors.As(r.err, &e) {
		got = string(e.Kind) + e.Code
	} else if r.err != nil {
		got = r.err.Error()
	}
	if got != code {
		t.Errorf("%s: %q, not %q", what, got, code)
	}
}

// queued is a context that reports when its request waits for a lookup.
type queued struct {
	context.Context
	once  *sync.Once
	waits chan struct{}
}

func (q queued) Done() <-chan struct{} {
	q.once.Do(func() { close(q.waits) })
	return q.Context.Done()
}

// begin begins a request, which waits for a lookup when begin returns.
func (b bundle) begin(ctx context.Context, token string) *request {
	r, q := &request{done: make(chan struct{})}, queued{ctx, new(sync.Once), make(chan struct{})}
	go func() {
		defer close(r.done)
		r.key, r.err = b.Authenticate(q, token)
	}()
	select {
	case <-q.waits:
	case <-r.done: // without a lookup
	}
	return r
}

// A request that begins after the revocation is refused, also while earlier ones are
// answered by what was read before.
func TestRevocationBetweenTwoRequests(t *testing.T) {
	b := setup(t)
	key, token := b.key(t, Admin)
	read := newStop()
	b.authenticateWith(&lookups{after: read.wait})
	var before []*request
	for range lookupsAtOnce {
		before = append(before, b.begin(t.Context(), token))
		<-read.reached
	}
	_, err := b.RevokeKey(t.Context(), b.Workspace, key.ID)
	b.Must(err)
	after := b.begin(t.Context(), token)
	close(read.open)
	for _, r := range before {
		r.wants(t, "before the revocation", "")
	}
	after.wants(t, "after it", "unauthenticatedkey_revoked")
}

// Requests that arrive while lookups are running share the next one. Each has its own
// answer.
func TestRequestsThatArriveTogetherShareALookup(t *testing.T) {
	b := setup(t)
	other := bundle{b.Workspaces, pgtest.Shop{T: t, Pool: b.Pool, Workspace: pgtest.Workspace(t, b.Pool)}}
	one, token := b.key(t, "events:read")
	two, tokenOfOther := other.key(t, "events:write")
	revoked, revokedToken := b.key(t, Admin)
	_, err := b.RevokeKey(t.Context(), b.Workspace, revoked.ID)
	b.Must(err)
	begins := newStop()
	l := &lookups{before: begins.wait}
	b.authenticateWith(l)
	for range lookupsAtOnce {
		b.begin(t.Context(), newToken())
		<-begins.reached
	}
	gone, cancel := context.WithCancel(t.Context())
	leaves := b.begin(gone, token)
	first, unknown, second, again, refused := b.begin(t.Context(), token), b.begin(t.Context(), newToken()),
		b.begin(t.Context(), tokenOfOther), b.begin(t.Context(), token), b.begin(t.Context(), revokedToken)
	cancel()
	<-leaves.done
	if !errors.Is(leaves.err, context.Canceled) {
		t.Errorf("cancelled: %v", leaves.err)
	}
	close(begins.open)
	first.wants(t, "a key", "")
	again.wants(t, "the same key", "")
	second.wants(t, "a key of another workspace", "")
	unknown.wants(t, "no key", "unauthenticated")
	refused.wants(t, "a revoked key", "unauthenticatedkey_revoked")
	if first.key.ID != one.ID || again.key.ID != one.ID || second.key.ID != two.ID || second.key.WorkspaceID != other.Workspace {
		t.Errorf("%+v %+v %+v", first.key, again.key, second.key)
	}
	if n := l.n.Load(); n != lookupsAtOnce+1 {
		t.Errorf("%d lookups", n)
	}
	b.WantCount(2, `select count(*) from api_keys where last_used_at is not null`)
}

// A request that is cancelled while its lookup runs does not end it for the others.
func TestACancelledRequestOfALookup(t *testing.T) {
	b := setup(t)
	_, token := b.key(t, Admin)
	begins := newStop()
	b.authenticateWith(&lookups{before: begins.wait})
	for range lookupsAtOnce {
		b.begin(t.Context(), newToken())
		<-begins.reached
	}
	gone, cancel := context.WithCancel(t.Context())
	leaves, stays := b.begin(gone, token), b.begin(t.Context(), token)
	begins.open <- struct{}{}
	<-begins.reached // the lookup of both
	cancel()
	<-leaves.done
	close(begins.open)
	stays.wants(t, "beside a cancelled request", "")
}

// A lookup that is slow, or fails, concerns only its own requests: others are answered
// meanwhile, and those of a failed one are looked up by themselves.
func TestALookupThatIsSlowOrFails(t *testing.T) {
	b := setup(t)
	_, token := b.key(t, Admin)
	begins, slow := newStop(), newStop()
	first := sync.OnceFunc(func() { slow.wait(t.Context(), 0) })
	var l lookups
	b.authenticateWith(&l)
	l.before = func(ctx context.Context, _ int) context.Context { first(); return ctx }
	hangs := b.begin(t.Context(), token)
	<-slow.reached
	l.before = nil
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	b.begin(ctx, token).wants(t, "beside a slow one", "")

	l.before = func(ctx context.Context, n int) context.Context {
		if n == 1 {
			return begins.wait(ctx, n)
		}
		failed, cancel := context.WithCancel(ctx)
		cancel()
		return failed
	}
	b.begin(ctx, token)
	<-begins.reached
	together := []*request{b.begin(ctx, token), b.begin(ctx, newToken())}
	close(begins.open)
	together[0].wants(t, "of a failed lookup", "")
	together[1].wants(t, "of a failed lookup", "unauthenticated")
	close(slow.open)
	hangs.wants(t, "the slow one", "")
}

// Commits hang: the keys of requests cannot be recorded as used. The requests go on, and lookups have
// connections.
func TestKeysThatCannotBeRecordedAsUsed(t *testing.T) {
	b := setup(t)
	var tokens []string
	for range 8 {
		_, token := b.key(t, Admin)
		tokens = append(tokens, token)
	}
	b.authenticateWith(&lookups{})
	tx, err := b.Pool.Begin(t.Context())
	b.Must(err)
	_, err = tx.Exec(t.Context(), `lock table api_keys in share mode`) // updates wait
	b.Must(err)
	var all []*request
	for _, token := range tokens {
		all = append(all, b.begin(t.Context(), token))
	}
	for _, a := range all {
		a.wants(t, "a key that cannot be recorded", "")
	}
	b.begin(t.Context(), newToken()).wants(t, "another lookup", "unauthenticated")
	if n := pgtest.LockWaits(t, b.Pool); n == 0 || n > lookupsAtOnce {
		t.Errorf("%d statements wait", n)
	}
	b.Must(tx.Rollback(t.Context()))
	b.Eventually("the key is recorded", func() bool {
		_, err := b.Authenticate(t.Context(), tokens[7])
		b.Must(err)
		return b.Count(`select count(*) from api_keys where last_used_at is not null`) > 0
	})
}

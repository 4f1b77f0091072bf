package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/api/idempotency"
	"lemma/pgtest"
	"lemma/workspaces"
)

// endpointTest is a server with one endpoint, whose handler a test passes to post.
type endpointTest struct {
	*bundle
	s   *server
	key workspaces.Key
}

func newEndpointTest(t *testing.T) endpointTest {
	t.Helper()
	b := setup(t)
	s := &server{Deps: b.deps, Options: Options{Log: slog.New(slog.DiscardHandler)}.withDefaults(), answers: idempotency.New(b.Pool)}
	return endpointTest{b, s, workspaces.Key{ID: lemma.NewID(), WorkspaceID: b.Workspace}}
}

func (l endpointTest) post(key string, do func(c *call) (any, error)) reply {
	return l.postContext(key, func(_ context.Context, c *call) (any, error) { return do(c) })
}

func (l endpointTest) postContext(key string, do func(ctx context.Context, c *call) (any, error)) reply {
	r := httptest.NewRequest(http.MethodPost, "/v1/things", nil)
	r.Header.Set("Idempotency-Key", key)
	e := endpoint{route: route{method: http.MethodPost, status: http.StatusCreated, do: action{writes: true, handle: do}}}
	return l.s.once(context.Background(), e, &call{request: r, key: l.key, body: []byte(`{}`)})
}

// A request that failed with a 5xx or a panic can be repeated at once. The repetition
// creates its row under the id of the first.
func TestDoneAgain(t *testing.T) {
	l := newEndpointTest(t)
	for name, crash := range map[string]func(c *call) (any, error){
		"failed":   func(*call) (any, error) { return nil, errors.New("the disk is full") },
		"panicked": func(*call) (any, error) { panic("a bug") },
		"waited": func(*call) (any, error) {
			return nil, &lemma.Error{Kind: lemma.Unavailable, Message: "try again later"}
		},
	} {
		var first, second uuid.UUID
		func() {
			defer func() { _ = recover() }()
			l.post(name, func(c *call) (any, error) { first = c.newID; return crash(c) })
		}()
		got := l.post(name, func(c *call) (any, error) {
			if c.attempt != 2 {
				t.Errorf("%s: attempt %d instead of 2", name, c.attempt)
			}
			second = c.newID
			return none{}, nil
		})
		if got.status != 201 || first != second || first == uuid.Nil {
			t.Errorf("%s: then %d with %s after %s", name, got.status, second, first)
		}
	}
}

// While a request is in progress, no other runs under its key. Once its lock has
// expired, as after a crash, the next one runs, and the first can no longer answer.
func TestLock(t *testing.T) {
	l := newEndpointTest(t)
	var first, second uuid.UUID
	outer := l.post("k", func(c *call) (any, error) {
		first = c.newID
		busy := l.post("k", func(*call) (any, error) { t.Error("done twice at once"); return none{}, nil })
		if busy.status != 409 || busy.header["Retry-After"] != "1" {
			t.Errorf("in progress: %d %v %s", busy.status, busy.header, busy.body)
		}
		l.Exec(`update idempotency_keys set locked_until = now() - interval '1 second'`)
		taken := l.post("k", func(c *call) (any, error) { second = c.newID; return health{"second"}, nil })
		if taken.status != 201 {
			t.Errorf("after the lock: %d %s", taken.status, taken.body)
		}
		return health{"first"}, nil
	})
	if first != second {
		t.Errorf("made %s, and then %s", first, second)
	}
	if outer.status != 409 {
		t.Errorf("without its lock, the first request answered %d %s", outer.status, outer.body)
	}
	if replayed := l.post("k", nil); string(replayed.body) != "{\"status\":\"second\"}\n" {
		t.Errorf("replayed: %s", replayed.body)
	}
	if lock := l.Count(`select extract(epoch from locked_until - created_at)::int from idempotency_keys`); lock > 5 {
		t.Errorf("locked for %d s", lock)
	}
}

// A request that takes longer than its lock renews it, so that no other runs.
func TestLockIsRenewed(t *testing.T) {
	l := newEndpointTest(t)
	got := l.post("k", func(*call) (any, error) {
		until := func() time.Time { return pgtest.One[time.Time](t, l.Pool, `select locked_until from idempotency_keys`) }
		first := until()
		pgtest.Eventually(t, time.Minute, "the lock is renewed", func() bool { return until().After(first) })
		return health{"done"}, nil
	})
	if got.status != 201 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// A request that has lost its lock is cancelled.
func TestLostLockEndsItsRequest(t *testing.T) {
	l := newEndpointTest(t)
	got := l.postContext("k", func(ctx context.Context, _ *call) (any, error) {
		l.Exec(`update idempotency_keys set locked_by = gen_random_uuid()`) // another request has taken over
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Minute):
			t.Error("a request without its lock went on for a minute")
			return none{}, nil
		}
	})
	if got.status != 409 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

package hooks

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"lemma"
	"lemma/notifications"
	"lemma/pgtest"
	"lemma/providers"
	"lemma/sender"
	"lemma/sender/gateway"
	"lemma/sender/wire"
	"lemma/signing"
)

// bundle is a workspace with a provider that receives webhooks, and an origin of ten
// notifications.
type bundle struct {
	pgtest.Shop
	accounts *providers.Providers
	provider uuid.UUID
	key      []byte
	origin   uuid.UUID
}

func setup(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	return newBundle(pgtest.NewShop(t))
}

func newBundle(s pgtest.Shop) *bundle {
	s.T.Helper()
	b := &bundle{Shop: s, key: make([]byte, 32), origin: lemma.NewID()}
	_, _ = rand.Read(b.key)
	b.accounts = providers.New(b.Pool, pgtest.Box(b.T), func(string, json.RawMessage, json.RawMessage) error { return nil })
	b.provider = b.create(b.key)
	all := make([]notifications.Recipient, 10)
	for i := range all {
		all[i] = notifications.Recipient{Key: keyOf(i), ProfileKey: fmt.Sprint(i), Address: fmt.Sprintf("p%d@shop.example", i)}
	}
	b.Must(pgx.BeginFunc(b.T.Context(), b.Pool, func(tx pgx.Tx) error {
		_, err := notifications.New(b.Pool).Insert(b.T.Context(), tx, notifications.Chunk{WorkspaceID: b.Workspace, OriginID: b.origin,
			ProviderID: b.provider, ContentID: b.origin, Run: 1, MaxAttempts: 2, BatchSize: 5, Recipients: all})
		return err
	}))
	return b
}

// create makes a provider; without a key it receives no webhooks.
func (b *bundle) create(key []byte) uuid.UUID {
	b.T.Helper()
	secrets := fmt.Sprintf(`{"signing_secret":%q`, signing.Secret(make([]byte, 32)))
	if key != nil {
		secrets += fmt.Sprintf(`,"webhook_secret":%q`, signing.Secret(key))
	}
	made, err := b.accounts.Create(b.T.Context(), b.Workspace, providers.NewProvider{ID: lemma.NewID(), Name: rand.Text(), Kind: "http",
		Config: json.RawMessage(`{"url":"https://gw.example/send"}`), Secrets: json.RawMessage(secrets + "}")})
	b.Must(err)
	return made.ID
}

// hooks is one process.
func (b *bundle) hooks() *Hooks {
	return New(Deps{Pool: b.Pool, Providers: b.accounts, Kinds: []sender.Kind{gateway.Kind(wire.Operator{})},
		PublicURLs: func() []string { return []string{"https://lemma.example"} }, Log: slog.New(slog.DiscardHandler)})
}

func keyOf(i int) uuid.UUID { return lemma.Key("test/1", fmt.Sprint(i)) }

func (b *bundle) notification(i int) string { return lemma.FormatNotificationID(b.origin, keyOf(i)) }

// request is a signed webhook.
func (b *bundle) request(id, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/hooks/http/"+b.path(), strings.NewReader(body))
	signing.Set(r.Header, [][]byte{b.key}, id, time.Now(), []byte(body))
	return r
}

func (b *bundle) path() string { return lemma.FormatID(lemma.PrefixProvider, b.provider) }

func (b *bundle) receive(h *Hooks, id, body string) error {
	return h.Receive(b.request(id, body), "http", b.path())
}

// rows are the stored events without their ids and times, sorted.
func (b *bundle) rows() []string {
	b.T.Helper()
	rows, err := b.Pool.Query(b.T.Context(), `
		select concat_ws(' ', e.source_event_id, e.type, e.kind, coalesce(n.profile_key, 'none'), coalesce(e.attempt, 0), e.origin_id = $2)
		from provider_events e
		left join notifications n on n.workspace_id = e.workspace_id and n.origin_id = e.origin_id and n.batch_id = e.batch_id
			and n.ordinal = e.ordinal
		where e.workspace_id = $1`, b.Workspace, uuid.Nil)
	b.Must(err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	b.Must(err)
	slices.Sort(all)
	return all
}

// Events come repeatedly, in any order, to several processes, for notifications of
// no notification and of another workspace: the stored events are the same.
func TestTheOrderOfEventsChangesNothing(t *testing.T) {
	t.Parallel()
	other := newBundle(pgtest.NewShop(t))
	var first []string
	for range 3 {
		b := newBundle(pgtest.Shop{T: t, Pool: other.Pool, Workspace: pgtest.Workspace(t, other.Pool)})
		type event struct{ id, body string }
		var all []event
		for i, kind := range []string{"accepted", "delivered", "bounced", "complained", "deferred", "rejected", "opened"} {
			all = append(all, event{fmt.Sprint("e", i), fmt.Sprintf(`{"type":%q,"notification_id":%q,"attempt":%d,"occurred_at":%q}`,
				kind, b.notification(i), 1+i%2, time.Now().Add(-24*time.Hour).Format(time.RFC3339))})
		}
		all = append(all,
			event{"unknown", fmt.Sprintf(`{"type":"delivered","notification_id":%q}`, lemma.FormatNotificationID(b.origin, keyOf(99)))},
			event{"other", fmt.Sprintf(`{"type":"delivered","notification_id":%q}`, other.notification(1))},
			event{"none", `{"type":"delivered","notification_id":"ntf_none"}`}, event{"bad", `{"type":"delivered","notification_id":"ntf_x"}`})
		var calls []event
		for _, e := range all {
			for range 50 {
				calls = append(calls, e)
			}
		}
		shuffle(calls)
		processes := []*Hooks{b.hooks(), b.hooks(), b.hooks()}
		done := make(chan error)
		for p := range processes {
			go func() {
				var failed error
				for i := p; i < len(calls); i += len(processes) {
					failed = errors.Join(failed, b.receive(processes[p], calls[i].id, calls[i].body))
				}
				done <- failed
			}()
		}
		for range processes {
			b.Must(<-done)
		}
		if first == nil {
			first = b.rows()
		}
		if diff := cmp.Diff(first, b.rows()); diff != "" || len(first) != len(all) {
			t.Errorf("%d rows of %d events\n%s", len(first), len(all), diff)
		}
		if n := b.Count(`select count(*) from event_queue where workspace_id = $1`, b.Workspace); n != 6 {
			t.Errorf("%d events are queued, want one for each that has an effect", n)
		}
		if n := b.Count(`select count(*) from provider_events where workspace_id = $1`, other.Workspace); n != 0 {
			t.Errorf("the other workspace has %d events", n)
		}
	}
}

func shuffle[T any](all []T) {
	for i := range all {
		j, _ := rand.Int(rand.Reader, big.NewInt(int64(i+1)))
		all[i], all[j.Int64()] = all[j.Int64()], all[i]
	}
}

// ProviderEvents!ForgedChangesNothing: each request changes one bit, or is for another
// provider; nothing is stored, and a counter has the reason.
func TestRefusals(t *testing.T) {
	b := setup(t)
	h := b.hooks()
	body := fmt.Sprintf(`{"type":"delivered","notification_id":%q}`, b.notification(1))
	unconfigured := b.create(nil)
	large := `{"type":"delivered","detail":"` + strings.Repeat("x", MostBody) + `"}`
	for name, c := range map[string]struct {
		request  func() *http.Request
		carrier  string
		provider string
		reason   string
	}{
		"another body": {func() *http.Request {
			r := b.request("e", body)
			r.Body = http.NoBody
			return r
		}, "http", b.path(), "forged"},
		"no signature": {func() *http.Request {
			r := b.request("e", body)
			r.Header.Del("webhook-signature")
			return r
		}, "http", b.path(), "forged"},
		"the signature of another id": {func() *http.Request {
			r := b.request("e", body)
			r.Header.Set("webhook-id", "f")
			return r
		}, "http", b.path(), "forged"},
		"of another provider": {func() *http.Request { return b.request("e", body) }, "http", lemma.FormatID("prv", unconfigured),
			"not_configured"},
		"of an unknown one":  {func() *http.Request { return b.request("e", body) }, "http", lemma.FormatID("prv", lemma.NewID()), "unknown"},
		"of another kind":    {func() *http.Request { return b.request("e", body) }, "smtp", b.path(), "unknown"},
		"an id that is none": {func() *http.Request { return b.request("e", body) }, "http", "prv_x", "unknown"},
		"truncated":          {func() *http.Request { return b.request("e", body[:len(body)-1]) }, "http", b.path(), "unreadable"},
		"too large":          {func() *http.Request { return b.request("e", large) }, "http", b.path(), "too_large"},
		"an unknown type":    {func() *http.Request { return b.request("e", `{"type":"x"}`) }, "http", b.path(), "unreadable"},
		"without an event":   {func() *http.Request { return b.request("e", `{}`) }, "http", b.path(), "unreadable"},
		"a list":             {func() *http.Request { return b.request("e", `[]`) }, "http", b.path(), "unreadable"},
		"too many": {func() *http.Request {
			return b.request("e", `{"events":[`+strings.Repeat(`{"type":"opened"},`, 1000)+`{}]}`)
		}, "http", b.path(), "unreadable"},
		"signed ten minutes ago": {func() *http.Request {
			r := b.request("e", body)
			signing.Set(r.Header, [][]byte{b.key}, "e", time.Now().Add(-10*time.Minute), []byte(body))
			return r
		}, "http", b.path(), "replayed"},
		"signed in the future": {func() *http.Request {
			r := b.request("e", body)
			signing.Set(r.Header, [][]byte{b.key}, "e", time.Now().Add(10*time.Minute), []byte(body))
			return r
		}, "http", b.path(), "replayed"},
		"too large, of an unknown length": {func() *http.Request {
			r := b.request("e", "")
			r.Body, r.ContentLength = http.MaxBytesReader(nil, nopCloser{bytes.NewReader([]byte(large))}, 1<<30), -1
			return r
		}, "http", b.path(), "too_large"},
	} {
		t.Run(name, func(t *testing.T) {
			label := c.carrier
			if label != "http" {
				label = "unknown"
			}
			before := value(h.metrics.refused.WithLabelValues(label, c.reason))
			err := h.Receive(c.request(), c.carrier, c.provider)
			if got := Refusal(err); got != c.reason {
				t.Errorf("%v: the reason is %q, want %q", err, got, c.reason)
			}
			if n := value(h.metrics.refused.WithLabelValues(label, c.reason)) - before; n != 1 {
				t.Errorf("%v are counted", n)
			}
		})
	}
	if rows := b.rows(); len(rows) != 0 {
		t.Errorf("stored: %v", rows)
	}
	b.Must(b.receive(h, "e", body))
	if rows := b.rows(); len(rows) != 1 {
		t.Errorf("stored: %v", rows)
	}
}

type nopCloser struct{ *bytes.Reader }

func (nopCloser) Close() error { return nil }

// A known event is answered without the database, and one that another process has
// stored by the database.
func TestKnownEventsAreAnswered(t *testing.T) {
	b := setup(t)
	here, there := b.hooks(), b.hooks()
	body := fmt.Sprintf(`{"type":"delivered","notification_id":%q}`, b.notification(1))
	b.Must(b.receive(here, "e", body))
	b.Must(b.receive(there, "e", body))
	tx, err := b.Pool.Begin(t.Context())
	b.Must(err)
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(t.Context(), `lock table provider_events in access exclusive mode`)
	b.Must(err)
	for _, h := range []*Hooks{here, there} {
		b.Must(b.receive(h, "e", body))
	}
	if n := value(there.metrics.duplicates.WithLabelValues("http")); n != 2 {
		t.Errorf("%v duplicates are counted", n)
	}
	// One that is new is not answered before it is stored.
	b.Must(tx.Rollback(t.Context()))
	b.Exec(`alter table provider_events rename to away`)
	if err := b.receive(here, "g", body); err == nil {
		t.Error("it was answered, and not stored")
	}
	b.Exec(`alter table away rename to provider_events`)
	b.Must(b.receive(here, "g", body))
	if rows := b.rows(); len(rows) != 2 {
		t.Errorf("stored: %v", rows)
	}
	tx, err = b.Pool.Begin(t.Context())
	b.Must(err)
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(t.Context(), `lock table provider_events in access exclusive mode`)
	b.Must(err)
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error)
	go func() { answered <- here.Receive(b.request("f", body).WithContext(ctx), "http", b.path()) }()
	pgtest.WaitForLocks(t, b.Pool, 1)
	cancel()
	if err := <-answered; err == nil {
		t.Error("it was answered before it was stored")
	}
}

// The secret may be changed: what is signed with the new one is not refused, since the carrier would not send it again.
func TestAChangedSecretCounts(t *testing.T) {
	b := setup(t)
	h := b.hooks()
	b.Must(b.receive(h, "e", `{"type":"delivered","notification_id":"ntf_none"}`))
	old := b.request("f", `{"type":"delivered","notification_id":"ntf_none"}`)
	_, _ = rand.Read(b.key)
	_, err := b.accounts.Update(t.Context(), b.Workspace, b.provider, nil, providers.Patch{Secrets: json.RawMessage(fmt.Sprintf(
		`{"signing_secret":%q,"webhook_secret":%q}`, signing.Secret(make([]byte, 32)), signing.Secret(b.key)))})
	b.Must(err)
	h.accounts.fresh(b.provider, accountAge).readAt = time.Now().Add(-2 * refusalAge)
	b.Must(b.receive(h, "f", `{"type":"delivered","notification_id":"ntf_none"}`))
	if err := h.Receive(old, "http", b.path()); !errors.Is(err, sender.ErrForged) {
		t.Errorf("the old secret: %v", err)
	}
}

// A carrier's list is one request; its events get the id of the request and their place.
func TestSeveralEventsInOneRequest(t *testing.T) {
	b := setup(t)
	b.Must(b.receive(b.hooks(), "e", fmt.Sprintf(`{"events":[{"type":"accepted","notification_id":%q,"attempt":1},
		{"id":"own","type":"delivered","notification_id":%[1]q,"attempt":7}]}`, b.notification(3))))
	if diff := cmp.Diff([]string{"e/0 accepted accepted 3 1 f", "own delivered accepted 3 0 f"}, b.rows()); diff != "" {
		t.Error(diff)
	}
}

// value reads a counter.
func value(c prometheus.Counter) float64 {
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	all, err := r.Gather()
	if err != nil {
		return -1
	}
	return all[0].GetMetric()[0].GetCounter().GetValue()
}

func TestURL(t *testing.T) {
	b := setup(t)
	if got := b.hooks().URL("http", b.provider); got != "https://lemma.example/hooks/http/"+b.path() {
		t.Errorf("got %s", got)
	}
	if got := b.hooks().URL("smtp2", b.provider); got != "" {
		t.Errorf("got %s", got)
	}
}

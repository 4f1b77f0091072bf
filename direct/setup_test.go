package direct

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/lifecycle"
	"lemma/notifications"
	"lemma/pgtest"
	"lemma/pgtest/shop"
	"lemma/sender"
	"lemma/sender/sendertest"
)

// bundle is a shop with a scripted carrier, and processes that accept and send.
type bundle struct {
	*shop.Fixture
	carrier *sendertest.Carrier
}

func setup(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	b := &bundle{Fixture: shop.New(pgtest.NewShop(t), shop.Local, nil), carrier: &sendertest.Carrier{}}
	b.OpenDB(`create table customers (id text, email text, name text, opted_out boolean not null default false)`,
		`insert into customers select 'c' || i, 'c' || i || '@shop.example', 'C' || i, false from generate_series(1, 50) i`)
	b.Fill("select id, email, name, opted_out from customers")
	b.Provider = b.NewProvider("scripted")
	return b
}

// process is another process that accepts requests.
func (b *bundle) process() *Direct {
	return New(Deps{Pool: b.Pool, Ledger: b.Ledger, Templates: b.Templates, Providers: b.Providers, Audiences: b.Audiences,
		Log: slog.New(slog.DiscardHandler)})
}

// request is a valid request under a key.
func (b *bundle) request(key string, change ...func(*Request)) Request {
	r := Request{Key: key, To: To{Address: "ada@shop.example"}, TemplateID: &b.Template, TemplateVersion: 1, ProviderID: &b.Provider,
		Email: Envelope{FromEmail: "shop@shop.example"}, Data: map[string]json.RawMessage{"name": json.RawMessage(`"Ada"`)}}
	for _, c := range change {
		c(&r)
	}
	r.ID, r.Hash = lemma.NewID(), lemma.Key("test", r.Key, string(r.Data["name"]))
	return r
}

func twice(r *Request)   { r.Strategy = AtLeastOnce }
func profile(r *Request) { r.To, r.Data = To{ProfileKey: "c1", AudienceID: r.To.AudienceID}, nil }

// ofProfile is a request to a profile of the audience.
func (b *bundle) ofProfile(key string, change ...func(*Request)) Request {
	return b.request(key, append([]func(*Request){func(r *Request) { r.To.AudienceID = &b.Audience }, profile}, change...)...)
}

// The answers to a request.
const (
	accepted = "accepted"
	filtered = "filtered"
	locked   = "locked"
	refused  = "refused"
)

func answerOf(s Sent, err error) string {
	var l *Locked
	switch {
	case errors.As(err, &l):
		return locked
	case err != nil:
		return refused + ": " + err.Error()
	case s.Filtered:
		return filtered
	}
	return accepted
}

// send sends a request and checks the answer.
func (b *bundle) send(d *Direct, r Request, want string) notifications.Notification {
	b.T.Helper()
	s, err := d.Send(context.Background(), b.Workspace, r)
	if got := answerOf(s, err); got != want {
		b.T.Fatalf("the request under %q is %s, want %s", r.Key, got, want)
	}
	return s.Notification
}

// sender is a process that sends.
func (b *bundle) sender(change ...func(*sender.Config)) *sender.Sender {
	b.T.Helper()
	cfg := sender.Config{Lease: time.Minute, CallTimeout: time.Second}
	for _, c := range change {
		c(&cfg)
	}
	s, err := sender.New(sender.Deps{Pool: b.Pool, Ledger: b.Ledger, Templates: b.Templates, Providers: b.Providers,
		Kinds: []sender.Kind{b.carrier.Kind()}, Log: slog.New(slog.DiscardHandler),
		Pause: func(context.Context, uuid.UUID, uuid.UUID, uuid.UUID, lifecycle.Cause) (bool, error) {
			return false, nil
		}}, cfg)
	b.Must(err)
	b.T.Cleanup(s.Close)
	return s
}

// work sends what is due.
func (b *bundle) work(s *sender.Sender) {
	b.T.Helper()
	rows, err := b.Pool.Query(context.Background(), `
		select workspace_id, origin_id, id from batches where status = 'ready' and due_at <= now()`)
	b.Must(err)
	due, err := pgx.CollectRows(rows, pgx.RowToStructByPos[notifications.Ref])
	b.Must(err)
	for _, ref := range due {
		_, err := s.Work(context.Background(), ref)
		b.Must(err)
	}
}

// reap lets the leases expire and runs the reaper.
func (b *bundle) reap(s *sender.Sender) {
	b.T.Helper()
	b.Exec(`update batches set lease_until = now() - interval '1 second' where status = 'leased'`)
	_, err := s.Reap(context.Background())
	b.Must(err)
}

// scripted makes every call end with an outcome.
func (b *bundle) scripted(outcome sender.Outcome) {
	b.carrier.Script = func(sender.Message, int) sender.Receipt { return sender.Receipt{Outcome: outcome, Reason: "scripted"} }
}

// calls are all calls of the carrier.
func (b *bundle) calls() (n int) {
	for _, made := range b.carrier.Made().All() {
		n += made
	}
	return n
}

package webhooks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/eventsout"
)

// What only reads is not waited for, however long it lasts: a backup locks all tables.
func TestASubscriptionDoesNotWaitForABackup(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	backup, err := b.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	b.Must(err)
	defer backup.Rollback(context.Background())
	_, err = backup.Exec(t.Context(), `lock table webhook_subscriptions, webhook_endpoints, events_out, campaigns in access share mode`)
	b.Must(err)
	key, release := b.held()
	reads := make(chan error, 1)
	go func() { // a statement that lasts
		_, err := backup.Exec(context.Background(), `select count(*) from pg_advisory_xact_lock_shared($1), webhook_subscriptions`, key)
		reads <- err
	}()
	b.WaitForLocks(1)
	b.hook = func(stage string) { t.Error("waits at:", stage) }
	b.subscriber("/", types(eventsout.CampaignStarted))
	release()
	b.Must(<-reads)
}

// The subscriptions of a workspace have a bounded size: they are read with its events.
func TestSubscriptionsOfAWorkspaceAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	large := Subscription{Types: []string{eventsout.CampaignStarted}, Metadata: map[string]string{"a": strings.Repeat("v", 16_000)}}
	most := slices.Repeat([]Subscription{large}, MaxSubscriptions)
	var last Endpoint
	for i := range 3 {
		last = b.subscriber(fmt.Sprint("/", i), most...)
	}
	create := func() error {
		_, _, err := b.Create(t.Context(), b.Workspace, NewEndpoint{ID: lemma.NewID(), Name: "/4", URL: b.receiver.URL, Subscriptions: most})
		return err
	}
	if err := create(); !isTooLarge(err) {
		t.Errorf("a fourth endpoint: %v", err)
	}
	small := b.subscriber("/small", large)
	_, err := b.Update(t.Context(), b.Workspace, small.ID, nil, Patch{Subscriptions: &most})
	if !isTooLarge(err) {
		t.Errorf("a change: %v", err)
	}
	b.WantCount(1, `select jsonb_array_length(subscriptions) from webhook_endpoints where id = $1`, small.ID)
	_, err = b.Update(t.Context(), b.Workspace, last.ID, nil, Patch{Subscriptions: &[]Subscription{large}})
	b.Must(err)
	b.Must(create())
	b.WantCount(5, `select count(*) from webhook_subscriptions`)
}

func isTooLarge(err error) bool {
	refused, is := errors.AsType[*lemma.Error](err)
	return is && refused.Code == "subscriptions_too_large"
}

// held holds an advisory lock until release is called.
func (b bundle) held() (key int64, release func()) {
	b.T.Helper()
	key = 4711
	holder, err := b.Pool.Begin(b.T.Context())
	b.Must(err)
	_, err = holder.Exec(b.T.Context(), `select pg_advisory_xact_lock($1)`, key)
	b.Must(err)
	return key, func() { b.Must(holder.Rollback(context.Background())) }
}

// A transaction that has read the subscriptions is waited for although it has not written
// yet, and so has no transaction id: the statement that reads them writes the event.
func TestASubscriptionWaitsForAStatementThatMayWrite(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	key, release := b.held()
	wrote := make(chan error, 1)
	go func() {
		_, err := b.Pool.Exec(context.Background(), `
			insert into events_out (workspace_id, id, type, origin_id, count)
			select $1, $1, $2, $1, 0
			where case when exists (select from webhook_subscriptions where workspace_id = $1 and type = $2) then true
				else pg_advisory_xact_lock_shared($3) is null end`,
			b.Workspace, eventsout.CampaignStarted, key)
		wrote <- err
	}()
	b.WaitForLocks(1)
	answered := b.subscribesLater()
	release()
	b.Must(<-wrote)
	<-answered
}

// A transaction that works for one workspace, such as a bulk of events, may last long. It delays the
// subscriptions of that one only.
func TestASubscriptionWaitsForItsOwnWorkspace(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for _, own := range []bool{false, true} {
		of := lemma.NewID()
		if own {
			of = b.Workspace
		}
		tx, err := b.Pool.Begin(t.Context())
		b.Must(err)
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		_, err = tx.Exec(t.Context(), `select pg_advisory_xact_lock_shared($1, 7)`, eventsout.LockSpace(of))
		b.Must(err)
		b.Must(eventsout.Record(t.Context(), tx, b.started()))
		if own {
			answered := b.subscribesLater()
			b.Must(tx.Rollback(context.Background()))
			<-answered
			continue
		}
		b.hook = func(stage string) { t.Error("waits at:", stage) }
		b.subscriber("/other", types(eventsout.CampaignStarted))
		b.Must(tx.Rollback(context.Background()))
	}
}

// subscribesLater makes a subscription that waits for a transaction, and returns when it waits.
func (b bundle) subscribesLater() (answered chan struct{}) {
	b.T.Helper()
	answered = make(chan struct{})
	waits := make(chan struct{})
	b.hook = func(stage string) {
		if stage == "older transaction" {
			b.hook = nil
			close(waits)
		}
	}
	go func() {
		defer close(answered)
		b.subscriber("/", types(eventsout.CampaignStarted))
	}()
	select {
	case <-answered:
		b.T.Error("the subscription was answered before the transaction has ended")
	case <-waits:
	}
	return answered
}

// An endpoint whose creation is refused does not stay, so that a repeated request makes one.
// One that exists stays.
func TestAnEndpointDoesNotStayHalfCreated(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.settling = 50 * time.Millisecond
	n := NewEndpoint{ID: lemma.NewID(), Name: "n", URL: b.receiver.URL, Subscriptions: []Subscription{types(eventsout.CampaignStarted)}}
	refused := func(id int) {
		t.Helper()
		n.ID[15] = byte(id)
		tx, err := b.Pool.Begin(t.Context())
		b.Must(err)
		defer tx.Rollback(context.Background())
		b.Must(eventsout.Record(t.Context(), tx, b.started()))
		_, _, err = b.Create(t.Context(), b.Workspace, n)
		if e, ok := errors.AsType[*lemma.Error](err); !ok || e.Code != "transactions_running" {
			t.Errorf("the creation returns %v", err)
		}
	}
	refused(1)
	b.WantCount(0, `select count(*) from webhook_endpoints`)
	refused(2)
	_, _, err := b.Create(t.Context(), b.Workspace, n)
	b.Must(err)
	refused(2)
	b.WantCount(1, `select count(*) from webhook_endpoints`)
}

// Creations of one workspace count each other: the second waits for the first.
func TestCreationsAreCountedOneAfterTheOther(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.endpoint("/")
	b.Exec(`insert into webhook_endpoints (workspace_id, id, name, url, secret)
		select workspace_id, gen_random_uuid(), 'e' || i, url, secret from webhook_endpoints, generate_series(3, $1::int) i`, MaxEndpoints)
	first, err := b.Pool.Begin(t.Context())
	b.Must(err)
	defer first.Rollback(context.Background())
	b.Must(insert(t.Context(), first, b.Workspace, NewEndpoint{ID: lemma.NewID(), Name: "first", URL: b.receiver.URL}, []byte("sealed")))
	second := make(chan error, 1)
	go func() {
		_, _, err := b.Create(context.Background(), b.Workspace, NewEndpoint{ID: lemma.NewID(), Name: "second", URL: b.receiver.URL})
		second <- err
	}()
	b.WaitForLocks(1)
	b.Must(first.Commit(t.Context()))
	if err := <-second; lemma.KindOf(err) != lemma.Conflict {
		t.Errorf("the second creation returns %v", err)
	}
	b.WantCount(MaxEndpoints, `select count(*) from webhook_endpoints`)
}

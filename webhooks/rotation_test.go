package webhooks

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"

	"lemma"
	"lemma/eventsout"
	"lemma/pgtest"
)

// tenant is another workspace of the same database.
func (b bundle) tenant() bundle {
	b.T.Helper()
	b.Shop = pgtest.ShopIn(b.T, b.Pool)
	return b
}

// recordMany commits one event n times.
func (b bundle) recordMany(n int) {
	b.T.Helper()
	all := make([]eventsout.Event, n)
	for i := range all {
		all[i] = b.started()
	}
	b.record(all...)
}

// The events of a workspace with many of them do not delay those of another, and of many
// workspaces each has its turn.
func TestEventsOfWorkspacesArePublishedInTurn(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.subscriber("/", types(eventsout.CampaignStarted))
	b.recordMany(3 * publishMost)
	b.Exec(`update events_out set occurred_at = now() - interval '1 hour'`)
	for range publishWorkspaces + 5 {
		other := b.tenant()
		other.subscriber("/", types(eventsout.CampaignStarted))
		other.recordMany(2)
	}
	for range 2 {
		_, err := b.Publish(t.Context())
		b.Must(err)
	}
	b.WantCount(0, `select count(*) from (select workspace_id from events_out group by 1 having count(published_at) = 0) w`)
	for more := true; more; {
		n, err := b.Publish(t.Context())
		b.Must(err)
		more = n > 0
	}
	b.WantCount(0, `select count(*) from events_out where published_at is null`)
}

// An event that cannot be published does not stop others, of its workspace and of others.
// It is tried again later.
func TestAnEventThatFailsIsPutAside(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.Exec(`create function refuse() returns trigger language plpgsql as $$ begin raise 'refused'; end $$`)
	b.Exec(`create trigger refuse before insert on outbox for each row when (new.type = 'campaign.failed') execute function refuse()`)
	other := b.tenant()
	for _, of := range []bundle{b, other} {
		of.subscriber("/", types(eventsout.CampaignStarted, eventsout.CampaignFailed))
		of.recordMany(10)
	}
	failed := b.started()
	failed.Type = eventsout.CampaignFailed
	b.record(failed)
	b.recordMany(10)
	left := func() int {
		return b.Count(`select count(*) from events_out where published_at is null and type = $1`, eventsout.CampaignStarted)
	}
	tries := 0
	for ; left() > 0 && tries < 50; tries++ {
		_, _ = b.Publish(t.Context())
	}
	if tries == 50 {
		t.Fatalf("%d events wait", left())
	}
	for b.Count(`select count(*) from events_out where aside_until is null and published_at is null`) > 0 && tries < 50 {
		_, _ = b.Publish(t.Context())
		tries++
	}
	b.publish(0)
	b.Exec(`drop trigger refuse on outbox`)
	b.publish(0)
	b.Exec(`update events_out set aside_until = now()`)
	b.publish(1)
}

// A transaction writes a bounded number of items, to however many endpoints.
func TestEventsToManyEndpointsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.subscriber("/", types(eventsout.NotificationSent))
	const endpoints = MaxEndpoints / 2
	b.Exec(`insert into webhook_endpoints (workspace_id, id, name, url, secret, subscriptions)
		select workspace_id, gen_random_uuid(), 'e' || i, url, secret, subscriptions from webhook_endpoints, generate_series(2, $1::int) i`,
		endpoints)
	b.Exec(`insert into webhook_subscriptions (workspace_id, type, endpoint_id)
		select workspace_id, $1, id from webhook_endpoints on conflict do nothing`, eventsout.NotificationSent)
	keys := make([]uuid.UUID, 200)
	for i := range keys {
		keys[i] = lemma.NewID()
	}
	for range 6 {
		b.record(eventsout.Event{WorkspaceID: b.Workspace, Type: eventsout.NotificationSent, OriginID: lemma.NewID(), Keys: keys})
	}
	for _, want := range []int{4, 2, 0} {
		b.publish(want)
	}
	b.WantCount(6*endpoints, `select count(*) from outbox`)
}

// A workspace has at most MaxEndpoints endpoints, also when some are created together. An
// endpoint that exists is created again.
func TestEndpointsOfAWorkspaceAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	first, _ := b.endpoint("/")
	b.Exec(`insert into webhook_endpoints (workspace_id, id, name, url, secret, subscriptions)
		select workspace_id, gen_random_uuid(), 'e' || i, url, secret, subscriptions from webhook_endpoints, generate_series(3, $1::int) i`,
		MaxEndpoints)
	var all sync.WaitGroup
	faults := make([]error, 4)
	for i := range faults {
		all.Go(func() {
			_, _, faults[i] = b.Create(t.Context(), b.Workspace, NewEndpoint{ID: lemma.NewID(), Name: fmt.Sprint("new ", i), URL: b.receiver.URL})
		})
	}
	all.Wait()
	refused := 0
	for _, err := range faults {
		if lemma.KindOf(err) == lemma.Conflict && err != nil {
			refused++
		}
	}
	if refused != len(faults)-1 {
		t.Errorf("%d were refused: %v", refused, faults)
	}
	b.WantCount(MaxEndpoints, `select count(*) from webhook_endpoints`)
	if _, _, err := b.Create(t.Context(), b.Workspace, NewEndpoint{ID: first.ID, Name: first.Name, URL: first.URL}); err != nil {
		t.Error(err)
	}
	b.tenant().endpoint("/")
}

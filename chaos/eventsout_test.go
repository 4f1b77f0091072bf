package chaos

import (
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/eventsout"
)

// Workers are killed at each step of an event, and then at random, while a campaign and
// direct notifications are sent. The receiver fails 30 % of the requests, redirects some
// and answers some late. In the end each endpoint has every event once after its own
// dedupe, with numbers without gaps, and each notification in one event, that of its
// status.
func TestKilledWorkersLoseNoEvent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.Exec(eventSteps)
	h.mail.slow(10 * time.Millisecond)
	kills, random := h.kills(2), h.random()
	r := h.openReceiver()
	all := r.subscribe("/all", eventsout.Types...)
	sent := r.subscribe("/sent", eventsout.NotificationSent)
	people := h.customer(kills * perKill)
	c := h.openClients("at_most_once", min(kills*directPerKill, 1000))
	unlock := h.stopAt("record")
	id := h.send(people)
	var requests sync.WaitGroup
	requests.Go(func() { c.sendAll() })
	workers := c.workers[len(c.servers):]
	for _, steps := range [][2]string{{"record", "publish"}, {"publish", "settle"}, {"settle", "none"}} {
		unlock = h.killAllAt(steps[0], workers, unlock, steps[1])
	}
	unlock()
	h.killDuringCampaign(workers, killPoints(random, kills, kills*perKill*4/5), random)
	requests.Wait()
	h.completedSoon(id)
	r.awaitDelivery()
	h.verify(people, id)
	r.verify(all, eventsout.NotificationSent, eventsout.NotificationFailed, eventsout.NotificationSkipped, eventsout.NotificationOrphaned)
	r.verify(sent, eventsout.NotificationSent)
	if got := r.ofType(all, eventsout.CampaignStarted, eventsout.CampaignCompleted); got != 2 {
		t.Errorf("the campaign has %d events, want campaign.started and campaign.completed", got)
	}
	t.Logf("%d kills: %d events, %d requests, of which %d were refused and %d repeated", kills+3*len(workers), r.processed(),
		r.requests, r.refused, r.repeated)
}

// directPerKill is the number of direct notifications for each kill.
const directPerKill = 20

// eventSteps are places in which a process waits for the lock that has their name.
const eventSteps = `
	create function step() returns trigger language plpgsql as $$
		begin perform pg_advisory_xact_lock_shared(hashtext(tg_argv[0])); return new; end $$;
	create trigger step_record before insert on events_out for each row when (new.type = 'notification.sent') execute function step('record');
	create trigger step_publish before insert on outbox for each row execute function step('publish');
	create trigger step_settle before update on outbox for each row when (new.status = 'delivered') execute function step('settle')`

// stopAt makes processes wait in a step until unlock is called.
func (h *env) stopAt(step string) (unlock func()) {
	h.t.Helper()
	return h.lock(`select pg_advisory_xact_lock(hashtext($1))`, step)
}

// killAllAt kills all workers while one waits in a step, and starts them again. They cannot
// pass the next step, since it is locked before this one is unlocked.
func (h *env) killAllAt(step string, workers []*worker, unlock func(), next string) (unlockNext func()) {
	h.t.Helper()
	h.eventually("a worker is at "+step, func() bool {
		return h.Count(`select count(*) from pg_locks where not granted and locktype = 'advisory'
			and objid = (hashtext($1)::bigint & 4294967295)::oid`, step) > 0
	})
	killAll(workers)
	h.endSessions()
	unlockNext = h.stopAt(next)
	unlock()
	h.startAgain(workers)
	return unlockNext
}

// awaitDelivery waits until all messages are delivered. Retries are due at once.
func (r *receiver) awaitDelivery() {
	r.t.Helper()
	r.eventually("all events are delivered", func() bool {
		r.makeAllDue()
		r.Exec(`update outbox set due_at = now() where status = 'pending' and due_at > now() and (leased_by is null or lease_until <= now())`)
		return r.Count(`select count(*) from batches where status in ('ready', 'leased')`)+
			r.Count(`select count(*) from events_out where published_at is null`)+
			r.Count(`select count(*) from outbox where status = 'pending'`) == 0
	})
	r.WantCount(0, `select count(*) from outbox where status <> 'delivered'`)
}

// verify compares the events that an endpoint has processed with the notifications. It
// subscribes to those types.
func (r *receiver) verify(path string, types ...string) {
	r.t.Helper()
	var numbers []int64
	ids, got := map[string]bool{}, map[string]string{} // types by notification
	for _, e := range r.events(path) {
		numbers = append(numbers, e.Sequence)
		if ids[e.ID] {
			r.t.Errorf("%s has event %s in two messages", path, e.ID)
		}
		ids[e.ID] = true
		if len(e.Data.Notifications) != e.Data.Count {
			r.t.Errorf("%s has %d notifications and a count of %d", e.ID, len(e.Data.Notifications), e.Data.Count)
		}
		for _, n := range e.Data.Notifications {
			if got[n] != "" {
				r.t.Errorf("%s has %s in %s and %s", path, n, got[n], e.Type)
			}
			got[n] = e.Type
		}
		r.verifyWhole(e)
	}
	slices.Sort(numbers)
	for i, n := range numbers {
		if n != int64(i+1) {
			r.t.Fatalf("%s: number %d follows %d", path, n, i)
		}
	}
	if diff := cmp.Diff(r.notifications(types), got); diff != "" || len(got) == 0 {
		r.t.Errorf("notifications (-) and those of events to %s (+):\n%.2000s", path, diff)
	}
}

// verifyWhole verifies that an event, read by its id, has the items of its message, with
// the status of its type.
func (r *receiver) verifyWhole(e receivedEvent) {
	r.t.Helper()
	id, _ := lemma.ParseID(lemma.PrefixEventOut, e.ID)
	whole, err := r.webhooks.Event(r.t.Context(), r.Workspace, id)
	r.Must(err)
	var items []string
	for _, item := range whole.Items {
		items = append(items, item.ID)
		if item.Status == nil || "notification."+*item.Status != e.Type {
			r.t.Errorf("%s of %s is %v", item.ID, e.Type, item.Status)
		}
	}
	if !slices.Equal(items, e.Data.Notifications) {
		r.t.Errorf("the message of %s has %d notifications, and the event %d", e.ID, len(e.Data.Notifications), len(items))
	}
}

// notifications are the types of the events that notifications must have, by id.
func (r *receiver) notifications(types []string) map[string]string {
	r.t.Helper()
	r.Exec(`analyze notifications, batches, attempts`)
	rows, err := r.Pool.Query(r.t.Context(), `select origin_id, key, 'notification.' || status from notification_status`)
	r.Must(err)
	all := map[string]string{}
	var origin, key uuid.UUID
	var name string
	_, err = pgx.ForEachRow(rows, []any{&origin, &key, &name}, func() error {
		all[lemma.FormatNotificationID(origin, key)] = name
		return nil
	})
	r.Must(err)
	maps.DeleteFunc(all, func(_, name string) bool { return !slices.Contains(types, name) })
	return all
}

func (r *receiver) ofType(path string, types ...string) (n int) {
	for _, e := range r.events(path) {
		if slices.Contains(types, e.Type) {
			n++
		}
	}
	return n
}

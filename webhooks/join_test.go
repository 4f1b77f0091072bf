package webhooks

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/eventsout"
	"lemma/pgtest"
)

// Several commits write events of one type about notifications of one campaign. Those that
// wait together are one event, with all of them and the reason of each.
func TestEventsOfACampaignAreJoined(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e := b.subscriber("/", types(eventsout.NotificationSent, eventsout.NotificationFailed))
	origin, batch := lemma.NewID(), lemma.NewID()
	ids, keys := make([]string, 6), make([]uuid.UUID, 6)
	for _, i := range []int{4, 1, 0, 3, 2, 5} { // not in the order of the rows
		key := lemma.NewID()
		keys[i], ids[i] = key, lemma.FormatNotificationID(origin, key)
		b.Exec(`insert into notifications (workspace_id, origin_id, key, batch_id, ordinal, profile_key, address)
			values ($1, $2, $3, $4, $5, 'p', 'a@example.com')`, b.Workspace, origin, key, batch, i)
	}
	of := func(name string, ordinals ...int16) eventsout.Event {
		return eventsout.Event{WorkspaceID: b.Workspace, Type: name, OriginID: origin, BatchID: batch, Ordinals: ordinals}
	}
	reasons := of(eventsout.NotificationFailed, 3)
	reasons.Details = []string{"rejected"}
	sent := of(eventsout.NotificationSent)
	sent.BatchID, sent.Keys = uuid.Nil, []uuid.UUID{keys[2], keys[0]}
	b.record(of(eventsout.NotificationSent, 4), of(eventsout.NotificationFailed, 5), reasons, sent)
	b.publish(4)
	b.WantCount(2, `select count(*) from events_out where published_at is not null`)
	b.WantCount(2, `select count(*) from events_out`)
	got, details := map[string][]string{}, map[string]string{}
	for _, body := range b.bodies(e) {
		var message struct {
			ID, Type string
			Data     struct {
				Count int
				IDs   []string `json:"notification_ids"`
			}
		}
		b.Must(json.Unmarshal([]byte(body), &message))
		if got[message.Type] != nil || message.Data.Count != len(message.Data.IDs) {
			t.Errorf("there is a second message, or a wrong count: %s", body)
		}
		got[message.Type] = message.Data.IDs
		id, _ := lemma.ParseID(lemma.PrefixEventOut, message.ID)
		whole, err := b.Event(t.Context(), b.Workspace, id)
		b.Must(err)
		for _, item := range whole.Items {
			details[item.ID] = item.Detail
		}
	}
	want := map[string][]string{eventsout.NotificationSent: {ids[4], ids[2], ids[0]}, eventsout.NotificationFailed: {ids[5], ids[3]}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{ids[0]: "", ids[2]: "", ids[4]: "", ids[3]: "rejected", ids[5]: ""}, details); diff != "" {
		t.Error(diff)
	}
}

// A joined event has at most the items of an event.
func TestJoinedEventsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.subscriber("/", types(eventsout.NotificationSent))
	sent := eventsout.Event{WorkspaceID: b.Workspace, Type: eventsout.NotificationSent, OriginID: lemma.NewID()}
	for range 3 {
		sent.Keys = make([]uuid.UUID, eventsout.MaxItems/2)
		b.record(sent)
	}
	b.publish(3)
	counts := pgtest.Column[int](t, b.Pool, `select count from events_out order by count`)
	if diff := cmp.Diff([]int{eventsout.MaxItems / 2, eventsout.MaxItems}, counts); diff != "" {
		t.Error(diff)
	}
}

// The items of an event may be all notifications of a batch, or some by their ordinals.
func TestAnEventOfABatchHasItsItems(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e := b.subscriber("/", types(eventsout.NotificationSent, eventsout.NotificationSkipped))
	origin, batch := lemma.NewID(), lemma.NewID()
	var keys []string
	for i := range 3 {
		key := lemma.NewID()
		keys = append(keys, lemma.FormatNotificationID(origin, key))
		b.Exec(`insert into notifications (workspace_id, origin_id, key, batch_id, ordinal, profile_key, address)
			values ($1, $2, $3, $4, $5, 'p', 'a@example.com')`, b.Workspace, origin, key, batch, i)
	}
	whole := eventsout.Event{WorkspaceID: b.Workspace, Type: eventsout.NotificationSent, OriginID: origin, BatchID: batch, Items: 3}
	some := whole
	some.Type, some.Items, some.Ordinals = eventsout.NotificationSkipped, 0, []int16{0, 2}
	b.record(whole, some)
	b.publish(2)
	var got [][]string
	for _, body := range b.bodies(e) {
		var message struct {
			Data struct {
				IDs []string `json:"notification_ids"`
			}
		}
		b.Must(json.Unmarshal([]byte(body), &message))
		got = append(got, message.Data.IDs)
	}
	if diff := cmp.Diff([][]string{keys, {keys[0], keys[2]}}, got); diff != "" {
		t.Error(diff)
	}
}

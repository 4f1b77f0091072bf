package webhooks

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/eventsout"
)

func TestSubscriptionsSelectOrigins(t *testing.T) {
	t.Parallel()
	campaign, flow, other := lemma.NewID(), lemma.NewID(), lemma.NewID()
	ids, one, both := []uuid.UUID{other}, map[string]string{"a": "1"}, map[string]string{"a": "1", "b": "2"}
	type origin struct {
		campaign, flow *uuid.UUID
		metadata       map[string]string
	}
	of := func(campaign, flow *uuid.UUID, metadata map[string]string) origin {
		return origin{campaign, flow, metadata}
	}
	for name, c := range map[string]struct {
		s    Subscription
		of   origin
		want bool
	}{
		"all":                        {Subscription{}, of(&campaign, nil, nil), true},
		"its campaign":               {Subscription{CampaignIDs: []uuid.UUID{other, campaign}}, of(&campaign, nil, nil), true},
		"another campaign":           {Subscription{CampaignIDs: []uuid.UUID{other}}, of(&campaign, nil, nil), false},
		"a campaign, but only flows": {Subscription{FlowIDs: []uuid.UUID{flow}}, of(&campaign, nil, nil), false},
		"its flow, among campaigns":  {Subscription{CampaignIDs: ids, FlowIDs: []uuid.UUID{flow}}, of(nil, &flow, nil), true},
		"no origin":                  {Subscription{CampaignIDs: []uuid.UUID{other}}, of(nil, nil, nil), false},
		"its metadata":               {Subscription{Metadata: one}, of(nil, &flow, both), true},
		"other metadata":             {Subscription{Metadata: one}, of(nil, &flow, map[string]string{"a": "2"}), false},
		"empty metadata":             {Subscription{Metadata: map[string]string{"a": ""}}, of(nil, &flow, nil), false},
	} {
		to := &subscribed{items: map[*waiting]itemSet{}}
		s, asked := &subscriber{Subscription: c.s, to: to}, entries{}
		asked.add(s)
		e := &waiting{CampaignID: c.of.campaign, FlowID: c.of.flow, ofOrigin: map[int]bool{}}
		for _, entry := range asked.of(c.of.metadata) {
			e.ofOrigin[entry] = true
		}
		s.add(e, e.index())
		if got := len(to.events) == 1; got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The metadata of a flow selects its events.
func TestSubscriptionsSelectMetadataOfFlows(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	flows := map[string]uuid.UUID{}
	for name, text := range map[string]string{"winter": `{"team":"a","season":"winter"}`, "summer": `{"team":"a"}`, "none": `{}`} {
		flows[name] = lemma.NewID()
		b.Exec(`insert into flows (workspace_id, id, name, metadata) values ($1, $2, $3, $4)`, b.Workspace, flows[name], name, text)
	}
	of := func(m map[string]string) Subscription {
		return Subscription{Types: []string{eventsout.EnrollmentStarted, eventsout.EnrollmentStarted, eventsout.EnrollmentExited}, Metadata: m}
	}
	b.subscriber("/team", of(map[string]string{"team": "a"}))
	b.subscriber("/winter", of(map[string]string{"season": "winter", "team": "a"}))
	b.subscriber("/either", of(map[string]string{"season": "winter"}),
		Subscription{Types: []string{eventsout.EnrollmentStarted}, FlowIDs: []uuid.UUID{flows["none"]}})
	b.subscriber("/other", of(map[string]string{"season": "summer"}))
	for _, flow := range flows {
		b.record(eventsout.Event{WorkspaceID: b.Workspace, Type: eventsout.EnrollmentStarted, OriginID: flow, Keys: []uuid.UUID{lemma.NewID()}},
			eventsout.Event{WorkspaceID: b.Workspace, Type: eventsout.EnrollmentExited, OriginID: flow, Keys: []uuid.UUID{lemma.NewID()}})
	}
	b.publish(6)
	got := map[string]int{}
	rows, err := b.Pool.Query(t.Context(), `select e.name, o.body from outbox o join webhook_endpoints e on e.id = o.endpoint_id`)
	b.Must(err)
	var endpoint, body string
	_, err = pgx.ForEachRow(rows, []any{&endpoint, &body}, func() error {
		for name, id := range flows {
			if strings.Contains(body, lemma.FormatID(lemma.PrefixFlow, id)) {
				got[endpoint+" "+name]++
			}
		}
		return nil
	})
	b.Must(err)
	want := map[string]int{"/team winter": 2, "/team summer": 2, "/winter winter": 2, "/either winter": 2, "/either none": 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Each direct notification has metadata of its own: a message has those of its event that
// the subscriptions of the endpoint select.
func TestSubscriptionsSelectDirectNotifications(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	origin, batch := lemma.NewID(), lemma.NewID()
	keys := make([]uuid.UUID, 4)
	for i, text := range []any{`{"team":"a"}`, `{"team":"b","kind":"x"}`, nil, `{"team":"c"}`} {
		keys[i] = lemma.NewID()
		b.Exec(`insert into notifications (workspace_id, origin_id, key, batch_id, ordinal, profile_key, address, payload, metadata)
			values ($1, $2, $3, $4, $5, 'p', 'p@shop.example', '{}', $6)`, b.Workspace, origin, keys[i], batch, i, text)
	}
	of := func(m map[string]string) Subscription {
		return Subscription{Types: []string{eventsout.NotificationSent}, Metadata: m}
	}
	b.subscriber("/a", of(map[string]string{"team": "a"}))
	b.subscriber("/a-and-b", of(map[string]string{"team": "a"}), of(map[string]string{"kind": "x"}))
	b.subscriber("/all", of(nil), of(map[string]string{"team": "c"}))
	b.subscriber("/none", of(map[string]string{"team": "d"}))
	sent := eventsout.Event{WorkspaceID: b.Workspace, Type: eventsout.NotificationSent, OriginID: origin}
	byBatch, byKey := sent, sent
	byBatch.BatchID, byBatch.Ordinals = batch, []int16{0, 1, 2, 3}
	byKey.Keys = []uuid.UUID{keys[1], keys[3]}
	b.record(byBatch, byKey)
	b.publish(2)
	b.run(b.Webhooks, 3) // the two events are joined
	got := map[string][]string{}
	for _, r := range b.receiver.all() {
		var body struct {
			Data struct {
				Count int
				IDs   []string `json:"notification_ids"`
			}
		}
		b.Must(json.Unmarshal([]byte(r.body), &body))
		if body.Data.Count != len(body.Data.IDs) {
			t.Errorf("%s has %s", r.path, r.body)
		}
		got[r.path] = append(got[r.path], body.Data.IDs...)
	}
	ids := func(of ...int) (all []string) {
		for _, i := range of {
			all = append(all, lemma.FormatNotificationID(origin, keys[i]))
		}
		return all
	}
	want := map[string][]string{"/a": ids(0), "/a-and-b": ids(0, 1, 1), "/all": ids(0, 1, 2, 3, 1, 3)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

package webhooks

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// subscribed are the events of one endpoint.
type subscribed struct {
	WorkspaceID, EndpointID uuid.UUID
	events                  []*waiting
	items                   map[*waiting][]bool // of an event with ofItems: which of them are selected
}

// subscriber is a subscription of an endpoint to a type.
type subscriber struct {
	Subscription
	workspace, endpoint uuid.UUID
	events              []*waiting // of the type
}

// subscribers are the endpoints that subscribe to events, in the order in which their
// rows are locked.
func subscribers(ctx context.Context, tx pgx.Tx, all []*waiting) ([]*subscribed, error) {
	found, err := readSubscribers(ctx, tx, all)
	if err != nil {
		return nil, err
	}
	if err := readItemMetadata(ctx, tx, found); err != nil {
		return nil, err
	}
	byEndpoint := map[uuid.UUID]*subscribed{}
	var order []*subscribed
	for _, s := range found {
		to := byEndpoint[s.endpoint]
		if to == nil {
			to = &subscribed{WorkspaceID: s.workspace, EndpointID: s.endpoint, items: map[*waiting][]bool{}}
			byEndpoint[s.endpoint], order = to, append(order, to)
		}
		for _, e := range s.events {
			to.add(s.Subscription, e)
		}
	}
	for _, to := range order {
		slices.SortFunc(to.events, func(a, b *waiting) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	}
	return slices.DeleteFunc(order, func(to *subscribed) bool { return len(to.events) == 0 }), nil
}

// readSubscribers reads the subscriptions to the types of events, by endpoint.
func readSubscribers(ctx context.Context, tx pgx.Tx, all []*waiting) (found []subscriber, err error) {
	of := map[[2]string][]*waiting{} // by workspace and type
	for _, e := range all {
		k := [2]string{e.WorkspaceID.String(), e.Type}
		of[k] = append(of[k], e)
	}
	workspaces, types := make([]pgtype.UUID, 0, len(of)), make([]string, 0, len(of))
	for k, events := range of {
		workspaces, types = append(workspaces, pgUUID(events[0].WorkspaceID)), append(types, k[1])
	}
	rows, _ := tx.Query(ctx, `
		select s.workspace_id, s.type, s.endpoint_id, s.campaign_ids, s.flow_ids, s.metadata
		from unnest($1::uuid[], $2::text[]) as t (workspace_id, type)
		cross join lateral (
			select s.workspace_id, s.type, s.endpoint_id, s.campaign_ids, s.flow_ids, s.metadata from webhook_subscriptions s
			where s.workspace_id = t.workspace_id and s.type = t.type offset 0
		) s
		order by s.workspace_id, s.endpoint_id`, workspaces, types)
	var s subscriber
	var name string
	_, err = pgx.ForEachRow(rows, []any{&s.workspace, &name, &s.endpoint, &s.CampaignIDs, &s.FlowIDs, &s.Metadata}, func() error {
		s.events = of[[2]string{s.workspace.String(), name}]
		found, s = append(found, s), subscriber{}
		return nil
	})
	return found, err
}

type metadata map[string]string

// isDirect reports whether an event is about direct notifications: they have no campaign
// and no flow.
func (e *waiting) isDirect() bool {
	return e.CampaignID == nil && e.FlowID == nil && strings.HasPrefix(e.Type, "notification.")
}

// readItemMetadata reads the metadata of direct notifications for subscriptions that ask
// for some.
func readItemMetadata(ctx context.Context, tx pgx.Tx, all []subscriber) error {
	batch := &pgx.Batch{}
	for _, s := range all {
		for _, e := range s.events {
			if len(s.Metadata) == 0 || e.ofItems != nil || !e.isDirect() {
				continue
			}
			e.ofItems = make([]metadata, e.Keys.Len())
			batch.Queue(`
				select r.i::int - 1, n.metadata from unnest($3::uuid[]) with ordinality as r (key, i)
				cross join lateral (
					select n.metadata from notifications n where n.workspace_id = $1 and n.origin_id = $2 and n.key = r.key offset 0
				) n
				where n.metadata is not null`, e.WorkspaceID, e.OriginID, e.Keys.Unpack()).Query(func(rows pgx.Rows) error {
				var i int
				var text []byte
				_, err := pgx.ForEachRow(rows, []any{&i, &text}, func() error { return json.Unmarshal(text, &e.ofItems[i]) })
				return err
			})
		}
	}
	if batch.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, batch).Close()
}

// add adds an event that a subscription selects. Several of one endpoint may select
// different items of it.
func (to *subscribed) add(s Subscription, e *waiting) {
	if !s.selects(e) {
		return
	}
	if !slices.Contains(to.events, e) {
		to.events = append(to.events, e)
	}
	if to.items[e] == nil {
		to.items[e] = make([]bool, len(e.ofItems))
	}
	for i, m := range e.ofItems {
		to.items[e][i] = to.items[e][i] || s.has(m)
	}
}

// shown is an event with the items for the endpoint.
func (to *subscribed) shown(e *waiting) *waiting {
	if !slices.Contains(to.items[e], false) {
		return e
	}
	part := *e
	part.Keys, part.data = nil, nil
	for i, selected := range to.items[e] {
		if selected {
			key := e.Keys.At(i)
			part.Keys = append(part.Keys, key[:]...)
		}
	}
	return &part
}

// selects reports whether an event is of the origins of a subscription, and it or one of
// its items has the metadata.
func (s Subscription) selects(e *waiting) bool {
	if len(s.CampaignIDs)+len(s.FlowIDs) > 0 &&
		(e.CampaignID == nil || !slices.Contains(s.CampaignIDs, *e.CampaignID)) &&
		(e.FlowID == nil || !slices.Contains(s.FlowIDs, *e.FlowID)) {
		return false
	}
	return s.has(e.Metadata) || slices.ContainsFunc(e.ofItems, s.has)
}

// has reports whether metadata has the entries of a subscription.
func (s Subscription) has(m metadata) bool {
	for key, value := range s.Metadata {
		if has, ok := m[key]; !ok || has != value {
			return false
		}
	}
	return true
}

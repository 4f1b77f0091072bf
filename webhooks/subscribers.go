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
	items                   map[*waiting]itemSet // of an event of direct notifications: which of them are selected
}

// subscriber is a subscription of an endpoint to a type.
type subscriber struct {
	Subscription
	workspace, endpoint uuid.UUID
	events              []*waiting // of the type
	to                  *subscribed
	entries             []int // of its metadata, see entries
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
	of := map[*waiting][]*subscriber{}
	for _, s := range found {
		if s.to = byEndpoint[s.endpoint]; s.to == nil {
			s.to = &subscribed{WorkspaceID: s.workspace, EndpointID: s.endpoint, items: map[*waiting]itemSet{}}
			byEndpoint[s.endpoint], order = s.to, append(order, s.to)
		}
		for _, e := range s.events {
			of[e] = append(of[e], s)
		}
	}
	for e, some := range of {
		items := e.index()
		for _, s := range some {
			s.add(e, items)
		}
	}
	for _, to := range order {
		slices.SortFunc(to.events, func(a, b *waiting) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	}
	return slices.DeleteFunc(order, func(to *subscribed) bool { return len(to.events) == 0 }), nil
}

// readSubscribers reads the subscriptions to the types of events, by endpoint.
func readSubscribers(ctx context.Context, tx pgx.Tx, all []*waiting) (found []*subscriber, err error) {
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
		one := s
		found, s = append(found, &one), subscriber{}
		return nil
	})
	return found, err
}

// isDirect reports whether an event is about direct notifications: they have no campaign
// and no flow.
func (e *waiting) isDirect() bool {
	return e.CampaignID == nil && e.FlowID == nil && strings.HasPrefix(e.Type, "notification.")
}

// entries number the metadata that subscriptions ask for: keys with their values. What else direct
// notifications have is not kept.
type entries map[[2]string]int

func (n entries) add(s *subscriber) {
	for key, value := range s.Metadata {
		entry := [2]string{key, value}
		if _, known := n[entry]; !known {
			n[entry] = len(n)
		}
		s.entries = append(s.entries, n[entry])
	}
}

// of are the entries of a direct notification that are asked for.
func (n entries) of(metadata map[string]string) (asked []int) {
	for key, value := range metadata {
		if entry, is := n[[2]string{key, value}]; is {
			asked = append(asked, entry)
		}
	}
	return asked
}

// readItemMetadata reads the metadata of direct notifications for subscriptions that ask
// for some.
func readItemMetadata(ctx context.Context, tx pgx.Tx, all []*subscriber) error {
	asked := entries{}
	for _, s := range all {
		asked.add(s)
	}
	batch := &pgx.Batch{}
	for _, s := range all {
		for _, e := range s.events {
			if len(s.Metadata) == 0 || e.ofItems != nil || !e.isDirect() {
				continue
			}
			e.ofItems = make([][]int, e.Keys.Len())
			batch.Queue(`
				select r.i::int - 1, n.metadata from unnest($3::uuid[]) with ordinality as r (key, i)
				cross join lateral (
					select n.metadata from notifications n where n.workspace_id = $1 and n.origin_id = $2 and n.key = r.key offset 0
				) n
				where n.metadata is not null`, e.WorkspaceID, e.OriginID, e.Keys.Unpack()).Query(func(rows pgx.Rows) error {
				var i int
				var text []byte
				_, err := pgx.ForEachRow(rows, []any{&i, &text}, func() error {
					var metadata map[string]string
					err := json.Unmarshal(text, &metadata)
					e.ofItems[i] = asked.of(metadata)
					return err
				})
				return err
			})
		}
	}
	if batch.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, batch).Close()
}

// shown is an event with the items for the endpoint.
func (to *subscribed) shown(e *waiting) *waiting {
	items := to.items[e]
	if items.count() == len(e.ofItems) {
		return e
	}
	part := *e
	part.Keys, part.data = nil, nil
	for i := range e.ofItems {
		if items.has(i) {
			key := e.Keys.At(i)
			part.Keys = append(part.Keys, key[:]...)
		}
	}
	return &part
}

// add adds an event that the subscription selects: of its origins, and it or one of its items has the
// metadata. Several of one endpoint may select different items of it.
func (s *subscriber) add(e *waiting, items index) {
	if !s.selectsOrigin(e) {
		return
	}
	selected := items.all(s.entries)
	if !s.has(e.Metadata) && selected.count() == 0 {
		return
	}
	before, known := s.to.items[e]
	if !known {
		s.to.events = append(s.to.events, e)
	}
	s.to.items[e] = before.or(selected)
}

func (s Subscription) selectsOrigin(e *waiting) bool {
	return len(s.CampaignIDs)+len(s.FlowIDs) == 0 ||
		e.CampaignID != nil && slices.Contains(s.CampaignIDs, *e.CampaignID) ||
		e.FlowID != nil && slices.Contains(s.FlowIDs, *e.FlowID)
}

// has reports whether metadata has the entries of a subscription.
func (s Subscription) has(m map[string]string) bool {
	for key, value := range s.Metadata {
		if has, ok := m[key]; !ok || has != value {
			return false
		}
	}
	return true
}

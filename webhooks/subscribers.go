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

// subscriber is a subscription of an endpoint.
type subscriber struct {
	Subscription
	to      *subscribed
	events  []*waiting // of its types
	entries []int      // of its metadata, see entries
}

// subscribers are the endpoints that subscribe to events, in the order in which their
// rows are locked.
func subscribers(ctx context.Context, tx pgx.Tx, all []*waiting) ([]*subscribed, error) {
	found, err := readSubscribers(ctx, tx, all)
	if err != nil {
		return nil, err
	}
	if err := readMetadata(ctx, tx, found); err != nil {
		return nil, err
	}
	var order []*subscribed
	of := map[*waiting][]*subscriber{}
	for _, s := range found {
		if len(order) == 0 || order[len(order)-1] != s.to {
			order = append(order, s.to)
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
	of := map[uuid.UUID]map[string][]*waiting{} // by workspace and type
	var workspaces []pgtype.UUID
	var types []string
	for _, e := range all {
		ofTypes := of[e.WorkspaceID]
		if ofTypes == nil {
			ofTypes = map[string][]*waiting{}
			of[e.WorkspaceID] = ofTypes
		}
		if ofTypes[e.Type] == nil {
			workspaces, types = append(workspaces, pgUUID(e.WorkspaceID)), append(types, e.Type)
		}
		ofTypes[e.Type] = append(ofTypes[e.Type], e)
	}
	rows, _ := tx.Query(ctx, `
		with asked as materialized (
			select distinct s.workspace_id, s.endpoint_id from unnest($1::uuid[], $2::text[]) as t (workspace_id, type)
			cross join lateral (
				select s.workspace_id, s.endpoint_id from webhook_subscriptions s
				where s.workspace_id = t.workspace_id and s.type = t.type offset 0
			) s
		)
		select a.workspace_id, a.endpoint_id, e.subscriptions from asked a
		cross join lateral (
			select e.subscriptions from webhook_endpoints e where e.workspace_id = a.workspace_id and e.id = a.endpoint_id offset 0
		) e
		order by a.workspace_id, a.endpoint_id`, workspaces, types)
	var ws, endpoint uuid.UUID
	var subscriptions []Subscription
	_, err = pgx.ForEachRow(rows, []any{&ws, &endpoint, &subscriptions}, func() error {
		to := &subscribed{WorkspaceID: ws, EndpointID: endpoint, items: map[*waiting]itemSet{}}
		for _, one := range subscriptions {
			slices.Sort(one.Types)
			s := &subscriber{Subscription: one, to: to}
			for _, name := range slices.Compact(one.Types) {
				s.events = append(s.events, of[ws][name]...)
			}
			if len(s.events) > 0 {
				found = append(found, s)
			}
		}
		subscriptions = nil // its values are kept
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

// readMetadata reads the metadata of campaigns, flows and direct notifications for subscriptions that ask for some.
func readMetadata(ctx context.Context, tx pgx.Tx, all []*subscriber) error {
	asked, batch, origins := entries{}, &pgx.Batch{}, map[uuid.UUID][]*waiting{}
	for _, s := range all {
		asked.add(s)
	}
	for _, s := range all {
		if len(s.Metadata) == 0 {
			continue
		}
		for _, e := range s.events {
			switch id := e.origin(); {
			case e.isDirect() && e.ofItems == nil:
				asked.queueItems(batch, e)
			case id != uuid.Nil && e.ofOrigin == nil && s.selectsOrigin(e):
				e.ofOrigin = map[int]bool{}
				origins[id] = append(origins[id], e)
			}
		}
	}
	asked.queueOrigins(batch, origins)
	if batch.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, batch).Close()
}

// origin is the campaign or flow of an event; Nil: it has none.
func (e *waiting) origin() uuid.UUID {
	switch {
	case e.CampaignID != nil:
		return *e.CampaignID
	case e.FlowID != nil:
		return *e.FlowID
	default:
		return uuid.Nil
	}
}

// queueOrigins reads each campaign and flow once, one after the other: together they may have some MB.
func (n entries) queueOrigins(batch *pgx.Batch, of map[uuid.UUID][]*waiting) {
	if len(of) == 0 {
		return
	}
	var workspaces, ids []pgtype.UUID
	for id, events := range of {
		workspaces, ids = append(workspaces, pgUUID(events[0].WorkspaceID)), append(ids, pgUUID(id))
	}
	batch.Queue(`
		select o.id, o.metadata from unnest($1::uuid[], $2::uuid[]) as r (workspace_id, id)
		cross join lateral (
			(select c.id, c.metadata from campaigns c where c.workspace_id = r.workspace_id and c.id = r.id offset 0)
			union all
			(select f.id, f.metadata from flows f where f.workspace_id = r.workspace_id and f.id = r.id offset 0)
		) o`, workspaces, ids).Query(func(rows pgx.Rows) error {
		var id uuid.UUID
		var metadata map[string]string
		_, err := pgx.ForEachRow(rows, []any{&id, &metadata}, func() error {
			for _, e := range of[id] {
				for _, entry := range n.of(metadata) {
					e.ofOrigin[entry] = true
				}
			}
			metadata = nil // the next one must not have its entries
			return nil
		})
		return err
	})
}

// queueItems reads the metadata of an event's direct notifications.
func (n entries) queueItems(batch *pgx.Batch, e *waiting) {
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
			e.ofItems[i] = n.of(metadata)
			return err
		})
		return err
	})
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
	if !s.isOf(e.ofOrigin) && selected.count() == 0 {
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

// isOf reports whether an origin has the metadata of a subscription.
func (s *subscriber) isOf(origin map[int]bool) bool {
	for _, entry := range s.entries {
		if !origin[entry] {
			return false
		}
	}
	return true
}

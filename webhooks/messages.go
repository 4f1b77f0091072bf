package webhooks

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
)

// numbered is an endpoint whose event messages are numbered. It is locked.
type numbered struct {
	Endpoint     uuid.UUID
	Sequence     int64 // of its last message
	At           time.Time
	URL          string
	Secret       []byte
	Status       string
	FailingSince *time.Time
}

// writeEvents numbers the events of each endpoint and writes their messages. The
// endpoints stay locked until the commit, in one order, so that numbers have no gaps.
// An endpoint that was deleted meanwhile gets none. It returns the workspaces whose events are left, since
// another transaction has one of their endpoints.
func (w *Webhooks) writeEvents(ctx context.Context, tx pgx.Tx, to []*subscribed, r *reservation) (
	written int, left map[uuid.UUID]bool, err error) {
	if len(to) == 0 {
		return 0, nil, nil
	}
	numbers, left, err := number(ctx, tx, to)
	if err != nil {
		return 0, nil, err
	}
	m := eventMessages{reservation: r}
	for _, s := range to {
		e, ok := numbers[s.EndpointID]
		if !ok {
			continue
		}
		if r != nil && e.Status == Enabled {
			w.reserve(r, s.WorkspaceID, e.Endpoint)
		}
		if err := m.add(s, e); err != nil {
			return 0, nil, err
		}
	}
	return len(m.ids), left, m.write(ctx, tx, w.options.Lease)
}

// number locks endpoints and counts their new messages. It waits for no other transaction: the other workspaces
// would wait too. Where another one has an endpoint, the workspace is left, with all of its endpoints.
func number(ctx context.Context, tx pgx.Tx, to []*subscribed) (of map[uuid.UUID]numbered, left map[uuid.UUID]bool, err error) {
	var ws, endpoints []pgtype.UUID
	var counts []int
	for _, s := range to {
		ws, endpoints, counts = append(ws, pgUUID(s.WorkspaceID)), append(endpoints, pgUUID(s.EndpointID)), append(counts, len(s.events))
	}
	rows, _ := tx.Query(ctx, `
		with asked as materialized (
			select workspace_id, id, n from unnest($1::uuid[], $2::uuid[], $3::int[]) as t (workspace_id, id, n)
		), locked as materialized (
			select e.workspace_id, e.id, t.n from asked t
			cross join lateral (
				select e.workspace_id, e.id from webhook_endpoints e
				where e.workspace_id = t.workspace_id and e.id = t.id for no key update skip locked
			) e
		), busy as materialized (
			select distinct t.workspace_id from asked t
			where not exists (select from locked l where l.id = t.id)
				and exists (select from webhook_endpoints e where e.workspace_id = t.workspace_id and e.id = t.id)
		), numbered as (
			update webhook_endpoints e set sequence = e.sequence + l.n
			from locked l where e.workspace_id = l.workspace_id and e.id = l.id and l.workspace_id not in (select workspace_id from busy)
			returning e.id, e.sequence, now(), e.url, e.secret, e.status, e.failing_since
		)
		select null::uuid, n.* from numbered n
		union all
		select workspace_id, '00000000-0000-0000-0000-000000000000', 0, now(), '', null, '', null from busy`, ws, endpoints, counts)
	of, left = map[uuid.UUID]numbered{}, map[uuid.UUID]bool{}
	var busy *uuid.UUID
	var e numbered
	_, err = pgx.ForEachRow(rows, []any{&busy, &e.Endpoint, &e.Sequence, &e.At, &e.URL, &e.Secret, &e.Status, &e.FailingSince}, func() error {
		if busy != nil {
			left[*busy] = true
		} else {
			of[e.Endpoint] = e
		}
		e.Secret = nil // its bytes are kept
		return nil
	})
	return of, left, err
}

// eventMessages are messages by column.
type eventMessages struct {
	ws, ids, endpoints, events []pgtype.UUID
	types, bodies              []string
	sequences                  []int64
	bodyOf                     []pgtype.UUID // null: the body is whole
	leased                     []bool
	*reservation               // nil: none is leased
}

// add adds the messages of an endpoint.
func (m *eventMessages) add(s *subscribed, to numbered) error {
	sequence := to.Sequence - int64(len(s.events))
	for _, e := range s.events {
		sequence++
		id := e.ID // a pointer into the event would keep its body
		one := claimed{WorkspaceID: s.WorkspaceID, ID: eventMessageID(id, s.EndpointID), EndpointID: s.EndpointID, EventID: &id,
			At: to.At, URL: &to.URL, Secret: to.Secret, Status: &to.Status, FailingSince: to.FailingSince}
		shown := s.shown(e)
		var err error
		if one.Body, err = shown.head(sequence); err != nil {
			return err
		}
		var of pgtype.UUID
		if shown == e && len(e.data) >= sharedFrom {
			of, one.BodyOf, one.event = pgUUID(id), &id, e.data
		} else {
			one.Body = append(append(one.Body, shown.data...), '}')
		}
		m.ws, m.endpoints = append(m.ws, pgUUID(s.WorkspaceID)), append(m.endpoints, pgUUID(s.EndpointID))
		m.ids, m.events = append(m.ids, pgUUID(one.ID)), append(m.events, pgUUID(id))
		m.types, m.bodies, m.sequences = append(m.types, e.Type), append(m.bodies, string(one.Body)), append(m.sequences, sequence)
		m.bodyOf, m.leased = append(m.bodyOf, of), append(m.leased, m.reservation != nil && m.take(one))
	}
	return nil
}

// eventMessageID is the id of the message of an event to an endpoint.
func eventMessageID(event, endpoint uuid.UUID) uuid.UUID {
	return lemma.Key("event-message/1", string(event[:]), string(endpoint[:]))
}

func (m *eventMessages) write(ctx context.Context, tx pgx.Tx, lease time.Duration) error {
	var token string
	if m.reservation != nil {
		token = m.token
	}
	_, err := tx.Exec(ctx, `
		insert into outbox (workspace_id, id, endpoint_id, body, event_id, type, sequence, body_of,
			attempts, leased_by, lease_until, due_at)
		select ws, id, endpoint, body, event, type, sequence, body_of,
			leased::int, case when leased then $10 end, case when leased then now() + $11::interval end,
			case when leased then now() + $11::interval else now() end
		from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::uuid[], $6::text[], $7::bigint[], $8::uuid[], $9::boolean[])
			as m (ws, id, endpoint, body, event, type, sequence, body_of, leased)`,
		m.ws, m.ids, m.endpoints, m.bodies, m.events, m.types, m.sequences, m.bodyOf, m.leased, token, lease)
	return err
}

package webhooks

import (
	"context"
	"fmt"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
)

const (
	sharedFrom = 1 << 10  // bytes of the data of an event from which its messages share it; less is copied
	itemBytes  = 59       // of an item in the data, at most
	maxBodies  = 16 << 20 // bytes of shared bodies that a process keeps
)

// bodies are the latest data of events that this process has published or read. All
// messages of an event share its data, which never changes.
type bodies struct {
	mu    sync.Mutex
	of    map[uuid.UUID][]byte
	order []uuid.UUID // the oldest first
	size  int
}

func (b *bodies) put(event uuid.UUID, body []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of == nil {
		b.of = map[uuid.UUID][]byte{}
	}
	if b.of[event] != nil {
		return
	}
	b.of[event], b.order, b.size = body, append(b.order, event), b.size+cap(body)
	for b.size > maxBodies {
		b.size -= cap(b.of[b.order[0]])
		delete(b.of, b.order[0])
		b.order = b.order[1:]
	}
}

func (b *bodies) get(event uuid.UUID) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of[event]
}

// readBodies gives claimed messages the bodies of their events.
func (w *Webhooks) readBodies(ctx context.Context, all []claimed) error {
	var ws, ids []pgtype.UUID
	missing := map[uuid.UUID][]byte{}
	for i := range all {
		if m := &all[i]; m.BodyOf != nil {
			if m.event = w.bodies.get(*m.BodyOf); m.event == nil {
				ws, ids, missing[*m.BodyOf] = append(ws, pgUUID(m.WorkspaceID)), append(ids, pgUUID(*m.BodyOf)), nil
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	rows, _ := w.pool.Query(ctx, `
		select e.id, e.type, e.origin_id, e.body, e.keys
		from (select distinct workspace_id, id from unnest($1::uuid[], $2::uuid[]) as r (workspace_id, id)) r
		cross join lateral (
			select e.id, e.type, e.origin_id, e.body, e.keys from events_out e
			where e.workspace_id = r.workspace_id and e.id = r.id limit 1
		) e`, ws, ids)
	var e waiting
	var start []byte
	_, err := pgx.ForEachRow(rows, []any{&e.ID, &e.Type, &e.OriginID, &start, &e.Keys}, func() error {
		missing[e.ID] = e.withItems(start)
		w.bodies.put(e.ID, missing[e.ID])
		return nil
	})
	for i := range all {
		if m := &all[i]; err == nil && m.BodyOf != nil && m.event == nil {
			if m.event = missing[*m.BodyOf]; m.event == nil {
				err = fmt.Errorf("event %s has no body", *m.BodyOf)
			}
		}
	}
	return lemma.Wrap(err, "read bodies of events")
}

// body is the whole body of a message.
func (m claimed) body() []byte {
	if m.BodyOf == nil {
		return m.Body
	}
	whole := make([]byte, 0, len(m.Body)+len(m.event)+len("}"))
	return append(append(append(whole, m.Body...), m.event...), '}')
}

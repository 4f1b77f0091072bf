package webhooks

import (
	"context"
	"fmt"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

const (
	sharedFrom = 1 << 10  // bytes of a body from which messages share it; a shorter one is copied
	maxBodies  = 16 << 20 // bytes of shared bodies that a process keeps
)

// bodies are the latest bodies of events that this process has published or read. All
// messages of an event share its body, which never changes.
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
		if m := &all[i]; m.Shared {
			if m.event = w.bodies.get(*m.EventID); m.event == nil {
				ws, ids, missing[*m.EventID] = append(ws, pgUUID(m.WorkspaceID)), append(ids, pgUUID(*m.EventID)), nil
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	rows, _ := w.pool.Query(ctx, `
		select e.id, e.body from (select distinct workspace_id, id from unnest($1::uuid[], $2::uuid[]) as r (workspace_id, id)) r
		cross join lateral (
			select e.id, e.body from events_out e where e.workspace_id = r.workspace_id and e.id = r.id limit 1
		) e`, ws, ids)
	var id uuid.UUID
	var body []byte
	_, err := pgx.ForEachRow(rows, []any{&id, &body}, func() error {
		missing[id] = body
		w.bodies.put(id, body)
		body = nil
		return nil
	})
	for i := range all {
		if m := &all[i]; err == nil && m.Shared && m.event == nil {
			if m.event = missing[*m.EventID]; m.event == nil {
				err = fmt.Errorf("event %s has no body", *m.EventID)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("read bodies of events: %w", err)
	}
	return nil
}

// body is the whole body of a message.
func (m claimed) body() []byte {
	if !m.Shared {
		return m.Body
	}
	whole := make([]byte, 0, len(m.Body)+len(m.event)+len("}"))
	return append(append(append(whole, m.Body...), m.event...), '}')
}

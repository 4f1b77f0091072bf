package direct

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/notifications"
	"lemma/pgerr"
)

// storeTogether stores single requests that arrived together.
func (d *Direct) storeTogether(ctx context.Context, ws uuid.UUID, all []*request) ([]result, error) {
	if err := d.storeOpen(ctx, ws, all); err != nil {
		return nil, err
	}
	out := make([]result, len(all))
	for i, r := range all {
		out[i] = r.result
	}
	return out, nil
}

// storeOpen answers requests whose keys others have, and stores the notifications of the
// rest in one transaction. What another process acquires meanwhile is answered next.
func (d *Direct) storeOpen(ctx context.Context, ws uuid.UUID, all []*request) error {
	for range tries {
		if err := d.answer(ctx, ws, open(all)); err != nil {
			return err
		}
		some := open(all)
		if len(some) == 0 {
			return nil
		}
		if err := d.storeSome(ctx, ws, some); err != nil {
			return err
		}
	}
	for _, r := range open(all) {
		r.fail(&Locked{RetryAfter: time.Second}) // others acquire its key again and again
	}
	return nil
}

// storeSome stores requests in one transaction, except those that name what was deleted meanwhile.
func (d *Direct) storeSome(ctx context.Context, ws uuid.UUID, open []*request) error {
	for len(open) > 0 {
		err := d.storeAtOnce(ctx, ws, open)
		if !errors.Is(err, errGone) {
			return err
		}
		left, fault := d.refuseGone(ctx, ws, open)
		if fault != nil {
			return fault
		}
		if len(left) == len(open) {
			return err
		}
		open = left
	}
	return nil
}

func (d *Direct) storeAtOnce(ctx context.Context, ws uuid.UUID, open []*request) error {
	d.at(ctx, "storing")
	var fresh []*request
	var at time.Time
	err := pgx.BeginFunc(ctx, d.Pool, func(tx pgx.Tx) (err error) {
		if fresh, err = acquireKeys(ctx, tx, ws, open); err != nil || len(fresh) == 0 {
			return err
		}
		if err := storeContents(ctx, tx, ws, fresh); err != nil {
			return err
		}
		if err := lockUsed(ctx, tx, ws, fresh); err != nil {
			return err
		}
		rows := make([]notifications.Direct, len(fresh))
		for i, r := range fresh {
			rows[i] = r.row
		}
		at, err = d.Ledger.InsertDirect(ctx, tx, ws, rows)
		return err
	})
	if errors.Is(err, notifications.ErrNoProvider) || pgerr.Is(err, "23503") { // the foreign key of a template
		err = fmt.Errorf("%w: %w", errGone, err)
	}
	if err != nil {
		return fmt.Errorf("store %d direct notifications: %w", len(open), err)
	}
	d.at(ctx, "stored")
	d.Metrics.together.Observe(float64(len(open)))
	for _, r := range fresh {
		r.done, r.held = true, false
		r.result = Result{Sent: Sent{Notification: r.notification(ws, at), Others: r.others}}
	}
	return nil
}

// lockUsed makes the deletion of topics and audiences wait and find the batches of requests.
func lockUsed(ctx context.Context, tx pgx.Tx, ws uuid.UUID, all []*request) error {
	topics, audiences := map[uuid.UUID]bool{}, map[uuid.UUID]bool{}
	for _, r := range all {
		if r.Topic != nil {
			topics[*r.Topic] = true
		}
		if r.To.AudienceID != nil {
			audiences[*r.To.AudienceID] = true
		}
	}
	for _, used := range []struct {
		table string
		ids   map[uuid.UUID]bool
	}{{"topics", topics}, {"audiences", audiences}} {
		if len(used.ids) == 0 {
			continue
		}
		found, err := tx.Exec(ctx, `select from `+used.table+` where workspace_id = $1 and id = any($2) order by id for key share`,
			ws, slices.Collect(maps.Keys(used.ids)))
		if err != nil {
			return fmt.Errorf("lock %s: %w", used.table, err)
		}
		if int(found.RowsAffected()) < len(used.ids) {
			return errGone
		}
	}
	return nil
}

// acquireKeys returns the requests whose notifications are to be stored: others have the
// keys of the rest.
func acquireKeys(ctx context.Context, tx pgx.Tx, ws uuid.UUID, open []*request) (fresh []*request, err error) {
	var keyed, held []*request
	for _, r := range open {
		switch {
		case r.held:
			held = append(held, r)
		case r.key != uuid.Nil:
			keyed = append(keyed, r)
		}
	}
	var acquired, kept map[uuid.UUID]*request
	if len(keyed) > 0 {
		if acquired, err = Lock(ctx, tx, ws, keyed, true); err != nil {
			return nil, err
		}
	}
	if len(held) > 0 {
		if kept, err = Store(ctx, tx, ws, held); err != nil {
			return nil, err
		}
	}
	for _, r := range open {
		if r.key == uuid.Nil || acquired[r.key] == r || kept[r.key] == r {
			fresh = append(fresh, r)
		} else {
			r.held = false // its lock has expired, and another has acquired it
		}
	}
	return fresh, nil
}

// notification is the notification that a request has stored, as it is read.
func (r *request) notification(ws uuid.UUID, at time.Time) notifications.Notification {
	n := notifications.Notification{WorkspaceID: ws, OriginID: r.row.OriginID, Key: r.row.Key, Channel: r.content.channel,
		ProfileKey: r.row.ProfileKey, Status: "pending", CreatedAt: at, Delivery: "unknown", Metadata: r.Metadata}
	if r.row.Address != "" {
		n.Address = &r.row.Address
	}
	if r.row.Skip != "" {
		n.Status, n.Reason, n.EndedAt = "skipped", &r.row.Skip, &at
		return n
	}
	n.DueAt = &at
	if r.row.DueAt.After(at) {
		n.DueAt = &r.row.DueAt
	}
	if !r.row.ExpiresAt.IsZero() {
		n.ExpiresAt = &r.row.ExpiresAt
	}
	return n
}

// findAgain answers requests whose notifications an earlier attempt has stored.
func (d *Direct) findAgain(ctx context.Context, ws uuid.UUID, all []*request) error {
	for _, r := range all {
		if r.done || !r.Again {
			continue
		}
		n, err := d.Ledger.Get(ctx, ws, r.row.OriginID, r.row.Key)
		if lemma.KindOf(err) == lemma.NotFound && err != nil {
			continue
		}
		if err != nil {
			return err
		}
		r.done, r.result = true, Result{Sent: Sent{Notification: n}}
	}
	return nil
}

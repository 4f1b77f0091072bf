// Package eventsout records outgoing events: those for the customers' systems. It guarantees:
//
//   - An event is written in the transaction that makes it true: none is sent about a
//     change that was rolled back, and none is missing of one that was committed.
//   - Nothing is written for a type to which no endpoint of the workspace subscribes.
//
// Package webhooks publishes the events and keeps the subscriptions.
package eventsout

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// Types of events. Notifications, enrollments and suppressions have one event for all that a
// statement changes.
const (
	NotificationSent         = "notification.sent"
	NotificationDelivered    = "notification.delivered"
	NotificationBounced      = "notification.bounced"
	NotificationComplained   = "notification.complained"
	NotificationFailed       = "notification.failed"
	NotificationSkipped      = "notification.skipped"
	NotificationOrphaned     = "notification.orphaned"
	NotificationOpened       = "notification.opened"
	NotificationClicked      = "notification.clicked"
	NotificationUnsubscribed = "notification.unsubscribed"
	CampaignStarted          = "campaign.started"
	CampaignPaused           = "campaign.paused"
	CampaignCompleted        = "campaign.completed"
	CampaignFailed           = "campaign.failed"
	IterationDecided         = "iteration.decided"
	IterationInconclusive    = "iteration.inconclusive"
	EnrollmentStarted        = "enrollment.started"
	EnrollmentCompleted      = "enrollment.completed"
	EnrollmentExited         = "enrollment.exited"
	ProviderFailing          = "provider.failing"
	SuppressionAdded         = "suppression.added"
)

// Types are all types, in the order of the documentation.
var Types = []string{NotificationSent, NotificationDelivered, NotificationBounced, NotificationComplained, NotificationFailed,
	NotificationSkipped, NotificationOrphaned, NotificationOpened, NotificationClicked, NotificationUnsubscribed,
	CampaignStarted, CampaignPaused, CampaignCompleted, CampaignFailed, IterationDecided, IterationInconclusive,
	EnrollmentStarted, EnrollmentCompleted, EnrollmentExited, ProviderFailing, SuppressionAdded}

// MaxItems is how many items an event has at most. Record splits larger ones.
const MaxItems = 1000

// Event is a change of state. Its items are notifications, by batch and ordinal or by
// key, or enrollments, or suppressions.
type Event struct {
	WorkspaceID uuid.UUID
	Type        string
	OriginID    uuid.UUID // of the notifications; else the campaign, flow, provider or workspace
	BatchID     uuid.UUID // root batch of the notifications; zero: Keys has the items
	Ordinals    []int16
	Keys        []uuid.UUID
	Items       int            // of a batch without Ordinals: all its rows
	Details     []string       // why, for each item; nil: nothing
	Data        map[string]any // further facts
}

// count is the number of items.
func (e Event) count() int { return max(len(e.Ordinals), len(e.Keys), e.Items) }

// Record writes the events to which an endpoint subscribes, in the caller's transaction. The
// statement that reads the subscriptions also writes, here and in other packages: a new
// subscription waits for a transaction that holds the locks of both.
func Record(ctx context.Context, tx pgx.Tx, all ...Event) error {
	batch := &pgx.Batch{}
	for _, e := range all {
		for _, part := range e.parts() {
			part.queue(batch)
		}
	}
	if batch.Len() == 0 {
		return nil
	}
	return lemma.Wrap(tx.SendBatch(ctx, batch).Close(), "record events")
}

func (e Event) queue(batch *pgx.Batch) {
	data := e.Data
	if data == nil {
		data = map[string]any{}
	}
	var root *uuid.UUID
	if e.BatchID != uuid.Nil {
		root = &e.BatchID
	}
	batch.Queue(`
		insert into events_out (workspace_id, id, type, origin_id, batch_id, ordinals, keys, details, data, count)
		select $1, $2, $3, $4, $5, $6, $7, $8, $9, $10
		where exists (select from webhook_subscriptions where workspace_id = $1 and type = $3)`,
		e.WorkspaceID, lemma.NewID(), e.Type, e.OriginID, root, e.Ordinals, []byte(Pack(e.Keys)), e.Details, data, e.count())
}

// Keys are the ids of items as the column keys has them: 16 bytes each.
type Keys []byte

// Pack returns ids as Keys.
func Pack(all []uuid.UUID) Keys {
	var k Keys
	for _, id := range all {
		k = append(k, id[:]...)
	}
	return k
}

// Len is the number of ids.
func (k Keys) Len() int { return len(k) / 16 }

// At returns the id of an item.
func (k Keys) At(i int) uuid.UUID { return uuid.UUID(k[16*i : 16*i+16]) }

// Unpack returns the ids.
func (k Keys) Unpack() []uuid.UUID {
	all := make([]uuid.UUID, k.Len())
	for i := range all {
		all[i] = k.At(i)
	}
	return all
}

// parts splits an event into events of at most MaxItems.
func (e Event) parts() (parts []Event) {
	for n := max(len(e.Ordinals), len(e.Keys)); n > MaxItems; n -= MaxItems {
		part := e
		part.Ordinals, e.Ordinals = cut(e.Ordinals)
		part.Keys, e.Keys = cut(e.Keys)
		part.Details, e.Details = cut(e.Details)
		parts = append(parts, part)
	}
	return append(parts, e)
}

// WithItems returns the events that have items.
func WithItems(all []Event) []Event {
	return slices.DeleteFunc(all, func(e Event) bool { return e.count() == 0 })
}

func cut[T any](all []T) (first, rest []T) {
	if len(all) == 0 {
		return nil, nil
	}
	return all[:MaxItems], all[MaxItems:]
}

// LockSpace is the first number of the advisory locks with two numbers. A transaction that holds one
// works for its workspace only: it delays no subscription of others.
func LockSpace(workspace uuid.UUID) int32 { return int32(binary.BigEndian.Uint32(workspace[12:])) }

// Known reports whether a type exists.
func Known(name string) bool { return slices.Contains(Types, name) }

// Items collects notifications into one event for each type and origin.
type Items struct {
	WorkspaceID uuid.UUID
	all         []Event
	of          map[[2]string]int // by type and origin: the index in all
}

// Add adds a notification; one that an event has already is left out.
func (i *Items) Add(name string, origin, key uuid.UUID) {
	at := [2]string{name, origin.String()}
	n, ok := i.of[at]
	if !ok {
		if i.of == nil {
			i.of = map[[2]string]int{}
		}
		n = len(i.all)
		i.of[at], i.all = n, append(i.all, Event{WorkspaceID: i.WorkspaceID, Type: name, OriginID: origin})
	}
	if at := [2]string{at[0] + "/" + at[1], key.String()}; i.of[at] == 0 {
		i.of[at] = 1
		i.all[n].Keys = append(i.all[n].Keys, key)
	}
}

// Record records the events in the caller's transaction.
func (i *Items) Record(ctx context.Context, tx pgx.Tx) error { return Record(ctx, tx, i.all...) }

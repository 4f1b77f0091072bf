package tracking

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/eventsout"
)

// recordEvents records events about opens and clicks of recipients, in the transaction
// that stores them. Those of machines have none.
func (a *application) recordEvents(ctx context.Context) error {
	items := eventsout.Items{WorkspaceID: a.ws}
	for _, e := range a.events {
		switch {
		case e.machine != "":
		case e.kind == opened:
			items.Add(eventsout.NotificationOpened, e.of.origin, e.of.key)
		case e.kind == clicked:
			items.Add(eventsout.NotificationClicked, e.of.origin, e.of.key)
		}
	}
	return items.Record(ctx, a.tx)
}

// recordUnsubscribed records the event that recipients have unsubscribed by means of
// notifications, in the transaction that unsubscribes them.
func recordUnsubscribed(ctx context.Context, tx pgx.Tx, ws uuid.UUID, of []Notification) error {
	items := eventsout.Items{WorkspaceID: ws}
	for _, n := range of {
		items.Add(eventsout.NotificationUnsubscribed, n.Origin, n.Key)
	}
	return items.Record(ctx, tx)
}

package deliveries

import (
	"context"

	"lemma/eventsout"
)

// eventOf has the types of events by delivery state. The other states have none.
var eventOf = map[string]string{
	"delivered": eventsout.NotificationDelivered, "bounced": eventsout.NotificationBounced, "complained": eventsout.NotificationComplained,
}

// recordEvents records events about raised states, in the transaction that raises them.
func (t *transaction) recordEvents(ctx context.Context) error {
	items := eventsout.Items{WorkspaceID: t.ws}
	for _, r := range t.raised {
		if name := eventOf[r.state]; name != "" {
			items.Add(name, r.origin, r.key)
		}
	}
	return items.Record(ctx, t.tx)
}

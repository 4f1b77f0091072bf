package campaigns

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/eventsout"
)

// recordEvent records a change of a campaign's status for the subscribed endpoints, in
// the transaction that makes it. reason and detail are empty where there is none.
func recordEvent(ctx context.Context, tx pgx.Tx, workspaceID, id uuid.UUID, name, reason, detail string) error {
	data := map[string]any{}
	if reason != "" {
		data["reason"] = reason
	}
	if detail != "" {
		data["detail"] = detail
	}
	return eventsout.Record(ctx, tx, eventsout.Event{WorkspaceID: workspaceID, Type: name, OriginID: id, Data: data})
}

package campaigns

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
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

// recordInconclusive records that an experiment waits for a person, in the transaction that
// makes it wait.
func recordInconclusive(ctx context.Context, tx pgx.Tx, workspaceID, iteration, campaign uuid.UUID, reason, detail string) error {
	data := map[string]any{"iteration_id": lemma.FormatID(lemma.PrefixIteration, iteration), "reason": reason, "detail": detail}
	return eventsout.Record(ctx, tx,
		eventsout.Event{WorkspaceID: workspaceID, Type: eventsout.IterationInconclusive, OriginID: campaign, Data: data})
}

// recordDecided records the winner of an experiment, in the transaction that writes it.
func recordDecided(ctx context.Context, tx pgx.Tx, it Iteration, winner string, d decision) error {
	data := map[string]any{"iteration_id": lemma.FormatID(lemma.PrefixIteration, it.ID), "winner": winner, "decided_by": d.by}
	if d.reason != "" {
		data["reason"] = d.reason
	}
	return eventsout.Record(ctx, tx,
		eventsout.Event{WorkspaceID: it.WorkspaceID, Type: eventsout.IterationDecided, OriginID: it.CampaignID, Data: data})
}

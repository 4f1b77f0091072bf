package sender

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/eventsout"
	"lemma/notifications"
)

// outcomeEvents are the types of events that outcomes can cause.
var outcomeEvents = []string{eventsout.NotificationSent, eventsout.NotificationFailed, eventsout.NotificationSkipped,
	eventsout.NotificationOrphaned}

// eventIDs are the ids of the events that a commit may write, one for each type. The
// statement makes none, so that it gives one result wherever it runs.
func eventIDs(done []outcome) []uuid.UUID {
	if len(done) == 0 {
		return nil
	}
	ids := make([]uuid.UUID, len(outcomeEvents))
	for i := range ids {
		ids[i] = lemma.NewID()
	}
	return ids
}

// recordOutcomes is the part of commitText that writes an event for each status of the
// window's rows, like tally. Without a subscription it reads one page of an index: the
// condition refers to no row, and so is checked once and first.
const recordOutcomes = `
		insert into events_out (workspace_id, id, type, origin_id, batch_id, ordinals, details, count)
		select b.workspace_id, e.id, e.type, b.origin_id, b.root_id, o.ordinals, o.reasons, cardinality(o.ordinals)
		from b cross join lateral (
			select o.type, array_agg(o.ordinal order by o.ordinal) as ordinals, 
				case when bool_or(o.reason <> '') then array_agg(o.reason order by o.ordinal) end as reasons
			from (
				select o.ordinal, o.reason, case
					when o.kind = 'accepted' then '` + eventsout.NotificationSent + `'
					when o.reason = '` + notifications.ReasonFirstRejected + `' then '` + eventsout.NotificationFailed + `'
					when o.kind = 'unknown' or b.attempt = 2 then '` + eventsout.NotificationOrphaned + `'
					when o.kind = 'skipped' then '` + eventsout.NotificationSkipped + `'
					else '` + eventsout.NotificationFailed + `' end as type
				from unnest(@ordinals::smallint[], @kinds::text[], @reasons::text[]) as o (ordinal, kind, reason)
			) o group by o.type
		) o
		join unnest(@event_ids::uuid[], @event_types::text[]) as e (id, type) on e.type = o.type
		where exists (select from webhook_subscriptions s where s.workspace_id = @workspace and s.type = any(@event_types))
		  and exists (select from webhook_subscriptions s where s.workspace_id = b.workspace_id and s.type = e.type)`

// outcomeEvent returns the type of event that an outcome causes; empty: none, since a
// second attempt follows.
func outcomeEvent(attempt int16, o outcome) string {
	var t tally
	t.add(attempt, o)
	switch {
	case t.sent > 0:
		return eventsout.NotificationSent
	case t.orphaned > 0:
		return eventsout.NotificationOrphaned
	case t.skipped > 0:
		return eventsout.NotificationSkipped
	case t.failed > 0:
		return eventsout.NotificationFailed
	}
	return ""
}

// eventsOf returns the events of outcomes of an attempt of a batch, and of second
// attempts that a gate has orphaned without an outcome.
func eventsOf(ref notifications.Ref, root uuid.UUID, attempt int16, done []outcome, ended []int16) []eventsout.Event {
	all := make([]eventsout.Event, len(outcomeEvents))
	of := make(map[string]*eventsout.Event, len(outcomeEvents))
	for i, name := range outcomeEvents {
		all[i] = eventsout.Event{WorkspaceID: ref.WorkspaceID, Type: name, OriginID: ref.OriginID, BatchID: root}
		of[name] = &all[i]
	}
	for _, o := range done {
		if e := of[outcomeEvent(attempt, o)]; e != nil {
			e.Ordinals, e.Details = append(e.Ordinals, o.ordinal), append(e.Details, o.reason)
		}
	}
	for _, ordinal := range ended {
		e := of[eventsout.NotificationOrphaned]
		e.Ordinals, e.Details = append(e.Ordinals, ordinal), append(e.Details, "unknown_then_cancelled")
	}
	return eventsout.WithItems(all)
}

// recordFailing records that a provider fails, in the transaction that opens its circuit.
func recordFailing(ctx context.Context, tx pgx.Tx, c *claim, cause string) error {
	return eventsout.Record(ctx, tx, eventsout.Event{WorkspaceID: c.WorkspaceID, Type: eventsout.ProviderFailing, OriginID: c.providerID,
		Data: map[string]any{"provider_id": lemma.FormatID(lemma.PrefixProvider, c.providerID), "reason": cause}})
}

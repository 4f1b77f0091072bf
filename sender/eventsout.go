package sender

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/eventsout"
	"lemma/notifications"
)

// outcomeEvents are the types of events that outcomes can cause.
var outcomeEvents = []string{eventsout.NotificationSent, eventsout.NotificationFailed, eventsout.NotificationSkipped,
	eventsout.NotificationOrphaned}

// ended is the event about rows of a claim that end in one status. It has their keys, so
// that nothing reads them again.
type ended struct {
	name    string
	keys    []byte
	reasons []string // nil: none has one
}

// endedOf returns an event for each status in which outcomes end rows.
func endedOf(c *claim, done []outcome) (all []ended) {
	for i := range done {
		o := &done[i]
		name := outcomeEvent(c.attempt, o)
		if name == "" {
			continue
		}
		at := slices.IndexFunc(all, func(e ended) bool { return e.name == name })
		if at < 0 {
			at = len(all)
			all = append(all, ended{name: name, keys: make([]byte, 0, 16*(len(done)-i))})
		}
		all[at].add(c.key(o.ordinal), o.reason)
	}
	return all
}

func (e *ended) add(key uuid.UUID, reason string) {
	if reason != "" && e.reasons == nil {
		e.reasons = make([]string, len(e.keys)/16)
	}
	if e.keys = append(e.keys, key[:]...); e.reasons != nil {
		e.reasons = append(e.reasons, reason)
	}
}

// key returns the key of a row, also of one that was skipped.
func (c *claim) key(ordinal int16) uuid.UUID {
	i := int(ordinal) - int(c.ordinals[0]) // if no row before it had ended
	if i < 0 || i >= len(c.ordinals) || c.ordinals[i] != ordinal {
		i, _ = slices.BinarySearch(c.ordinals, ordinal)
	}
	return c.keys[i]
}

// eventColumns are the events of a commit, by column. The statement makes no id, so that
// it gives one result wherever it runs.
type eventColumns struct {
	ids     []uuid.UUID
	types   []string
	keys    [][]byte
	details []*string // the reasons, as JSON; nil: there is none
}

func columnsOf(all []ended) (c eventColumns) {
	for _, e := range all {
		c.ids, c.types, c.keys = append(c.ids, lemma.NewID()), append(c.types, e.name), append(c.keys, e.keys)
		c.details = append(c.details, e.details())
	}
	return c
}

func (e ended) details() *string {
	if e.reasons == nil {
		return nil
	}
	for i, reason := range e.reasons {
		e.reasons[i] = clip(reason)
	}
	encoded, _ := json.Marshal(e.reasons) // texts alone
	text := string(encoded)
	return &text
}

// recordOutcomes is the part of commitText that writes an event for each status of the
// window's rows, like tally. Without a subscription it reads one page of an index for each.
const recordOutcomes = `
		insert into events_out (workspace_id, id, type, origin_id, keys, details, count)
		select b.workspace_id, e.id, e.type, b.origin_id, e.keys,
			(select array_agg(d.reason order by d.i) from jsonb_array_elements_text(e.details::jsonb) with ordinality as d (reason, i)),
			length(e.keys) / 16
		from b cross join unnest(@event_ids::uuid[], @event_types::text[], @event_keys::bytea[], @event_details::text[])
			as e (id, type, keys, details)
		where (select true from webhook_subscriptions s where s.workspace_id = b.workspace_id and s.type = e.type limit 1)`

// outcomeEvent returns the type of event that an outcome causes; empty: none, since a
// second attempt follows.
func outcomeEvent(attempt int16, o *outcome) string {
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
	for i := range done {
		o := &done[i]
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

package sender

import (
	"context"
	"fmt"

	"lemma/events"
)

// The circuit: calls in a row that no acceptance followed are counted on the
// provider's meter, which all nodes share. At Config.CircuitAfter the campaign
// that met the last of them is paused with the reason provider_errors, and the
// count begins anew. One rule, so that a paused campaign is easy to explain.

// heed looks at a window's receipts. A failure of the provider itself weighs
// as much as a whole first window, since it says the same of every row.
func (s *Sender) heed(ctx context.Context, c *claim, w *window) {
	failures, accepted, detail := 0, false, ""
	for _, r := range w.receipts {
		switch {
		case r.Outcome == Accepted:
			accepted, failures = true, 0
		case r.Outcome == NotCalled:
		case r.Provider && r.Outcome == NotAccepted:
			failures, detail = max(failures+1, firstWindow), r.Reason+": "+r.Detail
			c.words = detail
		default:
			failures, detail = failures+1, r.Reason+": "+r.Detail
		}
	}
	if err := s.keepRefusals(ctx, c, w); err != nil {
		s.log.Error("refusals not written", "batch_id", c.BatchID, "error", err)
	}
	if err := s.count(ctx, c, failures, accepted, detail); err != nil {
		s.log.Error("provider meter not written", "provider_id", c.providerID, "error", err)
	}
}

// keepRefusals writes down who was refused for now, and in which words: no
// outcome, but evidence that explain can show.
func (s *Sender) keepRefusals(ctx context.Context, c *claim, w *window) error {
	var said []events.Event
	for i, r := range w.receipts {
		if r.Outcome == NotAccepted && !r.Provider {
			said = append(said, events.Event{ProviderID: c.providerID, Source: events.SourceResponse, BatchID: c.root, Ordinal: w.rows[i], Attempt: c.attempt,
				Kind: events.Deferred, Code: r.Code, Detail: clip(r.Reason + ": " + r.Detail), OccurredAt: r.At})
		}
	}
	_, err := events.Record(ctx, s.pool, c.WorkspaceID, said)
	return err
}

func (s *Sender) count(ctx context.Context, c *claim, failures int, accepted bool, detail string) error {
	if accepted {
		if err := s.recovered(ctx, c); err != nil {
			return err
		}
	}
	if failures == 0 {
		return nil
	}
	c.ailing = true
	var total int
	err := s.pool.QueryRow(ctx, `
		insert into provider_meters (workspace_id, provider_id, failures, last_error, failed_at) values ($1, $2, $3, $4, now())
		on conflict (workspace_id, provider_id) do update
			set failures = provider_meters.failures + excluded.failures, last_error = excluded.last_error, failed_at = now()
		returning failures`, c.WorkspaceID, c.providerID, failures, clip(detail)).Scan(&total)
	if err != nil || total < s.cfg.CircuitAfter {
		return err
	}
	return s.trip(ctx, c, total, detail)
}

// trip pauses the campaign. The count is taken back by compare-and-set, so
// that of several workers one trips.
func (s *Sender) trip(ctx context.Context, c *claim, total int, detail string) error {
	tag, err := s.pool.Exec(ctx, `
		update provider_meters set failures = 0 where workspace_id = $1 and provider_id = $2 and failures >= $3`,
		c.WorkspaceID, c.providerID, s.cfg.CircuitAfter)
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	s.metrics.tripped()
	s.log.Warn("circuit opened", "provider_id", c.providerID, "origin_id", c.OriginID, "failures", total)
	return s.pause(ctx, c.WorkspaceID, c.OriginID, "provider_errors",
		fmt.Sprintf("%d calls in a row were not accepted; the last answer was %s", total, detail))
}

// recovered wipes the count after an acceptance, when the claim found one or
// this batch has added to it: a healthy provider costs no write.
func (s *Sender) recovered(ctx context.Context, c *claim) error {
	if !c.ailing {
		return nil
	}
	c.ailing = false
	_, err := s.pool.Exec(ctx, `
		update provider_meters set failures = 0 where workspace_id = $1 and provider_id = $2 and failures > 0`, c.WorkspaceID, c.providerID)
	return err
}

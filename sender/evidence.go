package sender

import (
	"context"
	"fmt"

	"lemma/events"
	"lemma/notifications"
)

// keepEvidence stores the known outcomes of a worker that has lost its lease.
func (s *Sender) keepEvidence(ctx context.Context, c *claim, done []outcome) error {
	s.metrics.leaseLost()
	s.log.Warn("lease lost; outcomes are kept as evidence", "batch_id", c.BatchID, "token", c.token, "known", len(done))
	var known []events.Event
	for _, o := range done {
		if o.basis != "response" || (o.kind != string(Accepted) && o.kind != string(Rejected)) {
			continue
		}
		known = append(known, events.Event{ProviderID: c.providerID, Source: events.SourceResponse,
			SourceID: fmt.Sprintf("%s/%d/%d", c.root, o.ordinal, c.attempt),
			OriginID: c.OriginID, BatchID: c.root, Ordinal: o.ordinal, Attempt: c.attempt, Kind: events.Kind(o.kind), Code: o.code,
			CarrierID: clip(o.carrierID), Detail: clip(o.detail), OccurredAt: o.at})
	}
	err := s.persist(c, func() error { _, err := events.Record(ctx, s.pool, c.WorkspaceID, known); return err })
	if err != nil {
		return err
	}
	_, err = s.pool.Exec(ctx, `insert into batch_log (workspace_id, batch_id, event, token) values ($1, $2, 'lost', $3)`,
		c.WorkspaceID, c.BatchID, c.token)
	return err
}

// settled is the outcome that a proof gives a row.
func settled(ordinal int16, p events.Proof) outcome {
	return outcome{ordinal: ordinal, kind: string(p.Kind), basis: "evidence", code: p.Code,
		carrierID: p.CarrierID, detail: p.Detail}
}

// settleByEvidence ends rows of a second attempt that are not called yet and whose first
// attempt is known meanwhile: accepted, so they were sent; rejected, so they failed. It
// reads after the claim, and so finds all that came after the reaper.
func (s *Sender) settleByEvidence(ctx context.Context, c *claim) ([]outcome, error) {
	if c.attempt == 1 {
		return nil, nil
	}
	rows := c.rows[c.next:]
	ordinals := make([]int16, len(rows))
	for i, r := range rows {
		ordinals[i] = r.Ordinal
	}
	evidence, err := events.Proofs(ctx, s.pool, c.WorkspaceID, c.OriginID, c.root, ordinals)
	if err != nil || len(evidence) == 0 {
		return nil, err
	}
	var done []outcome
	var left []row
	for _, r := range rows {
		if o, ok := settledSecond(r.Ordinal, evidence[r.Ordinal]); ok {
			done = append(done, o)
		} else {
			left = append(left, r)
		}
	}
	c.rows = append(c.rows[:c.next:c.next], left...)
	return done, nil
}

// settledSecond is the outcome that evidence gives a row of a second attempt that was not
// called.
func settledSecond(ordinal int16, e events.Evidence) (o outcome, ok bool) {
	p, reason := notifications.SettleSecond(e)
	if p == nil {
		return outcome{}, false
	}
	o = settled(ordinal, *p)
	o.reason = reason
	return o, true
}

package sender

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma/events"
	"lemma/lifecycle"
	"lemma/notifications"
)

// The circuit of a provider is in its row of provider_meters, which all processes share.
//
//   - It opens when the provider itself fails, when it does not reply for hangsMost
//     recipients in a row, or when CircuitAfter messages in a row were not accepted.
//     Then no batch of the provider is claimed.
//   - After a back-off, or after the time that the provider asks for by Retry-After,
//     one claim probes with a few messages. It closes the circuit when the provider
//     answers; otherwise it doubles the back-off.
//   - The campaign or flow of the batch is paused when the circuit has been open for
//     PauseAfter, not counting time in which nothing was due. It is paused at once
//     when the account or the sender is refused, or when CircuitAfter messages in a
//     row were rejected, since waiting does not help then.
//
// The first cause is kept until an acceptance ends the failures.

// recordReceipts records the refusals and failures of a window.
func (s *Sender) recordReceipts(ctx context.Context, c *claim, w *window) {
	if err := s.keepRefusals(ctx, c, w); err != nil {
		s.log.Error("refusals not written", "batch_id", c.BatchID, "error", err)
	}
	if err := s.count(ctx, c, w.run); err != nil {
		s.log.Error("provider meter not written", "provider_id", c.providerID, "error", err)
	}
}

// keepRefusals records deferrals as events: they are no outcome, but explain shows
// them. Of calls that were not made because of the recipient's server it records the first ones.
func (s *Sender) keepRefusals(ctx context.Context, c *claim, w *window) error {
	var deferrals []events.Event
	for i, r := range w.receipts {
		if r.Outcome == NotAccepted && !r.Provider || r.spared() && c.refusals.of(w.rows[i]) < mostSpared {
			deferrals = append(deferrals, events.Event{ProviderID: c.providerID, Source: events.SourceResponse,
				OriginID: c.OriginID, BatchID: c.root, Ordinal: w.rows[i], Attempt: c.attempt,
				Kind: events.Deferred, Code: r.Code, Detail: clip(r.Reason + ": " + r.Detail + retryNote(r)), OccurredAt: r.At})
		}
	}
	_, err := events.Record(ctx, s.pool, c.WorkspaceID, deferrals)
	return err
}

func (s *Sender) count(ctx context.Context, c *claim, r run) error {
	if r.accepted {
		if err := s.recovered(ctx, c); err != nil {
			return err
		}
	}
	if r.failures == 0 && (!r.tokens || !c.probing) {
		return nil
	}
	c.failing = c.failing || r.failures > 0
	before, m, err := s.recordFailures(ctx, c, r)
	if err != nil {
		return err
	}
	c.circuitOpen = m.OpenedAt != nil
	if before.Changed || r.failures == 0 && c.circuitOpen {
		return nil // it proves nothing, and a probe is ended as one without a result
	}
	s.report(c, before, m, r)
	if notifications.IsDirect(c.OriginID) {
		return nil // they wait for the provider until they expire
	}
	if reason, detail := m.pauseFor(r, s.cfg); reason != "" {
		return s.pauseFor(ctx, c, reason, detail)
	}
	return nil
}

// pauseFor pauses the campaign or flow of a batch, since its provider fails. Of several windows that find the same,
// one does so.
func (s *Sender) pauseFor(ctx context.Context, c *claim, reason, detail string) error {
	paused, err := s.pause(ctx, c.WorkspaceID, c.OriginID, c.providerID, c.cause(reason, detail))
	if paused {
		s.metrics.paused(reason)
		s.log.Warn("provider failure pauses campaign or flow",
			"provider_id", c.providerID, "origin_id", c.OriginID, "reason", reason, "detail", detail)
	}
	return err
}

// cause is a reason to pause that the claim has found. A resume after the claim ends it.
func (c *claim) cause(reason, detail string) lifecycle.Cause {
	return lifecycle.Cause{Reason: reason, Detail: detail, SeenAt: c.clock}
}

func (s *Sender) report(c *claim, before, m meter, r run) {
	switch {
	case before.OpenedAt == nil && m.OpenedAt != nil:
		s.metrics.tripped()
		s.log.Warn("circuit opened",
			"provider_id", c.providerID, "cause", m.FirstError, "carrier_detail", r.detail, "failures", m.Failures)
	case before.OpenedAt != nil && m.OpenedAt == nil:
		s.closed(c, *before.OpenedAt, m.Now)
	case c.probing:
		s.metrics.probed("failed")
		s.log.Info("provider probe failed",
			"provider_id", c.providerID, "cause", m.FirstError, "last", m.LastError, "next_probe_at", m.OpenUntil)
	}
	c.probing = c.probing && m.ProbeToken != nil
}

func (s *Sender) closed(c *claim, opened, now time.Time) {
	c.probing = false
	s.metrics.probed("answered")
	s.metrics.closed()
	s.log.Info("circuit closed", "provider_id", c.providerID, "open_for", now.Sub(opened))
}

// recordFailures adds a window's failures to the meter and locks its row: of
// concurrent claims that fail, the first opens the circuit. Failures of settings that were changed since the claim,
// such as credentials that are not valid any more, do not count.
func (s *Sender) recordFailures(ctx context.Context, c *claim, r run) (before, m meter, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `
			insert into provider_meters (workspace_id, provider_id) values ($1, $2)
			on conflict (workspace_id, provider_id) do nothing`, c.WorkspaceID, c.providerID); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, `
			select failures, refusals, rejections, hangs, coalesce(first_error, '') as first_error, failing_since,
				coalesce(last_error, '') as last_error, failed_at, asked_until,
				opened_at, open_until, probes::int as probes, probe_token, probe_until, now() as now,
				(select p.version from providers p where p.workspace_id = $1 and p.id = $2) is distinct from $3 as changed
			from provider_meters where workspace_id = $1 and provider_id = $2 for update`, c.WorkspaceID, c.providerID, c.version)
		if before, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[meter]); err != nil {
			return err
		}
		if m = before; m.Changed {
			return nil
		}
		m.fail(r, c.clock, c.token, s.cfg)
		kept := m.Rejections
		if m.rejecting(s.cfg) {
			kept = 0 // a user that resumes has read the reason
		}
		_, err = tx.Exec(ctx, `
			update provider_meters set failures = $3, refusals = $4, rejections = $5,
				first_error = $6, failing_since = $7, last_error = $8, failed_at = $9,
				opened_at = $10, open_until = $11, probes = $12, probe_token = $13, probe_until = $14, hangs = $15, asked_until = $16
			where workspace_id = $1 and provider_id = $2`, c.WorkspaceID, c.providerID, m.Failures, m.Refusals, kept,
			m.FirstError, m.FailingSince, m.LastError, m.FailedAt, m.OpenedAt, m.OpenUntil, m.Probes, m.ProbeToken, m.ProbeUntil, m.Hangs,
			m.AskedUntil)
		if err != nil || before.OpenedAt != nil || m.OpenedAt == nil {
			return err
		}
		return recordFailing(ctx, tx, c, m.FirstError)
	})
	return before, m, err
}

// recovered ends the failures after an acceptance. It writes only when the claim found
// failures or has added some, so that a healthy provider costs no write. While the
// circuit is open, only an acceptance of the probe counts: another call may have begun
// before the failure.
func (s *Sender) recovered(ctx context.Context, c *claim) error {
	if !c.failing {
		return nil
	}
	rows, _ := s.pool.Query(ctx, `
		with was as (
			select workspace_id, provider_id, opened_at from provider_meters
			where workspace_id = $1 and provider_id = $2 and failures > 0 and (opened_at is null or probe_token = $3)
			for update
		)
		update provider_meters m set failures = 0, refusals = 0, rejections = 0, hangs = 0, first_error = null, failing_since = null,
			asked_until = null, opened_at = null, open_until = null, probes = 0, probe_token = null, probe_until = null
		from was where m.workspace_id = was.workspace_id and m.provider_id = was.provider_id
		returning was.opened_at, now()`, c.WorkspaceID, c.providerID, c.token)
	var opened *time.Time
	var now time.Time
	_, err := pgx.ForEachRow(rows, []any{&opened, &now}, func() error {
		c.failing = false
		if opened != nil {
			s.closed(c, *opened, now)
		}
		return nil
	})
	return err
}

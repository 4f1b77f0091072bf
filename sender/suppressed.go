package sender

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma/notifications"
	"lemma/suppression"
)

// skipSuppressed ends the rows of a claim whose address must not be sent to. It
// reads after the claim, and so finds what was suppressed since the fan-out.
func (s *Sender) skipSuppressed(ctx context.Context, c *claim, content *content) (gone []outcome, err error) {
	if c.checked.IsZero() && !c.suppressions { // the claim has found none in the workspace
		c.checked = c.started
		return nil, nil
	}
	c.checked = time.Now()
	rows := c.rows[c.next:]
	if len(rows) == 0 {
		return nil, nil
	}
	addresses := make([]string, len(rows))
	for i, r := range rows {
		addresses[i] = r.Address
	}
	found, err := s.checker.Check(ctx, c.WorkspaceID, content.suppressed, addresses)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	suppressed := make(map[int16]bool, len(found))
	for _, f := range found {
		ordinal := rows[f.Index].Ordinal
		suppressed[ordinal] = true
		s.metrics.suppressed(f.Cause)
		gone = append(gone, outcome{ordinal: ordinal, kind: skipped, basis: "gate", reason: notifications.Suppressed,
			detail: f.Cause})
	}
	c.rows = append(c.rows[:c.next:c.next], slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return suppressed[r.Ordinal] })...)
	return gone, nil
}

// checkAgain repeats what is checked after the claim if that is too old for the rows that
// are not called yet: their addresses may be suppressed since, and evidence may have come
// about their first attempt. It runs before each window, since the windows of a claim may
// last as long as its lease, after the wait for the provider's rate, and once more after the
// commit that opens the window.
func (s *Sender) checkAgain(ctx context.Context, c *claim, content *content) ([]outcome, error) {
	if time.Since(c.checked) <= s.cfg.SuppressionAge {
		return nil, nil
	}
	known, err := s.settleByEvidence(ctx, c)
	if err != nil {
		return known, err
	}
	gone, err := s.skipSuppressed(ctx, c, content)
	return append(known, gone...), err
}

// leave takes rows that have ended out of a window that is not open.
func (w *window) leave(ended []outcome) {
	for _, o := range ended {
		if i := slices.Index(w.rows, o.ordinal); i >= 0 {
			w.rows, w.messages = slices.Delete(w.rows, i, i+1), slices.Delete(w.messages, i, i+1)
		}
	}
}

// suppressedFor are the causes of suppressions by the reason of a rejection.
var suppressedFor = map[string]string{
	ReasonUnsubscribed: suppression.Unsubscribed,
	ReasonUnregistered: suppression.TokenUnregistered,

	ReasonUnknownRecipient: suppression.HardBounce,
}

// suppressRejected suppresses the addresses that the carrier has rejected for good, in one
// transaction. If that fails, the carrier rejects the next message too.
func (s *Sender) suppressRejected(ctx context.Context, c *claim, done []outcome) {
	var rejected []outcome
	for _, o := range done {
		if o.kind == string(Rejected) && suppressedFor[o.reason] != "" {
			rejected = append(rejected, o)
		}
	}
	if len(rejected) == 0 {
		return
	}
	if err := s.suppress(ctx, c, rejected); err != nil {
		s.log.Error("addresses that the carrier has rejected for good are not suppressed", "batch_id", c.BatchID,
			"addresses", len(rejected), "error", err)
	}
}

func (s *Sender) suppress(ctx context.Context, c *claim, rejected []outcome) error {
	content, err := s.content(ctx, c.WorkspaceID, c.contentID)
	if err != nil {
		return err
	}
	var entries []suppression.Entry
	for _, o := range rejected {
		if at := slices.IndexFunc(c.rows, func(r row) bool { return r.Ordinal == o.ordinal }); at >= 0 {
			entries = append(entries, suppression.Entry{Channel: content.suppressed.Channel, Address: c.rows[at].Address,
				Cause: suppressedFor[o.reason], Detail: clip(o.detail)})
		}
	}
	var done suppression.Recorded
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) (err error) {
		done, err = suppression.Record(ctx, tx, c.WorkspaceID, entries)
		return err
	})
	if err == nil && done.Invalid > 0 {
		err = fmt.Errorf("%d addresses are not valid", done.Invalid)
	}
	return err
}

package sender

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"lemma/fence"
	"lemma/notifications"
)

// probeWindow is how many messages a probe calls at most: several, so that one message
// for which a server hangs up does not decide about the provider.
const probeWindow = 5

// probe claims a batch whose provider's circuit is open, if it may be probed and no
// other claim probes. Otherwise it returns nil and how long to wait.
func (s *Sender) probe(ctx context.Context, ref notifications.Ref) (*claim, time.Duration, error) {
	s.at(ctx, "unclaimed", ref)
	again, may, err := s.claimability(ctx, ref)
	if err != nil || !may {
		return nil, again, err
	}
	token := s.token()
	tag, err := s.pool.Exec(ctx, `
		update provider_meters m set probe_token = $4, probe_until = now() + $5
		from batches b
		where b.workspace_id = $1 and b.origin_id = $2 and b.id = $3 and m.workspace_id = b.workspace_id and m.provider_id = b.provider_id
		  and m.open_until <= now() and (m.probe_until is null or m.probe_until <= now())`,
		ref.WorkspaceID, ref.OriginID, ref.BatchID, token, s.cfg.ProbeLease)
	if err != nil {
		return nil, 0, fmt.Errorf("probe for batch %s: %w", ref.BatchID, err)
	}
	if tag.RowsAffected() == 0 { // another claim probes
		return nil, again, nil
	}
	s.at(ctx, "probing", ref)
	c, err := s.claimAs(ctx, ref, token)
	if c == nil {
		s.endProbe(ctx, &claim{Ref: ref, token: token, probing: true})
		return nil, again, err
	}
	c.probing, c.failing = true, true
	return c, 0, nil
}

// holdProbe renews the lease of a probe until the returned function ends the
// probe. A process that was killed renews nothing: another claim probes when the
// lease has expired.
func (s *Sender) holdProbe(ctx context.Context, c *claim) (end func()) {
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	go s.renewProbe(renewing, stop, c)
	return func() {
		stop()
		s.endProbe(ctx, c)
	}
}

func (s *Sender) renewProbe(ctx context.Context, lost func(), c *claim) {
	fence.Renew(ctx, s.pool, s.cfg.ProbeLease, lost, s.failed("renew probe"), `
		update provider_meters set probe_until = now() + $4
		where workspace_id = $1 and provider_id = $2 and probe_token = $3 and probe_until >= now()`,
		c.WorkspaceID, c.providerID, c.token, s.cfg.ProbeLease)
}

// leaveRefused keeps the rows that were refused least often and leaves the others to a
// later claim: one recipient that is always refused would keep the circuit open.
func (c *claim) leaveRefused() {
	if !c.probing || len(c.rows) == 0 {
		return
	}
	least := c.refusals.of(slices.MinFunc(c.rows,
		func(a, b row) int { return c.refusals.of(a.Ordinal) - c.refusals.of(b.Ordinal) }).Ordinal)
	c.leave(func(r row) bool { return c.refusals.of(r.Ordinal) > least })
}

// untilProbe is how long a batch behind an open circuit waits, with jitter.
func (s *Sender) untilProbe(openFor time.Duration, probing bool) time.Duration {
	if probing {
		openFor = max(openFor, s.cfg.CircuitFirst)
	}
	return openFor + time.Millisecond + rand.N(1+min(max(openFor, s.cfg.CircuitFirst), s.cfg.CircuitMost)/4)
}

// endProbe frees a probe that had no result.
func (s *Sender) endProbe(ctx context.Context, c *claim) {
	if !c.probing {
		return
	}
	c.probing = false
	_, err := s.pool.Exec(context.WithoutCancel(ctx), `
		update provider_meters m set probe_token = null, probe_until = null, open_until = now() + $5
		from batches b
		where b.workspace_id = $1 and b.origin_id = $2 and b.id = $3
		  and m.workspace_id = b.workspace_id and m.provider_id = b.provider_id and m.probe_token = $4`,
		c.WorkspaceID, c.OriginID, c.BatchID, c.token, s.cfg.CircuitFirst)
	if err != nil {
		s.log.Error("probe not ended", "batch_id", c.BatchID, "error", err)
	}
	s.metrics.probed("nothing")
}

package bench

import (
	"context"
	"fmt"

	"lemma/suppression"
)

// campaignSuppressed measures what a list of suppressions costs a campaign: the same
// campaign in a workspace without one, and in a workspace with ten million addresses, of
// which none is a recipient. The first campaigns of a process, which loads the filter of the
// list, have their own ratio, and storing the filter its own figure.
func (b *benchmarks) campaignSuppressed(ctx context.Context, e *env, print func(figure) error) error {
	listed := b.n(10_000_000)
	p, drop, err := e.openPair(ctx, b.n(500_000))
	if err != nil {
		return err
	}
	defer drop()
	p.names = [2]string{"campaign_without_suppressed", fmt.Sprintf("campaign_with_%d_suppressed", listed)}
	p.feature, p.rounds, p.starts = "suppressions", 2, true
	if err := p.with.suppress(ctx, listed); err != nil {
		return err
	}
	m := startMeter(p.postmaster())
	if err := p.with.Checker.StoreFilters(ctx); err != nil {
		return err
	}
	if err := print(m.stop(fmt.Sprintf("filter_of_%d_suppressed", listed), listed)); err != nil {
		return err
	}
	return p.measure(ctx, print, p.send)
}

// send sends one more campaign.
func (p *pair) send(ctx context.Context, process *instance, m materials) (figure, error) {
	id, err := process.campaignOf(ctx, m)
	if err != nil {
		return figure{}, err
	}
	p.null.reset(p.n)
	return p.sendCampaign(ctx, process, "", id, p.n, func() (int, int) { return p.n - p.null.count, p.null.duplicates })
}

// suppress fills the list of a workspace.
func (b *instance) suppress(ctx context.Context, n int) error {
	if err := suppression.New(b.Pool).Seed(ctx, b.workspace, n); err != nil {
		return err
	}
	if _, err := b.Pool.Exec(ctx, `vacuum analyze suppressions`); err != nil { // otherwise autovacuum runs during the measurement
		return err
	}
	_, err := b.Pool.Exec(ctx, `checkpoint`) // the same
	return err
}

package bench

import (
	"context"
	"fmt"

	"lemma/sender"
	"lemma/suppression"
)

// campaignSuppressed measures what a list of suppressions costs a campaign: the same
// campaign in a workspace without one, and in a workspace with ten million addresses, of
// which none is a recipient. Both are in one database and take turns, so that each is
// measured once early and once late. The first campaign of each is not compared: with the
// list it reads the filters.
func (b *benchmarks) campaignSuppressed(ctx context.Context, e *env, print func(figure) error) error {
	n, listed := b.n(500_000), b.n(10_000_000)
	without, err := e.fresh(ctx, []sender.Kind{e.null.kind()})
	if err != nil {
		return err
	}
	defer func() { _ = e.drop(context.WithoutCancel(ctx), without) }()
	ws, err := without.Workspaces.Create(ctx, "listed")
	if err != nil {
		return err
	}
	with := &instance{without.Server, without.name, ws.ID}
	if err := with.suppress(ctx, listed); err != nil {
		return err
	}
	if err := without.StartWorkers(ctx); err != nil {
		return err
	}
	cost := map[*instance]float64{}
	of := map[*instance]materials{}
	for turn, process := range []*instance{without, with, without, with, with, without} {
		if turn < 2 {
			if of[process], err = process.materials(ctx, e, n, "null", []byte(`{}`), nil); err != nil {
				return err
			}
		}
		f, err := e.turn(ctx, process, of[process], n)
		if err != nil {
			return err
		}
		f.Name = map[bool]string{true: fmt.Sprintf("campaign_with_%d_suppressed", listed), false: "campaign_without_suppressed"}[process == with]
		if turn < 2 {
			f.Name += "_first"
		} else {
			cost[process] += f.CPUUsLemma + f.CPUUsPostgres
		}
		if turn == 5 {
			f.Ratio, f.Against = round(cost[with]/cost[without]), "cpu per recipient with suppressions, by without, of two campaigns each"
		}
		if err := print(f); err != nil {
			return err
		}
	}
	return nil
}

// turn sends one more campaign.
func (e *env) turn(ctx context.Context, process *instance, m materials, n int) (figure, error) {
	id, err := process.campaignOf(ctx, m)
	if err != nil {
		return figure{}, err
	}
	e.null.reset(n)
	return e.sendCampaign(ctx, process, "", id, n, func() (int, int) { return n - e.null.count, e.null.duplicates })
}

// suppress fills the list of a workspace.
func (b *instance) suppress(ctx context.Context, n int) error {
	if err := suppression.New(b.Pool).Seed(ctx, b.workspace, n); err != nil {
		return err
	}
	if _, err := b.Pool.Exec(ctx, `vacuum suppressions`); err != nil { // otherwise autovacuum runs during the measurement
		return err
	}
	_, err := b.Pool.Exec(ctx, `checkpoint`) // the same
	return err
}

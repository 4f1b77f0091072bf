package bench

import (
	"context"

	"lemma/sender"
)

// pair is two workspaces of one database. Their campaigns alternate, so that each is
// measured once early and once late.
type pair struct {
	*env
	n             int // recipients of a campaign
	without, with *instance
	names         [2]string // of the figures without and with
	against       string    // what the ratio compares
}

// openPair makes an instance with two workspaces. close drops it.
func (e *env) openPair(ctx context.Context, n int) (p *pair, drop func(), err error) {
	without, err := e.fresh(ctx, []sender.Kind{e.null.kind()})
	if err != nil {
		return nil, nil, err
	}
	drop = func() { _ = e.drop(context.WithoutCancel(ctx), without) }
	ws, err := without.Workspaces.Create(ctx, "with")
	if err != nil {
		drop()
		return nil, nil, err
	}
	return &pair{env: e, n: n, without: without, with: &instance{without.Server, without.name, ws.ID}}, drop, nil
}

// measure sends six campaigns and prints a figure of each. The last has the ratio. The
// first of each workspace is not compared, since it fills caches.
func (p *pair) measure(ctx context.Context, print func(figure) error,
	send func(context.Context, *instance, materials) (figure, error)) error {
	if err := p.without.StartWorkers(ctx); err != nil {
		return err
	}
	cost, of := map[*instance]float64{}, map[*instance]materials{}
	for _, process := range []*instance{p.without, p.with} {
		var err error
		if of[process], err = process.materials(ctx, p.env, p.n, "null", []byte(`{}`), nil); err != nil {
			return err
		}
	}
	for i, process := range []*instance{p.without, p.with, p.without, p.with, p.with, p.without} {
		f, err := send(ctx, process, of[process])
		if err != nil {
			return err
		}
		f.Name = p.names[0]
		if process == p.with {
			f.Name = p.names[1]
		}
		if i < 2 {
			f.Name += "_first"
		} else {
			cost[process] += f.CPUUsLemma + f.CPUUsPostgres
		}
		if i == 5 {
			f.Ratio, f.Against = round(cost[p.with]/cost[p.without]), p.against
		}
		if err := print(f); err != nil {
			return err
		}
	}
	return nil
}

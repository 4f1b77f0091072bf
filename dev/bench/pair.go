package bench

import (
	"context"
	"fmt"

	"lemma/sender"
)

// pair is two workspaces of one database. Their campaigns alternate, so that each is
// measured as often early as late.
type pair struct {
	*env
	n             int // recipients of a campaign
	rounds        int // of two campaigns of each workspace
	without, with *instance
	names         [2]string   // of the figures without and with
	feature       string      // what the ratio compares
	warm          func() bool // whether first campaigns have filled what is kept in memory; nil: after one
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

// measure sends campaigns and prints a figure of each. The last that are compared have the
// ratio of CPU and of time. The first of each workspace fill caches: they are printed with
// their own ratio at the end.
func (p *pair) measure(ctx context.Context, print func(figure) error,
	send func(context.Context, *instance, materials) (figure, error)) error {
	if err := p.without.StartWorkers(ctx); err != nil {
		return err
	}
	of := map[*instance]materials{}
	for _, process := range []*instance{p.without, p.with} {
		var err error
		if of[process], err = process.materials(ctx, p.env, p.n, "null", []byte(`{}`), nil); err != nil {
			return err
		}
	}
	one := func(process *instance) (figure, error) {
		f, err := send(ctx, process, of[process])
		if f.Name = p.names[0]; process == p.with {
			f.Name = p.names[1]
		}
		return f, err
	}
	first, err := p.first(one)
	if err != nil {
		return err
	}
	without, err := p.compare(one, print)
	if err != nil {
		return err
	}
	for _, f := range first {
		f.Name += "_first"
		f.against(without, "a later campaign without "+p.feature)
		if err := print(f); err != nil {
			return err
		}
	}
	return nil
}

// mostFirst is the number of campaigns after which a workspace must be warm.
const mostFirst = 20

// first sends the first campaigns of each workspace.
func (p *pair) first(one func(*instance) (figure, error)) (all []figure, err error) {
	for _, process := range []*instance{p.without, p.with} {
		for i := 0; i == 0 || process == p.with && p.warm != nil && !p.warm(); i++ {
			if i == mostFirst {
				return nil, fmt.Errorf("%d campaigns of %d recipients do not suffice to fill what is kept in memory", i, p.n)
			}
			f, err := one(process)
			if err != nil {
				return nil, err
			}
			all = append(all, f)
		}
	}
	return all, nil
}

// compare sends the campaigns that are compared. It returns the mean of those without.
func (p *pair) compare(one func(*instance) (figure, error), print func(figure) error) (without figure, err error) {
	var with figure
	n := 2 * p.rounds
	for i := range n {
		for _, process := range [][]*instance{{p.without, p.with}, {p.with, p.without}}[i%2] {
			f, err := one(process)
			if err != nil {
				return without, err
			}
			if process == p.with {
				with.add(f, n)
			} else {
				without.add(f, n)
			}
			if i == n-1 && process == p.without {
				with.against(without, fmt.Sprintf("campaigns with %s, by %d without", p.feature, n))
				f.Ratio, f.RatioSeconds, f.Against = with.Ratio, with.RatioSeconds, with.Against
			}
			if err := print(f); err != nil {
				return without, err
			}
		}
	}
	without.N, without.Seconds = without.N/n, without.Seconds/float64(n)
	return without, nil
}

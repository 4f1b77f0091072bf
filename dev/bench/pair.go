package bench

import (
	"context"
	"fmt"
	"time"

	"lemma/sender"
)

// pair is two workspaces of one database. Their campaigns alternate, so that each is
// measured as often early as late.
type pair struct {
	*env
	n             int // recipients of a campaign
	rounds        int // of two campaigns of each workspace
	without, with *instance
	names         [2]string // of the figures without and with
	feature       string    // what the ratio compares
	starts        bool      // first campaigns of a process are compared, too
}

// openPair makes an instance with two workspaces. close drops it.
func (e *env) openPair(ctx context.Context, n int) (p *pair, drop func(), err error) {
	without, err := e.fresh(ctx, e.null.kind())
	if err != nil {
		return nil, nil, err
	}
	ws, err := without.Workspaces.Create(ctx, "with")
	if err != nil {
		without.drop()
		return nil, nil, err
	}
	return &pair{env: e, n: n, without: without, with: &instance{e, without.Server, without.name, ws.ID}}, without.drop, nil
}

// measure sends campaigns and prints a figure of each. The last that are compared have the
// ratio of CPU and of time. The first of each workspace fill caches: they are printed with
// their own ratio at the end, or are those of processes that have just started.
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
	var first []figure
	for _, process := range []*instance{p.without, p.with} {
		f, err := one(process)
		if err != nil {
			return err
		}
		f.Name += "_first"
		first = append(first, f)
	}
	without, err := p.compare(one, print, "campaigns")
	if err != nil {
		return err
	}
	if p.starts {
		_, err := p.compare(func(process *instance) (figure, error) {
			if err := p.restart(ctx); err != nil {
				return figure{}, err
			}
			f, err := one(process)
			f.Name += "_first"
			return f, err
		}, print, "first campaigns of a process")
		return err
	}
	for _, f := range first {
		f.against(without, "a later campaign without "+p.feature)
		if err := print(f); err != nil {
			return err
		}
	}
	return nil
}

// restart ends the process of both workspaces, and starts another.
func (p *pair) restart(ctx context.Context) error {
	stop, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := p.without.Drain(stop); err != nil {
		return err
	}
	p.without.Close()
	process, err := p.process(ctx, p.without.name, []sender.Kind{p.null.kind()})
	if err != nil {
		return err
	}
	p.without.Server, p.with.Server = process, process
	return process.StartWorkers(ctx)
}

// compare sends the campaigns that are compared. It returns the mean of those without.
func (p *pair) compare(one func(*instance) (figure, error), print func(figure) error, what string) (without figure, err error) {
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
				with.against(without, fmt.Sprintf("%s with %s, by %d without", what, p.feature, n))
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

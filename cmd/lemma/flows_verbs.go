package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"lemma/client"
)

type flowsValidateCommand struct {
	talk
	ofNumber
}

func (v flowsValidateCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return v.with(cfg, func(c *client.Client) error {
		id, n, err := v.find(ctx, c)
		if err != nil {
			return err
		}
		found, err := c.ValidateFlowVersion(ctx, id, n)
		if err != nil {
			return err
		}
		if err := v.say(out, found, func(out io.Writer) error { return showFaults(out, n, found) }); err != nil || found.Valid {
			return err
		}
		return fmt.Errorf("version %d has %d faults", n, len(found.Errors))
	})
}

func showFaults(out io.Writer, n int, found client.FlowValidation) error {
	for _, f := range found.Errors {
		fmt.Fprintln(out, tame(f.String()))
	}
	for _, w := range found.Warnings {
		fmt.Fprintln(out, "note:", tame(w))
	}
	if found.Valid {
		fmt.Fprintf(out, "version %d can be published\n", n)
	}
	return nil
}

// inFlightFlags say what becomes of those on their way.
type inFlightFlags struct {
	InFlight string            `default:"stay" enum:"stay,move,exit" help:"What becomes of those who are on their way in other versions: ${enum}."`
	Map      map[string]string `placeholder:"OLD=NEW" help:"With move: which node stands for one that is gone; OLD= takes those on it out."`
}

func (f inFlightFlags) ask() client.InFlight {
	in := client.InFlight{Mode: f.InFlight}
	for old, now := range f.Map {
		if in.Map == nil {
			in.Map = map[string]*string{}
		}
		if in.Map[old] = nil; now != "" {
			in.Map[old] = &now
		}
	}
	return in
}

type flowsPlanCommand struct {
	talk
	ofNumber
	inFlightFlags
}

func (p flowsPlanCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return p.with(cfg, func(c *client.Client) error {
		id, n, err := p.find(ctx, c)
		if err != nil {
			return err
		}
		plan, err := c.PlanFlowVersion(ctx, id, n, p.ask())
		if err != nil {
			return err
		}
		return p.say(out, taggedPlan{plan, bare(plan.ETag)}, func(out io.Writer) error { return showPlan(out, plan) })
	})
}

// taggedPlan is a plan as JSON, with the flow's ETag.
type taggedPlan struct {
	client.FlowPlan
	Tag string `json:"etag"`
}

func showPlan(out io.Writer, p client.FlowPlan) error {
	fmt.Fprintf(out, "Publishing version %d over %s would change %d things and enroll nobody.\n", p.Version, or(p.LiveVersion, "none"), len(p.Changes))
	if p.Stranded > 0 {
		fmt.Fprintf(out, "%d people would be stranded: it will be refused until --map says where they go.\n", p.Stranded)
	}
	switch {
	case p.Enrolls == nil:
		fmt.Fprintf(out, "How many profiles the audience would enroll is not known: %s.\n", or(p.Unknown, ""))
	case *p.Enrolls > 0:
		fmt.Fprintf(out, "The first poll of the audience would enroll %d profiles.\n", *p.Enrolls)
	}
	if len(p.Nodes) > 0 {
		if err := table(out, "VERSION|NODE|TYPE|WAITING|DUE|FATE|TO", p.Nodes, func(s client.Standing) []string {
			return []string{fmt.Sprint(s.Version), nodeName(s.Node), s.Type, fmt.Sprint(s.Waiting), fmt.Sprint(s.Due), s.Fate, or(s.To, "")}
		}); err != nil {
			return err
		}
	}
	if len(p.Timers) > 0 {
		if err := showTimers(out, p.Timers); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "This is as of ETag %s: --if-match=%s lets nothing else be published.\n", bare(p.ETag), bare(p.ETag))
	return err
}

func showTimers(out io.Writer, timers []client.TimerChange) error {
	return table(out, "VERSION|TIMER OF|AT|WAITING|CHANGE|BY", timers, func(t client.TimerChange) []string {
		by := ""
		if t.Change == "shifted" {
			by = (time.Duration(t.Seconds * float64(time.Second))).String()
		}
		return []string{fmt.Sprint(t.Version), t.Node, t.To, fmt.Sprint(t.Waiting), t.Change, by}
	})
}

// nodeName has a word for those who have not come to a node yet.
func nodeName(node string) string {
	if node == "" {
		return "(entry)"
	}
	return node
}

type flowsPublishCommand struct {
	talk
	ofNumber
	inFlightFlags
	IfMatch string `placeholder:"ETAG" help:"Only if the flow and its drafts are as they were then, such as in a plan; without it, as they are when the command begins."`
}

func (p flowsPublishCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return p.with(cfg, func(c *client.Client) error {
		id, n, err := p.find(ctx, c)
		if err != nil {
			return err
		}
		seen, err := p.seen(ctx, c, id)
		if err != nil {
			return err
		}
		if !p.JSON {
			fmt.Fprintf(out, "Publishing version %d.\n", n)
		}
		f, err := c.PublishFlowVersion(ctx, id, n, p.ask(), client.IfMatch(seen))
		return p.flow(out, f, err)
	})
}

// seen is the ETag of the flow that whoever publishes has seen: nobody who
// changes it in between is overwritten, and nothing of theirs published.
func (p flowsPublishCommand) seen(ctx context.Context, c *client.Client, id string) (string, error) {
	if p.IfMatch != "" {
		return quoted(p.IfMatch), nil
	}
	f, err := c.GetFlow(ctx, id)
	return f.ETag, err
}

type flowsRollbackCommand struct {
	talk
	ofFlow
	numbered
	inFlightFlags
	To int `help:"The version; without it the one that was live before."`
}

func (r flowsRollbackCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	version, err := r.among(r.To)
	if err != nil {
		return err
	}
	return r.with(cfg, func(c *client.Client) error {
		id, err := r.find(ctx, c)
		if err != nil {
			return err
		}
		seen, err := c.GetFlow(ctx, id)
		if err != nil {
			return err
		}
		f, err := c.RollbackFlow(ctx, id, client.Rollback{ToVersion: version, InFlight: r.ask()}, client.IfMatch(seen.ETag))
		return r.flow(out, f, err)
	})
}

// flowVerb is a command that an id is enough for.
type flowVerb struct {
	talk
	ofFlow
}

func (v flowVerb) do(ctx context.Context, cfg Config, out io.Writer, verb func(*client.Client, string) (client.Flow, error)) error {
	return v.with(cfg, func(c *client.Client) error {
		id, err := v.find(ctx, c)
		if err != nil {
			return err
		}
		f, err := verb(c, id)
		return v.flow(out, f, err)
	})
}

type flowsPauseCommand struct{ flowVerb }

func (v flowsPauseCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return v.do(ctx, cfg, out, func(c *client.Client, id string) (client.Flow, error) { return c.PauseFlow(ctx, id) })
}

type flowsDrainCommand struct{ flowVerb }

func (v flowsDrainCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return v.do(ctx, cfg, out, func(c *client.Client, id string) (client.Flow, error) { return c.DrainFlow(ctx, id) })
}

type flowsArchiveCommand struct{ flowVerb }

func (v flowsArchiveCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return v.do(ctx, cfg, out, func(c *client.Client, id string) (client.Flow, error) { return c.ArchiveFlow(ctx, id) })
}

type flowsResumeCommand struct {
	flowVerb
	Spread *span `help:"Over how long what fell due is released, such as 10m, PT10M or 0s; without it as long as the pause was, at most ten minutes."`
}

func (v flowsResumeCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	how := client.Resumption{}
	if v.Spread != nil {
		how.Spread = v.Spread.iso()
	}
	return v.do(ctx, cfg, out, func(c *client.Client, id string) (client.Flow, error) { return c.ResumeFlow(ctx, id, how) })
}

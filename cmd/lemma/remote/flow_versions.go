package remote

import (
	"context"
	"fmt"
	"io"
	"time"

	"lemma/client"
)

type flowsValidateCommand struct {
	output
	ofNumber
}

func (v flowsValidateCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return v.onVersion(ctx, cfg, v, func(c *client.Client, id string, n int) error {
		found, err := c.ValidateFlowVersion(ctx, id, n)
		if err != nil {
			return err
		}
		if err := v.print(out, found, func(out io.Writer) error { return showFaults(out, n, found) }); err != nil || found.Valid {
			return err
		}
		return fmt.Errorf("version %d has %d faults", n, len(found.Errors))
	})
}

func showFaults(out io.Writer, n int, found client.FlowValidation) error {
	for _, f := range found.Errors {
		fmt.Fprintln(out, Printable(f.String()))
	}
	for _, w := range found.Warnings {
		fmt.Fprintln(out, "warning:", Printable(w))
	}
	if found.Valid {
		fmt.Fprintf(out, "version %d can be published\n", n)
	}
	return nil
}

// inFlightFlags decide what happens to active enrollments in other versions.
type inFlightFlags struct {
	InFlight string            `default:"stay" enum:"stay,move,exit" help:"What happens to active enrollments in other versions: ${enum}."`
	Map      map[string]string `placeholder:"OLD=NEW" help:"With move: the node that replaces a deleted one; OLD= ends the enrollments there."`
}

func (f inFlightFlags) request() client.InFlight {
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
	output
	ofNumber
	inFlightFlags
}

func (p flowsPlanCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return p.onVersion(ctx, cfg, p, func(c *client.Client, id string, n int) error {
		plan, err := c.PlanFlowVersion(ctx, id, n, p.request())
		if err != nil {
			return err
		}
		return p.print(out, taggedPlan{plan, bare(plan.ETag)}, func(out io.Writer) error { return showPlan(out, plan) })
	})
}

// taggedPlan is a plan as JSON, with the flow's ETag.
type taggedPlan struct {
	client.FlowPlan
	Tag string `json:"etag"`
}

func showPlan(out io.Writer, p client.FlowPlan) error {
	fmt.Fprintf(out, "Publishing version %d over %s would make %d changes. Publishing enrolls no profile.\n",
		p.Version, or(p.LiveVersion, "none"), len(p.Changes))
	if p.Stranded > 0 {
		fmt.Fprintf(out, "Stranded enrollments: %d. Publishing is refused until --map gives a node for them.\n", p.Stranded)
	}
	switch {
	case p.Enrolls == nil:
		fmt.Fprintf(out, "The number of profiles that the audience would enroll is not known: %s.\n", or(p.Unknown, ""))
	case *p.Enrolls > 0:
		fmt.Fprintf(out, "The first poll of the audience would enroll %d profiles.\n", *p.Enrolls)
	}
	if len(p.Nodes) > 0 {
		if err := Table(out, "VERSION|NODE|TYPE|WAITING|DUE|ACTION|TO", p.Nodes, func(s client.PlannedNode) []string {
			return []string{fmt.Sprint(s.Version), NodeName(s.Node), s.Type, fmt.Sprint(s.Waiting), fmt.Sprint(s.Due), s.Action, or(s.To, "")}
		}); err != nil {
			return err
		}
	}
	if len(p.Timers) > 0 {
		if err := showTimers(out, p.Timers); err != nil {
			return err
		}
	}
	if p.NodesLeftOut > 0 || p.TimersLeftOut > 0 {
		fmt.Fprintf(out, "Left out: %d nodes and %d timers with fewer enrollments.\n", p.NodesLeftOut, p.TimersLeftOut)
	}
	_, err := fmt.Fprintf(out, "The plan is for ETag %s: with --if-match=%s, publish does exactly this or nothing.\n",
		bare(p.ETag), bare(p.ETag))
	return err
}

func showTimers(out io.Writer, timers []client.TimerChange) error {
	return Table(out, "VERSION|TIMER OF|AT|WAITING|CHANGE|BY", timers, func(t client.TimerChange) []string {
		by := ""
		if t.Change == "shifted" {
			by = (time.Duration(t.Seconds * float64(time.Second))).String()
		}
		return []string{fmt.Sprint(t.Version), t.Node, t.To, fmt.Sprint(t.Waiting), t.Change, by}
	})
}

// NodeName is the name of a node; (entry) before the first one.
func NodeName(node string) string {
	if node == "" {
		return "(entry)"
	}
	return node
}

type flowsPublishCommand struct {
	output
	ofNumber
	inFlightFlags
	IfMatch string `placeholder:"ETAG" help:"Publish only if the flow and its drafts have this ETag, with that of a plan also its templates and audience; default: the flow's ETag when the command starts."`
}

func (p flowsPublishCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return p.onVersion(ctx, cfg, p, func(c *client.Client, id string, n int) error {
		etag, err := p.etag(ctx, c, id)
		if err != nil {
			return err
		}
		if !p.JSON {
			fmt.Fprintf(out, "Publishing version %d.\n", n)
		}
		f, err := c.PublishFlowVersion(ctx, id, n, p.request(), client.IfMatch(etag))
		return p.flow(out, f, err)
	})
}

// etag is the ETag of the flow that the caller has seen. Changes by others in
// between are neither overwritten nor published.
func (p flowsPublishCommand) etag(ctx context.Context, c *client.Client, id string) (string, error) {
	if p.IfMatch != "" {
		return quoted(p.IfMatch), nil
	}
	f, err := c.GetFlow(ctx, id)
	return f.ETag, err
}

type flowsRollbackCommand struct {
	output
	ofFlow
	numbered
	inFlightFlags
	To int `help:"The version; default: the one that was live before."`
}

func (r flowsRollbackCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	version, err := r.among(r.To)
	if err != nil {
		return err
	}
	return r.onFlow(ctx, cfg, r, func(c *client.Client, id string) error {
		seen, err := c.GetFlow(ctx, id)
		if err != nil {
			return err
		}
		f, err := c.RollbackFlow(ctx, id, client.Rollback{ToVersion: version, InFlight: r.request()}, client.IfMatch(seen.ETag))
		return r.flow(out, f, err)
	})
}

// flowVerb is a command that needs only a flow.
type flowVerb struct {
	output
	ofFlow
}

func (v flowVerb) do(ctx context.Context, cfg Config, out io.Writer, verb func(*client.Client, string) (client.Flow, error)) error {
	return v.onFlow(ctx, cfg, v, func(c *client.Client, id string) error {
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
	CatchUp *span `help:"The time over which due enrollments are released, such as 10m, PT10M or 0s; default: as long as the pause, at most 10m."`
}

func (v flowsResumeCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	request := client.Resumption{}
	if v.CatchUp != nil {
		request.CatchUp = v.CatchUp.iso()
	}
	return v.do(ctx, cfg, out, func(c *client.Client, id string) (client.Flow, error) { return c.ResumeFlow(ctx, id, request) })
}

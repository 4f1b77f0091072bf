package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"lemma/client"
)

type flowsDiffCommand struct {
	talk
	ofFlow
	From int `help:"The version before; without it the live one."`
	To   int `help:"The version after; without it the newest."`
}

func (d flowsDiffCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return d.with(cfg, func(c *client.Client) error {
		id, err := d.find(ctx, c)
		if err != nil {
			return err
		}
		diff, err := c.DiffFlowVersions(ctx, id, d.From, d.To)
		if err != nil {
			return err
		}
		return d.say(out, diff, func(out io.Writer) error {
			fmt.Fprintf(out, "from version %d to version %d: %d changes\n", diff.FromVersion, diff.ToVersion, len(diff.Changes))
			for _, change := range diff.Changes {
				fmt.Fprintln(out, tame(changeLine(change)))
			}
			return nil
		})
	})
}

func changeLine(c client.FlowChange) string {
	switch c.Op {
	case "add":
		return "+ " + c.Pointer + ": " + string(c.To)
	case "remove":
		return "- " + c.Pointer + ": " + string(c.From)
	}
	return "~ " + c.Pointer + ": " + string(c.From) + " -> " + string(c.To)
}

type flowsCountsCommand struct {
	talk
	ofFlow
	numbered
	Version int `help:"Which version; without it the live one."`
}

func (n flowsCountsCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	version, err := n.among(n.Version)
	if err != nil {
		return err
	}
	return n.with(cfg, func(c *client.Client) error {
		id, err := n.find(ctx, c)
		if err != nil {
			return err
		}
		counts, err := c.CountFlow(ctx, id, version)
		if err != nil {
			return err
		}
		return n.say(out, counts, func(out io.Writer) error { return showCounts(out, counts) })
	})
}

func showCounts(out io.Writer, n client.FlowCounts) error {
	if err := facts(out, "version", fmt.Sprint(n.Version), "enrolled", fmt.Sprint(n.Enrolled), "active", fmt.Sprint(n.Active), "completed", fmt.Sprint(n.Completed),
		"exited", fmt.Sprint(n.Exited), "refused", fmt.Sprint(n.Refused), "goals", fmt.Sprint(n.Goals),
		"trouble", tally(n.Trouble), "exits", tally(n.ExitReasons), "refusals", tally(n.Refusals)); err != nil {
		return err
	}
	if n.AudiencePoll != nil {
		if err := showPoll(out, *n.AudiencePoll); err != nil {
			return err
		}
	}
	return showNodes(out, n.Nodes)
}

func showPoll(out io.Writer, p client.AudiencePoll) error {
	return facts(out, "audience read", stampOr(p.LastAt, "never"), "rows", fmt.Sprint(p.RowsRead), "enrolled", fmt.Sprint(p.Enrolled), "not enrolled", tally(p.Refused),
		"failures since", fmt.Sprint(p.Failures), "because of", or(p.LastError, ""), "next look", stampOr(p.NextAt, "none"))
}

func showNodes(out io.Writer, nodes []client.NodeCount) error {
	return table(out, "NODE|TYPE|STANDING|DUE|TROUBLED|PASSED|MESSAGES|WAYS", nodes, func(k client.NodeCount) []string {
		return []string{nodeName(k.Node), k.Type, fmt.Sprint(k.Standing), fmt.Sprint(k.Due), fmt.Sprint(k.Troubled), tally(k.Passed), tally(k.Messages), tally(k.Ways)}
	})
}

type flowsRefusalsCommand struct {
	listing
	ofFlow
	Profile string `help:"Only those of this person."`
	Reason  string `help:"Only those with this reason."`
}

func (r flowsRefusalsCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return r.with(cfg, func(c *client.Client) error {
		id, err := r.find(ctx, c)
		if err != nil {
			return err
		}
		all := c.ListRefusals(ctx, id, client.RefusalFilter{ProfileKey: r.Profile, Reason: r.Reason})
		return list(r.listing, out, all, refusalHead, refusalRow)
	})
}

const refusalHead = "AT|PROFILE|REASON|SOURCE|IN THE WAY|DETAIL"

func refusalRow(r client.Refusal) []string {
	return []string{stamp(r.At), r.ProfileKey, r.Reason, r.Source, or(r.EnrollmentID, ""), or(r.Detail, "")}
}

type flowsExplainCommand struct {
	talk
	ofFlow
	Profile string `arg:"" help:"Who: the profile key."`
}

func (e flowsExplainCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return e.with(cfg, func(c *client.Client) error {
		id, err := e.find(ctx, c)
		if err != nil {
			return err
		}
		x, err := c.ExplainFlow(ctx, id, e.Profile)
		if err != nil {
			return err
		}
		return e.say(out, x, func(out io.Writer) error {
			fmt.Fprintln(out, tame(x.Summary))
			for _, fact := range x.Facts {
				fmt.Fprintln(out, "-", tame(fact))
			}
			return nil
		})
	})
}

type flowsSimulateCommand struct {
	talk
	ofVersion
	Profile    string         `arg:"" help:"Who: the profile key."`
	Trigger    string         `enum:",event,audience,direct" default:"" placeholder:"TYPE" help:"What enrolls: event, audience or direct. Without it the event that is named; else the audience, where there is no other trigger, or a direct enrollment."`
	Event      string         `help:"The event that enrolls."`
	Properties objectFlag     `placeholder:"JSON" help:"What it says, or a direct enrollment."`
	At         time.Time      `placeholder:"TIME" help:"When it enrolls (RFC 3339); without it now."`
	Later      []string       `sep:"none" placeholder:"EVENT@TIME" help:"What the person does later; may be repeated."`
	Webhooks   map[string]int `name:"webhook" placeholder:"NODE=STATUS" help:"What a webhook is answered with, 200 to 599, or 0: given up. Without it 200."`
}

func (s flowsSimulateCommand) ask() (client.Simulation, error) {
	ask := client.Simulation{ProfileKey: s.Profile, At: notZero(s.At), Webhooks: s.Webhooks}
	if s.Trigger != "" || s.Event != "" || s.Properties != "" {
		ask.Trigger = &client.SimulatedTrigger{Type: s.Trigger, Event: s.Event, Properties: s.Properties.raw()}
	}
	for _, later := range s.Later {
		name, text, _ := strings.Cut(later, "@")
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return ask, fmt.Errorf("--later is %q, and must be an event and a time, such as bought@2027-01-02T15:04:05Z", later)
		}
		ask.Events = append(ask.Events, client.SimulatedEvent{Event: name, OccurredAt: &at})
	}
	return ask, nil
}

func (s flowsSimulateCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	ask, err := s.ask()
	if err != nil {
		return err
	}
	return s.with(cfg, func(c *client.Client) error {
		id, n, err := s.find(ctx, c)
		if err != nil {
			return err
		}
		way, err := c.SimulateFlowVersion(ctx, id, n, ask)
		if err != nil {
			return err
		}
		return s.say(out, way, func(out io.Writer) error { return showWay(out, way) })
	})
}

func showWay(out io.Writer, way client.Simulated) error {
	if !way.Enrolled {
		fmt.Fprintln(out, "would not be enrolled:", or(way.Reason, ""))
	}
	if len(way.Path) > 0 {
		if err := table(out, "AT|NODE|TYPE|WHAT|UNTIL|NEXT|", way.Path, func(s client.SimulatedStep) []string {
			return []string{stamp(s.At), nodeName(s.Node), s.Type, s.Event, stampOr(s.Until, ""), or(s.Next, ""), messageLine(s)}
		}); err != nil {
			return err
		}
	}
	if way.Status != "" {
		fmt.Fprintln(out, "ends as", way.Status, or(way.ExitReason, ""))
	}
	return nil
}

// messageLine is a message or a webhook that would be sent, in a line.
func messageLine(s client.SimulatedStep) string {
	m := s.Message
	switch {
	case s.Webhook != nil:
		return fmt.Sprintf("to %s: %s", s.Webhook.EndpointID, s.Webhook.Body)
	case m == nil:
		return ""
	case m.Error != nil:
		return "cannot be rendered: " + *m.Error
	case m.Skipped != nil:
		return "would be skipped: " + *m.Skipped
	}
	return fmt.Sprintf("to %s: %q", m.Address, m.Subject)
}

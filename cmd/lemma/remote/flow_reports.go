package remote

import (
	"context"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	"lemma/client"
)

type flowsDiffCommand struct {
	output
	ofFlow
	From int `help:"The version before; default: the live one."`
	To   int `help:"The version after; default: the newest."`
}

func (d flowsDiffCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return d.onFlow(ctx, cfg, d, func(c *client.Client, id string) error {
		diff, err := c.DiffFlowVersions(ctx, id, d.From, d.To)
		if err != nil {
			return err
		}
		return d.print(out, diff, func(out io.Writer) error {
			fmt.Fprintf(out, "from version %d to version %d: %d changes\n", diff.FromVersion, diff.ToVersion, len(diff.Changes))
			for _, change := range diff.Changes {
				fmt.Fprintln(out, Printable(changeLine(change)))
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
	output
	ofFlow
	numbered
	Version int `help:"The version; default: the live one."`
}

func (n flowsCountsCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	version, err := n.among(n.Version)
	if err != nil {
		return err
	}
	return n.onFlow(ctx, cfg, n, func(c *client.Client, id string) error {
		counts, err := c.CountFlow(ctx, id, version)
		if err != nil {
			return err
		}
		return n.print(out, counts, func(out io.Writer) error { return showCounts(out, counts) })
	})
}

func showCounts(out io.Writer, n client.FlowCounts) error {
	if err := printFields(out, "version", fmt.Sprint(n.Version), "enrolled", fmt.Sprint(n.Enrolled), "active", fmt.Sprint(n.Active),
		"completed", fmt.Sprint(n.Completed), "exited", fmt.Sprint(n.Exited), "refused", fmt.Sprint(n.Refused), "goals", fmt.Sprint(n.Goals),
		"blocked", tally(n.BlockedBy), "exits", tally(n.ExitedBy), "refusals", tally(n.RefusalsBy)); err != nil {
		return err
	}
	if b := n.MessagesBlocked; b != nil {
		if err := printFields(out, "messages wait for", b.BlockedReason, "because of", b.Detail, "since", stampOr(&b.Since, "")); err != nil {
			return err
		}
	}
	if n.AudiencePoll != nil {
		if err := showPoll(out, *n.AudiencePoll); err != nil {
			return err
		}
	}
	return ShowNodes(out, n.Nodes)
}

func showPoll(out io.Writer, p client.AudiencePoll) error {
	return printFields(out, "audience read", stampOr(p.LastPollAt, "never"), "rows", fmt.Sprint(p.RowsRead),
		"enrolled", fmt.Sprint(p.Enrolled), "not enrolled", tally(p.RefusedBy),
		"failures since", fmt.Sprint(p.Failures), "because of", or(p.LastError, ""), "next poll", stampOr(p.NextPollAt, "none"))
}

// ShowNodes prints the counts of nodes.
func ShowNodes(out io.Writer, nodes []client.NodeCount) error {
	return Table(out, "NODE|TYPE|CURRENT|DUE|BLOCKED|PROCESSED|NOTIFICATIONS|BY PATH", nodes, func(k client.NodeCount) []string {
		return []string{NodeName(k.Node), k.Type, fmt.Sprint(k.Current), fmt.Sprint(k.Due), fmt.Sprint(k.Blocked), tally(k.Processed),
			notificationCells(k.Notifications), tally(k.ByPath)}
	})
}

// notificationCells is, in a cell, the notifications of a node by status.
func notificationCells(n *client.NotificationCounts) string {
	if n == nil {
		return ""
	}
	some := map[string]int64{"total": n.Total, "sent": n.Sent, "failed": n.Failed, "skipped": n.Skipped, "orphaned": n.Orphaned,
		"cancelled": n.Cancelled, "pending": n.Pending, "processing": n.Processing}
	maps.DeleteFunc(some, func(_ string, n int64) bool { return n == 0 })
	return tally(some)
}

type flowsRefusalsCommand struct {
	listing
	ofFlow
	Profile string `help:"Only refusals of this profile."`
	Reason  string `help:"Only refusals with this reason."`
}

func (r flowsRefusalsCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return r.onFlow(ctx, cfg, r, func(c *client.Client, id string) error {
		all := c.ListRefusals(ctx, id, client.RefusalFilter{ProfileKey: r.Profile, Reason: r.Reason})
		return list(r.listing, out, all, refusalHead, refusalRow)
	})
}

const refusalHead = "AT|PROFILE|REASON|SOURCE|CONFLICTS WITH|DETAIL"

func refusalRow(r client.Refusal) []string {
	return []string{stamp(r.CreatedAt), r.ProfileKey, r.Reason, r.TriggerType, or(r.EnrollmentID, ""), or(r.Detail, "")}
}

type flowsExplainCommand struct {
	output
	ofFlow
	Profile string `arg:"" help:"The profile key."`
}

func (e flowsExplainCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	return e.onFlow(ctx, cfg, e, func(c *client.Client, id string) error {
		x, err := c.ExplainFlow(ctx, id, e.Profile)
		if err != nil {
			return err
		}
		return e.print(out, x, func(out io.Writer) error {
			fmt.Fprintln(out, Printable(x.Summary))
			for _, fact := range x.Facts {
				fmt.Fprintln(out, "-", Printable(fact))
			}
			return nil
		})
	})
}

type flowsSimulateCommand struct {
	output
	ofVersion
	Profile    string         `arg:"" help:"The profile key."`
	Trigger    string         `enum:",event,audience,direct" default:"" placeholder:"TYPE" help:"The trigger: event, audience or direct. Default: event if --event is given; else audience if the version has no other trigger; else direct."`
	Event      string         `help:"The name of the triggering event."`
	Properties objectFlag     `placeholder:"JSON" help:"Properties of the event or of the direct enrollment."`
	At         time.Time      `placeholder:"TIME" help:"Time of the trigger (RFC 3339); default: now."`
	Later      []string       `sep:"none" placeholder:"EVENT@TIME" help:"A later event of the profile; may be repeated."`
	Webhooks   map[string]int `name:"webhook" placeholder:"NODE=STATUS" help:"The HTTP status that a webhook node gets, 200 to 599, or 0 for a failed delivery; default: 200."`
}

func (s flowsSimulateCommand) request() (client.Simulation, error) {
	request := client.Simulation{ProfileKey: s.Profile, At: notZero(s.At), Webhooks: s.Webhooks}
	if s.Trigger != "" || s.Event != "" || s.Properties != "" {
		request.Trigger = &client.SimulatedTrigger{Type: s.Trigger,
			SimulatedEvent: client.SimulatedEvent{Event: s.Event, Properties: s.Properties.raw()}}
	}
	for _, later := range s.Later {
		name, text, _ := strings.Cut(later, "@")
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return request, fmt.Errorf("--later is %q: must be an event and a time, such as bought@2027-01-02T15:04:05Z", later)
		}
		request.Events = append(request.Events, client.SimulatedEvent{Event: name, OccurredAt: &at})
	}
	return request, nil
}

func (s flowsSimulateCommand) run(ctx context.Context, cfg Config, out io.Writer) error {
	request, err := s.request()
	if err != nil {
		return err
	}
	return s.onVersion(ctx, cfg, s, func(c *client.Client, id string, n int) error {
		path, err := c.SimulateFlowVersion(ctx, id, n, request)
		if err != nil {
			return err
		}
		return s.print(out, path, func(out io.Writer) error { return showSimulation(out, path) })
	})
}

func showSimulation(out io.Writer, s client.Simulated) error {
	if !s.Enrolled {
		fmt.Fprintln(out, "would not be enrolled:", or(s.Reason, ""))
	}
	if len(s.Path) > 0 {
		if err := Table(out, "AT|NODE|TYPE|EVENT|UNTIL|NEXT|", s.Path, func(s client.SimulatedStep) []string {
			return []string{stamp(s.At), NodeName(s.Node), s.Type, s.Event, stampOr(s.Until, ""), or(s.Next, ""), messageLine(s)}
		}); err != nil {
			return err
		}
	}
	if s.Status != "" {
		fmt.Fprintln(out, "ends as", s.Status, or(s.ExitReason, ""))
	}
	return nil
}

// messageLine formats a message or a webhook that would be sent.
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
	return fmt.Sprintf("to %s: %q", recipients(m), headline(m))
}

// recipients is the address of a message, and how many others get it too.
func recipients(m *client.SimulatedMessage) string {
	if m.Addresses > 1 {
		return fmt.Sprintf("%s and %d more", m.Address, m.Addresses-1)
	}
	return m.Address
}

// headline is the subject of an email, the title of a push, or the text.
func headline(m *client.SimulatedMessage) string {
	for _, text := range []*string{m.Subject, m.Title, m.Body, m.Text} {
		if text != nil && *text != "" {
			return *text
		}
	}
	return ""
}

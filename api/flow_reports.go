package api

import (
	"context"

	"lemma"
	"lemma/client"
	"lemma/flows/execution"
	"lemma/flows/intake"
	"lemma/flows/query"
)

func showBlocked(b *query.MessagesBlocked) *client.MessagesBlocked {
	if b == nil {
		return nil
	}
	return &client.MessagesBlocked{BlockedReason: b.Reason, Detail: b.Detail, Since: b.Since.UTC()}
}

func showPoll(p *query.AudiencePoll) *client.AudiencePoll {
	if p == nil {
		return nil
	}
	return &client.AudiencePoll{LastPollAt: utc(p.LastAt), RowsRead: p.RowsRead, Enrolled: p.Enrolled, RefusedBy: present(p.Refused),
		Failures: p.Failures, LastError: orNull(p.LastError), NextPollAt: utc(p.NextAt)}
}

func showDeliveries(by map[string]int64) client.DeliveryCounts {
	return client.DeliveryCounts{Delivered: by["delivered"], Delayed: by["delayed"], Bounced: by["bounced"], Complained: by["complained"],
		Rejected: by["rejected"], Undelivered: by["undelivered"]}
}

func showNodeCounts(n query.NodeCount) client.NodeCount {
	b := client.NodeCount{Node: n.Node, Type: n.Type, Current: n.Current, Due: n.Due, Blocked: n.Blocked, Processed: present(n.Processed)}
	if m := n.Messages; m != nil {
		b.Notifications = &client.NotificationCounts{Total: m["written"], Sent: m["sent"], Failed: m["failed"], Skipped: m["skipped"],
			Orphaned: m["orphaned"], Cancelled: m["cancelled"], Pending: m["pending"], Processing: m["processing"],
			Deliveries: showDeliveries(n.Deliveries), Engagement: client.Engagement(n.Engagement)}
	}
	if n.ByPath != nil {
		b.ByPath = present(n.ByPath)
	}
	return b
}

func (s *server) countFlow(ctx context.Context, c *call, _ none) (client.FlowCounts, error) {
	version, err := s.shown(ctx, c)
	if err != nil {
		return client.FlowCounts{}, err
	}
	n, err := s.FlowReader.Counts(ctx, c.workspace(), c.id, version)
	b := client.FlowCounts{Version: n.Version, Enrolled: n.Enrolled, Active: n.Active, Completed: n.Completed, Exited: n.Exited,
		Refused: n.Refused, ExitedBy: present(n.ExitReasons), Goals: n.Goals, BlockedBy: present(n.BlockedBy),
		Nodes: each(n.Nodes, showNodeCounts), RefusalsBy: present(n.Refusals), AudiencePoll: showPoll(n.AudiencePoll),
		MessagesBlocked: showBlocked(n.MessagesBlocked)}
	for _, blocked := range n.BlockedBy {
		b.Blocked += blocked
	}
	return b, err
}

func showRefusal(r query.Refusal) client.Refusal {
	return client.Refusal{ProfileKey: r.ProfileKey, Reason: r.Reason, Detail: orNull(r.Detail), TriggerType: r.Source,
		EventID: idOrNull(lemma.PrefixEvent, r.EventKey), EnrollmentID: idOrNull(lemma.PrefixEnrollment, r.EnrollmentID), CreatedAt: r.At.UTC()}
}

func (s *server) listRefusals(ctx context.Context, c *call, _ none) (list[client.Refusal], error) {
	found, next, err := s.FlowReader.Refusals(ctx, c.workspace(), c.id, c.query("profile_key"), c.query("reason"), c.page())
	return listOf(found, next, err, showRefusal)
}

func (s *server) explainFlow(ctx context.Context, c *call, _ none) (client.FlowExplanation, error) {
	e, err := s.FlowReader.Explain(ctx, c.workspace(), c.id, c.query("profile_key"))
	return client.FlowExplanation{Summary: e.Summary, Facts: each(e.Facts, asIs), Enrollments: each(e.Enrollments, showEnrollment),
		Refusals: each(e.Refusals, showRefusal), Events: each(e.Events, showEvent)}, err
}

// simulated returns the event of a profile.
func simulated(e client.SimulatedEvent, profile string) intake.Event {
	return intake.Event{ID: e.SourceID, ProfileKey: profile, Name: e.Event, Properties: e.Properties, OccurredAt: orZero(e.OccurredAt)}
}

func showSimulatedStep(n execution.SimulatedStep) client.SimulatedStep {
	b := client.SimulatedStep{At: n.At.UTC(), Node: n.Node, Type: n.Type, Event: n.Event, Until: utc(n.Until), Next: orNull(n.Next),
		Data: neverNull(n.Data)}
	if m := n.Message; m != nil {
		c := showRendered(m.Content)
		b.Message = &client.SimulatedMessage{Address: m.Address, Addresses: m.Addresses, Channel: string(c.Channel), Subject: c.Subject,
			HTML: c.HTML, Text: c.Text, Segments: c.Segments, Title: c.Title, Body: c.Body, Link: c.Link, Data: c.Data,
			Headers: headersOf(m.Headers), Skipped: orNull(m.Skipped), Error: orNull(m.Error)}
	}
	if h := n.Webhook; h != nil {
		b.Webhook = &client.SimulatedWebhook{EndpointID: lemma.FormatID(lemma.PrefixEndpoint, h.EndpointID), Body: h.Body,
			Error: orNull(h.Error)}
	}
	return b
}

func (s *server) simulateFlowVersion(ctx context.Context, c *call, in client.Simulation) (client.Simulated, error) {
	later := func(e client.SimulatedEvent) intake.Event { return simulated(e, in.ProfileKey) }
	trigger := client.SimulatedTrigger{}
	lemma.Set(&trigger, in.Trigger)
	made, err := s.FlowReader.Simulate(ctx, c.workspace(), c.id, c.version,
		query.Simulation{ProfileKey: in.ProfileKey, Source: trigger.Type, Trigger: later(trigger.SimulatedEvent), At: orZero(in.At),
			Events: each(in.Events, later), Webhooks: in.Webhooks})
	return client.Simulated{Enrolled: made.Enrolled, Reason: orNull(made.Reason), Path: each(made.Path, showSimulatedStep),
		Status: made.Status, ExitReason: orNull(made.ExitReason)}, inDefinition(err)
}

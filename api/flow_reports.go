package api

import (
	"context"
	"encoding/json"
	"time"

	"lemma"
	"lemma/flows/execution"
	"lemma/flows/intake"
	"lemma/flows/query"
	"lemma/notifications"
)

type flowCounts struct {
	Version         int              `json:"version"`
	Enrolled        int64            `json:"enrolled"`
	Active          int64            `json:"active"`
	Completed       int64            `json:"completed"`
	Exited          int64            `json:"exited"`
	ExitedBy        map[string]int64 `json:"exited_by"`
	Refused         int64            `json:"refused"`
	Goals           int64            `json:"goals"`
	Blocked         int64            `json:"blocked"`
	BlockedBy       map[string]int64 `json:"blocked_by"`
	Nodes           []nodeCounts     `json:"nodes"`
	RefusalsBy      map[string]int64 `json:"refusals_by"`
	Poll            *pollBody        `json:"audience_poll"`
	MessagesBlocked *blockedBody     `json:"messages_blocked"`
}

type blockedBody struct {
	Reason string    `json:"blocked_reason"`
	Detail string    `json:"detail"`
	Since  time.Time `json:"since"`
}

func showBlocked(b *query.MessagesBlocked) *blockedBody {
	if b == nil {
		return nil
	}
	return &blockedBody{Reason: b.Reason, Detail: b.Detail, Since: b.Since.UTC()}
}

type pollBody struct {
	LastAt    *time.Time       `json:"last_poll_at"`
	RowsRead  int64            `json:"rows_read"`
	Enrolled  int64            `json:"enrolled"`
	RefusedBy map[string]int64 `json:"refused_by"`
	Failures  int              `json:"failures"`
	LastError *string          `json:"last_error"`
	NextAt    *time.Time       `json:"next_poll_at"`
}

func showPoll(p *query.AudiencePoll) *pollBody {
	if p == nil {
		return nil
	}
	return &pollBody{LastAt: utc(p.LastAt), RowsRead: p.RowsRead, Enrolled: p.Enrolled, RefusedBy: present(p.Refused), Failures: p.Failures,
		LastError: orNull(p.LastError), NextAt: utc(p.NextAt)}
}

type nodeCounts struct {
	Node          string              `json:"node"`
	Type          string              `json:"type"`
	Current       int64               `json:"current"`
	Due           int64               `json:"due"`
	Blocked       int64               `json:"blocked"`
	Processed     map[string]int64    `json:"processed"`
	Notifications *notificationCounts `json:"notifications"` // null for nodes that send nothing
	ByPath        map[string]int64    `json:"by_path"`       // null for nodes with one path
}

// notificationCounts are the same numbers of a campaign and of a node.
type notificationCounts struct {
	Total      int64 `json:"total"`
	Sent       int64 `json:"sent"`
	Failed     int64 `json:"failed"`
	Skipped    int64 `json:"skipped"`
	Orphaned   int64 `json:"orphaned"`
	Cancelled  int64 `json:"cancelled"`
	Pending    int64 `json:"pending"`
	Processing int64 `json:"processing"`

	Deliveries deliveryCounts           `json:"deliveries"`
	Engagement notifications.Engagement `json:"engagement"`
}

// deliveryCounts are numbers by delivery state, as carriers reported it.
type deliveryCounts struct {
	Delivered   int64 `json:"delivered"`
	Delayed     int64 `json:"delayed"`
	Bounced     int64 `json:"bounced"`
	Complained  int64 `json:"complained"`
	Rejected    int64 `json:"rejected"`
	Undelivered int64 `json:"undelivered"`
}

func showDeliveries(by map[string]int64) deliveryCounts {
	return deliveryCounts{Delivered: by["delivered"], Delayed: by["delayed"], Bounced: by["bounced"], Complained: by["complained"],
		Rejected: by["rejected"], Undelivered: by["undelivered"]}
}

func showNodeCounts(n query.NodeCount) nodeCounts {
	b := nodeCounts{Node: n.Node, Type: n.Type, Current: n.Current, Due: n.Due, Blocked: n.Blocked, Processed: present(n.Processed)}
	if m := n.Messages; m != nil {
		b.Notifications = &notificationCounts{Total: m["written"], Sent: m["sent"], Failed: m["failed"], Skipped: m["skipped"],
			Orphaned: m["orphaned"], Cancelled: m["cancelled"], Pending: m["pending"], Processing: m["processing"],
			Deliveries: showDeliveries(n.Deliveries), Engagement: n.Engagement}
	}
	if n.ByPath != nil {
		b.ByPath = present(n.ByPath)
	}
	return b
}

func (s *server) countFlow(ctx context.Context, c *call, _ none) (flowCounts, error) {
	version, err := s.shown(ctx, c)
	if err != nil {
		return flowCounts{}, err
	}
	n, err := s.FlowReader.Counts(ctx, c.workspace(), c.id, version)
	b := flowCounts{Version: n.Version, Enrolled: n.Enrolled, Active: n.Active, Completed: n.Completed, Exited: n.Exited, Refused: n.Refused,
		ExitedBy: present(n.ExitReasons), Goals: n.Goals, BlockedBy: present(n.BlockedBy), Nodes: each(n.Nodes, showNodeCounts),
		RefusalsBy: present(n.Refusals), Poll: showPoll(n.AudiencePoll), MessagesBlocked: showBlocked(n.MessagesBlocked)}
	for _, blocked := range n.BlockedBy {
		b.Blocked += blocked
	}
	return b, err
}

type refusalBody struct {
	ProfileKey   string    `json:"profile_key"`
	Reason       string    `json:"reason"`
	Detail       *string   `json:"detail"`
	Trigger      string    `json:"trigger_type"`
	EventID      *string   `json:"event_id"`
	EnrollmentID *string   `json:"enrollment_id"`
	CreatedAt    time.Time `json:"created_at"`
}

func showRefusal(r query.Refusal) refusalBody {
	return refusalBody{ProfileKey: r.ProfileKey, Reason: r.Reason, Detail: orNull(r.Detail), Trigger: r.Source,
		EventID: idOrNull(lemma.PrefixEvent, r.EventKey), EnrollmentID: idOrNull(lemma.PrefixEnrollment, r.EnrollmentID), CreatedAt: r.At.UTC()}
}

func (s *server) listRefusals(ctx context.Context, c *call, _ none) (list[refusalBody], error) {
	found, next, err := s.FlowReader.Refusals(ctx, c.workspace(), c.id, c.query("profile_key"), c.query("reason"), c.page())
	return listOf(found, next, err, showRefusal)
}

type flowExplanation struct {
	Summary     string           `json:"summary"`
	Facts       []string         `json:"facts"`
	Enrollments []enrollmentBody `json:"enrollments"`
	Refusals    []refusalBody    `json:"refusals"`
	Events      []eventBody      `json:"events"`
}

func (s *server) explainFlow(ctx context.Context, c *call, _ none) (flowExplanation, error) {
	e, err := s.FlowReader.Explain(ctx, c.workspace(), c.id, c.query("profile_key"))
	return flowExplanation{Summary: e.Summary, Facts: each(e.Facts, asIs), Enrollments: each(e.Enrollments, showEnrollment),
		Refusals: each(e.Refusals, showRefusal), Events: each(e.Events, showEvent)}, err
}

type simulation struct {
	ProfileKey string           `json:"profile_key"`
	Trigger    simulatedTrigger `json:"trigger"`
	At         time.Time        `json:"at"`
	Events     []simulatedEvent `json:"events"`
	Webhooks   map[string]int   `json:"webhooks"`
}

type simulatedTrigger struct {
	Type string `json:"type"`
	simulatedEvent
}

type simulatedEvent struct {
	Event      string          `json:"event"`
	Properties json.RawMessage `json:"properties"`
	SourceID   string          `json:"source_id"`
	OccurredAt time.Time       `json:"occurred_at"`
}

// of returns the event of a profile.
func (e simulatedEvent) of(profile string) intake.Event {
	return intake.Event{ID: e.SourceID, ProfileKey: profile, Name: e.Event, Properties: e.Properties, OccurredAt: e.OccurredAt}
}

type simulationBody struct {
	Enrolled   bool                `json:"enrolled"`
	Reason     *string             `json:"reason"`
	Path       []simulatedStepBody `json:"path"`
	Status     string              `json:"status"`
	ExitReason *string             `json:"exit_reason"`
}

type simulatedStepBody struct {
	At      time.Time             `json:"at"`
	Node    string                `json:"node"`
	Type    string                `json:"type"`
	Event   string                `json:"event"`
	Until   *time.Time            `json:"until"`
	Next    *string               `json:"next"`
	Data    map[string]any        `json:"data"`
	Message *simulatedMessageBody `json:"message"`
	Webhook *simulatedWebhookBody `json:"webhook"`
}

type simulatedWebhookBody struct {
	EndpointID string          `json:"endpoint_id"`
	Body       json.RawMessage `json:"body"`
}

type simulatedMessageBody struct {
	Address   string `json:"address"`
	Addresses int    `json:"addresses"`
	renderedContent
	Headers map[string]string `json:"headers"`
	Skipped *string           `json:"skipped"`
	Error   *string           `json:"error"`
}

func showSimulatedStep(n execution.SimulatedStep) simulatedStepBody {
	b := simulatedStepBody{At: n.At.UTC(), Node: n.Node, Type: n.Type, Event: n.Event, Until: utc(n.Until), Next: orNull(n.Next),
		Data: objectOf(n.Data)}
	if m := n.Message; m != nil {
		b.Message = &simulatedMessageBody{m.Address, m.Addresses, showRendered(m.Content), headersOf(m.Headers), orNull(m.Skipped),
			orNull(m.Error)}
	}
	if h := n.Webhook; h != nil {
		b.Webhook = &simulatedWebhookBody{lemma.FormatID(lemma.PrefixEndpoint, h.EndpointID), h.Body}
	}
	return b
}

func (s *server) simulateFlowVersion(ctx context.Context, c *call, in simulation) (simulationBody, error) {
	later := func(e simulatedEvent) intake.Event { return e.of(in.ProfileKey) }
	made, err := s.FlowReader.Simulate(ctx, c.workspace(), c.id, c.version,
		query.Simulation{ProfileKey: in.ProfileKey, Source: in.Trigger.Type, Trigger: in.Trigger.of(in.ProfileKey), At: in.At,
			Events: each(in.Events, later), Webhooks: in.Webhooks})
	return simulationBody{Enrolled: made.Enrolled, Reason: orNull(made.Reason), Path: each(made.Path, showSimulatedStep), Status: made.Status,
		ExitReason: orNull(made.ExitReason)}, inDefinition(err)
}

package api

import (
	"context"
	"encoding/json"
	"time"

	"lemma"
	"lemma/flows"
)

type countsBody struct {
	Version     int              `json:"version"`
	Enrolled    int64            `json:"enrolled"`
	Active      int64            `json:"active"`
	Completed   int64            `json:"completed"`
	Exited      int64            `json:"exited"`
	Refused     int64            `json:"refused"`
	ExitReasons map[string]int64 `json:"exit_reasons"`
	Goals       int64            `json:"goals"`
	Trouble     map[string]int64 `json:"trouble"`
	Nodes       []nodeCountBody  `json:"nodes"`
	Refusals    map[string]int64 `json:"refusals"`
	Poll        *pollBody        `json:"audience_poll"`
}

type pollBody struct {
	LastAt    *time.Time       `json:"last_at"`
	RowsRead  int64            `json:"rows_read"`
	Enrolled  int64            `json:"enrolled"`
	Refused   map[string]int64 `json:"refused"`
	Failures  int              `json:"failures"`
	LastError *string          `json:"last_error"`
	NextAt    *time.Time       `json:"next_at"`
}

func showPoll(p *flows.AudiencePoll) *pollBody {
	if p == nil {
		return nil
	}
	return &pollBody{LastAt: utc(p.LastAt), RowsRead: p.RowsRead, Enrolled: p.Enrolled, Refused: present(p.Refused), Failures: p.Failures,
		LastError: orNull(p.LastError), NextAt: utc(p.NextAt)}
}

type nodeCountBody struct {
	Node     string           `json:"node"`
	Type     string           `json:"type"`
	Standing int64            `json:"standing"`
	Due      int64            `json:"due"`
	Troubled int64            `json:"troubled"`
	Passed   map[string]int64 `json:"passed"`
	Messages map[string]int64 `json:"messages"` // null where nothing is sent
	Ways     map[string]int64 `json:"ways"`     // null where there is one way only
}

func showNodeCount(n flows.NodeCount) nodeCountBody {
	b := nodeCountBody{Node: n.Node, Type: n.Type, Standing: n.Standing, Due: n.Due, Troubled: n.Troubled, Passed: present(n.Passed)}
	if n.Messages != nil {
		b.Messages = present(n.Messages)
	}
	if n.Ways != nil {
		b.Ways = present(n.Ways)
	}
	return b
}

func (s *server) countFlow(ctx context.Context, c *call, _ none) (countsBody, error) {
	id, err := c.flowID()
	if err != nil {
		return countsBody{}, err
	}
	version, err := s.shown(ctx, c, id)
	if err != nil {
		return countsBody{}, err
	}
	n, err := s.Flows.Counts(ctx, c.workspace(), id, version)
	return countsBody{Version: n.Version, Enrolled: n.Enrolled, Active: n.Active, Completed: n.Completed, Exited: n.Exited, Refused: n.Refused,
		ExitReasons: present(n.ExitReasons), Goals: n.Goals, Trouble: present(n.Trouble), Nodes: each(n.Nodes, showNodeCount), Refusals: present(n.Refusals),
		Poll: showPoll(n.AudiencePoll)}, err
}

type refusalBody struct {
	ProfileKey   string    `json:"profile_key"`
	Reason       string    `json:"reason"`
	Detail       *string   `json:"detail"`
	Source       string    `json:"source"`
	EventID      *string   `json:"event_id"`
	EnrollmentID *string   `json:"enrollment_id"`
	At           time.Time `json:"at"`
}

func showRefusal(r flows.Refusal) refusalBody {
	return refusalBody{ProfileKey: r.ProfileKey, Reason: r.Reason, Detail: orNull(r.Detail), Source: r.Source, EventID: idOrNull(lemma.PrefixEvent, r.EventKey),
		EnrollmentID: idOrNull(lemma.PrefixEnrollment, r.EnrollmentID), At: r.At.UTC()}
}

func (s *server) listRefusals(ctx context.Context, c *call, _ none) (list[refusalBody], error) {
	id, err := c.flowID()
	if err != nil {
		return list[refusalBody]{}, err
	}
	found, next, err := s.Flows.Refusals(ctx, c.workspace(), id, c.query("profile_key"), c.query("reason"), c.page())
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
	id, err := c.flowID()
	if err != nil {
		return flowExplanation{}, err
	}
	e, err := s.Flows.Explain(ctx, c.workspace(), id, c.query("profile_key"))
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
	ID         string          `json:"id"`
	OccurredAt time.Time       `json:"occurred_at"`
}

// of is the event as the person's.
func (e simulatedEvent) of(profile string) flows.Event {
	return flows.Event{ID: e.ID, ProfileKey: profile, Name: e.Event, Properties: e.Properties, OccurredAt: e.OccurredAt}
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
	Address string            `json:"address"`
	Subject string            `json:"subject"`
	HTML    string            `json:"html"`
	Text    string            `json:"text"`
	Headers map[string]string `json:"headers"`
	Skipped *string           `json:"skipped"`
	Error   *string           `json:"error"`
}

func showSimulatedStep(n flows.SimulatedStep) simulatedStepBody {
	b := simulatedStepBody{At: n.At.UTC(), Node: n.Node, Type: n.Type, Event: n.Event, Until: utc(n.Until), Next: orNull(n.Next), Data: objectOf(n.Data)}
	if m := n.Message; m != nil {
		b.Message = &simulatedMessageBody{m.Address, m.Subject, m.HTML, m.Text, headersOf(m.Headers), orNull(m.Skipped), orNull(m.Error)}
	}
	if h := n.Webhook; h != nil {
		b.Webhook = &simulatedWebhookBody{lemma.FormatID(lemma.PrefixEndpoint, h.EndpointID), h.Body}
	}
	return b
}

func (s *server) simulateFlowVersion(ctx context.Context, c *call, in simulation) (simulationBody, error) {
	id, n, err := c.flowVersion()
	if err != nil {
		return simulationBody{}, err
	}
	later := func(e simulatedEvent) flows.Event { return e.of(in.ProfileKey) }
	made, err := s.Flows.Simulate(ctx, c.workspace(), id, n, flows.Simulation{ProfileKey: in.ProfileKey, Source: in.Trigger.Type, Trigger: in.Trigger.of(in.ProfileKey), At: in.At,
		Events: each(in.Events, later), Webhooks: in.Webhooks})
	return simulationBody{Enrolled: made.Enrolled, Reason: orNull(made.Reason), Path: each(made.Path, showSimulatedStep), Status: made.Status,
		ExitReason: orNull(made.ExitReason)}, inDefinition(err)
}

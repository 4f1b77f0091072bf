package execution

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/graph"
	"lemma/message"
	"lemma/webhooks"
)

// Simulated is the result of a simulation.
type Simulated struct {
	Enrolled   bool
	Reason     string // why it does not enroll: a refusal's reason, or no_trigger
	Path       []SimulatedStep
	Status     string // as an enrollment's; waiting: longer than a simulation covers
	ExitReason string
}

// SimulatedStep is one step that would happen.
type SimulatedStep struct {
	At      time.Time
	Node    string
	Type    string
	Event   string     // as of a Step
	Until   *time.Time // a wait: until when, if no event ends it before
	Next    string     // the next node; empty while it stays
	Data    map[string]any
	Message *SimulatedMessage // of a send
	Webhook *SimulatedWebhook // of a webhook
}

// SimulatedMessage is the content of a message that would be sent.
type SimulatedMessage struct {
	Address   string
	Addresses int // of the profile; more than 1 only for a push
	message.Content
	Headers [][2]string // of the node, by name
	Skipped string      // the reason for which it would not be sent
	Error   string      // why it cannot be rendered
}

// SimulatedWebhook is what would be sent, and where.
type SimulatedWebhook struct {
	EndpointID uuid.UUID
	Body       json.RawMessage
	Error      string // why the body is not shown
}

// NoTrigger is the reason if an event enrolls nothing in a version without a trigger of
// its name, or an audience in a version that does not poll it. A real event without a
// trigger is no refusal: it does not concern the flow.
const NoTrigger = "no_trigger"

// Limits of a simulation.
const (
	MaxSimulated      = 3 * 366 * 24 * time.Hour // how much time a simulation covers
	maxSimulatedSteps = 1_000
	maxSimulatedBytes = 4 << 20 // of the steps with their messages and webhooks, as far as they are shown
)

// Script is what a simulation assumes: the enrollment and the later events.
type Script struct {
	ProfileKey string
	Source     string // of the enrollment
	Trigger    Happening
	Later      []Happening    // further events, by time
	Answers    map[string]int // node -> status of the answer, 0: given up; absent: 200
	Begin      time.Time      // when it enrolls
}

// Happening is a trigger or an event of a script.
type Happening struct {
	Key  uuid.UUID
	Name string // empty: no event
	At   time.Time
	Data map[string]any // as conditions see it
}

// Simulate evaluates a route for one profile, with a clock that advances from wait to
// wait. The profile and the results of SQL branches are read live, once; all else is in
// the script. It writes nothing. The flow's status and earlier enrollments do not matter.
func (e *Evaluator) Simulate(ctx context.Context, r *Route, script Script) (Simulated, error) {
	s := &simulation{Evaluator: e, Script: script}
	s.t = &Execution{Route: r, ID: lemma.NewID(), ProfileKey: s.ProfileKey, Source: s.Source, EnrolledAt: s.Begin, Now: s.Begin,
		Arrived:  s.Begin,
		Failures: MaxLookups - 1, Read: Due{blocked: enrollment.NoProfile}, // the profile is looked up once
		trigger: given(s.Trigger.Data), acted: map[string]acted{}, Status: enrollment.Active, simulated: true}
	if reason := s.refusedAtOnce(); reason != "" {
		return Simulated{Reason: reason, Path: []SimulatedStep{}, Status: enrollment.Refused}, nil
	}
	if err := s.run(ctx); err != nil {
		return Simulated{}, err
	}
	return s.made, nil
}

// evaluate evaluates a condition.
func (t *Execution) evaluate(c *graph.Condition, v graph.Vars) (bool, error) {
	if t.simulated {
		return c.EvalInTurn(t.WorkspaceID, v)
	}
	return c.Eval(v)
}

// simulation is a simulation in progress.
type simulation struct {
	*Evaluator
	Script
	t    *Execution
	came int // how many of Later were applied

	shown, messages, posts int // of the execution: steps, messages, webhook messages
	bytes                  int // of what is shown so far
	made                   Simulated
}

// refusedAtOnce decides what is decided when a trigger is recorded.
func (s *simulation) refusedAtOnce() string {
	if s.t.Source == enrollment.FromDirect {
		return s.refusedByKey()
	}
	for _, t := range s.t.Triggers() {
		if t.Type != s.t.Source || t.Event != s.Trigger.Name {
			continue
		}
		if t.Condition != nil && !t.Condition.Uses().Profile {
			if ok, err := s.t.evaluate(t.Condition, graph.Vars{Trigger: s.t.trigger.value(), Now: s.Begin}); err != nil {
				return enrollment.ConditionError
			} else if !ok {
				return enrollment.Filtered
			}
		}
		return s.refusedByKey()
	}
	return NoTrigger
}

func (s *simulation) refusedByKey() string {
	properties, _ := s.t.trigger.value()["properties"].(map[string]any)
	_, err := s.t.Key(graph.Occurrence{ProfileKey: s.t.ProfileKey, Event: s.Trigger.Key, At: s.Trigger.At, Properties: properties})
	if err != nil {
		return enrollment.MissingField
	}
	return ""
}

// run executes from wait to wait until the enrollment ends, or waits for longer than a
// simulation covers.
func (s *simulation) run(ctx context.Context) error {
	s.made.Path = []SimulatedStep{{At: s.t.Now, Type: Entry, Event: enrollment.StepEnrolled,
		Data: map[string]any{"source": s.t.Source, "trigger": s.t.trigger.value()}}}
	for len(s.made.Path) < maxSimulatedSteps {
		n := s.t.execute(s.cfg.ConditionTime, s.cfg.ChunkBytes)
		if err := s.show(ctx); err != nil {
			return err
		}
		switch {
		case n != nothing:
			if err := s.answerTo(ctx, n); err != nil {
				return err
			}
		case s.t.Status != enrollment.Active:
			s.made.Enrolled, s.made.Status, s.made.ExitReason = true, s.t.Status, s.t.Reason
			if s.t.Status == enrollment.Refused {
				s.made.Enrolled, s.made.Reason, s.made.ExitReason = false, s.t.Reason, ""
				if s.t.Source == enrollment.FromAudience { // the poll refuses, before an enrollment exists
					s.made.Path = []SimulatedStep{}
				}
			}
			return nil
		case !s.goOn():
			s.made.Enrolled, s.made.Status = true, enrollment.Waiting
			return nil
		}
	}
	return fmt.Errorf("the simulation has not ended after %d steps", maxSimulatedSteps)
}

// show adds the steps since the last call.
func (s *simulation) show(ctx context.Context) error {
	for ; s.shown < len(s.t.Log); s.shown++ {
		l := s.t.Log[s.shown]
		step := SimulatedStep{At: s.t.Now, Node: l.NodeID, Type: s.typeOf(l.NodeID), Event: l.Event,
			Data: s.data(l.Data)}
		next := s.t.NodeID
		if s.shown+1 < len(s.t.Log) {
			next = s.t.Log[s.shown+1].NodeID
		}
		if next != l.NodeID {
			step.Next = next
		}
		if step.Type == graph.Send && (l.Event == enrollment.StepSent || l.Event == enrollment.StepSkipped) {
			var err error
			if step.Message, err = s.render(ctx, s.t.Sends[s.messages]); err != nil {
				return err
			}
			for s.sent(); s.messages < len(s.t.Sends) && s.t.Sends[s.messages].Number > 0; s.sent() {
				step.Message.Addresses++
			}
		}
		if l.Event == "webhook" {
			step.Webhook = s.post(&s.t.Calls[s.posts])
			s.posts++
		}
		s.made.Path = append(s.made.Path, step)
	}
	return nil
}

func (s *simulation) typeOf(node string) string {
	if n, ok := s.t.Node(node); ok {
		return n.Type
	}
	return Entry
}

// render renders the message of a send.
func (s *simulation) render(ctx context.Context, out Sending) (*SimulatedMessage, error) {
	m := &SimulatedMessage{Address: out.Address, Addresses: 1, Skipped: out.Skip, Content: message.Content{Channel: out.Channel}}
	if out.Skip != "" {
		return m, nil
	}
	template, err := s.templates.Compiled(ctx, s.t.WorkspaceID, out.TemplateID, out.TemplateVersion)
	if err != nil {
		return nil, err
	}
	if template, err = template.WithHeaders(out.headers); err != nil {
		return nil, err
	}
	content, headers, err := template.RenderMessage(out.Payload, message.SampleUnsubscribeURL(s.cfg.PublicURL()))
	if err != nil {
		m.Error = lemma.Public(err)
		return m, nil
	}
	if m.Error = s.shows(sizeOf(content, headers)); m.Error != "" {
		return m, nil
	}
	m.Content, m.Headers = content, headers
	return m, nil
}

// answerTo finds a fact that the execution needs.
func (s *simulation) answerTo(ctx context.Context, n need) error {
	switch n {
	case needProfile:
		b := &budget{most: s.cfg.ChunkBytes}
		return s.Sources.Query(ctx, s.t.source, func() error { return s.readRows(ctx, s.t.Route, []*Execution{s.t}, b) })
	case needMatch:
		return s.query(ctx)
	case needEvents:
		s.sumUpMatched()
	case needMatchedEvent:
		s.t.checked = true // an event that ends the wait was applied already
	case needAnswer:
		status, ok := s.Answers[s.t.NodeID]
		if !ok {
			status = 200
		}
		s.t.answer = &webhooks.Outcome{Delivered: status/100 == 2, Status: status, Attempts: 1}
	case needTime, needMemory:
		return ctx.Err()
	default:
		return fmt.Errorf("node %s needs what a simulation has not got: %d", s.t.NodeID, n)
	}
	return nil
}

// query runs the query of the first undecided case.
func (s *simulation) query(ctx context.Context) error {
	at, left := s.t.unmatched()
	if !left {
		return fmt.Errorf("node %s has no case to query", s.t.NodeID)
	}
	return s.Sources.Query(ctx, s.t.sourceOf(s.t.NodeID),
		func() error { return s.matchRows(ctx, s.t.Route, s.t.NodeID, at, []*Execution{s.t}) })
}

// sumUpMatched sums up the events that were applied so far, as conditions see them. They are
// recorded when they occur.
func (s *simulation) sumUpMatched() {
	s.t.events = map[string]past{}
	for _, name := range s.t.eventsRead() {
		s.t.events[name] = past{last: "{}"}
		var all []Happening
		for _, o := range s.Later[:s.came] {
			if o.Name == name {
				all = append(all, o)
			}
		}
		if n := len(all); n > 0 {
			last, _ := json.Marshal(all[n-1].Data["properties"])
			s.t.events[name] = summed(n, all[0].At, all[n-1].At, string(last))
		}
	}
}

// goOn advances the clock to the end of the wait: its time, or an earlier event that ends
// it or the enrollment. It is false if that is too far away.
func (s *simulation) goOn() bool {
	node, _ := s.t.Node(s.t.NodeID)
	if node != nil && node.Type == graph.Webhook { // answered at once
		s.resume(s.t.Now)
		return true
	}
	until := s.t.Until.UTC()
	s.made.Path = append(s.made.Path, SimulatedStep{At: s.t.Now, Node: s.t.NodeID, Type: s.typeOf(s.t.NodeID), Event: "waiting",
		Until: &until, Data: map[string]any{}})
	for ; s.came < len(s.Later) && !s.Later[s.came].At.After(until); s.came++ {
		if s.receive(node, s.Later[s.came]) {
			s.came++
			return true
		}
	}
	if until.Sub(s.Begin) > MaxSimulated {
		return false
	}
	s.resume(until)
	return true
}

// receive applies an event to a waiting enrollment, as intake does.
func (s *simulation) receive(node *graph.Compiled, o Happening) bool {
	at := o.At
	if at.Before(s.t.Now) {
		at = s.t.Now
	}
	for _, exit := range s.t.ExitOn() {
		if exit.Event == o.Name && s.holds(exit.Condition, o) {
			reason := enrollment.ExitCondition
			if exit.Goal {
				reason = enrollment.ExitGoal
			}
			s.resume(at)
			s.t.end(enrollment.Exited, reason, map[string]any{"event": o.Data})
			return true
		}
	}
	if node == nil || s.t.WaitsFor != o.Name || !s.holds(node.Condition, o) {
		return false
	}
	s.resume(at)
	s.t.matchedData = given(o.Data)
	return true
}

func (s *simulation) holds(c *graph.Condition, o Happening) bool {
	is, _ := c.Holds(o.Data, s.t.trigger.value(), o.At)
	return is
}

// resume does what the engine does between two chunks: it reads the waiting enrollment
// again at a later time.
func (s *simulation) resume(at time.Time) {
	s.t.Now, s.t.Arrived, s.t.waitingSince, s.t.awaits = at, at, s.t.Since, s.t.WaitsFor
	s.t.Until, s.t.Since, s.t.WaitsFor, s.t.Blocked = time.Time{}, nil, "", ""
	s.t.events, s.t.checked = nil, false
}

// Entry replaces the type of the node before the first.
const Entry = "entry"

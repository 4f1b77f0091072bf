package flows

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/flows/graph"
	"lemma/webhooks"
)

// Simulation is a journey that is only thought through: one real profile, and
// what is assumed to happen to it.
type Simulation struct {
	ProfileKey string
	Source     string         // what enrolls: event, audience or direct; empty: what Trigger says, and if it says nothing the audience, where a version has no other triggers
	Trigger    Event          // Name empty: no event
	At         time.Time      // when it enrolls; zero: now
	Events     []Event        // that come later, by OccurredAt
	Webhooks   map[string]int // node -> status that it is answered with, 200 to 599, or 0: given up; absent: 200
}

// Simulated is where a simulation leads.
type Simulated struct {
	Enrolled   bool
	Reason     string // why not: one of a refusal's, or no_trigger
	Path       []SimulatedStep
	Status     string // as an enrollment's; waiting: longer than a simulation goes
	ExitReason string
}

// SimulatedStep is one thing that would happen.
type SimulatedStep struct {
	At      time.Time
	Node    string
	Type    string
	Event   string     // as a Step's
	Until   *time.Time // a wait: until when, if nothing comes before
	Next    string     // where it leads; empty while it stays
	Data    map[string]any
	Message *SimulatedMessage // of a send
	Webhook *SimulatedWebhook // of a webhook
}

// SimulatedMessage is what would be sent, word by word.
type SimulatedMessage struct {
	Address, Subject, HTML, Text string
	Headers                      [][2]string // of the node, by name
	Skipped                      string      // the reason for which it would not be sent
	Error                        string      // why it cannot be rendered
}

// SimulatedWebhook is what would be posted, and where.
type SimulatedWebhook struct {
	EndpointID uuid.UUID
	Body       json.RawMessage
}

// NoTrigger is why an event enrolls nobody in a version that has no trigger of
// its name, and the audience in one that does not look at it. Of real events
// that is no refusal: they do not concern the flow.
const NoTrigger = "no_trigger"

const (
	maxSimulated       = 3 * 366 * 24 * time.Hour // how far time is moved on
	maxSimulatedSteps  = 1_000
	maxSimulatedEvents = 100
)

// Simulate walks one profile through a version, draft or not, with a clock that
// is moved from wait to wait. The profile and what branches by SQL ask are read
// live, once; all else comes from s. It writes nothing, and neither the flow's
// status nor who is enrolled already matters to it. Version 0 is the live one.
func (f *Flows) Simulate(ctx context.Context, ws, flow uuid.UUID, version int, s Simulation) (Simulated, error) {
	v, err := f.versionOf(ctx, ws, flow, version)
	if err != nil {
		return Simulated{}, err
	}
	r, err := f.routeThrough(ctx, ws, v)
	if err != nil {
		return Simulated{}, err
	}
	sim, err := f.newSimulation(r, s)
	if err != nil {
		return Simulated{}, err
	}
	if reason := sim.refusedAtOnce(); reason != "" {
		return Simulated{Reason: reason, Path: []SimulatedStep{}, Status: statusRefused}, nil
	}
	if err := sim.run(ctx); err != nil {
		return Simulated{}, answered(err, fmt.Sprintf("simulate version %d of flow %s", v.Version, flow))
	}
	return sim.made, nil
}

// routeThrough answers any version ready to be walked; of a draft that cannot
// be, all its faults.
func (f *Flows) routeThrough(ctx context.Context, ws uuid.UUID, v Version) (*route, error) {
	if v.Status != versionDraft {
		return f.route(ctx, ws, v.FlowID, v.Version)
	}
	c, err := f.check(ctx, ws, v.FlowID, v.Definition)
	switch {
	case err != nil:
		return nil, err
	case len(c.faults) > 0:
		return nil, &lemma.Error{Kind: lemma.Invalid, Message: "the version has faults and cannot be simulated", Fields: c.faults}
	}
	return f.newRoute(ctx, c.graph, ws, v.FlowID, v.Version)
}

// simulation is one that goes on.
type simulation struct {
	*Flows
	t       *traveller
	trigger *occurrence
	later   []*occurrence // by time
	heard   int           // how many of these have come
	answers map[string]int
	begin   time.Time

	shown, letters, posts int // of the traveller's steps, sendings and sayings
	made                  Simulated
}

func (f *Flows) newSimulation(r *route, s Simulation) (*simulation, error) {
	now := time.Now()
	sim := &simulation{Flows: f, answers: s.Webhooks, begin: s.At}
	if sim.begin.IsZero() {
		sim.begin = now
	}
	sim.begin = sim.begin.UTC().Truncate(time.Microsecond)
	var fields []lemma.Field
	if sim.begin.Before(earliest) || sim.begin.After(now.Add(maxSimulated)) {
		fields = append(fields, lemma.Field{Pointer: "/at", Code: "out_of_range", Detail: "the time is before 2000 or more than three years ahead"})
	}
	fields = append(fields, sim.readTrigger(r, s)...)
	fields = append(fields, sim.readLater(s)...)
	fields = append(fields, wrongAnswers(r, s.Webhooks)...)
	if len(fields) > 0 {
		return nil, &lemma.Error{Kind: lemma.Invalid, Message: "the simulation is not valid", Fields: fields}
	}
	sim.t = &traveller{route: r, id: lemma.NewID(), key: s.ProfileKey, source: sim.trigger.source, enrolledAt: sim.begin, now: sim.begin, arrived: sim.begin,
		failures: looks - 1, // the profile is looked for once
		trigger:  sim.trigger.trigger(), acted: map[string]string{}, status: Active}
	return sim, nil
}

// refusedAtOnce decides what is decided when a trigger is recorded.
func (s *simulation) refusedAtOnce() string {
	if s.t.source == fromDirect {
		return s.refusedByKey()
	}
	for _, t := range s.t.Triggers() {
		if t.Type != s.t.source || t.Event != s.trigger.name {
			continue
		}
		if t.Condition != nil && !t.Condition.Uses().Profile {
			if ok, err := t.Condition.Eval(graph.Vars{Trigger: s.t.trigger, Now: s.trigger.at}); err != nil {
				return ConditionError
			} else if !ok {
				return Filtered
			}
		}
		return s.refusedByKey()
	}
	return NoTrigger
}

func (s *simulation) refusedByKey() string {
	properties, _ := s.t.trigger["properties"].(map[string]any)
	_, err := s.t.Key(graph.Occurrence{ProfileKey: s.t.key, Event: s.trigger.key, At: s.trigger.at, Properties: properties})
	if err != nil {
		return MissingField
	}
	return ""
}

// run walks from wait to wait until the journey ends, or waits for longer than
// a simulation goes.
func (s *simulation) run(ctx context.Context) error {
	s.made.Path = []SimulatedStep{{At: s.t.now, Type: entry, Event: stepEnrolled, Data: map[string]any{"source": s.t.source, "trigger": s.t.trigger}}}
	for len(s.made.Path) < maxSimulatedSteps {
		n := s.t.walk()
		if err := s.show(ctx); err != nil {
			return err
		}
		switch {
		case n != nothing:
			if err := s.answerTo(ctx, n); err != nil {
				return err
			}
		case s.t.status != Active:
			s.made.Enrolled, s.made.Status, s.made.ExitReason = true, s.t.status, s.t.reason
			if s.t.status == statusRefused {
				s.made.Enrolled, s.made.Reason, s.made.ExitReason = false, s.t.reason, ""
				if s.t.source == fromAudience { // the look refuses, before a journey begins
					s.made.Path = []SimulatedStep{}
				}
			}
			return nil
		case !s.goOn():
			s.made.Enrolled, s.made.Status = true, statusWaiting
			return nil
		}
	}
	return fmt.Errorf("the simulation has not ended after %d steps", maxSimulatedSteps)
}

// show adds the steps that were taken since the last time.
func (s *simulation) show(ctx context.Context) error {
	for ; s.shown < len(s.t.log); s.shown++ {
		l := s.t.log[s.shown]
		step := SimulatedStep{At: s.t.now, Node: l.node, Type: s.typeOf(l.node), Event: l.event, Data: readObject([]byte(l.data))}
		next := s.t.node
		if s.shown+1 < len(s.t.log) {
			next = s.t.log[s.shown+1].node
		}
		if next != l.node {
			step.Next = next
		}
		if step.Type == graph.Send && (l.event == stepSent || l.event == stepSkipped) {
			var err error
			if step.Message, err = s.render(ctx, s.t.sent[s.letters]); err != nil {
				return err
			}
			s.letters++
		}
		if l.event == "webhook" {
			said := s.t.said[s.posts]
			step.Webhook = &SimulatedWebhook{said.endpoint, said.body}
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
	return entry
}

// render makes the message that a send would lead to.
func (s *simulation) render(ctx context.Context, out sending) (*SimulatedMessage, error) {
	m := &SimulatedMessage{Address: out.address, Skipped: out.skip}
	if out.skip != "" {
		return m, nil
	}
	template, err := s.templates.Compiled(ctx, s.t.workspace, out.template, out.templateAt)
	if err != nil {
		return nil, err
	}
	if template, err = template.WithHeaders(out.headers); err != nil {
		return nil, err
	}
	content, headers, err := template.RenderMessage(out.payload)
	if err != nil {
		m.Error = lemma.Public(err)
		return m, nil
	}
	m.Subject, m.HTML, m.Text, m.Headers = content.Subject, content.HTML, content.Text, headers
	return m, nil
}

// answerTo finds what the walk cannot go on without.
func (s *simulation) answerTo(ctx context.Context, n need) error {
	switch n {
	case needProfile:
		return s.sources.ask(ctx, s.t.route.source, func() error { return s.readRows(ctx, s.t.route, []*traveller{s.t}) })
	case needMatch:
		return s.ask(ctx)
	case needEvents:
		s.sumUpHeard()
	case needHeard:
		s.t.looked = true // what would have woken it has done so
	case needAnswer:
		status, ok := s.answers[s.t.node]
		if !ok {
			status = 200
		}
		s.t.answer = &webhooks.Outcome{Delivered: status/100 == 2, Status: status, Attempts: 1}
	default:
		return fmt.Errorf("node %s needs what a simulation has not got: %d", s.t.node, n)
	}
	return nil
}

// ask runs the query of the first case that has not been asked yet.
func (s *simulation) ask(ctx context.Context) error {
	at, left := s.t.unmatched()
	if !left {
		return fmt.Errorf("node %s has no case to ask about", s.t.node)
	}
	return s.sources.ask(ctx, s.t.sourceOf(s.t.node), func() error { return s.matchRows(ctx, s.t.route, s.t.node, at, []*traveller{s.t}) })
}

// sumUpHeard is what conditions see of the events that have come so far.
func (s *simulation) sumUpHeard() {
	s.t.events = map[string]any{}
	for _, name := range s.t.eventsRead() {
		sum := map[string]any{"times": 0, "first_at": nil, "last_at": nil, "last": map[string]any{}}
		for _, o := range s.later[:s.heard] {
			if o.name != name {
				continue
			}
			at := o.at.Format(time.RFC3339Nano)
			if sum["times"] == 0 {
				sum["first_at"] = at
			}
			sum["times"], sum["last_at"], sum["last"] = sum["times"].(int)+1, at, o.trigger()["properties"]
		}
		s.t.events[name] = sum
	}
}

// goOn lets time pass until the wait is over: its time, or an event before that
// which ends it or the journey. False when that is too far away.
func (s *simulation) goOn() bool {
	node, _ := s.t.Node(s.t.node)
	if node != nil && node.Type == graph.Webhook { // it is answered at once
		s.resume(s.t.now)
		return true
	}
	until := s.t.until.UTC()
	s.made.Path = append(s.made.Path, SimulatedStep{At: s.t.now, Node: s.t.node, Type: s.typeOf(s.t.node), Event: "waiting", Until: &until, Data: map[string]any{}})
	for ; s.heard < len(s.later) && !s.later[s.heard].at.After(until); s.heard++ {
		if s.hear(node, s.later[s.heard]) {
			s.heard++
			return true
		}
	}
	if until.Sub(s.begin) > maxSimulated {
		return false
	}
	s.resume(until)
	return true
}

// hear decides what an event means to who waits, as the event's recording does.
func (s *simulation) hear(node *graph.Compiled, o *occurrence) bool {
	at := o.at
	if at.Before(s.t.now) {
		at = s.t.now
	}
	for _, exit := range s.t.ExitOn() {
		if exit.Event == o.name && s.holds(exit.Condition, o) {
			reason := ExitCondition
			if exit.Goal {
				reason = ExitGoal
			}
			s.resume(at)
			s.t.end(Exited, reason, map[string]any{"event": o.trigger()})
			return true
		}
	}
	if node == nil || s.t.waitsFor != o.name || !s.holds(node.Condition, o) {
		return false
	}
	s.resume(at)
	s.t.heardData = o.trigger()
	return true
}

func (s *simulation) holds(c *graph.Condition, o *occurrence) bool {
	is, _ := holds(c, o.trigger(), s.t.trigger, o.at)
	return is
}

// resume is what the engine does between two lots: the wait that had been begun
// is read again at a later time.
func (s *simulation) resume(at time.Time) {
	s.t.now, s.t.arrived, s.t.waitingSince, s.t.awaits = at, at, s.t.since, s.t.waitsFor
	s.t.until, s.t.since, s.t.waitsFor, s.t.trouble = time.Time{}, nil, "", ""
	s.t.events, s.t.looked = nil, false
}

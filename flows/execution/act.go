package execution

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"lemma"
	"lemma/address"
	"lemma/audience"
	"lemma/flows/enrollment"
	"lemma/flows/graph"
	"lemma/message"
	"lemma/notifications"
	"lemma/webhooks"
)

// Reasons why a node does not act. A node acts once for an enrollment, even if the
// enrollment is moved back to it. A skipped notification is an act as well: it is in the
// ledger under the node's key. A node of another type under the same id is another node.
const (
	AlreadySent    = "already_sent"
	AlreadySkipped = "already_skipped"
	AlreadyCalled  = "already_called"
	TooLarge       = "message_too_large" // nothing was written
)

// send writes one notification for each address and continues. A profile that cannot be
// sent to is skipped with the reason; one that left the audience exits.
func (t *Execution) send(node *graph.Compiled) need {
	s, acted := t.sends[node.ID], t.acted[node.ID].message
	switch {
	case t.moved && t.acted == nil:
		return needActed
	case acted == enrollment.StepSkipped:
		t.leave(node.Next, enrollment.StepSkipped, "reason", AlreadySkipped)
		return nothing
	case acted != "":
		t.leave(node.Next, enrollment.StepSkipped, "reason", AlreadySent)
		return nothing
	case t.profile == nil:
		return needProfile
	case s.trigger && t.trigger == nil:
		return needTrigger
	case t.profile.Missing:
		t.end(enrollment.Exited, enrollment.ExitNoProfile, nil)
		return nothing
	}
	out := t.notifications(s, node.ID)
	t.Sends = append(t.Sends, out...)
	var data []any
	if len(out) > 1 {
		data = []any{enrollment.StepMessages, len(out)}
	}
	if skip := out[0].Skip; skip != "" {
		t.leave(node.Next, enrollment.StepSkipped, append(data, "reason", skip)...)
	} else {
		t.delayed = t.Now
		t.leave(node.Next, enrollment.StepSent, data...)
	}
	return nothing
}

// notifications are what a send node writes for the profile: those that are sent before
// those that are skipped.
func (t *Execution) notifications(s *Send, node string) []Sending {
	found := t.profile.reachable(s.Channel)
	out := make([]Sending, len(found))
	payload, of := "", (*audience.Row)(nil) // one copy for all addresses of a row
	for i, a := range found {
		out[i] = Sending{Send: s, NodeID: node, Number: i, Address: a.Text, Skip: a.Fault}
		if t.profile.OptedOut {
			out[i].Skip = notifications.Unsubscribed
		}
		if out[i].Skip == "" {
			if of != a.row {
				payload, of = t.payload(s, a.row.Payload), a.row
			}
			out[i].Payload = payload
		}
	}
	return out
}

// maxReachable is how many addresses of a profile a send node writes to.
const maxReachable = 100

// reachable is an address of a profile, and the row that has it.
type reachable struct {
	address.Address
	row *audience.Row
}

// reachable returns the addresses of all rows of the profile, each once, those that can be sent to
// first. A row without one counts only if no row has one. What exceeds maxReachable is one fault.
func (p *Profile) reachable(channel lemma.Channel) []reachable {
	var all []reachable
	seen := map[string]bool{}
	add := func(row *audience.Row) {
		var one [1]address.Address
		for _, a := range row.Addresses(one[:0], channel) {
			id := cmp.Or(a.Canonical, a.Text)
			if a.Fault != address.TooMany && seen[id] {
				continue
			}
			seen[id] = seen[id] || a.Fault != address.TooMany
			all = append(all, reachable{a, row})
		}
	}
	add(&p.Row)
	for i := range p.others {
		add(&p.others[i])
	}
	if len(all) > 1 {
		all = slices.DeleteFunc(all, func(a reachable) bool { return a.Fault == address.Missing })
	}
	rank := func(a reachable) int { return min(len(a.Fault), 1) }
	slices.SortStableFunc(all, func(a, b reachable) int { return rank(a) - rank(b) })
	if len(all) > maxReachable || slices.Contains(p.more, channel) {
		all = append(all[:min(len(all), maxReachable)], reachable{address.Address{Fault: address.TooMany}, &p.Row})
	}
	return all
}

// payload has the columns of a row that the template uses, and no others.
func (t *Execution) payload(s *Send, row string) string {
	if s.whole {
		return message.Stored(row)
	}
	var columns map[string]json.RawMessage
	_ = json.Unmarshal([]byte(row), &columns)
	var out bytes.Buffer
	out.WriteByte('{')
	field := func(name string, value []byte) {
		if out.Len() > 1 {
			out.WriteByte(',')
		}
		quoted, _ := json.Marshal(name)
		out.Write(quoted)
		out.WriteByte(':')
		out.Write(value)
	}
	for _, name := range s.variables {
		if value, ok := columns[name]; ok {
			field(name, value)
		}
	}
	if s.trigger {
		if value, err := json.Marshal(t.trigger.value()); err == nil {
			field(ReservedTrigger, value)
		}
	}
	out.WriteByte('}')
	return message.Stored(out.String())
}

// webhook writes the message, waits for the endpoint's answer, and follows the path of
// its status. A profile that left the audience exits, if the message contains the
// profile.
func (t *Execution) webhook(node *graph.Compiled) need {
	switch {
	case t.moved && t.acted == nil && !t.waited():
		return needActed
	case t.acted[node.ID].called && !t.waited():
		t.leave(node.Next, enrollment.StepSkipped, "reason", AlreadyCalled)
		return nothing
	case !t.waited():
		return t.call(node)
	case t.answer == nil:
		return needAnswer
	}
	to := node.AfterWebhook(t.answer.Status)
	t.leaveBy(to, enrollment.StepAnswered, "delivered", t.answer.Delivered, "status", t.answer.Status, "attempts", t.answer.Attempts,
		"error", t.answer.Error, "next", to)
	return nothing
}

// AnswerWithin is longer than the outbox retries: an answer wakes the enrollment before.
const AnswerWithin = 4 * 24 * time.Hour

func (t *Execution) call(node *graph.Compiled) need {
	switch {
	case t.trigger == nil:
		return needTrigger
	case len(node.Columns) > 0 && t.profile == nil:
		return needProfile
	case len(node.Columns) > 0 && t.profile.Missing:
		t.end(enrollment.Exited, enrollment.ExitNoProfile, nil)
		return nothing
	}
	body := t.message(node)
	if len(body) > webhooks.MaxBody || len(body) == 0 {
		t.leave(node.AfterWebhook(0), enrollment.StepSkipped, "reason", TooLarge, "bytes", len(body))
		return nothing
	}
	endpoint, _ := lemma.ParseID(lemma.PrefixEndpoint, node.EndpointID)
	t.Calls = append(t.Calls, Call{NodeID: node.ID, Step: t.Step + 1, EndpointID: endpoint, Body: body})
	t.logStep(enrollment.StepWebhook, "")
	t.AnswerStep = t.Step
	t.wait(t.Now.Add(AnswerWithin))
	return nothing
}

// message is the body of a webhook: the same bytes each time it is sent.
func (t *Execution) message(node *graph.Compiled) []byte {
	type data struct {
		FlowID       string          `json:"flow_id"`
		Version      int             `json:"version"`
		Node         string          `json:"node"`
		EnrollmentID string          `json:"enrollment_id"`
		ProfileKey   string          `json:"profile_key"`
		Trigger      map[string]any  `json:"trigger"`
		Profile      map[string]any  `json:"profile,omitempty"`
		Data         json.RawMessage `json:"data,omitempty"`
	}
	d := data{lemma.FormatID(lemma.PrefixFlow, t.FlowID), t.Version, node.ID, lemma.FormatID(lemma.PrefixEnrollment, t.ID), t.ProfileKey,
		t.trigger.value(), nil, node.Data}
	if len(node.Columns) > 0 {
		d.Profile = map[string]any{}
		for _, name := range node.Columns {
			d.Profile[name] = t.profile.Columns()[name]
		}
	}
	body, _ := json.Marshal(struct {
		Type      string    `json:"type"`
		Timestamp time.Time `json:"timestamp"`
		Data      data      `json:"data"`
	}{"flow.webhook", t.Now.UTC(), d})
	return body
}

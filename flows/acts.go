package flows

import (
	"bytes"
	"encoding/json"
	"time"

	"lemma"
	"lemma/flows/graph"
	"lemma/notifications"
	"lemma/webhooks"
)

// Reasons for which a node that could act does not. A node acts once for an
// enrollment, whatever puts somebody back on it; and that somebody was not
// written to is an act as well: it is in the ledger under the node's key.
const (
	alreadySent    = "already_sent"
	alreadySkipped = "already_skipped"
	alreadyCalled  = "already_called"
	tooLarge       = "message_too_large" // nothing was written
)

// send writes one notification and goes on. Who cannot be written to is
// skipped, with the reason; who is gone from the audience leaves.
func (t *traveller) send(node *graph.Compiled) need {
	s, acted := t.sends[node.ID], t.acted[node.ID]
	switch {
	case t.moved && t.acted == nil:
		return needActed
	case acted == stepSkipped:
		t.leave(node.Next, stepSkipped, "reason", alreadySkipped)
		return nothing
	case acted != "":
		t.leave(node.Next, stepSkipped, "reason", alreadySent)
		return nothing
	case t.profile == nil:
		return needProfile
	case s.trigger && t.trigger == nil:
		return needTrigger
	case t.profile.missing:
		t.end(Exited, ExitNoProfile, nil)
		return nothing
	}
	out := t.letter(s, node.ID)
	t.sent = append(t.sent, out)
	if out.skip != "" {
		t.leave(node.Next, stepSkipped, "reason", out.skip)
		t.log[len(t.log)-1].way = out.skip
	} else {
		t.wrote = true
		t.leave(node.Next, stepSent)
	}
	return nothing
}

// letter is what a send node writes for the profile.
func (t *traveller) letter(s *send, node string) sending {
	out := sending{send: s, node: node}
	address, _, ok := lemma.CanonicalEmail(t.profile.Email)
	switch {
	case t.profile.OptedOut:
		out.skip, out.address = notifications.Unsubscribed, lemma.ShownAddress(t.profile.Email)
	case !t.profile.HasEmail:
		out.skip = notifications.MissingAddress
	case !ok:
		out.skip, out.address = notifications.InvalidAddress, lemma.ShownAddress(t.profile.Email)
	default:
		out.address, out.payload = address, t.payload(s)
	}
	return out
}

// payload holds the columns that the template uses, and no more of anybody.
func (t *traveller) payload(s *send) string {
	if s.whole {
		return t.profile.Payload
	}
	var columns map[string]json.RawMessage
	_ = json.Unmarshal([]byte(t.profile.Payload), &columns)
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
		if value, err := json.Marshal(t.trigger); err == nil {
			field(reservedTrigger, value)
		}
	}
	out.WriteByte('}')
	return out.String()
}

// webhook writes the message, waits for what the endpoint answers, and goes the
// way of its status. Who is gone from the audience leaves, if the message is to
// say something of the profile.
func (t *traveller) webhook(node *graph.Compiled) need {
	acted := t.acted[node.ID]
	switch {
	case t.moved && t.acted == nil && !t.waited():
		return needActed
	case acted != "" && acted != stepSkipped && !t.waited():
		t.leave(node.Next, stepSkipped, "reason", alreadyCalled)
		return nothing
	case !t.waited():
		return t.say(node)
	case t.answer == nil:
		return needAnswer
	}
	to := node.AfterWebhook(t.answer.Status)
	t.leaveBy(to, stepAnswered, "delivered", t.answer.Delivered, "status", t.answer.Status, "attempts", t.answer.Attempts, "error", t.answer.Error, "next", to)
	return nothing
}

// answerWithin is longer than the outbox tries: an answer rings before.
const answerWithin = 4 * 24 * time.Hour

func (t *traveller) say(node *graph.Compiled) need {
	switch {
	case t.trigger == nil:
		return needTrigger
	case len(node.Columns) > 0 && t.profile == nil:
		return needProfile
	case len(node.Columns) > 0 && t.profile.missing:
		t.end(Exited, ExitNoProfile, nil)
		return nothing
	}
	body := t.message(node)
	if len(body) > webhooks.MaxBody || len(body) == 0 {
		t.leave(node.AfterWebhook(0), stepSkipped, "reason", tooLarge, "bytes", len(body))
		return nothing
	}
	endpoint, _ := lemma.ParseID(lemma.PrefixEndpoint, node.EndpointID)
	t.said = append(t.said, saying{node: node.ID, step: t.step + 1, endpoint: endpoint, body: body})
	t.note(stepWebhook, "")
	t.answerStep = t.step
	t.wait(t.now.Add(answerWithin))
	return nothing
}

// message is the body of a webhook: the same bytes each time it is sent.
func (t *traveller) message(node *graph.Compiled) []byte {
	type data struct {
		FlowID       string         `json:"flow_id"`
		Version      int            `json:"version"`
		Node         string         `json:"node"`
		EnrollmentID string         `json:"enrollment_id"`
		ProfileKey   string         `json:"profile_key"`
		Trigger      map[string]any `json:"trigger"`
		Profile      map[string]any `json:"profile,omitempty"`
		Data         map[string]any `json:"data,omitempty"`
	}
	d := data{lemma.FormatID(lemma.PrefixFlow, t.flow), t.version, node.ID, lemma.FormatID(lemma.PrefixEnrollment, t.id), t.key, t.trigger, nil, node.Data}
	if len(node.Columns) > 0 {
		d.Profile = map[string]any{}
		for _, name := range node.Columns {
			d.Profile[name] = t.profile.columns()[name]
		}
	}
	body, _ := json.Marshal(struct {
		Type      string    `json:"type"`
		Timestamp time.Time `json:"timestamp"`
		Data      data      `json:"data"`
	}{"flow.webhook", t.now.UTC(), d})
	return body
}

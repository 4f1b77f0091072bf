package execution

import (
	"encoding/json"
	"fmt"

	"lemma/flows/enrollment"
	"lemma/message"
)

// sent forgets the data of a message, which is not needed any more.
func (s *simulation) sent() {
	s.t.Sends[s.messages].Payload = ""
	s.messages++
}

// shows counts what is shown, or returns why it is not.
func (s *simulation) shows(bytes int) (why string) {
	if s.bytes+bytes > maxSimulatedBytes {
		return fmt.Sprintf("not shown: the steps, messages and webhooks of one simulation are shown up to %d bytes together",
			maxSimulatedBytes)
	}
	s.bytes += bytes
	return ""
}

func (s *simulation) data(text string) map[string]any {
	if why := s.shows(len(text)); why != "" {
		return map[string]any{"error": why}
	}
	return enrollment.ReadObject([]byte(text))
}

func (s *simulation) post(c *Call) *SimulatedWebhook {
	w := &SimulatedWebhook{EndpointID: c.EndpointID, Body: c.Body}
	if w.Error = s.shows(len(c.Body)); w.Error != "" {
		w.Body = json.RawMessage("{}")
	}
	c.Body = nil
	return w
}

func sizeOf(c message.Content, headers [][2]string) int {
	n := len(c.Subject) + len(c.HTML) + len(c.Text) + len(c.Link)
	for name, value := range c.Data {
		n += len(name) + len(value)
	}
	for _, h := range headers {
		n += len(h[0]) + len(h[1])
	}
	return n
}

package api

import (
	"lemma"
	"lemma/client"
	"lemma/message"
)

// content is a content in the shape of its channel: fields of other channels are nil.
type content struct {
	Channel lemma.Channel      `json:"channel"`
	Subject *string            `json:"subject,omitempty"`
	HTML    *string            `json:"html,omitempty"`
	Text    *string            `json:"text,omitempty"`
	Title   *string            `json:"title,omitempty"`
	Body    *string            `json:"body,omitempty"`
	Link    *string            `json:"link,omitempty"`
	Data    *map[string]string `json:"data,omitempty"`

	TrackOpens  *bool `json:"track_opens,omitempty"`
	TrackClicks *bool `json:"track_clicks,omitempty"`
}

// message is a content that has passed the contract. An email may leave out its channel.
func (c content) message() message.Content {
	m := message.Content{Channel: c.Channel, Subject: orZero(c.Subject), HTML: orZero(c.HTML), Text: orZero(c.Text),
		Link: orZero(c.Link), TrackOpens: message.ChoiceOf(c.TrackOpens), TrackClicks: message.ChoiceOf(c.TrackClicks)}
	if c.Channel == lemma.Push {
		m.Subject, m.Text = orZero(c.Title), orZero(c.Body)
	}
	lemma.Set(&m.Data, c.Data)
	return m
}

func showContent(m message.Content) content {
	switch m.Channel {
	case lemma.SMS:
		return content{Channel: m.Channel, Text: &m.Text}
	case lemma.Push:
		data := neverNull(m.Data)
		return content{Channel: m.Channel, Title: &m.Subject, Body: &m.Text, Link: &m.Link, Data: &data}
	}
	return content{Channel: lemma.Email, Subject: &m.Subject, HTML: &m.HTML, Text: &m.Text,
		TrackOpens: m.TrackOpens.Bool(), TrackClicks: m.TrackClicks.Bool()}
}

// renderedContent is a rendered message, and what an SMS costs.
type renderedContent struct {
	content
	Segments *client.SMSSegments `json:"segments,omitempty"`
}

func showRendered(m message.Content) renderedContent {
	shown := renderedContent{content: showContent(m)}
	if m.Channel == lemma.SMS {
		n := message.SegmentsOf(m.Text)
		shown.Segments = &client.SMSSegments{Encoding: n.Encoding, Characters: n.Characters, Count: n.Segments, PerSegment: n.PerSegment}
	}
	return shown
}

// Package message stores templates and renders them into messages, with the data of
// a profile. It guarantees:
//
//   - A template that is saved can be rendered. Check returns all faults at once,
//     with line and column.
//   - Rendering is deterministic: the same version and data give the same bytes, on
//     every machine. So both attempts of a notification send the same message.
//   - No template and no data can make it crash, or exceed its limits of time and
//     memory. They cause an error instead.
//
// The language is Liquid, in the dialect of testdata/dialect.txt. Values are
// escaped in HTML; all other texts are plain. Data is never read as a template.
package message

import "lemma"

// Content is a message of a channel: its templates, or the rendered texts.
type Content struct {
	Channel lemma.Channel // empty: email
	Subject string        // of an email; the title of a push, which may be empty
	HTML    string        // of an email; may be empty if Text is not
	Text    string        // of an email, made from HTML if it is empty; the text of an SMS; the body of a push
	Link    string        // of a push: what a tap opens; may be empty
	Data    map[string]string

	TrackOpens, TrackClicks Choice // of an email
}

// channel is the channel of a content.
func (c Content) channel() lemma.Channel {
	if c.Channel == "" {
		return lemma.Email
	}
	return c.Channel
}

// Limits. They bound the time of any template to a fraction of a second, and its
// memory to a few megabytes.
const (
	MaxSubject  = 2_000     // bytes of a subject, a title, a link or a value of the data of a push, as written and as rendered
	MaxSource   = 256 << 10 // bytes of HTML or text as written
	MaxRendered = 1 << 20   // bytes of HTML or text as rendered
	MaxMembers  = 50        // members of the data of a push
	MaxMember   = 100       // bytes of the name of a member
	MaxPayload  = 256 << 10 // bytes of the data of a profile
	MaxArray    = 1_000     // elements of a list, in the data or made by a filter
	MaxString   = 64 << 10  // bytes of the input and of the result of a filter
	MaxValues   = 20_000    // values in the lists and objects of the data, including nested ones
	MaxCompared = 500       // comparisons in one text, except those with a literal on the right
	MaxLoops    = 2         // nested loops
	MaxBlocks   = 20        // nested blocks of any kind
	MaxTags     = 5_000     // {{ }} and {% %} in one text
	MaxFilters  = 1_000     // filters in one text
	MaxWords    = 2_500     // words of one {{ }} or {% %}
	MaxAllWords = 10_000    // words of all {{ }} and {% %} in one text; each part of a name is one
	MaxParts    = 64        // parts of one name, such as the two of a.b.c
	MaxSteps    = 50_000    // iterations of all loops of one text together
	MaxWork     = 16 << 20  // cost of all filters of one text: their input in bytes, times costFactor
)

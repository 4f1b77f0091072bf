// Package message is the writing desk: it turns a template and what is known
// of one person into the letter that the person gets.
//
// It promises three things. What it accepts when a template is saved can be
// rendered: Check names every fault at once, with line and column. What it
// renders is the same bytes every time, on every machine: no clock, no chance,
// no time zone of the host. And no template and no data can make it crash,
// run for long or grow without bound; they get an error instead.
//
// The language is Liquid, in a dialect that the golden files in testdata show.
// HTML is escaped by itself, subject and text are plain. What is in the data
// is never read as a template.
//
// Which people there are is audience's affair, and that a version never
// changes is what notifications rely on: attempt 2 says what attempt 1 said.
package message

// Content is one message as it is written, or as it is rendered.
type Content struct {
	Subject string
	HTML    string // may be empty if Text is not
	Text    string // made from HTML when it is empty
}

// Limits. They keep the worst that a template can do within a fraction of a
// second and a few megabytes.
const (
	MaxSubject  = 2_000     // bytes of a subject, as written and as rendered
	MaxSource   = 256 << 10 // bytes of HTML or text as written
	MaxRendered = 1 << 20   // bytes of HTML or text as rendered
	MaxPayload  = 256 << 10 // bytes of the data of one person
	MaxArray    = 1_000     // elements of a list, in the data or made by a filter
	MaxString   = 64 << 10  // bytes that a filter takes or makes
	MaxValues   = 20_000    // values in the lists and objects of the data of one person, those inside of others too
	MaxCompared = 500       // comparisons of one text, apart from == and the like with a literal at their right
	MaxLoops    = 2         // loops inside each other
	MaxBlocks   = 20        // blocks of any kind inside each other
	MaxMarks    = 5_000     // {{ }} and {% %} in one text
	MaxFilters  = 1_000     // filters in one text
	MaxWords    = 4_000     // words of one {{ }} or {% %}
	MaxParts    = 64        // parts of a name in a row, such as the two of a.b.c
	MaxSteps    = 50_000    // rounds of all loops of one text together
	MaxWork     = 16 << 20  // what the filters of one text may cost together: a byte each for what they take, more for the dear ones
)

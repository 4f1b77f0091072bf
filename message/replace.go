package message

import (
	"regexp"
	"strings"

	"lemma"
)

// Replacement replaces texts of an email, as the variant of an experiment does. Empty
// texts replace nothing.
type Replacement struct {
	Subject   string
	Preheader string // HTML before the HTML of the content that is not shown, but which inboxes show beside the subject
}

var bodyTag = regexp.MustCompile(`(?i)<body[^>]*>`)

// Replaced compiles the content with a replacement. Faults are at /subject and
// /preheader.
func (c *Compiled) Replaced(r Replacement) (*Compiled, error) {
	if r == (Replacement{}) {
		return c, nil
	}
	content := c.content
	if content.channel() == lemma.SMS && r.Subject != "" {
		return nil, lemma.Fault("/subject", "wrong_channel", "must not be given for %s", content.channel())
	}
	if r.Subject != "" {
		content.Subject = r.Subject
	}
	if r.Preheader != "" {
		if content.HTML == "" {
			return nil, lemma.Fault("/preheader", "wrong_channel", "must be given for a template with HTML only")
		}
		hidden := `<div style="display:none;max-height:0;overflow:hidden;mso-hide:all">` + r.Preheader + `</div>`
		if _, err := Compile(c.workspace, Content{Subject: content.Subject, HTML: hidden, Text: "x"}); err != nil {
			return nil, preheaderFault(err)
		}
		at := 0
		if found := bodyTag.FindStringIndex(content.HTML); found != nil {
			at = found[1]
		}
		content.HTML = content.HTML[:at] + hidden + content.HTML[at:]
	}
	return Compile(c.workspace, content)
}

// preheaderFault gives the faults of a preheader its pointer.
func preheaderFault(err error) error {
	e, ok := err.(*lemma.Error) //nolint:errorlint // Compile returns it unwrapped
	if !ok {
		return err
	}
	for i := range e.Fields {
		if strings.HasPrefix(e.Fields[i].Pointer, "/html") {
			e.Fields[i].Pointer = "/preheader"
		}
	}
	return e
}

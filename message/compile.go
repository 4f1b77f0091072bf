package message

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/osteele/liquid/expressions"
	"github.com/osteele/liquid/parser"
	"github.com/osteele/liquid/render"

	"lemma"
)

// maxTry bounds one try at rendering a message. A machine that stood still is
// not the template's fault, so what took too long is rendered once more.
const maxTry = 500 * time.Millisecond

// MaxTime is how long Render goes on at most; a round of a loop, a call of a
// filter or an output that has begun is finished. What a template may do within
// its other limits takes a fraction of it.
const MaxTime = 2 * maxTry

// Compiled is a content made ready for rendering. It never changes and is safe
// for concurrent use.
type Compiled struct {
	variables []string       // sorted; the place of a name is its slot
	names     []string       // all names that may be looked up, assigned ones too
	content   Content        // what it was made from
	parts     []compiledPart // subject, HTML, text, and the headers that are Liquid
	headers   []header
	fixed     [][2]string // all headers, where none is Liquid
	scratch   sync.Pool
}

// compiledPart is one text: for the engine always, and for us where we can.
type compiledPart struct {
	part
	root  render.Node
	quick *quick
}

// scratch is what a rendering needs and leaves behind.
type scratch struct {
	entered bool // it has a place among processors
	output  output
	values  []value
	meter   meter
	texts   []string // of the parts
}

// Compile makes a content ready. It refuses what Check refuses.
func Compile(c Content) (*Compiled, error) {
	variables, err := Check(c)
	if err != nil {
		return nil, err
	}
	c, _ = complete(c)
	return compileAll(c, variables, nil)
}

// compileAll makes a content and headers ready that were checked.
func compileAll(c Content, variables []string, headers []header) (*Compiled, error) {
	made := &Compiled{variables: variables, names: slices.Clone(variables), content: c, headers: headers}
	for at, source := range []string{c.Subject, c.HTML, c.Text} {
		if err := made.compile([3]part{subjectPart, htmlPart, textPart}[at], source); err != nil {
			return nil, err
		}
	}
	for _, h := range headers {
		made.fixed = append(made.fixed, [2]string{h.name, h.text})
		if h.liquid {
			if err := made.compile(headerPart(h.name), h.text); err != nil {
				return nil, err
			}
		}
	}
	made.scratch.New = func() any {
		return &scratch{values: make([]value, len(variables)), texts: make([]string, len(made.parts))}
	}
	return made, nil
}

func (c *Compiled) compile(p part, source string) error {
	root, err := p.compile(source)
	if err != nil {
		return fmt.Errorf("compile %s: %w", p.pointer[1:], err)
	}
	c.parts = append(c.parts, compiledPart{p, root, quicken(p, root, c.variables)})
	marks, _ := scan(source)
	for _, m := range marks {
		c.names = append(c.names, ownName(m)...)
	}
	return nil
}

// ownName is the name that a tag assigns.
func ownName(m mark) []string {
	if m.Type != parser.TagTokenType || m.Name != "assign" && m.Name != "for" {
		return nil
	}
	words, fault := split(m.Args)
	if fault != nil || len(words) == 0 {
		return nil
	}
	return []string{words[0].text}
}

// Variables are the names that the content uses, sorted.
func (c *Compiled) Variables() []string { return slices.Clone(c.variables) }

// Render makes the message for one person. payload is a JSON object with a
// value for each variable; what it lacks is nil. The same payload gives the
// same bytes, always. An error is a *lemma.Error of kind Invalid with code
// template_error, whose text quotes none of the data.
func (c *Compiled) Render(payload string) (Content, error) {
	made, _, err := c.RenderMessage(payload)
	return made, err
}

// RenderMessage is Render with the headers (WithHeaders), sorted by name, which
// the caller does not change.
func (c *Compiled) RenderMessage(payload string) (Content, [][2]string, error) {
	s := c.scratch.Get().(*scratch)
	defer c.release(s)
	if err := read(s.values, c.variables, payload); err != nil {
		return Content{}, nil, failed("", 0, err)
	}
	at, err := c.try(s)
	if err == errSlow {
		at, err = c.try(s)
	}
	if err != nil {
		return Content{}, nil, failed(c.parts[at].pointer, 0, err)
	}
	if err := checkSubject(s.texts[0]); err != nil {
		return Content{}, nil, err
	}
	headers, err := c.headersOf(s.texts)
	return Content{Subject: s.texts[0], HTML: s.texts[1], Text: s.texts[2]}, headers, err
}

// try renders the parts, or reports which of them failed.
func (c *Compiled) try(s *scratch) (at int, err error) {
	s.meter.deadline = time.Time{} // set when a text needs it
	defer s.leave()
	for at = range c.parts {
		if s.texts[at], err = c.render(&c.parts[at], s); err != nil {
			break
		}
	}
	return at, err
}

// release forgets what was said to whom before the scratch is used again.
func (c *Compiled) release(s *scratch) {
	clear(s.values)
	clear(s.texts)
	if cap(s.output.text) <= MaxSource {
		c.scratch.Put(s)
	}
}

func checkSubject(subject string) error {
	if strings.TrimSpace(subject) == "" {
		return failed("/subject", 1, refused("the subject came out empty"))
	}
	if strings.ContainsAny(subject, "\r\n") {
		return failed("/subject", 1, refused("the subject came out with a line break in it"))
	}
	return nil
}

func (c *Compiled) render(p *compiledPart, s *scratch) (string, error) {
	made, ok := "", false
	if p.quick != nil {
		s.output = output{text: s.output.text[:0]}
		if ok = p.quick.render(&s.output, s.values); ok {
			made = string(s.output.text)
		}
	}
	if !ok {
		s.enter()
		var err error
		if made, err = p.within(&s.meter, c.bindings(s.values)); err != nil {
			return "", err
		}
	}
	if strings.IndexByte(made, 0) >= 0 {
		return "", refused("it came out with a NUL in it, which no mail can hold")
	}
	return made, nil
}

// bindings binds every name that the engine may look up: a value that is merely
// missing is nil, and no name that is not there.
func (c *Compiled) bindings(values []value) map[string]any {
	bound := make(map[string]any, len(c.names)+2)
	for _, name := range c.names {
		bound[name] = nil
	}
	for i, name := range c.variables {
		bound[name] = values[i].bound()
	}
	bound["forloop"] = nil
	return bound
}

// within lets the engine render. A panic in there is an error.
func (p *compiledPart) within(m *meter, bound map[string]any) (made string, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = refused("the engine gave up over this data")
		}
	}()
	m.begin()
	bound[meterName] = m
	w := &boundedWriter{limit: p.limit, meter: m}
	if fault := render.Render(p.root, w, bound, *m.engine(p.engine(), p.html)); fault != nil {
		return "", told(fault)
	}
	return w.text.String(), nil
}

// boundedWriter takes what the engine writes, as long as it is not too much.
type boundedWriter struct {
	text  strings.Builder
	limit int
	meter *meter
}

func (w *boundedWriter) Write(b []byte) (int, error) {
	if w.text.Len()+len(b) > w.limit {
		return 0, refused(fmt.Sprintf("it came out longer than %d bytes", w.limit))
	}
	if err := w.meter.check(); err != nil {
		return 0, err
	}
	return w.text.Write(b)
}

// told turns the engine's error into one that quotes no data.
func told(fault render.Error) error {
	cause := fault.Cause()
	switch cause {
	case errSlow:
		return errSlow
	case errSteps:
		return located(fault, refused(errSteps.Error()))
	}
	switch cause := cause.(type) {
	case refused:
		return located(fault, cause)
	case expressions.FilterError:
		if cause.Err == errSlow {
			return errSlow
		}
		if own, ok := cause.Err.(refused); ok {
			return located(fault, refused(fmt.Sprintf("%s: %s", cause.FilterName, own)))
		}
		return located(fault, refused(fmt.Sprintf("%s cannot do anything with this value", cause.FilterName)))
	}
	return located(fault, refused("this cannot be done with the data"))
}

// atLine is an error with the line of the template.
type atLine struct {
	refused
	line int
}

func located(fault render.Error, what refused) error { return atLine{what, fault.LineNumber()} }

// failed makes the error of a row. A pointer of "" means the data itself.
func failed(pointer string, line int, err error) *lemma.Error {
	if at, ok := err.(atLine); ok {
		line = at.line
	}
	return &lemma.Error{Kind: lemma.Invalid, Code: "template_error", Message: "the message cannot be made from this data",
		Fields: []lemma.Field{{Pointer: pointer, Code: "template_error", Detail: err.Error(), Line: line}}}
}

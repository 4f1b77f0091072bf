package message

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/google/uuid"
	"github.com/osteele/liquid/expressions"
	"github.com/osteele/liquid/parser"
	"github.com/osteele/liquid/render"

	"lemma"
)

// MaxTime bounds the processor time of a rendering, which ends after the current iteration,
// filter or output. The other limits of a template allow only a fraction of it. A machine that
// does other work, and so renders more slowly, changes no outcome within MaxWait.
const (
	MaxTime = time.Second
	MaxWait = 10 * time.Second // from the begin to the end
)

// Compiled is a compiled content. It is immutable and safe
// for concurrent use.
type Compiled struct {
	workspace uuid.UUID      // that shares the processors with others
	variables []string       // sorted; the index of a name is its slot
	names     []string       // all names that are bound, including assigned ones
	content   Content        // its source
	parts     []compiledPart // those of the content, and the headers that are Liquid
	own       int            // number of those of the content
	headers   []header
	fixed     [][2]string // all headers, if none is Liquid
	tracking  *tracking   // nil: nothing is tracked
	bytes     int         // of memory, estimated
	scratch   sync.Pool
}

// What a compiled text takes in memory besides its source, at most. TestBytes compares
// the estimate with the heap.
const (
	tagBytes    = 500 // a {{ }} or {% %}
	headerBytes = 100 // a header, beside its text
	wordBytes   = 200 // a word of it
)

// Bytes estimates the memory that the compiled content takes.
func (c *Compiled) Bytes() int { return c.bytes }

// compiledPart is one text, compiled by the engine and, if possible, by compileFast.
type compiledPart struct {
	part
	root render.Node
	fast *fastPath
}

// scratch is the memory of a rendering, which is reused.
type scratch struct {
	release func() // of its slot of processors; nil: it has none
	output  output
	marked  output // of the part that is tracked
	values  []value
	meter   meter
	texts   []string // of the parts
}

// Compile compiles a content of a workspace. It returns the faults of Check.
func Compile(workspace uuid.UUID, c Content) (*Compiled, error) {
	variables, err := check(workspace, c)
	if err != nil {
		return nil, err
	}
	c, _ = complete(c)
	return compileAll(workspace, c, variables, nil)
}

// compileAll compiles a checked content and checked headers.
func compileAll(workspace uuid.UUID, c Content, variables []string, headers []header) (*Compiled, error) {
	defer compiling.Enter(workspace)()
	made := &Compiled{workspace: workspace, variables: variables, names: slices.Clone(variables), content: c, headers: headers}
	for _, s := range c.sources() {
		if err := made.compile(s.part, s.text); err != nil {
			return nil, err
		}
	}
	made.own = len(made.parts)
	for _, h := range headers {
		made.fixed = append(made.fixed, [2]string{h.name, h.text})
		made.bytes += headerBytes + len(h.name) + len(h.text)
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
	c.parts = append(c.parts, compiledPart{p, root, compileFast(p, root, c.variables)})
	c.bytes += len(source)
	segments, _ := scan(source)
	for _, m := range segments {
		if m.Type == parser.TextTokenType {
			continue
		}
		words, _ := split(m.Args)
		c.bytes += tagBytes + len(words)*wordBytes
		if m.Type == parser.TagTokenType && (m.Name == "assign" || m.Name == "for") && len(words) > 0 {
			c.names = append(c.names, words[0].text) // the name that the tag assigns
		}
	}
	return nil
}

// Variables are the names that a row of data must have, sorted.
func (c *Compiled) Variables() []string { return columns(c.variables) }

// Unsubscribes reports whether the content or a header uses UnsubscribeURL.
func (c *Compiled) Unsubscribes() bool { return slices.Contains(c.variables, UnsubscribeURL) }

// Channel is the channel of the content.
func (c *Compiled) Channel() lemma.Channel { return c.content.channel() }

// RenderMessage renders the message of a profile with the headers of WithHeaders, sorted by
// name. payload is a JSON object with a value for each variable; missing ones are nil. The
// same payload gives the same bytes. unsubscribeURL is the link of the recipient, or a
// SampleUnsubscribeURL. An error is a *lemma.Error of kind Invalid with code template_error,
// whose text contains no data. The caller must not change the headers.
func (c *Compiled) RenderMessage(payload, unsubscribeURL string) (Content, [][2]string, error) {
	return c.RenderTracked(payload, unsubscribeURL, Tracking{}, MaxWait)
}

// RenderTracked is RenderMessage with the links and the pixel of a Tracked content. It ends within
// a time from its begin, which a caller with a lease needs: of MaxTime at least.
func (c *Compiled) RenderTracked(payload, unsubscribeURL string, t Tracking, within time.Duration) (Content, [][2]string, error) {
	s := c.scratch.Get().(*scratch)
	defer c.release(s)
	if err := read(s.values, c.variables, payload); err != nil {
		return Content{}, nil, failed("", 0, err)
	}
	if at := slices.Index(c.variables, UnsubscribeURL); at >= 0 {
		s.values[at] = text(unsubscribeURL)
	}
	at, err := c.renderParts(s, within)
	if err != nil {
		return Content{}, nil, failed(c.parts[at].pointer, 0, err)
	}
	if err := c.track(s, t); err != nil {
		return Content{}, nil, err
	}
	if err := c.checkRendered(s.texts); err != nil {
		return Content{}, nil, err
	}
	headers, err := c.headersOf(s.texts)
	return c.content.rendered(s.texts), headers, err
}

// renderParts renders the parts, or returns the index of the one that failed.
func (c *Compiled) renderParts(s *scratch, within time.Duration) (at int, err error) {
	s.meter.deadline, s.meter.within = time.Time{}, within // set by begin
	defer s.leave()
	for at = range c.parts {
		if s.texts[at], err = c.render(&c.parts[at], s); err != nil {
			break
		}
	}
	return at, err
}

// release clears the data before the scratch is reused.
func (c *Compiled) release(s *scratch) {
	clear(s.values)
	clear(s.texts)
	if cap(s.output.text) <= MaxSource && cap(s.marked.text) <= MaxSource {
		c.scratch.Put(s)
	}
}

// checkRendered finds texts that the channel cannot carry.
func (c *Compiled) checkRendered(texts []string) error {
	for i := range c.parts[:c.own] {
		p, text := &c.parts[i].part, texts[i]
		fault := refused("")
		switch {
		case p.needed && strings.TrimSpace(text) == "":
			fault = refused("the rendered " + p.pointer[1:] + " is empty")
		case p.line && hasLineBreak(text):
			fault = refused("the rendered " + p.pointer[1:] + " contains a line break")
		case *p == smsPart:
			fault = checkSegments(text)
		case *p == linkPart:
			fault = checkLink(strings.TrimSpace(text))
		}
		if fault != "" {
			return failed(p.pointer, 1, fault)
		}
	}
	return nil
}

// notOpened are the schemes that run or contain something, or name what is on the device. An
// app or a service worker that opens a link must not be given one.
var notOpened = []string{"javascript", "vbscript", "livescript", "data", "blob", "filesystem", "file", "about", "view-source", "jar"}

// checkLink returns why a text cannot be the link of a push, or "". Links into an app
// have schemes of their own.
func checkLink(text string) refused {
	if text == "" {
		return ""
	}
	link, err := url.Parse(text) // refuses control characters, which browsers remove from a scheme
	switch {
	case err != nil, link.Scheme == "", strings.ContainsFunc(text, unicode.IsSpace):
		return "the link must be an absolute URI, such as https://shop.example/offers or myapp://offers"
	case slices.Contains(notOpened, link.Scheme):
		return refused("the link must not have the scheme " + link.Scheme + ": use https or the scheme of an app")
	case (link.Scheme == "https" || link.Scheme == "http") && link.Host == "":
		return "the link must have a host, such as https://shop.example/offers"
	}
	return ""
}

// render returns the text of a part. That of a marked part is left in the scratch, for track.
func (c *Compiled) render(p *compiledPart, s *scratch) (made string, err error) {
	out := &s.output
	if p.marked {
		out = &s.marked
	}
	*out = output{text: out.text[:0]}
	if p.fast == nil || !p.fast.render(out, s.values) {
		s.enter(c.workspace)
		if made, err = p.within(&s.meter, c.bindings(s.values)); err != nil {
			return "", err
		}
		if p.marked {
			out.text = append(out.text[:0], made...)
		}
	} else if !p.marked {
		made = string(out.text)
	}
	if p.marked { // replace finds a NUL
		return "", nil
	}
	if strings.IndexByte(made, 0) >= 0 {
		return "", refused("the rendered text contains a NUL")
	}
	return made, nil
}

// bindings binds every name that the engine may evaluate. A missing value is nil,
// and not an unknown name.
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

// within renders by the engine. A panic of it is an error.
func (p *compiledPart) within(m *meter, bound map[string]any) (made string, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = refused("the engine failed on this data")
		}
	}()
	m.begin()
	bound[meterName] = m
	w := &boundedWriter{limit: p.limit, meter: m}
	if fault := render.Render(p.root, w, bound, *m.engine(p.engine(), p.html)); fault != nil {
		return "", redacted(fault)
	}
	return w.text.String(), nil
}

// boundedWriter accepts at most limit bytes.
type boundedWriter struct {
	text  strings.Builder
	limit int
	meter *meter
}

func (w *boundedWriter) Write(b []byte) (int, error) {
	if w.text.Len()+len(b) > w.limit {
		return 0, refused(fmt.Sprintf("the rendered text is longer than %d bytes", w.limit))
	}
	if err := w.meter.check(); err != nil {
		return 0, err
	}
	return w.text.Write(b)
}

// redacted turns an error of the engine into one without data.
func redacted(fault render.Error) error {
	cause := fault.Cause()
	switch {
	case errors.Is(cause, errSlow):
		return errSlow
	case errors.Is(cause, errSteps):
		return located(fault, refused(errSteps.Error()))
	}
	switch cause := cause.(type) { //nolint:errorlint // a FilterError wraps the error of a filter
	case refused:
		return located(fault, cause)
	case expressions.FilterError:
		if errors.Is(cause.Err, errSlow) {
			return errSlow
		}
		if own, ok := errors.AsType[refused](cause.Err); ok {
			return located(fault, refused(fmt.Sprintf("%s: %s", cause.FilterName, own)))
		}
		return located(fault, refused(cause.FilterName+" does not accept this value"))
	}
	return located(fault, refused("it cannot be evaluated with this data"))
}

// atLine is an error with the line of the template.
type atLine struct {
	refused
	line int
}

func located(fault render.Error, what refused) error { return atLine{what, fault.LineNumber()} }

// failed returns the error of a row. The pointer "" means its data.
func failed(pointer string, line int, err error) *lemma.Error {
	if at, ok := errors.AsType[atLine](err); ok {
		line = at.line
	}
	return &lemma.Error{Kind: lemma.Invalid, Code: "template_error", Message: "the message cannot be rendered with this data",
		Fields: []lemma.Field{{Pointer: pointer, Code: "template_error", Detail: err.Error(), Line: line}}}
}

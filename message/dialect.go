package message

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/osteele/liquid/expressions"
	"github.com/osteele/liquid/filters"
	"github.com/osteele/liquid/parser"
	"github.com/osteele/liquid/render"
	"github.com/osteele/liquid/tags"

	"lemma"
)

// part is one of the texts of a message.
type part struct {
	pointer string // JSON pointer in the request
	limit   int    // bytes as rendered
	source  int    // bytes as written
	html    bool
	line    bool // must be one line
	needed  bool // must not be blank, as written and as rendered
	marked  bool // its links are marked
}

var (
	subjectPart = part{pointer: "/subject", limit: MaxSubject, source: MaxSubject, line: true, needed: true}
	htmlPart    = part{pointer: "/html", limit: MaxRendered, source: MaxSource, html: true}
	textPart    = part{pointer: "/text", limit: MaxRendered, source: MaxSource}

	smsPart = part{pointer: "/text", limit: MaxRendered, source: MaxSource, needed: true}

	titlePart = part{pointer: "/title", limit: MaxSubject, source: MaxSubject, line: true}
	bodyPart  = part{pointer: "/body", limit: MaxRendered, source: MaxSource, needed: true}
	linkPart  = part{pointer: "/link", limit: MaxSubject, source: MaxSubject, line: true}
)

func dataPart(name string) part {
	return part{pointer: lemma.Pointer("data", name), limit: MaxSubject, source: MaxSubject}
}

// written is a part with its Liquid.
type written struct {
	part
	text string
}

// sources are the texts of a content in the order in which they are rendered.
func (c Content) sources() []written {
	switch c.channel() {
	case lemma.SMS:
		return []written{{smsPart, c.Text}}
	case lemma.Push:
		all := []written{{titlePart, c.Subject}, {bodyPart, c.Text}, {linkPart, c.Link}}
		for _, name := range slices.Sorted(maps.Keys(c.Data)) {
			all = append(all, written{dataPart(name), c.Data[name]})
		}
		return all
	}
	return []written{{subjectPart, c.Subject}, {htmlPart, c.HTML}, {textPart, c.Text}}
}

// rendered is the content made of the rendered texts of its sources.
func (c Content) rendered(texts []string) Content {
	switch c.channel() {
	case lemma.SMS:
		return Content{Channel: c.Channel, Text: texts[0]}
	case lemma.Push:
		made := Content{Channel: c.Channel, Subject: texts[0], Text: texts[1], Link: strings.TrimSpace(texts[2])}
		if len(c.Data) > 0 {
			made.Data = make(map[string]string, len(c.Data))
		}
		for i, name := range slices.Sorted(maps.Keys(c.Data)) {
			made.Data[name] = texts[3+i]
		}
		return made
	}
	return Content{Channel: c.Channel, Subject: texts[0], HTML: texts[1], Text: texts[2]}
}

// The two engines are immutable and shared. They render a missing member as nil;
// needTag makes it an error where it is required.
var (
	htmlEngine  = newEngine(true)
	plainEngine = newEngine(false)
)

func (p part) engine() *render.Config {
	if p.html {
		return htmlEngine
	}
	return plainEngine
}

// newEngine makes an engine without the tags that read files and with the
// filters of the dialect, each of them bounded.
func newEngine(html bool) *render.Config {
	c := render.NewConfig()
	c.TemplateStore = noFiles{}
	tags.AddStandardTags(&c)
	c.UnregisterTag("include")
	c.UnregisterTag("render")
	c.AddTag(stepTag, func(string) (func(io.Writer, render.Context) error, error) { return step, nil })
	c.AddTag(needTag, needCompiler(&c, html))
	addFilters(&c, html, nil)
	if html {
		c.SetAutoEscapeReplacer(render.HtmlEscaper)
	}
	return &c
}

func addFilters(c *render.Config, html bool, m *meter) {
	filters.AddStandardFilters(bounded{c, m})
	for name, filter := range ownFilters(html) {
		bounded{c, m}.AddFilter(name, filter)
	}
	c.AddFilter(partFilter, partOf)
}

type noFiles struct{}

// ReadTemplate always fails.
func (noFiles) ReadTemplate(string) ([]byte, error) {
	return nil, errors.New("a template reads no files")
}

// arity is the number of arguments of a filter. A filter that is not in this
// table is not in the dialect: type and inspect reveal internals of the engine,
// and safe does not escape.
type arity struct{ least, most int }

func (a arity) String() string {
	switch {
	case a.most == 0:
		return "no argument"
	case a.most == 1 && a.least == 1:
		return "1 argument"
	case a.least == a.most:
		return fmt.Sprintf("%d arguments", a.least)
	}
	return fmt.Sprintf("%d to %d arguments", a.least, a.most)
}

var dialectFilters = map[string]arity{
	"default": {1, 1}, "json": {}, "size": {}, "date": {0, 1}, "pluralize": {2, 2},

	"append": {1, 1}, "prepend": {1, 1}, "capitalize": {}, "downcase": {}, "upcase": {}, "escape": {}, "escape_once": {},
	"handle": {}, "handleize": {}, "newline_to_br": {}, "strip": {}, "lstrip": {}, "rstrip": {}, "strip_html": {}, "strip_newlines": {},
	"remove": {1, 1}, "remove_first": {1, 1}, "remove_last": {1, 1}, "replace": {2, 2}, "replace_first": {2, 2}, "replace_last": {2, 2},
	"slice": {1, 2}, "split": {1, 1}, "truncate": {0, 2}, "truncatewords": {0, 2}, "url_encode": {}, "url_decode": {},

	"abs": {}, "ceil": {}, "floor": {}, "round": {0, 1}, "at_least": {1, 1}, "at_most": {1, 1},
	"plus": {1, 1}, "minus": {1, 1}, "times": {1, 1}, "divided_by": {1, 1}, "modulo": {1, 1},

	"compact": {}, "concat": {1, 1}, "first": {}, "last": {}, "join": {0, 1}, "map": {1, 1}, "reverse": {},
	"sort": {0, 1}, "sort_natural": {0, 1}, "sum": {0, 1}, "uniq": {}, "where": {1, 2},
}

// stepTag is added to every loop when a template is compiled. It bounds loops that
// write no output.
const stepTag = "lemma_step"

// meterName is bound to the meter of a rendering. No template can contain this name.
const meterName = " meter"

// meter bounds one rendering: its time, and the work on one text. Each iteration of
// a loop, each filter and each output check it.
type meter struct {
	steps    int
	work     int
	within   time.Duration // of the whole rendering
	cpu      time.Duration // of the thread at its begin
	deadline time.Time     // when the processor time is read again; zero: it has not begun
	end      time.Time
	engines  [2]*render.Config // whose filters are charged to this meter; created on first use
}

// engine returns a copy of the shared engine whose filters are charged to this
// meter. Filters have no access to the rendering, so each meter has its own.
func (m *meter) engine(shared *render.Config, html bool) *render.Config {
	at := 0
	if html {
		at = 1
	}
	if m.engines[at] == nil {
		c := *shared
		c.Config.Config = expressions.NewConfig()
		addFilters(&c, html, m)
		if html {
			c.AddSafeFilter()
		}
		m.engines[at] = &c
	}
	return m.engines[at]
}

// begin starts a text. All texts of a rendering have one deadline.
func (m *meter) begin() {
	m.steps, m.work = 0, 0
	if m.deadline.IsZero() {
		now := time.Now()
		m.cpu, m.deadline, m.end = threadTime(), now.Add(min(MaxTime, m.within)), now.Add(m.within)
	}
}

// charge adds the cost of a filter. The input and the result of a filter have at
// most MaxString bytes and MaxArray elements, so each filter is fast.
func (m *meter) charge(cost int) error {
	if m == nil {
		return nil
	}
	if m.work += cost; m.work > MaxWork {
		return errWork
	}
	return m.check()
}

var (
	errSteps = fmt.Errorf("the loops have more than %d iterations", MaxSteps)
	errWork  = refused(fmt.Sprintf("the filters of this text cost more than %d units", MaxWork))
	errSlow  = errors.New("rendering took too long")
)

func step(_ io.Writer, ctx render.Context) error {
	m, ok := ctx.Get(meterName).(*meter)
	if !ok {
		return errors.New("rendered without a meter")
	}
	if m.steps++; m.steps > MaxSteps {
		return errSteps
	}
	return m.check()
}

func (m *meter) check() error {
	now := time.Now()
	if !now.After(m.deadline) {
		return nil
	}
	left := MaxTime - (threadTime() - m.cpu)
	if left <= 0 || now.After(m.end) {
		return errSlow
	}
	if m.deadline = now.Add(left); m.deadline.After(m.end) {
		m.deadline = m.end
	}
	return nil
}

// compile parses source. A panic of the engine is an error.
func (p part) compile(source string) (root render.Node, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the engine failed: %v", r)
		}
	}()
	root, fault := p.engine().Compile(withOwnTags(source), parser.SourceLoc{LineNo: 1})
	if fault != nil {
		return nil, fault
	}
	return root, nil
}

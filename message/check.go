package message

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/osteele/liquid/parser"

	"lemma"
	"lemma/mail"
)

// Check returns all faults of a content at once, or the variables that it uses: the
// sorted names that a row of data must have. They do not include names that the
// template assigns, names of loops, and UnsubscribeURL.
func Check(workspace uuid.UUID, c Content) (variables []string, err error) {
	used, err := check(workspace, c)
	return columns(used), err
}

// check is Check with UnsubscribeURL.
func check(workspace uuid.UUID, c Content) (used []string, err error) {
	defer compiling.Enter(workspace)()
	if fault := c.checkChannel(); fault != nil {
		return nil, fault
	}
	used, faults := inspect(complete(c))
	if c.channel() == lemma.Email && c.HTML == "" && c.Text == "" {
		faults = append(faults, lemma.Field{Pointer: htmlPart.pointer, Code: "required", Detail: "must have HTML, text, or both"})
	}
	if len(faults) > 0 {
		return nil, &lemma.Error{Kind: lemma.Invalid, Code: "template_invalid", Message: "the template is not valid", Fields: faults}
	}
	return used, nil
}

// checkChannel finds a channel that there is not, and texts that it does not have.
func (c Content) checkChannel() error {
	stray := map[string]bool{}
	switch c.channel() {
	case lemma.Email:
		stray["/link"], stray["/data"] = c.Link != "", len(c.Data) > 0
	case lemma.SMS:
		stray["/subject"], stray["/html"], stray["/link"], stray["/data"] = c.Subject != "", c.HTML != "", c.Link != "", len(c.Data) > 0
	case lemma.Push:
		stray["/html"] = c.HTML != ""
	default:
		return lemma.Fault("/channel", "not_allowed", "must be one of email, sms, push")
	}
	if c.channel() != lemma.Email {
		stray["/track_opens"], stray["/track_clicks"] = c.TrackOpens != "", c.TrackClicks != ""
	}
	for _, pointer := range slices.Sorted(maps.Keys(stray)) {
		if stray[pointer] {
			return lemma.Fault(pointer, "unknown_field", "a message for %s has no such field", c.channel())
		}
	}
	return nil
}

func inspect(c Content, made bool) ([]string, []lemma.Field) {
	used := map[string]bool{}
	var faults, html []lemma.Field
	for _, s := range c.sources() {
		found := inspectPart(s.part, s.text, used)
		if s.needed && strings.TrimSpace(s.text) == "" {
			found = append(found, lemma.Field{Pointer: s.pointer, Code: "required", Detail: "must not be empty"})
		}
		switch {
		case s.part == htmlPart:
			html = found
		case s.part == textPart && made && len(html) > 0:
			found = nil // it has the same faults
		case s.part == textPart && made && len(found) > 0:
			found = []lemma.Field{{Pointer: "/text", Code: "text_not_made",
				Detail: "must be given: no plain text can be made from this HTML, since its tags are not balanced without the markup"}}
		}
		faults = append(faults, found...)
	}
	faults = append(faults, c.checkFixed()...)
	names := make([]string, 0, len(used))
	for name := range used {
		names = append(names, name)
	}
	sort.Strings(names)
	return names, faults
}

// checkFixed finds what every rendering would refuse: an SMS that is too long, a link
// that is none, both without Liquid, and names of data.
func (c Content) checkFixed() (faults []lemma.Field) {
	add := func(pointer, code string, fault refused) {
		if fault != "" {
			faults = append(faults, lemma.Field{Pointer: pointer, Code: code, Detail: string(fault)})
		}
	}
	if c.channel() == lemma.SMS && !mail.HasLiquid(c.Text) {
		add("/text", "too_large", checkSegments(c.Text))
	}
	if c.channel() == lemma.Push && !mail.HasLiquid(c.Link) {
		add("/link", "invalid", checkLink(strings.TrimSpace(c.Link)))
	}
	if len(c.Data) > MaxMembers {
		add("/data", "too_large", refused(fmt.Sprintf("must have at most %d members", MaxMembers)))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Data)) {
		if strings.TrimSpace(name) == "" || len(name) > MaxMember || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
			add(lemma.Pointer("data", name), "invalid",
				refused(fmt.Sprintf("the name must have 1 to %d bytes, without control characters", MaxMember)))
		}
	}
	return faults
}

// inspectPart finds the faults of one text and adds the variables that it uses.
func inspectPart(p part, source string, used map[string]bool) []lemma.Field {
	i := &inspection{part: p, source: source, used: used, assigned: map[string]bool{}, partly: map[string]bool{}}
	if i.raw(); len(i.faults) > 0 {
		return i.faults
	}
	segments, open := scan(source)
	for _, m := range segments {
		if i.segment(m); len(i.faults) >= maxFaults {
			return i.faults // the others may be consequences
		}
	}
	for _, b := range i.blocks {
		i.fault(b.at, "unclosed", "{%% %s %%} is not closed: end it with {%% end%s %%}", b.name, b.name)
	}
	if open != nil {
		i.fault(open.at, "unclosed", "{%% %s %%} is not closed: end it with {%% end%s %%}", open.Name, open.Name)
	}
	i.totals()
	if len(i.faults) == 0 {
		i.parse()
	}
	slices.SortStableFunc(i.faults, func(a, b lemma.Field) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return i.faults
}

// maxFaults bounds the faults of one text. A text of 256 KiB can have 100,000, and
// the line of each is counted from the beginning.
const maxFaults = 200

// inspection finds the faults of one text.
type inspection struct {
	part
	source   string
	faults   []lemma.Field
	blocks   []block         // open ones, the innermost last
	used     map[string]bool // variables
	assigned map[string]bool // names that {% assign %} has set here in any case
	order    []string        // the same, as they were set
	partly   map[string]bool // names that {% assign %} has set in a branch before
	tags     int
	words    int
	filters  int
	compared int
}

// block is an open {% if %}, {% unless %}, {% case %} or {% for %}.
type block struct {
	name      string
	at        int
	variable  string // of a loop
	when      bool   // the case has a when
	otherwise bool   // the block has an else

	from     int             // where the names of the branch begin in the order
	branched bool            // a branch has ended
	every    map[string]bool // names that all branches have set
}

func (i *inspection) fault(at int, code, format string, args ...any) {
	line, column := position(i.source, at)
	detail := fmt.Sprintf(format, args...)
	i.faults = append(i.faults, lemma.Field{Pointer: i.pointer, Code: code, Detail: detail, Line: line, Column: column})
}

// raw finds faults after which the text is not inspected further.
func (i *inspection) raw() {
	if len(i.source) > i.part.source {
		i.fault(0, "too_large", "has %d bytes; must have at most %d", len(i.source), i.part.source)
		return
	}
	if at := strings.IndexByte(i.source, 0); at >= 0 {
		i.fault(at, "control_character", "must not contain NUL")
	}
	if !utf8.ValidString(i.source) {
		i.fault(0, "encoding", "must be UTF-8")
	}
	if isSlowToScan(i.source) {
		i.fault(0, "too_large", `has too many "{{" that are not closed on their long lines, or "{%%" that are not closed: `+
			`close them, or begin a line behind each`)
	}
	if at := strings.IndexAny(i.source, "\r\n"); at >= 0 && i.line {
		i.fault(at, "line_break", "must be one line")
	}
}

func (i *inspection) totals() {
	if i.tags > MaxTags {
		i.fault(0, "too_large", "has %d {{ }} and {%% %%}; must have at most %d", i.tags, MaxTags)
	}
	if i.words > MaxAllWords {
		i.fault(0, "too_large", "has %d words between braces, counting each part of a name; must have at most %d", i.words, MaxAllWords)
	}
	if i.filters > MaxFilters {
		i.fault(0, "too_large", "has %d filters; must have at most %d", i.filters, MaxFilters)
	}
	if i.compared > MaxCompared {
		i.fault(0, "too_large", "has %d comparisons by contains, or with a value that is not a literal; must have at most %d",
			i.compared, MaxCompared)
	}
}

// parse compiles the text by the engine, which decides.
func (i *inspection) parse() {
	if _, err := i.compile(i.source); err != nil {
		line := 1
		if located, ok := errors.AsType[parser.Error](err); ok {
			line = located.LineNumber()
		}
		i.faults = append(i.faults, lemma.Field{Pointer: i.pointer, Code: "syntax", Detail: "cannot be parsed", Line: line, Column: 1})
	}
}

func (i *inspection) segment(m segment) {
	switch m.Type {
	case parser.TextTokenType:
		i.literal(m)
	case parser.ObjTokenType:
		i.tags++
		i.stray(m, "{{ }}")
		i.expression(m, "", m.Args)
	case parser.TagTokenType:
		i.tags++
		i.tag(m)
	}
}

// literal finds in plain text what was meant to be a tag or an output.
func (i *inspection) literal(m segment) {
	if strings.TrimSpace(m.Source) != "" {
		i.stray(m, "text")
	}
	for at := 0; at+1 < len(m.Source) && len(i.faults) < maxFaults; at++ {
		switch m.Source[at : at+2] {
		case "{{":
			i.fault(m.at+at, "unclosed", "{{ is not closed by }} on its line and would be sent as text")
			at++
		case "{%":
			i.fault(m.at+at, "unclosed", "{%% is not closed by %%}, or not followed by a tag, and would be sent as text")
			at++
		}
	}
}

// stray finds what is between case and its first when, and is never rendered.
func (i *inspection) stray(m segment, what string) {
	if b := i.inner(); b != nil && b.name == "case" && !b.when {
		i.fault(m.at, "unreachable", "this %s precedes the first {%% when %%} and is never rendered", what)
	}
}

func (i *inspection) inner() *block {
	if len(i.blocks) == 0 {
		return nil
	}
	return &i.blocks[len(i.blocks)-1]
}

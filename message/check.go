package message

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/osteele/liquid/parser"

	"lemma"
)

// Check reads a content as it would be saved and answers all of its faults at
// once, or the variables that it uses: the names, sorted, that a row of data
// has to have. Names that the template assigns and those of loops are not
// among them.
func Check(c Content) (variables []string, err error) {
	used, faults := inspect(complete(c))
	if c.HTML == "" && c.Text == "" {
		faults = append(faults, lemma.Field{Pointer: htmlPart.pointer, Code: "required", Detail: "write the message as HTML, as text, or both"})
	}
	if len(faults) > 0 {
		return nil, &lemma.Error{Kind: lemma.Invalid, Code: "template_invalid", Message: "the template is not valid", Fields: faults}
	}
	return used, nil
}

func inspect(c Content, made bool) ([]string, []lemma.Field) {
	used := map[string]bool{}
	subject := inspectPart(subjectPart, c.Subject, used)
	if strings.TrimSpace(c.Subject) == "" {
		subject = append(subject, lemma.Field{Pointer: "/subject", Code: "required", Detail: "a mail needs a subject"})
	}
	html := inspectPart(htmlPart, c.HTML, used)
	text := inspectPart(textPart, c.Text, used)
	if made && len(html) > 0 {
		text = nil // the same faults once more
	} else if made && len(text) > 0 {
		text = []lemma.Field{{Pointer: "/text", Code: "text_not_made", Detail: "no plain text can be made from this HTML, because its tags do not stand in pairs once the markup is gone: write the text"}}
	}
	names := make([]string, 0, len(used))
	for name := range used {
		names = append(names, name)
	}
	sort.Strings(names)
	return names, slices.Concat(subject, html, text)
}

// inspectPart finds the faults of one text and adds the variables that it uses.
func inspectPart(p part, source string, used map[string]bool) []lemma.Field {
	i := &inspection{part: p, source: source, used: used, assigned: map[string]bool{}}
	if i.raw(); len(i.faults) > 0 {
		return i.faults
	}
	marks, open := scan(source)
	for _, m := range marks {
		if i.mark(m); len(i.faults) >= maxFaults {
			return i.faults // all that follows may follow from these
		}
	}
	for _, b := range i.blocks {
		i.fault(b.at, "unclosed", "{%% %s %%} is never closed: end it with {%% end%s %%}", b.name, b.name)
	}
	if open != nil {
		i.fault(open.at, "unclosed", "{%% %s %%} is never closed: end it with {%% end%s %%}", open.Name, open.Name)
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

// maxFaults is how many faults of one text are looked for: a text of 256 KiB can
// have a hundred thousand, and the line of each is counted from the beginning.
const maxFaults = 200

// inspection is the walk through one text.
type inspection struct {
	part
	source   string
	faults   []lemma.Field
	blocks   []block         // those that are open, the innermost last
	used     map[string]bool // variables
	assigned map[string]bool // names that {% assign %} has set so far
	marks    int
	filters  int
	compared int
}

// block is an open {% if %}, {% unless %}, {% case %} or {% for %}.
type block struct {
	name      string
	at        int
	variable  string // of a loop
	when      bool   // the case has had a when
	otherwise bool   // there was an else
}

func (i *inspection) fault(at int, code, format string, args ...any) {
	line, column := position(i.source, at)
	i.faults = append(i.faults, lemma.Field{Pointer: i.pointer, Code: code, Detail: fmt.Sprintf(format, args...), Line: line, Column: column})
}

// raw finds what makes it useless to look further.
func (i *inspection) raw() {
	if len(i.source) > i.part.source {
		i.fault(0, "too_large", "it has %d bytes; %d are allowed", len(i.source), i.part.source)
		return
	}
	if at := strings.IndexByte(i.source, 0); at >= 0 {
		i.fault(at, "control_character", "there is a NUL here, which no mail can hold")
	}
	if !utf8.ValidString(i.source) {
		i.fault(0, "encoding", "it is not UTF-8")
	}
	if at := strings.IndexAny(i.source, "\r\n"); at >= 0 && i.part == subjectPart {
		i.fault(at, "line_break", "a subject is one line")
	}
}

func (i *inspection) totals() {
	if i.marks > MaxMarks {
		i.fault(0, "too_large", "it has %d {{ }} and {%% %%}; %d are allowed", i.marks, MaxMarks)
	}
	if i.filters > MaxFilters {
		i.fault(0, "too_large", "it uses %d filters; %d are allowed", i.filters, MaxFilters)
	}
	if i.compared > MaxCompared {
		i.fault(0, "too_large", "it compares %d times with what is no literal, or by contains; %d are allowed", i.compared, MaxCompared)
	}
}

// parse asks the engine, which has the last word.
func (i *inspection) parse() {
	if _, err := i.compile(i.source); err != nil {
		line := 1
		if located, ok := err.(parser.Error); ok {
			line = located.LineNumber()
		}
		i.faults = append(i.faults, lemma.Field{Pointer: i.pointer, Code: "syntax", Detail: "this does not parse", Line: line, Column: 1})
	}
}

func (i *inspection) mark(m mark) {
	switch m.Type {
	case parser.TextTokenType:
		i.literal(m)
	case parser.ObjTokenType:
		i.marks++
		i.stray(m, "{{ }}")
		i.expression(m, "", m.Args)
	case parser.TagTokenType:
		i.marks++
		i.tag(m)
	}
}

// literal finds, in what would be printed as it stands, marks that were meant
// to be something else.
func (i *inspection) literal(m mark) {
	if strings.TrimSpace(m.Source) != "" {
		i.stray(m, "text")
	}
	for at := 0; at+1 < len(m.Source) && len(i.faults) < maxFaults; at++ {
		switch m.Source[at : at+2] {
		case "{{":
			i.fault(m.at+at, "unclosed", "{{ is not closed by }} on its line; it would be sent as it stands")
			at++
		case "{%":
			i.fault(m.at+at, "unclosed", "{%% is not closed by %%}, or no tag's name follows it; it would be sent as it stands")
			at++
		}
	}
}

// stray finds what stands between case and its first when: nobody would see it.
func (i *inspection) stray(m mark, what string) {
	if b := i.inner(); b != nil && b.name == "case" && !b.when {
		i.fault(m.at, "unreachable", "this %s stands before the first {%% when %%} and is never printed", what)
	}
}

func (i *inspection) inner() *block {
	if len(i.blocks) == 0 {
		return nil
	}
	return &i.blocks[len(i.blocks)-1]
}

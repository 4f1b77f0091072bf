package message

import (
	"errors"
	"slices"

	"github.com/osteele/liquid/expressions"
)

// unknownWords have a meaning in other dialects, but would be variables in this one.
var unknownWords = map[string]string{
	"blank": `write {% if name %}, or compare with ""`,
	"empty": `compare with ""`,
	"null":  "write nil",
	"none":  "write nil",
	"not":   "write {% unless %}",
}

// expression finds the faults of an expression and the variables in it.
// selector is the engine's name of the kind of statement.
func (i *inspection) expression(m segment, selector, args string) {
	words, ok := i.split(m)
	if !ok {
		return
	}
	if i.read(m, words, false) {
		i.grammar(m, selector, args)
	}
}

// split returns the words of a segment. It finds no faults in what exceeds
// MaxAllWords, since totals reports that, and the engine must not parse it.
func (i *inspection) split(m segment) ([]word, bool) {
	words, fault := split(m.Args)
	i.words += len(words)
	if fault != nil {
		i.fault(m.args+fault.at, fault.code, "%s", fault.detail)
		return nil, false
	}
	switch {
	case len(words) == 0:
		i.fault(m.at, "syntax", "{%% %s %%} must have an expression", m.Name)
	case len(words) > MaxWords:
		i.fault(m.at, "too_large", "has %d words; must have at most %d between the braces", len(words), MaxWords)
	case i.words > MaxAllWords:
	case parts(words) > MaxParts:
		i.fault(m.at, "too_deep", "names must have at most %d parts", MaxParts)
	default:
		return words, true
	}
	return nil, false
}

// parts is the largest number of parts of a name. If a member is missing, each of
// its parts is evaluated.
func parts(words []word) (most int) {
	row := 0
	for _, w := range words {
		switch {
		case w.kind == property || w.is("["):
			row++
			most = max(most, row)
		case w.kind != literal && !w.is("]"):
			row = 0
		}
	}
	return most
}

// grammar parses the expression by the engine.
func (i *inspection) grammar(m segment, selector, args string) {
	if err := parseStatement(selector, args); err != nil {
		i.fault(m.args, "syntax", "%q cannot be parsed", clip(args))
	}
}

// parseStatement is the parser of the engine. A panic of it is an error.
func parseStatement(selector, source string) (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("the engine failed")
		}
	}()
	_, err = expressions.ParseStatement(selector, source)
	return err
}

func clip(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:60]) + "..."
	}
	return s
}

// read checks every word of an expression, and reports whether all are valid. In a
// loop a name or keyword that follows an operand is a modifier of the loop.
func (i *inspection) read(m segment, words []word, loop bool) bool {
	before := len(i.faults)
	i.readLogic(m, words)
	backwards, part := -1, false
	for k, w := range words {
		i.compares(m, words, k)
		piped := k > 0 && words[k-1].is("|")
		modifies := loop && k > 0 && endsOperand(words[k-1])
		if modifies && w.text == "reversed" {
			backwards = k
		}
		part = part || modifies && w.kind == keyword
		switch {
		case w.kind == dots:
			i.fault(m.args+w.at, "range", "ranges such as (1..5) are not supported; loop over a list of the data")
		case w.is(":") && k > 0 && words[k-1].kind == name:
			i.fault(m.args+w.at, "syntax", "write the colon directly after the name: %s:", words[k-1].text)
		case piped && (w.kind == name || w.kind == keyword):
			i.filter(m, words, k, loop)
		case modifies && (w.kind == name && w.text != "reversed" || w.kind == keyword && w.text != "limit" && w.text != "offset"):
			i.fault(m.args+w.at, "syntax", "%s is unknown; a loop accepts reversed, limit: and offset:", w.text)
		case w.kind == name && !modifies:
			i.variable(m, words, k)
		}
	}
	if backwards >= 0 && part { // the engine reverses the list first, and Liquid the part of it
		i.fault(m.args+words[backwards].at, "syntax", "reversed must not be used with limit: and offset:; "+
			"loop over the result of the filter reverse, by {%% assign name = list | reverse %%}")
	}
	return len(i.faults) == before
}

// compares counts the comparisons that may take long: of two lists or objects, or
// of long texts. They cannot be interrupted, so their number is bounded.
func (i *inspection) compares(m segment, words []word, k int) {
	w := words[k]
	literally := k+1 < len(words) && words[k+1].kind == literal
	switch {
	case w.kind == operator && (w.text == "contains" || !literally):
		i.compared++
	case m.Name == "when" && w.kind == name:
		i.compared++
	}
}

// readLogic refuses a mixture of and with or, which this engine and others
// read differently.
func (i *inspection) readLogic(m segment, words []word) {
	seen := []kind{0}
	for _, w := range words {
		top := len(seen) - 1
		switch {
		case w.is("(") || w.is("["):
			seen = append(seen, 0)
		case (w.is(")") || w.is("]")) && top > 0:
			seen = seen[:top]
		case w.kind == and || w.kind == or:
			if seen[top] != 0 && seen[top] != w.kind {
				i.fault(m.args+w.at, "ambiguous", "use parentheses where and, or are mixed")
			}
			seen[top] = w.kind
		}
	}
}

// endsOperand reports whether an operand can end with the word.
func endsOperand(w word) bool {
	return w.kind == name || w.kind == literal || w.kind == property || w.is(")") || w.is("]")
}

func (i *inspection) variable(m segment, words []word, k int) {
	w := words[k]
	if w.text == "forloop" {
		i.forloop(m, words, k)
		return
	}
	if hint := unknownWords[w.text]; hint != "" {
		i.fault(m.args+w.at, "reserved", "%s is not supported: %s", w.text, hint)
		return
	}
	if i.assigned[w.text] || slices.ContainsFunc(i.blocks, func(b block) bool { return b.variable == w.text }) {
		return
	}
	if i.partly[w.text] && !i.used[w.text] {
		i.fault(m.args+w.at, "assigned_in_part", "%s is assigned in some cases only, and would be empty in the others; "+
			"assign it before them, such as {%% assign %s = %s %%} for the column or {%% assign %s = '' %%}", w.text, w.text, w.text, w.text)
		return
	}
	i.used[w.text] = true
}

// forloop is available inside a loop, and only its parts: the engine would render
// the whole in random order.
func (i *inspection) forloop(m segment, words []word, k int) {
	if i.loops() == 0 {
		i.fault(m.args+words[k].at, "unexpected", "forloop must be inside {%% for %%}")
	} else if k+1 == len(words) || words[k+1].kind != property {
		i.fault(m.args+words[k].at, "syntax", "must be a part of forloop: index, first, last, length ...")
	}
}

func (i *inspection) filter(m segment, words []word, k int, loop bool) {
	i.filters++
	w := words[k]
	at := m.args + w.at
	takes, ok := dialectFilters[w.text]
	if !ok {
		i.unknownFilter(at, w.text)
		return
	}
	if k+1 < len(words) && words[k+1].is(":") {
		return // read reports that fault
	}
	given, named := arguments(words[k+1:], w.kind == keyword, loop)
	if given < takes.least || given > takes.most {
		i.fault(at, "arguments", "%s takes %s, not %d", w.text, takes, given)
	}
	for _, n := range named {
		if w.text != "default" || n.text != "allow_false" {
			i.fault(m.args+n.at, "arguments", "%s has no argument called %s", w.text, n.text)
		}
	}
	if w.text == "newline_to_br" && i.html && (m.Name != "" || k+1 != len(words)) {
		i.fault(at, "filter_order", "newline_to_br must be last in {{ }}, since its result is markup")
	}
	if w.text == "date" && k >= 2 && (words[k-2].value == text("now") || words[k-2].value == text("today")) {
		i.fault(m.args+words[k-2].at, "clock", "the time is not available, so that both attempts are equal; give the date in the data")
	}
}

func (i *inspection) unknownFilter(at int, name string) {
	if name == "safe" || name == "raw" {
		i.fault(at, "filter_not_allowed", "%s would not escape data; write the markup in the template", name)
		return
	}
	i.fault(at, "filter_unknown", "%s is not a filter", name)
}

// arguments counts the arguments of a filter, and collects the named ones.
func arguments(words []word, any, loop bool) (given int, named []word) {
	if !any {
		return 0, nil
	}
	given = 1
	depth := 0
	for k, w := range words {
		switch {
		case w.is("(") || w.is("["):
			depth++
		case w.is(")") || w.is("]"):
			depth--
		case w.is(",") && depth == 0 && k+1 < len(words) && words[k+1].kind == keyword:
			named = append(named, words[k+1])
		case w.is(",") && depth == 0:
			given++
		}
		ends := w.is("|") || w.kind == and || w.kind == or || w.kind == operator
		modifies := loop && k > 0 && endsOperand(words[k-1]) && (w.kind == name || w.kind == keyword)
		if depth < 0 || depth == 0 && (ends || modifies) {
			break
		}
	}
	return given, named
}

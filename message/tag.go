package message

import (
	"strings"

	"github.com/osteele/liquid/expressions"
)

// foreign are tags of other dialects, and what to do instead.
var foreign = map[string]string{
	"include": "a template cannot read another: copy its text", "render": "a template cannot read another: copy its text",
	"layout": "a template cannot read another: copy its text", "section": "a template cannot read another: copy its text",
	"capture":  "use {% assign %} with the filter append",
	"tablerow": "write the rows in {% for %}",
	"echo":     "write {{ }}", "liquid": "write a tag for each line",
	"increment": "use {% assign %} with the filter plus", "decrement": "use {% assign %} with the filter minus",
	"elseif": "write {% elsif %}", "elif": "write {% elsif %}", "set": "write {% assign %}", "end": "name what ends, such as {% endif %}",
	"endcomment": "no comment is open here", "endraw": "no raw is open here",
}

func (i *inspection) tag(m mark) {
	switch m.Name {
	case "if", "unless", "case", "for":
		i.stray(m, "tag")
		i.open(m)
	case "elsif", "else", "when":
		i.clause(m)
	case "endif", "endunless", "endcase", "endfor":
		i.close(m)
	case "assign":
		i.stray(m, "tag")
		i.assign(m)
	case "cycle", "break", "continue":
		i.stray(m, "tag")
		i.inLoop(m)
	default:
		i.unknown(m)
	}
}

func (i *inspection) unknown(m mark) {
	hint := foreign[m.Name]
	if hint == "" {
		hint = "there are if, unless, case, for, assign, cycle, comment and raw"
	}
	i.fault(m.at, "tag_not_allowed", "{%% %s %%} is not in this dialect: %s", m.Name, hint)
}

func (i *inspection) open(m mark) {
	b := block{name: m.Name, at: m.at}
	if m.Name == "for" {
		b.variable = i.loop(m)
	} else {
		i.expression(m, "", m.Args)
	}
	i.blocks = append(i.blocks, b)
	if len(i.blocks) > MaxBlocks {
		i.fault(m.at, "too_deep", "more than %d blocks are inside each other", MaxBlocks)
	}
	if m.Name == "for" && i.loops() > MaxLoops {
		i.fault(m.at, "too_deep", "more than %d loops are inside each other", MaxLoops)
	}
}

func (i *inspection) loops() int {
	n := 0
	for _, b := range i.blocks {
		if b.name == "for" {
			n++
		}
	}
	return n
}

// clauses tells which blocks a clause may stand in.
var clauses = map[string]string{"elsif": "if", "when": "case", "else": "if unless case for"}

func (i *inspection) clause(m mark) {
	b := i.inner()
	switch {
	case b == nil || !strings.Contains(clauses[m.Name], b.name):
		i.fault(m.at, "unexpected", "{%% %s %%} belongs into {%% %s %%}", m.Name, strings.ReplaceAll(clauses[m.Name], " ", " %}, {% "))
	case b.otherwise:
		i.fault(m.at, "unreachable", "{%% %s %%} comes after {%% else %%} and is never reached", m.Name)
	case m.Name == "else":
		b.otherwise, b.when, b.variable = true, true, ""
	case m.Name == "when":
		b.when = true
	}
	switch m.Name {
	case "else":
		i.bare(m, "for a second condition write {% elsif %}")
	case "when":
		i.expression(m, expressions.WhenStatementSelector, m.Args)
	default:
		i.expression(m, "", m.Args)
	}
}

// bare refuses arguments, which the engine would pass over in silence.
func (i *inspection) bare(m mark, hint string) {
	if m.Args != "" {
		i.fault(m.args, "syntax", "{%% %s %%} takes nothing: %s", m.Name, hint)
	}
}

func (i *inspection) close(m mark) {
	i.bare(m, "take this out")
	what := strings.TrimPrefix(m.Name, "end")
	at := len(i.blocks) - 1
	for at >= 0 && i.blocks[at].name != what {
		at--
	}
	if at < 0 {
		i.fault(m.at, "unexpected", "there is no {%% %s %%} to end here", what)
		return
	}
	for _, b := range i.blocks[at+1:] {
		i.fault(b.at, "unclosed", "{%% %s %%} is not closed before {%% %s %%}", b.name, m.Name)
	}
	i.blocks = i.blocks[:at]
}

func (i *inspection) inLoop(m mark) {
	if i.loops() == 0 {
		i.fault(m.at, "unexpected", "{%% %s %%} belongs into {%% for %%}", m.Name)
	}
	if m.Name != "cycle" {
		i.bare(m, "put it into {% if %}")
		return
	}
	i.expression(m, expressions.CycleStatementSelector, m.Args)
}

// assign reads {% assign name = ... %}; from here on the name is no variable.
func (i *inspection) assign(m mark) {
	words, ok := i.words(m)
	if !ok {
		return
	}
	if len(words) < 3 || words[0].kind != name || !words[1].is("=") {
		i.fault(m.args, "syntax", "write {%% assign name = value %%}")
		return
	}
	i.ownName(m, words[0])
	if i.read(m, words[2:], false) {
		i.grammar(m, expressions.AssignStatementSelector, m.Args)
	}
	i.assigned[words[0].text] = true
}

// loop reads {% for name in list %} and answers the name.
func (i *inspection) loop(m mark) string {
	words, ok := i.words(m)
	if !ok {
		return ""
	}
	if len(words) < 3 || words[0].kind != name || words[1].kind != in {
		i.fault(m.args, "syntax", "write {%% for name in list %%}")
		return ""
	}
	i.ownName(m, words[0])
	if i.read(m, words[2:], true) {
		i.grammar(m, expressions.LoopStatementSelector, m.Args)
	}
	return words[0].text
}

func (i *inspection) ownName(m mark, w word) {
	if w.text == "forloop" || unknownWords[w.text] != "" {
		i.fault(m.args+w.at, "reserved", "%s cannot be the name of something of yours", w.text)
	}
}

package message

import (
	"maps"
	"strings"

	"github.com/osteele/liquid/expressions"
)

const noIncludes = "templates cannot include others; copy the text"

// foreign are tags of other dialects, with a replacement.
var foreign = map[string]string{
	"include": noIncludes, "render": noIncludes,
	"layout": noIncludes, "section": noIncludes,
	"capture":  "use {% assign %} with the filter append",
	"tablerow": "write the rows in {% for %}",
	"echo":     "write {{ }}", "liquid": "write a tag for each line",
	"increment": "use {% assign %} with the filter plus", "decrement": "use {% assign %} with the filter minus",
	"elseif": "write {% elsif %}", "elif": "write {% elsif %}", "set": "write {% assign %}",
	"end":        "write the name of the block, such as {% endif %}",
	"endcomment": "no comment is open here", "endraw": "no raw is open here",
}

func (i *inspection) tag(m segment) {
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

func (i *inspection) unknown(m segment) {
	hint := foreign[m.Name]
	if hint == "" {
		hint = "use if, unless, case, for, assign, cycle, comment or raw"
	}
	i.fault(m.at, "tag_not_allowed", "{%% %s %%} is not in this dialect: %s", m.Name, hint)
}

func (i *inspection) open(m segment) {
	b := block{name: m.Name, at: m.at, from: len(i.order)}
	if m.Name == "for" {
		b.variable = i.loop(m)
	} else {
		i.expression(m, "", m.Args)
	}
	i.blocks = append(i.blocks, b)
	if len(i.blocks) > MaxBlocks {
		i.fault(m.at, "too_deep", "must have at most %d nested blocks", MaxBlocks)
	}
	if m.Name == "for" && i.loops() > MaxLoops {
		i.fault(m.at, "too_deep", "must have at most %d nested loops", MaxLoops)
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

// clauses are the blocks that may contain a clause.
var clauses = map[string]string{"elsif": "if", "when": "case", "else": "if unless case for"}

func (i *inspection) clause(m segment) {
	b := i.inner()
	if b != nil && (m.Name != "when" || b.when) { // nothing is before the first when
		i.endBranch(b)
	}
	switch {
	case b == nil || !strings.Contains(clauses[m.Name], b.name):
		i.fault(m.at, "unexpected", "{%% %s %%} must be in {%% %s %%}", m.Name, strings.ReplaceAll(clauses[m.Name], " ", " %}, {% "))
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

// bare refuses arguments, which the engine would ignore.
func (i *inspection) bare(m segment, hint string) {
	if m.Args != "" {
		i.fault(m.args, "syntax", "{%% %s %%} has no arguments: %s", m.Name, hint)
	}
}

func (i *inspection) close(m segment) {
	i.bare(m, "remove them")
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
	b := i.blocks[at]
	i.endBranch(&b)
	i.blocks = i.blocks[:at]
	if b.otherwise && b.name != "for" { // neither branch of a loop is carried out for null
		for name := range b.every {
			i.setName(name)
		}
	}
}

func (i *inspection) setName(name string) {
	if !i.assigned[name] {
		i.assigned[name] = true
		i.order = append(i.order, name)
	}
}

// endBranch ends a branch of a block. What it has assigned is set after it only if it was carried out.
func (i *inspection) endBranch(b *block) {
	made := i.order[b.from:]
	i.order = i.order[:b.from]
	set := make(map[string]bool, len(made))
	for _, name := range made {
		set[name], i.partly[name] = true, true
		delete(i.assigned, name)
	}
	if !b.branched {
		b.branched, b.every = true, set
	}
	maps.DeleteFunc(b.every, func(name string, _ bool) bool { return !set[name] })
}

func (i *inspection) inLoop(m segment) {
	if i.loops() == 0 {
		i.fault(m.at, "unexpected", "{%% %s %%} must be in {%% for %%}", m.Name)
	}
	if m.Name != "cycle" {
		i.bare(m, "put it into {% if %}")
		return
	}
	i.expression(m, expressions.CycleStatementSelector, m.Args)
}

// assign reads {% assign name = ... %}. After it the name is not a variable.
func (i *inspection) assign(m segment) {
	words, ok := i.split(m)
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
	i.setName(words[0].text)
}

// loop reads {% for name in list %} and answers the name.
func (i *inspection) loop(m segment) string {
	words, ok := i.split(m)
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

func (i *inspection) ownName(m segment, w word) {
	if w.text == "forloop" || unknownWords[w.text] != "" {
		i.fault(m.args+w.at, "reserved", "%s is reserved; use another name", w.text)
	}
}

package message

import (
	"encoding/hex"
	"errors"
	"io"
	"strings"

	"github.com/osteele/liquid/expressions"
	"github.com/osteele/liquid/parser"
	"github.com/osteele/liquid/render"
)

// A member that an object of the data does not have is nil to the engine. Where
// the author has provided for that, by a test, a loop or default, nil it stays;
// anywhere else a letter with a hole in it would go out. So a tag stands before
// each {{ }} and {% assign %} that needs members, and looks whether they are
// there. It writes nothing.
const needTag = "lemma_need"

// need is what an expression asks of the data.
type need struct {
	members []member
	instead []member // of a default: needed when nothing comes out with it
	source  string   // up to there
	value   expressions.Expression
}

// member is an operand with at least one part behind it: trigger.name, a["b"].
type member struct {
	source string
	ends   []int    // of its parts in there
	names  []string // nil if it is more than names: a["b"]
	whole  expressions.Expression
}

// needBefore is the tag to put before a mark, or nothing.
func needBefore(m mark) string {
	source, output := m.Args, m.Type == parser.ObjTokenType
	if !output && (m.Type != parser.TagTokenType || m.Name != "assign") {
		return ""
	}
	if !strings.ContainsAny(source, ".[") {
		return ""
	}
	if !output {
		_, source, _ = strings.Cut(source, "=")
	}
	if n, err := needOf(source, output); err != nil || len(n.members)+len(n.instead) == 0 {
		return ""
	}
	// As hex, since an expression may hold what ends a tag.
	kind := " assign "
	if output {
		kind = " output "
	}
	return "{% " + needTag + kind + hex.EncodeToString([]byte(source)) + " %}"
}

// needCompiler makes the tag for the engine c.
func needCompiler(c *render.Config, html bool) func(string) (func(io.Writer, render.Context) error, error) {
	return func(args string) (func(io.Writer, render.Context) error, error) {
		kind, code, _ := strings.Cut(args, " ")
		source, err := hex.DecodeString(code)
		if err != nil {
			return nil, err
		}
		n, err := needOf(string(source), kind == "output")
		if err != nil {
			return nil, err
		}
		return func(_ io.Writer, ctx render.Context) error {
			metered := c
			if m, ok := ctx.Get(meterName).(*meter); ok {
				metered = m.engine(c, html)
			}
			return n.look(metered, ctx)
		}, nil
	}
}

func (n *need) look(c *render.Config, ctx render.Context) error {
	for i := range n.members {
		if err := n.members[i].look(c, ctx); err != nil {
			return err
		}
	}
	if len(n.instead) == 0 {
		return nil
	}
	if made, err := ctx.Evaluate(n.value); made != nil || err != nil {
		return nil // an error is told where the value is printed
	}
	for i := range n.instead {
		if err := n.instead[i].look(c, ctx); err != nil {
			return err
		}
	}
	return nil
}

// look tells the first part that is not there.
func (m *member) look(c *render.Config, ctx render.Context) error {
	if found(ctx.Bindings(), m.names) {
		return nil
	}
	strict := c.Config.Config
	strict.StrictVariables = true
	lookup := expressions.NewContext(ctx.Bindings(), strict)
	if !absent(m.whole, lookup) {
		return nil
	}
	for _, end := range m.ends {
		if part, err := expressions.Parse(m.source[:end]); err == nil && absent(part, lookup) {
			return refused(clip(m.source[:end]) + " is not there")
		}
	}
	return refused(clip(m.source) + " is not there")
}

func absent(e expressions.Expression, strict expressions.Context) bool {
	_, err := e.Evaluate(strict)
	var undefined expressions.InterpreterError
	return errors.As(err, &undefined)
}

// found is the quick way to what is nearly always so.
func found(bound map[string]any, names []string) bool {
	var v any = bound
	for _, name := range names {
		var there bool
		switch m := v.(type) {
		case object:
			v, there = m[name]
		case map[string]any:
			v, there = m[name]
		}
		if !there {
			return false
		}
	}
	return len(names) > 0
}

// needOf reads an expression that the engine parses; output says that it is
// printed.
func needOf(source string, output bool) (need, error) {
	words, fault := split(source)
	if fault != nil {
		return need{}, errors.New(fault.detail)
	}
	r := needReader{source: source, words: words}
	n := r.condition()
	if !output {
		n.instead = nil
	}
	var err error
	for _, some := range [][]member{n.members, n.instead} {
		for i := range some {
			if some[i].whole, err = expressions.Parse(some[i].source); err != nil {
				return need{}, err
			}
		}
	}
	if len(n.instead) > 0 {
		n.value, err = expressions.Parse(n.source)
	}
	return n, err
}

// needReader goes through the words by the engine's grammar.
type needReader struct {
	source string
	words  []word
	at     int
}

func (r *needReader) peek() word {
	if r.at < len(r.words) {
		return r.words[r.at]
	}
	return word{kind: punctuation, at: len(r.source)}
}

func (r *needReader) take(text string) bool {
	if !r.peek().is(text) {
		return false
	}
	r.at++
	return true
}

// condition needs nothing where things are tested: beside and or or, and in a
// comparison.
func (r *needReader) condition() need {
	n := r.relation()
	for r.peek().kind == and || r.peek().kind == or {
		r.at++
		r.relation()
		n = need{}
	}
	return n
}

func (r *needReader) relation() need {
	n := r.filtered()
	if r.peek().kind == operator {
		r.at++
		r.operand()
		return need{}
	}
	return n
}

// filtered needs its operands, but none in front of a default.
func (r *needReader) filtered() need {
	n := need{members: r.operand()}
	for r.take("|") {
		filter := r.peek()
		r.at++
		if filter.kind != keyword {
			continue
		}
		args := r.arguments()
		if filter.text == "default" {
			n = need{instead: args, source: strings.TrimSpace(r.source[:r.peek().at])}
		} else {
			n.members = append(n.members, args...)
		}
	}
	return n
}

func (r *needReader) arguments() []member {
	all := r.operand()
	for r.take(",") {
		if r.peek().kind == keyword {
			r.at++
		}
		all = append(all, r.operand()...)
	}
	return all
}

// operand is a name, a literal or what is in parentheses, with its parts.
func (r *needReader) operand() []member {
	first := r.peek()
	var inside []member
	if r.at++; first.is("(") {
		inside = r.condition().members
		r.take(")")
	}
	from, m, plain := first.at, member{names: []string{first.text}}, first.kind == name
	for {
		w := r.peek()
		switch {
		case w.kind == property:
			r.at++
			m.ends, m.names = append(m.ends, w.at+1+len(w.text)-from), append(m.names, w.text)
			continue
		case r.take("["):
			r.operand()
			m.ends, plain = append(m.ends, r.peek().at+1-from), false
			r.take("]")
			continue
		}
		break
	}
	if len(m.ends) == 0 {
		return inside
	}
	if !plain {
		m.names = nil
	}
	m.source = r.source[from : from+m.ends[len(m.ends)-1]]
	return []member{m}
}

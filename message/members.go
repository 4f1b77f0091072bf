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

// needTag is a tag before each {{ }} and {% assign %} that needs members of objects.
// It fails if one is missing, since the engine would render it as an empty text.
// A condition, a loop and default accept a missing member. The tag writes nothing.
const needTag = "lemma_need"

// need has the members that an expression requires.
type need struct {
	members []member
	instead []member // arguments of default: required if the value before it is nil
	source  string   // the expression before default
	value   expressions.Expression
}

// member is an operand with at least one part after it: trigger.name, a["b"].
type member struct {
	source string
	ends   []int    // of its parts in source
	names  []string // nil if a part is not a name: a["b"]
	whole  expressions.Expression
}

// needBefore returns the tag to add before a segment, or "".
func needBefore(m segment) string {
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
	// In hex, since an expression may contain the end of a tag.
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
			return n.check(metered, ctx)
		}, nil
	}
}

func (n *need) check(c *render.Config, ctx render.Context) error {
	for i := range n.members {
		if err := n.members[i].check(c, ctx); err != nil {
			return err
		}
	}
	if len(n.instead) == 0 {
		return nil
	}
	if made, err := ctx.Evaluate(n.value); made != nil || err != nil {
		return nil //nolint:nilerr // the error is reported where the value is rendered
	}
	for i := range n.instead {
		if err := n.instead[i].check(c, ctx); err != nil {
			return err
		}
	}
	return nil
}

// check returns an error for the first part that is missing.
func (m *member) check(c *render.Config, ctx render.Context) error {
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
			return refused(clip(m.source[:end]) + " is missing")
		}
	}
	return refused(clip(m.source) + " is missing")
}

func absent(e expressions.Expression, strict expressions.Context) bool {
	_, err := e.Evaluate(strict)
	var undefined expressions.InterpreterError
	return errors.As(err, &undefined)
}

// found is the fast path: it reports whether all parts exist.
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

// needOf reads an expression; output is true if it is rendered.
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

// needReader reads the words by the grammar of the engine.
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

// condition needs no member in a comparison, nor in operands of the words "and" and "or".
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

// filtered needs its operands, but none before default.
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

// operand is a name, a literal or an expression in parentheses, with its parts.
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

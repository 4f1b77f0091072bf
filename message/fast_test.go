package message

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// same renders every text of c by the fast path and by the engine, and fails if they
// differ. It returns the number of texts that the fast path rendered.
func same(t *testing.T, c *Compiled, payload string) int {
	t.Helper()
	values := make([]value, len(c.variables))
	if err := read(values, c.variables, payload); err != nil {
		return 0
	}
	fast := 0
	for i := range c.parts {
		p := &c.parts[i]
		sameAsStrict(t, p, c.bindings(values))
		if p.fast == nil {
			continue
		}
		var made output
		if !p.fast.render(&made, values) {
			continue
		}
		fast++
		slow, err := p.within(&meter{within: MaxWait}, c.bindings(values))
		if err != nil {
			t.Fatalf("%s with %s: the fast path makes %q, the engine fails: %v", p.pointer, payload, made.text, err)
		}
		if slow != string(made.text) {
			t.Fatalf("%s with %s: the fast path makes %q, the engine %q", p.pointer, payload, made.text, slow)
		}
	}
	return fast
}

// sameAsStrict compares the engine with a strict one, to which every missing member
// is an error. If none is missing, their results are the same. Otherwise the engine
// fails too, or the template accepts a missing member.
func sameAsStrict(t *testing.T, p *compiledPart, bound map[string]any) {
	t.Helper()
	made, err := p.within(&meter{deadline: time.Now().Add(time.Minute)}, bound)
	strict, fault := strictly(p, bound)
	switch {
	case strict != nil && (err != nil || made != *strict):
		t.Fatalf("%s: a strict engine makes %q, ours %q, %v", p.pointer, *strict, made, err)
	case fault != nil && err == nil && !missesMember(fault):
		t.Fatalf("%s: the engine makes %q, a strict engine fails: %v", p.pointer, made, fault)
	}
}

// author writes random templates and data that the fast path accepts,
// and some that it does not.
type author struct{ *rand.Rand }

func (a author) one(of ...string) string { return of[a.IntN(len(of))] }

func (a author) operand() string {
	return a.one("a", "b", "c", "d", "e", "missing", "a", "b", `"x"`, `'it'`, `""`, `" & "`, "0", "1", "-2", "1.5", "1000000.5", "true",
		"false", "nil", `"a\tb\q"`,
		a.one("o.k", "o.x", "o.x.y", `o["k"]`, `o[a]`, "a.b"))
}

func (a author) value() string {
	v := a.operand()
	for a.IntN(3) > 0 {
		v += " | " + a.one("upcase", "downcase", "capitalize", "strip", "escape", "default: "+a.operand(), "append: "+a.operand(),
			"prepend: "+a.operand(), "size", "truncate: 3")
	}
	return v
}

func (a author) term() string {
	if a.IntN(2) == 0 {
		return a.value()
	}
	return a.operand() + a.one(" == ", "!=", " < ", " > ", "<=", ">=", " contains ") + a.operand()
}

func (a author) condition() string {
	terms := []string{a.term()}
	for a.IntN(3) == 0 {
		terms = append(terms, a.term())
	}
	return strings.Join(terms, a.one(" and ", " or "))
}

func (a author) tag(inside string) string {
	return "{%" + a.one("", "-") + " " + inside + " " + a.one("", "-") + "%}"
}

func (a author) body(depth int) string {
	var b strings.Builder
	for range a.IntN(5) {
		switch a.IntN(5) {
		case 0, 1:
			b.WriteString(a.one("x", " ", "\n", " \t y ", "<p class=\"z\">", "&", "ä ", "\u00a0", "% }} %}"))
		case 2, 3:
			b.WriteString("{{" + a.one("", "-", " ") + a.value() + a.one("", "-", " ") + "}}")
		case 4:
			if depth > 0 {
				b.WriteString(a.block(depth - 1))
			}
		}
	}
	return b.String()
}

func (a author) block(depth int) string {
	name := a.one("if", "if", "unless")
	s := a.tag(name+" "+a.condition()) + a.body(depth)
	if name == "if" && a.IntN(3) == 0 {
		s += a.tag("elsif "+a.condition()) + a.body(depth)
	}
	if a.IntN(3) == 0 {
		s += a.tag("else") + a.body(depth)
	}
	return s + a.tag("end"+name)
}

func (a author) payload() string {
	scalar := func() string {
		return a.one(`"x"`, `""`, `" "`, `"  a & b  "`, `"<O'Neil>"`, `"&"`,
			`"ÄNNA ß"`, `"a\"b\n"`, `"\ud800"`, `"\u00e4"`, "null", "true",
			"false", "0", "1", "-2", "1.5", "1.50", "1e3",
			"1000000.5", "12345678901234567890", "123456789012.5", "0.00001", `"1"`, `"{{ a }}"`, "[1,2]", `{"k":1}`)
	}
	return fmt.Sprintf(`{"a":%s, "b":%s,"c":%s,"d":%s ,"e":%s,"o":{"k":"v"}}`, scalar(), scalar(), scalar(), scalar(), scalar())
}

// The fast path renders the same bytes as the engine.
func TestFastPathEqualsTheEngine(t *testing.T) {
	t.Parallel()
	a := author{rand.New(rand.NewPCG(1, 2))}
	templates, fast := 0, 0
	for range 4_000 {
		source := a.body(2)
		c, err := Compile(uuid.Nil, Content{Subject: "s", HTML: source + "<", Text: source + "."})
		if err != nil {
			continue
		}
		templates++
		for range 3 {
			fast += same(t, c, a.payload())
		}
	}
	if templates < 2_000 || fast < 4_000 {
		t.Errorf("only %d templates and %d texts were compared", templates, fast)
	}
}

func TestFastPathRendersTheCommonMail(t *testing.T) {
	t.Parallel()
	c := compiled(t, smallMail)
	for _, p := range c.parts {
		if p.fast == nil {
			t.Errorf("%s of a common mail is rendered by the engine", p.pointer)
		}
	}
	if n := same(t, c, smallPayload); n != 3 {
		t.Errorf("the fast path rendered %d of 3 texts", n)
	}
}

func FuzzFastPath(f *testing.F) {
	a := author{rand.New(rand.NewPCG(3, 4))}
	for range 50 {
		f.Add(a.body(2), a.payload())
	}
	f.Fuzz(func(t *testing.T, source, payload string) {
		c, err := Compile(uuid.Nil, Content{Subject: "s", HTML: source, Text: source})
		if err == nil {
			same(t, c, payload)
		}
	})
}

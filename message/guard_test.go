package message

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/osteele/liquid/expressions"
	"github.com/osteele/liquid/render"

	"lemma"

	"github.com/google/uuid"
)

// FuzzGuard checks the guarantees of the package for any template and any data: a
// valid template renders within the limits, twice the same, or returns an error
// without data. Nothing crashes. A strict engine misses no name, so Check has found
// all of them.
func FuzzGuard(f *testing.F) {
	a := author{rand.New(rand.NewPCG(5, 6))}
	for range 20 {
		f.Add(a.body(2), a.payload())
	}
	for _, s := range []string{
		"{% for x in a limit: b %}{{ forloop.index }}{% cycle 'x', 'y' %}{% endfor %}", "{% case a %}{% when 1, b %}x{% endcase %}",
		"{% assign x = a | split: '' | sort | join: b %}{{ x[0] }}", "{{ a.b.c }}", "{{ a['b'] }}", "{% raw %}{{{% endraw %}",
		"{{ a | date: b }}",
		"{% comment %}", "{{ %loop a in b }}", "{{ a | round: 400 | plus: a }}", "{{ a | slice: -3, 99 }}", "{{ a? }}{{ b-c }}",
		"{{ äöü }}",
	} {
		f.Add(s, `{"a":[1,"x",null,{"b":{"c":1}}],"b":"%Y","c":1.5}`)
	}
	f.Fuzz(func(t *testing.T, source, payload string) {
		content := Content{Subject: "s", HTML: source, Text: source}
		variables, err := Check(uuid.Nil, content)
		c, compileErr := Compile(uuid.Nil, content)
		if (err == nil) != (compileErr == nil) {
			t.Fatalf("Check returns %v, Compile %v", err, compileErr)
		}
		if err != nil {
			return
		}
		once, err := c.Render(payload)
		twice, again := c.Render(payload)
		if !cmp.Equal(once, twice) || (err == nil) != (again == nil) {
			t.Fatalf("first %q, %v, then %q, %v", once, err, twice, again)
		}
		if len(once.HTML) > MaxRendered || len(once.Text) > MaxRendered {
			t.Fatalf("the rendered texts have %d and %d bytes", len(once.HTML), len(once.Text))
		}
		var refused *lemma.Error
		if err != nil && !errors.As(err, &refused) {
			t.Fatalf("%v is not a template error", err)
		}
		if !strings.ContainsAny(source, ".[") && namesMissed(c, payload) {
			t.Fatalf("a name was not bound; Check found %q", variables)
		}
	})
}

// namesMissed reports whether a strict engine evaluates a name that is not bound.
func namesMissed(c *Compiled, payload string) bool {
	values := make([]value, len(c.variables))
	if read(values, c.variables, payload) != nil {
		return false
	}
	for i := range c.parts {
		p := &c.parts[i]
		if _, fault := strictly(p, c.bindings(values)); missesMember(fault) {
			return true
		}
	}
	return false
}

// strictly renders by a strict engine. After a panic it returns no text and no
// fault.
func strictly(p *compiledPart, bound map[string]any) (made *string, fault render.Error) {
	defer func() { _ = recover() }()
	config := *p.engine()
	config.StrictVariables = true
	m := &meter{deadline: time.Now().Add(time.Minute)}
	bound[meterName] = m
	w := &boundedWriter{limit: p.limit, meter: m}
	if fault := render.Render(p.root, w, bound, config); fault != nil {
		return nil, fault
	}
	text := w.text.String()
	return &text, nil
}

func missesMember(fault render.Error) bool {
	if fault == nil {
		return false
	}
	_, missing := fault.Cause().(expressions.InterpreterError)
	return missing
}

// FuzzPayload compares readFlat with encoding/json.
func FuzzPayload(f *testing.F) {
	a := author{rand.New(rand.NewPCG(7, 8))}
	for range 30 {
		f.Add(a.payload())
	}
	for _, s := range []string{`{}`, ` { } `, `{"a":1,"a":2}`, `{"a":01}`, `{"a":-}`, `{"a":1.}`, `{"a":1.5}x`, `{"\u0061":1}`,
		"{\"a\":\"\xff\"}", "{\"a\":\"\n\"}",
		`{"a":"x`, `{"a":nul}`, `{"a":-0}`, `{"a":1E5}`, `{"a":"\ud83d\ude00"}`, `{"a":1,}`, `{"a":1}}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		names := []string{"a", "b", "c"}
		flat, tree := make([]value, 3), make([]value, 3)
		if !readFlat(flat, names, payload) {
			return
		}
		if err := readTree(tree, names, payload); err != nil {
			t.Fatalf("we read %q, encoding/json does not: %v", payload, err)
		}
		for i := range flat {
			if flat[i] != tree[i] {
				t.Errorf("%s of %q: we read %v, encoding/json %v", names[i], payload, flat[i], tree[i])
			}
		}
	})
}

func TestFlatDataIsReadInOnePass(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "c", "d"}
	got := make([]value, 4)
	if !readFlat(got, names, `{"d":"x","a":"a\"b","x":null,"b":1.5,"c":true}`) {
		t.Fatal("not read")
	}
	for i, want := range []value{text(`a"b`), float(1.5), boolean(true), text("x")} {
		if got[i] != want {
			t.Errorf("%s is %v, want %v", names[i], got[i], want)
		}
	}
}

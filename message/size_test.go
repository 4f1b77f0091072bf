package message

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"lemma/cache"

	"github.com/google/uuid"
)

// largest has texts that fill the limits of the source, each by one kind of unit.
func largest() map[string]string {
	texts := map[string]string{}
	for name, unit := range map[string]string{
		"plain text":              "<p>hello world</p>\n",
		"names":                   "{{ a }}",
		"names of two parts":      "{{ a.b }}",
		"names of many parts":     "{{ a" + strings.Repeat(".b", 20) + " }}",
		"parts by index":          "{{ a" + strings.Repeat("[0]", 20) + " }}",
		"names in names":          "{{ a[b[c[d]]] }}",
		"parentheses":             "{{ " + strings.Repeat("(", 60) + "a" + strings.Repeat(")", 60) + " }}",
		"filters":                 "{{ a.b | default: b.c.d }}",
		"filters in a row":        "{{ a" + strings.Repeat("|upcase", 20) + " }}",
		"assignments":             "{% assign a = b.c.d.e.f.g.h %}",
		"short assignments":       "{% assign a = b %}",
		"conditions":              "{% if a %}{% endif %}",
		"comparisons":             "{% if a.b.c == 'xxxx' %}y{% endif %}",
		"long conditions":         "{% if a" + strings.Repeat(" and a", 1240) + " %}{% endif %}",
		"conditions of literals":  "{% if a==1" + strings.Repeat(" and a==1", 620) + " %}{% endif %}",
		"loops":                   "{% for a in b.c %}{{ a.d }}{% endfor %}",
		"long lists of a cycle":   "{% for a in b %}{% cycle '1'" + strings.Repeat(",'1'", 1240) + " %}{% endfor %}",
		"long lists of a case":    "{% case a %}{% when 1" + strings.Repeat(",1", 1240) + " %}{% endcase %}",
		"many clauses of a case":  "{% case a %}" + strings.Repeat("{% when 1 %}x", 100) + "{% endcase %}",
		"many clauses of an if":   "{% if a %}" + strings.Repeat("{% elsif b %}x", 100) + "{% endif %}",
		"texts between the names": "{{ a }}" + strings.Repeat("x", 40),
	} {
		tags, words := 0, 0
		segments, _ := scan(unit)
		for _, m := range segments {
			if m.Source != "" && m.Source[0] == '{' {
				found, _ := split(m.Args)
				tags, words = tags+1, words+len(found)
			}
		}
		n := MaxSource / len(unit)
		for limit, each := range map[int]int{MaxTags: tags, MaxAllWords: words, MaxFilters: strings.Count(unit, "|")} {
			if each > 0 {
				n = min(n, limit/each)
			}
		}
		texts[name] = strings.Repeat(unit, n)
	}
	return texts
}

// No template takes long to compile. The engine needs quadratic time for the lists of
// cycle and when.
func TestCompilingIsBounded(t *testing.T) {
	for name, source := range largest() {
		begun := time.Now()
		if _, err := Compile(uuid.Nil, Content{Subject: "s", HTML: source, Text: source}); err != nil {
			t.Errorf("%s: %.200s", name, err)
		}
		took := time.Since(begun)
		if t.Logf("%s: %s", name, took); took > 15*time.Second {
			t.Errorf("%s takes %s to compile", name, took)
		}
	}
}

// Bytes is not less than what a compiled content takes, and the largest content fits the
// share of a workspace. The test is not parallel, since it measures the heap.
func TestBytes(t *testing.T) {
	heap := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	for name, source := range largest() {
		before := heap()
		c, err := Compile(uuid.Nil, Content{Subject: "s", HTML: source, Text: source})
		if err != nil {
			t.Errorf("%s: %.200s", name, err)
			continue
		}
		took := heap() - before
		t.Logf("%s: %.1f MB, estimated %.1f MB", name, took/(1<<20), float64(c.Bytes())/(1<<20))
		if float64(c.Bytes()) < 0.8*took || c.Bytes() > CacheShare-cache.EntryBytes {
			t.Errorf("%s takes %.0f bytes, estimated %d", name, took, c.Bytes())
		}
		runtime.KeepAlive(c)
	}
}

// Headers count with their names and values, also those without Liquid.
func TestBytesOfHeaders(t *testing.T) {
	c, err := Compile(uuid.Nil, Content{Subject: "s", Text: "t"})
	if err != nil {
		t.Fatal(err)
	}
	headers, size := map[string]string{}, 0
	for i := range 50 {
		name, value := fmt.Sprintf("X-Header-%d", i), strings.Repeat("x", 890)
		headers[name], size = value, size+len(name)+len(value)
	}
	with, err := c.WithHeaders(headers)
	if err != nil {
		t.Fatal(err)
	}
	if more := with.Bytes() - c.Bytes(); more < size {
		t.Errorf("%d bytes of headers count as %d", size, more)
	}
}

func TestTheWordsOfATextAreBounded(t *testing.T) {
	t.Parallel()
	unit := "{{ a" + strings.Repeat(".b", 20) + " }}"
	most := strings.Repeat(unit, MaxAllWords/21)
	for _, c := range []Content{{Subject: "s", HTML: most}, {Subject: "s", Text: most}} {
		if _, err := Check(uuid.Nil, c); err != nil {
			t.Errorf("%.200s", err)
		}
	}
	_, err := Check(uuid.Nil, Content{Subject: "s", Text: most + unit})
	if err == nil || !strings.Contains(err.Error(), "words between braces") {
		t.Errorf("it is accepted, or refused for another reason: %v", err)
	}
}

// The size of an object is the number of its members, as `object.size` is.
func TestSizesOfValues(t *testing.T) {
	t.Parallel()
	c, err := Compile(uuid.Nil, Content{Subject: "s",
		Text: "{{ o | size }} {{ o.size }} {{ l | size }} {{ t | size }} {{ n | size }} {{ e | size }} {{ x | size }}"})
	if err != nil {
		t.Fatal(err)
	}
	made, err := c.Render(`{"o":{"a":1,"b":2,"c":3},"l":[1,2],"t":"äöü!","n":1234.5,"e":{},"x":null}`)
	if err != nil || made.Text != "3 3 2 4 6 0 0" {
		t.Errorf("%q, %v", made.Text, err)
	}
}

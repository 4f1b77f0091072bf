package message

import (
	"errors"
	"os"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"lemma"

	"github.com/google/uuid"
)

// The tests run in an unusual zone, so that a result that depends
// on the zone of the machine fails.
func TestMain(m *testing.M) {
	time.Local = time.FixedZone("ODD", 5*3600+45*60)
	os.Exit(m.Run())
}

func compiled(t testing.TB, c Content) *Compiled {
	t.Helper()
	made, err := Compile(uuid.Nil, c)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// fault renders c with payload and returns the error.
func fault(t *testing.T, c Content, payload string) string {
	t.Helper()
	got, err := compiled(t, c).Render(payload)
	if err == nil {
		t.Fatalf("rendered %.200q, want an error", got)
	}
	var refused *lemma.Error
	if !errors.As(err, &refused) || refused.Code != "template_error" || refused.Kind != lemma.Invalid {
		t.Fatalf("%v is not a template error", err)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the error quotes the data: %v", err)
	}
	return refused.Fields[0].Pointer + " " + refused.Fields[0].Detail
}

func TestDataThatCannotBeRendered(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		content Content
		payload string
		want    string
	}{
		"a line break in the subject": {Content{Subject: "{{ a }}", Text: "t"}, `{"a":"secret\nBcc: x@example.com"}`,
			"/subject the rendered subject contains a line break"},
		"a carriage return in it": {Content{Subject: "{{ a }}", Text: "t"}, `{"a":"secret\rx"}`,
			"/subject the rendered subject contains a line break"},
		"a NUL in the subject": {Content{Subject: "{{ a }}", Text: "t"}, `{"a":"secret\u0000"}`,
			"/subject the rendered text contains a NUL"},
		"a NUL in the HTML": {Content{Subject: "s", HTML: "{{ a }}"}, `{"a":"secret\u0000"}`, "/html the rendered text contains a NUL"},
		"an empty subject":  {Content{Subject: "{{ a }}", Text: "t"}, `{}`, "/subject the rendered subject is empty"},
		"a subject that is too long": {Content{Subject: "{{ a }}{{ a }}", Text: "t"},
			`{"a":"` + strings.Repeat("x", MaxSubject-1) + `"}`, "/subject the rendered text is longer"},
		"data that is no object":     {Content{Subject: "s", Text: "t"}, `[1]`, " the data is not a JSON object"},
		"data that is null":          {Content{Subject: "s", Text: "t"}, `null`, " the data is not a JSON object"},
		"data with something behind": {Content{Subject: "s", Text: "t"}, `{} {}`, " the data is not a JSON object"},
		"too much data": {Content{Subject: "s", Text: "t"}, `{"a":"` + strings.Repeat("x", MaxPayload) + `"}`,
			" the data has more than"},
		"a list that is too long": {Content{Subject: "s", HTML: "{{ a | size }}"}, `{"a":[` + strings.Repeat("1,", MaxArray) + `1]}`,
			" a list in the data has more than"},
		"a part that is missing": {Content{Subject: "s", HTML: "\n{{ a.b }}"}, `{"a":{"secret":1}}`, "/html a.b is missing"},
		"a division by zero": {Content{Subject: "s", HTML: "{{ a | divided_by: 0 }}"}, `{"a":1}`,
			"/html divided_by: a number cannot be divided by zero"},
		"a number that is a text": {Content{Subject: "s", HTML: "{{ a | abs }}"}, `{"a":"secret"}`, "/html "},
		"an invalid date": {Content{Subject: "s", HTML: "{{ a | date: '%Y' }}"}, `{"a":"secret"}`,
			"/html date: the value must be a date"},
		"the clock in the data": {Content{Subject: "s", HTML: "{{ a | date: '%Y' }}"}, `{"a":"now"}`,
			`/html date: "now" is not available`},
		"a date a page wide": {Content{Subject: "s", HTML: "{{ a | date: '%100000Y' }}"}, `{"a":"2026-01-02"}`,
			"/html date: the widths of the date format"},
		"a panic in the engine": {Content{Subject: "s", HTML: "{{ a | slice: 0, -1 }}"}, `{"a":"secret"}`,
			"/html the engine failed"},
		"an object in random order": {Content{Subject: "s", HTML: "{{ a | join: ',' }}"}, `{"a":{"x":1,"y":2}}`,
			"/html join: the value must be a list"},
		"objects compared each by each": {Content{Subject: "s", HTML: "{{ a | uniq | size }}"}, `{"a":[{"x":1}]}`,
			"/html uniq: the elements must be"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			if got := fault(t, test.content, test.payload); !strings.HasPrefix(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// Without limits each of these would run for long or use much memory.
func TestTemplatesThatAreTooMuch(t *testing.T) {
	t.Parallel()
	list := `{"a":[` + strings.Repeat("1,", MaxArray-1) + `1],"s":"` + strings.Repeat("x", 1000) + `","l":"` +
		strings.Repeat("A-", MaxString/2) + `"}`
	double := func(step string) string {
		return `{% assign x = s %}` + strings.Repeat("{% assign x = x "+step+" %}", 40) + "{{ x }}"
	}
	for what, test := range map[string]struct{ html, want string }{
		"a million iterations without output": {"{% for x in a %}{% for y in a %}{% endfor %}{% endfor %}", "the loops have more than"},
		"a million iterations that assign": {"{% for x in a %}{% for y in a %}{% assign z = y | plus: x %}{% endfor %}{% endfor %}",
			"the loops have more than"},
		"loop after loop":                         {strings.Repeat("{% for x in a %}{% endfor %}", 60), "the loops have more than"},
		"a text appended to itself":               {double("| append: x"), "append: a text has more than"},
		"a text put before itself":                {double("| prepend: x"), "prepend: a text has more than"},
		"each character replaced by the text":     {double("| replace: 'x', x"), "replace: a text has more than"},
		"a text between all characters":           {double("| replace: '', x"), "replace: a text has more than"},
		"the last character replaced by the text": {double("| replace_last: 'x', x"), "replace_last: a text has more than"},
		"a list joined by long texts":             {"{{ a | join: s }}", "join: a text has more than"},
		"a list put behind itself":                {"{% assign x = a | concat: a %}{{ x | size }}", "concat: a list has more than"},
		"a text split into characters": {"{% assign x = s | append: s %}{{ x | split: '' | size }}",
			"split: a list has more than"},
		"filter upon filter": {"{{ l" + strings.Repeat(" | handleize", 990) + " }}",
			"handleize: the filters of this text cost more than"},
		"filters that a member needs": {"{{ (l" + strings.Repeat(" | handleize", 990) + ").x }}",
			"handleize: the filters of this text cost more than"},
		"filters in every iteration": {"{% for x in a %}{% assign y = l | strip | strip %}{% endfor %}",
			"strip: the filters of this text cost more than"},
		"lists in every iteration": {"{% for x in a %}{% for y in a %}{% assign z = a | reverse %}{% endfor %}{% endfor %}",
			"reverse: the filters of this text cost more than"},
		"a text longer than a mail": {"{% for x in a %}{{ s }}{{ s }}{% endfor %}", "the rendered text is longer than"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			got := fault(t, Content{Subject: "s", HTML: test.html, Text: "t"}, list)
			if !strings.HasPrefix(got, "/html "+test.want) && got != "/html "+errSlow.Error() {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if took := time.Since(start); took > 30*MaxTime {
				t.Errorf("it took %s", took)
			}
		})
	}
}

func TestWhatTakesTooLongIsStopped(t *testing.T) {
	t.Parallel()
	m := &meter{deadline: time.Now().Add(-time.Second)}
	p := compiled(t, Content{Subject: "s", HTML: "{% for x in a %}{% endfor %}", Text: "t"}).parts[1]
	bound := map[string]any{"a": []any{1}, "x": nil, "forloop": nil, meterName: m}
	if _, err := p.within(m, bound); err != errSlow {
		t.Errorf("a loop past its time: %v, want %v", err, errSlow)
	}
	p = compiled(t, Content{Subject: "s", HTML: "{% assign x = a | size %}", Text: "t"}).parts[1]
	if _, err := p.within(m, bound); err != errSlow {
		t.Errorf("a filter past its time: %v, want %v", err, errSlow)
	}
	w := &boundedWriter{limit: 10, meter: m}
	if _, err := w.Write([]byte("x")); err != errSlow {
		t.Errorf("output past its time: %v, want %v", err, errSlow)
	}
}

// Time in which the thread does not run is no time of the rendering, within a bound: a machine
// that does other work changes no outcome.
func TestWaitingIsNoTimeOfARendering(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now := time.Now()
	for name, c := range map[string]struct {
		meter meter
		want  error
	}{
		"it waited":                  {meter{cpu: threadTime(), deadline: now.Add(-time.Hour), end: now.Add(time.Hour)}, nil},
		"it waited for too long":     {meter{cpu: threadTime(), deadline: now.Add(-time.Hour), end: now.Add(-time.Second)}, errSlow},
		"it used its processor time": {meter{cpu: threadTime() - MaxTime, deadline: now.Add(-time.Hour), end: now.Add(time.Hour)}, errSlow},
	} {
		if err := c.meter.check(); err != c.want {
			t.Errorf("%s: %v", name, err)
		}
		if c.want == nil && (c.meter.deadline.Before(now) || c.meter.deadline.After(now.Add(2*MaxTime))) {
			t.Errorf("%s: the next check is at %v", name, c.meter.deadline)
		}
	}
	var m meter
	m.within = time.Second
	m.begin()
	before := m.cpu
	for time.Since(now) < 100*time.Millisecond { // it uses the processor
	}
	if used := threadTime() - before; used <= 0 || used > time.Second {
		t.Errorf("100 ms of work took %v of the thread", used)
	}
}

// Data is never read as a template.
func TestDataIsNeverRendered(t *testing.T) {
	t.Parallel()
	c := compiled(t, Content{
		Subject: "{{ a }}",
		HTML:    "{% assign b = a | append: a %}{{ b }}{% for c in l %}{{ c }}{% endfor %}",
		Text:    "{{ a | default: a | strip }}",
	})
	got, err := c.Render(`{"a":"{{ 7 | times: 7 }}{% if a %}x{% endif %}","l":["{{ a }}"]}`)
	if err != nil {
		t.Fatal(err)
	}
	if all := got.Subject + got.HTML + got.Text; strings.Contains(all, "49") || strings.Count(all, "{{ 7 | times: 7 }}") != 4 ||
		!strings.Contains(all, "{{ a }}") {
		t.Errorf("rendered %q", got)
	}
}

// The order of a map varies, but the rendering must not.
func TestRenderingIsDeterministic(t *testing.T) {
	t.Parallel()
	c := compiled(t, Content{Subject: "s", Text: "t",
		HTML: "{% for p in o %}{{ p[0] }}={{ p[1] }};{% endfor %}{{ o }}{{ o | json }}{{ l | map: 'x' | join }}{{ d | date: '%c %Z' }}"})
	payload := `{"o":{"e":1,"d":2,"c":3,"b":4,"a":5,"f":6},"l":[{"x":1},{"x":2}],"d":"2026-03-29T01:30:00+01:00"}`
	first, err := c.Render(payload)
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if again, err := c.Render(payload); err != nil || !reflect.DeepEqual(again, first) {
			t.Fatalf("first %q, then %q, %v", first, again, err)
		}
	}
}

func TestRenderIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	c := compiled(t, Content{Subject: "{{ a }}", HTML: "{% for x in l %}{{ x }}{{ a }}{% endfor %}", Text: "{{ a | upcase }}"})
	var wait sync.WaitGroup
	for _, a := range []string{"anna", "bert", "cora", "dora"} {
		wait.Go(func() {
			want := Content{Subject: a, HTML: "1" + a + "2" + a, Text: strings.ToUpper(a)}
			for range 200 {
				if got, err := c.Render(`{"a":"` + a + `","l":[1,2]}`); err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("got %v, %v", got, err)
					return
				}
			}
		})
	}
	wait.Wait()
}

// A limit on the result is too late for a filter that multiplies.
func TestReplaceIsBoundedBeforeItRuns(t *testing.T) {
	t.Parallel()
	half := strings.Repeat("x", MaxString/2-1)
	args := []reflect.Value{reflect.ValueOf(half), reflect.ValueOf("x"), reflect.ValueOf(half)}
	if err := checkInput("replace", nil, args); err != errLong {
		t.Errorf("a gigabyte was let through: %v", err)
	}
}

// Check refuses these tags, and the engine does not have them.
func TestTheEngineReadsNoFiles(t *testing.T) {
	t.Parallel()
	for _, p := range []part{subjectPart, htmlPart, textPart} {
		for _, source := range []string{`{% include "x" %}`, `{% render "x" %}`} {
			if _, err := p.compile(source); err == nil {
				t.Errorf("%s: the engine took %s", p.pointer, source)
			}
		}
	}
}

func TestWhatIsMissingIsNil(t *testing.T) {
	t.Parallel()
	got, err := compiled(t,
		Content{Subject: "Hi {{ a | default: 'friend' }}", HTML: "{% if b %}x{% else %}y{% endif %}{% for c in d %}{% endfor %}{{ c }}",
			Text: "t{% assign x = '' %}{% if b %}{% assign x = 1 %}{% endif %}{{ x }}"}).Render("{}")
	if want := (Content{Subject: "Hi friend", HTML: "y", Text: "t"}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
}

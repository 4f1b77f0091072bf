package graph

import (
	"runtime"
	"strings"
	"testing"
	"time"
)

// The contents of lists and the repetitions of a pattern count as well.
func TestACostlyConditionIsStopped(t *testing.T) {
	t.Parallel()
	ones := "[" + strings.Repeat("1,", 6000) + "1]"
	vars := Vars{Now: noon, Trigger: object(t, `{"name": "x", "id": "e", "at": "2026-11-21T09:00:00Z", "properties": {
		"a": [`+ones+`], "b": [`+ones+`], "c": {"x": `+ones+`}, "d": {"x": `+ones+`}, "many": `+ones+`,
		"text": "`+strings.Repeat("a", 30_000)+`", "digits": "0.`+strings.Repeat("1", 15_000)+`",
		"duration": "`+strings.Repeat("1h", 7_000)+`", "zone": "Europe/Berlin", "starts": [2,`+ones[1:]+`,
		"long": "`+strings.Repeat("ä", 500_000)+`"}}`)}
	repeated := func(of string) string { return "[" + strings.Repeat(of+", ", 50) + of + "]" }
	for _, expression := range []string{
		`p.many.exists(x, p.a != p.b)`,
		`p.many.exists(x, !(p.a == p.b))`,
		`p.many.exists(x, p.c != p.d)`,
		`p.many.exists(x, !(p.a[0] in p.b))`,
		`p.many.exists(x, "x" in p.many)`,
		`p.many.exists(x, optional.of(p.a) != optional.of(p.b))`,
		`p.many.map(x, p.a) != p.many.map(x, p.b)`,
		repeated("p.a") + " != " + repeated("p.b"),
		`p.many.exists(x, p.text.matches("(a?){100}b"))`,
		`matches(p.text, "(a?){200}b")`,
		`p.many.all(x, p.a == p.b || true)`,
		`p.many.exists(x, duration(p.duration) == duration("1s"))`,
		`p.many.exists(x, double(p.digits) == 77.0)`,
		`p.many.exists(x, size(p.text) == 1)`,
		`p.many.exists(x, bytes(p.text) == b"x")`,
		`p.many.map(x, p.text + p.digits).size() == 3`,
		`p.many.exists(x, p.long == "")`, // of two texts CEL's price is that of the shorter one, after it has measured both
		`p.many.all(x, p.long > "")`,
		`p.many.all(x, optional.of(p.long) != optional.of(""))`,
		`p.many.exists(x, p.long.startsWith("x"))`,
		`p.many.exists(x, p.long in p.c)`,
		`p.many.all(x, p.a != [2])`, // lists of different lengths are not read
		`p.many.all(x, p.c != {"q": 1})`,
		`p.many.all(x, p.a + [1] != [1])`,
		`p.many.all(x, optional.of(p.a) != optional.of([2]))`,
		`p.many.all(x, p.a != p.starts)`,
		`p.many.exists(x, now.getHours(p.zone) == 77)`,
		`p.many.exists(x, now.getHours("Europe/Berlin") == 77)`,
	} {
		c, _, faults := newCompiler(nil).compile(enrolling, "", strings.ReplaceAll(expression, "p.", "trigger.properties."))
		if len(faults) > 0 {
			t.Errorf("%s: %v", expression, faults)
			continue
		}
		fastest := time.Hour
		for range 5 { // the machine may pause in one of them
			start := time.Now()
			if _, err := c.Eval(vars); err == nil || err.Error() != errCost.Error() {
				t.Errorf("%.80s: %v", expression, err)
			}
			fastest = min(fastest, time.Since(start))
		}
		t.Logf("%.60s %s", expression, fastest)
		if fastest > 300*time.Millisecond {
			t.Errorf("%.80s took %s", expression, fastest)
		}
	}
}

// One look at a long text costs little.
func TestConditionsOnALongText(t *testing.T) {
	t.Parallel()
	vars := Vars{Trigger: object(t, `{"name": "x"}`), Profile: map[string]any{"bio": strings.Repeat("ä", 500_000)}}
	for _, expression := range []string{`profile.bio != ""`, `profile.bio > "z"`, `profile.bio.startsWith("ä")`, `!profile.bio.endsWith("x")`,
		`!(profile.bio in {"a": 1})`, `optional.of(profile.bio) != optional.none()`} {
		c, _, faults := newCompiler([]Column{{Name: "bio", Type: "text"}}).compile(enrolling, "", expression)
		if len(faults) > 0 {
			t.Errorf("%s: %v", expression, faults)
			continue
		}
		if is, err := c.Eval(vars); !is || err != nil {
			t.Errorf("%s: %v, %v", expression, is, err)
		}
	}
}

// What a definition keeps as written takes about as much memory as its text. The test runs alone.
func TestLayoutsTakeLittleMemory(t *testing.T) {
	small := strings.TrimSuffix(strings.Repeat(`{"":{"":{"":0}}},`, 4_000), ",")
	text := []byte(`{"triggers":[],"recurrence":{"policy":"once"},"start":"a","layout":{"x":[` + small + `]},"nodes":{
		"a":{"type":"webhook","layout":{"y":[` + small + `]},"data":{"z":[` + small + `]}},
		"b":{"type":"exit","layout":{"x":"` + strings.Repeat("<", 50_000) + `"}}}}`)
	before := heap()
	kept := make([]*Definition, 10)
	for i := range kept {
		var err error
		if kept[i], err = Read(text); err != nil {
			t.Fatal(err)
		}
	}
	if used := heap() - before; used > uint64(2*len(kept)*len(text)) {
		t.Errorf("%d definitions of %d bytes take %d", len(kept), len(text), used)
	}
	runtime.KeepAlive(kept)
}

// patterned is a definition of n cases with a pattern each.
func patterned(n int, pattern string) []byte {
	branch := `{"if":"trigger.name.matches(r'` + strings.ReplaceAll(pattern, `\`, `\\`) + `')","next":"end"}`
	return []byte(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"at","nodes":{"at":{"type":"branch",
		"cases":[` + strings.TrimSuffix(strings.Repeat(branch+",", n), ",") + `],"else":"end"},"end":{"type":"exit"}}}`)
}

// The patterns of a definition are bounded: they take some thousand times as much memory as their text.
func TestPatternsOfADefinitionAreBounded(t *testing.T) {
	t.Parallel()
	for pattern, most := range map[string]int{`^a{900}$`: 16, `a{900}`: 17, `^\pL{1,60}$`: 2, `\pL{900}`: 17, `^(\pL|\pN){50}$`: 1} {
		if _, err := Compile(patterned(most, pattern), ourFlow, Facts{}); err != nil {
			t.Errorf("%d times %s: %v", most, pattern, err)
		}
		_, err := Compile(patterned(20, pattern), ourFlow, Facts{})
		if err == nil || strings.Count(err.Error(), "2 MiB") != 1 {
			t.Errorf("20 times %s: %v", pattern, err)
		}
		if _, err := Compile(patterned(20, pattern), ourFlow, Facts{Published: true}); err != nil {
			t.Errorf("%s in one that was published: %v", pattern, err)
		}
	}
	if _, err := Compile(patterned(1, `^\pL{900}$`), ourFlow, Facts{}); err == nil {
		t.Error("a pattern of 7 MB is accepted")
	}
}

// The memory of patterns is estimated. The test runs alone.
func TestMemoryOfPatterns(t *testing.T) {
	for _, pattern := range []string{`^a{900}$`, `^\pL{60}$`, `^[^\pL]{60}$`, `^[\pL\pN\pM\pS\pP]{50}$`, `^(\pL|\pN){50}$`,
		`^[a-zA-Z0-9_]{60}$`, `(?i)k{900}`, `^(a|b){300}$`, `\pL{900}`, `^(\pL|\pN|\pM|\pS|\pP|\pZ){10}$`, `^(?:\pL*\pN)*$`, `^((((\pL))))$`} {
		all := make([]*Graph, 10)
		before := heap()
		for i := range all {
			var err error
			if all[i], err = Compile(patterned(4, pattern), ourFlow, Facts{Published: true}); err != nil {
				t.Fatal(err)
			}
		}
		used, counted := int(heap()-before), len(all)*all[0].PatternBytes()
		t.Logf("%s: %d bytes are counted, %d used", pattern, counted, used)
		if used > counted*3/2+len(all)*30_000 {
			t.Errorf("%s: %d bytes are counted, %d used", pattern, counted, used)
		}
		runtime.KeepAlive(all)
	}
}

// heap is the memory in use.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

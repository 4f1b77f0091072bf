package graph

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/abtest"
)

var ourFlow = Flow{
	WorkspaceID: uuid.MustParse("01931f00-0000-7000-8000-000000000001"),
	FlowID:      uuid.MustParse("01931f00-0000-7000-8000-000000000002"),
}

// welcome has every type of node, and no fault.
const welcome = `{
  "audience_id": "aud_1",
  "triggers": [
    {"type": "event", "event": "signed_up", "condition": "trigger.properties.plan == 'pro' && profile.vip"},
    {"type": "audience", "every": "PT1H"}
  ],
  "recurrence": {"policy": "daily", "zone": "Europe/Kyiv"},
  "exit_on": [{"event": "bought", "condition": "event.properties.total > 10", "goal": true}],
  "exit_when_not_in_audience": true,
  "start": "hello",
  "nodes": {
    "hello": {"type": "send",
      "channel": "email", "provider_id": "prv_1", "template_id": "tpl_1", "from": {"email": "a@example.com"}, "expires_after": "P1D",
      "next": "pause"},
    "pause": {"type": "delay", "for": "P3D", "next": "morning"},
    "morning": {"type": "wait_until", "time": "09:00", "weekdays": ["mon", "tue"], "zone_column": "zone", "next": "birthday"},
    "birthday": {"type": "wait_until", "date_column": "born", "offset": "-P3D", "next": "opens"},
    "opens": {"type": "wait_for_event", "event": "opened", "condition": "event.at > trigger.at",
      "timeout": "P2D", "next": "ask", "on_timeout": "deal"},
    "ask": {"type": "branch", "cases": [{"if": "events.bought.times == 0 && profile.age > 18", "next": "deal"},
      {"sql": "select profile_key from people", "next": "done"}], "else": "done"},
    "deal": {"type": "split", "arms": [{"name": "a", "weight": 1, "next": "notify"}, {"weight": 3, "next": "done"}]},
    "notify": {"type": "webhook", "endpoint_id": "whe_1", "columns": ["city"], "data": {"n": 1},
      "on_status": {"410": "done", "4xx": "sorry"}, "on_error": "sorry", "next": "done"},
    "sorry": {"type": "exit"},
    "done": {"type": "exit", "goal": true}
  }
}`

func compileText(t testing.TB, text string) *Graph {
	t.Helper()
	g, err := Compile([]byte(text), ourFlow, Facts{Columns: shopColumns})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func faultsIn(t testing.TB, err error) []lemma.Field {
	t.Helper()
	var e *lemma.Error
	if !errors.As(err, &e) || e.Kind != lemma.Invalid || len(e.Fields) == 0 {
		t.Fatalf("not an invalid definition with fields: %v", err)
	}
	return e.Fields
}

// short is a fault as a test writes it: "/nodes/a/next dead_end".
func short(faults []lemma.Field) []string {
	var all []string
	for _, f := range faults {
		all = append(all, f.Pointer+" "+f.Code)
	}
	return all
}

func TestGraph(t *testing.T) {
	t.Parallel()
	g := compileText(t, welcome)
	want := []string{"hello", "pause", "morning", "birthday", "opens", "ask", "deal", "notify", "done", "sorry"}
	if d := cmp.Diff(want, g.Order()); d != "" {
		t.Error("order:", d)
	}
	if d := cmp.Diff([]string{"age", "born", "city", "vip", "zone"}, g.Columns()); d != "" {
		t.Error("columns:", d)
	}
	if d := cmp.Diff(map[string][]string{"signed_up": {"trigger"}, "bought": {"exit"}, "opened": {"wait"}}, g.Listens()); d != "" {
		t.Error("listens:", d)
	}
	if g.Start() != "hello" || g.AllColumns() || g.Triggers()[1].Every != time.Hour || g.Triggers()[1].Condition != nil {
		t.Error("start, columns, profile or triggers are wrong")
	}
	if uses := g.Triggers()[0].Condition.Uses(); !uses.Profile || !uses.Trigger {
		t.Errorf("uses: %+v", uses)
	}
	if g.ExitOn()[0].Condition == nil || !g.ExitOn()[0].Goal {
		t.Error("the exit condition is wrong")
	}
	ask, _ := g.Node("ask")
	if d := cmp.Diff([]string{"deal", "done"}, ask.Successors); d != "" || ask.Cases[0].Cond == nil || ask.Cases[1].Cond != nil {
		t.Error("ask:", d)
	}
	opens, _ := g.Node("opens")
	hello, _ := g.Node("hello")
	birthday, _ := g.Node("birthday")
	pause, _ := g.Node("pause")
	if opens.Timeout != 48*time.Hour || hello.ExpiresAfter != 24*time.Hour || birthday.Offset != -72*time.Hour || pause.For != 72*time.Hour {
		t.Error("the durations are wrong")
	}
	if _, ok := g.Node("missing"); ok {
		t.Error("a node that does not exist was found")
	}
}

func TestWithoutFacts(t *testing.T) {
	t.Parallel()
	text := strings.Replace(welcome, "profile.age > 18", "profile.whatever > 18", 1)
	if _, err := Compile([]byte(text), ourFlow, Facts{}); err != nil {
		t.Error(err)
	}
	faults := short(faultsIn(t, second(Compile([]byte(text), ourFlow, Facts{Columns: shopColumns}))))
	if d := cmp.Diff([]string{"/nodes/ask/cases/0/if unknown_column"}, faults); d != "" {
		t.Error(d)
	}
}

// An audience that changes after publishing breaks no flow, and what still fits is read in
// its type.
func TestPublishedBeforeTheAudienceChanged(t *testing.T) {
	t.Parallel()
	text := strings.Replace(welcome, "profile.age > 18", "profile.seen_at < now", 1)
	fewer := []Column{{"seen_at", "timestamp"}, {"vip", "text"}, {"born", "integer"}}
	if _, err := Compile([]byte(text), ourFlow, Facts{Columns: fewer}); err == nil {
		t.Error("a draft that does not fit was accepted")
	}
	g, err := Compile([]byte(text), ourFlow, Facts{Columns: fewer, Published: true})
	if err != nil {
		t.Fatal(err)
	}
	ask, _ := g.Node("ask")
	if yes, err := ask.Cases[0].Cond.Eval(shopVars(t)); !yes || err != nil {
		t.Error(yes, err)
	}
	if yes, err := g.Triggers()[0].Condition.Eval(shopVars(t)); !yes || err != nil {
		t.Error("vip was converted:", yes, err)
	}
}

// A published version is valid by the rules of its time.
func TestPublishedBeforeARuleOfTheEnvelope(t *testing.T) {
	t.Parallel()
	text := strings.Replace(welcome, `"channel"`, `"headers": {"Bcc": "b@example.com"}, "channel"`, 1)
	if _, err := Compile([]byte(text), ourFlow, Facts{Columns: shopColumns, Published: true}); err != nil {
		t.Error(err)
	}
}

func TestOnMissingIsAPath(t *testing.T) {
	t.Parallel()
	text := strings.Replace(welcome, `"date_column": "born"`, `"date_column": "born", "on_missing": "unborn"`, 1)
	g := compileText(t, strings.Replace(text, `"sorry": {"type": "exit"}`, `"sorry": {"type": "exit"}, "unborn": {"type": "exit"}`, 1))
	birthday, _ := g.Node("birthday")
	if d := cmp.Diff([]string{"opens", "unborn"}, birthday.Successors); d != "" {
		t.Error(d)
	}
}

func second(_ any, err error) error { return err }

// Every acyclic graph compiles, its order is topological, and every path ends on an exit.
func TestRandomGraphs(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 4))
		text := randomGraph(rng)
		g, err := Compile([]byte(text), ourFlow, Facts{})
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text)
		}
		place := map[string]int{}
		for i, id := range g.Order() {
			place[id] = i
		}
		if len(place) != len(g.Definition().Nodes) || g.Order()[0] != g.Start() {
			t.Fatalf("seed %d: the order misses nodes, or does not begin at the start", seed)
		}
		for id := range place {
			n, _ := g.Node(id)
			for _, to := range n.Successors {
				if place[to] <= place[id] {
					t.Fatalf("seed %d: %s comes after %s", seed, id, to)
				}
			}
		}
		at := g.Start()
		for range len(place) {
			n, _ := g.Node(at)
			if len(n.Successors) == 0 {
				break
			}
			at = n.Successors[rng.IntN(len(n.Successors))]
		}
		if n, _ := g.Node(at); n.Type != Exit {
			t.Fatalf("seed %d: the path ends on %s", seed, at)
		}
	}
}

// randomGraph shuffles names, so that the order of ids means nothing.
func randomGraph(rng *rand.Rand) string {
	n := 1 + rng.IntN(30)
	names := rng.Perm(n)
	name := func(i int) string { return fmt.Sprintf("n%d", names[i]) }
	nodes := map[string]any{name(n - 1): map[string]any{"type": "exit"}}
	for i := range n - 1 {
		later := func() string { return name(i + 1 + rng.IntN(n-i-1)) }
		next := name(i + 1) // so that all are reached
		switch rng.IntN(3) {
		case 0:
			nodes[name(i)] = map[string]any{"type": "delay", "for": "PT1H", "next": next}
		case 1:
			nodes[name(i)] = map[string]any{"type": "split", "arms": []any{
				map[string]any{"weight": 1, "next": later()}, map[string]any{"weight": 2, "next": next}}}
		case 2:
			nodes[name(i)] = map[string]any{"type": "wait_for_event", "event": "x", "timeout": "P1D", "next": later(), "on_timeout": next}
		}
	}
	text, _ := json.Marshal(map[string]any{"recurrence": map[string]any{"policy": "once"}, "start": name(0), "nodes": nodes})
	return string(text)
}

func TestManyAtATime(t *testing.T) {
	t.Parallel()
	g := compileText(t, welcome)
	vars := shopVars(t)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 200 {
				yes, err := g.Triggers()[0].Condition.Eval(vars)
				ask, _ := g.Node("ask")
				also, errAlso := ask.Cases[0].Cond.Eval(vars)
				if !yes || !also || err != nil || errAlso != nil {
					t.Error(yes, also, err, errAlso)
				}
			}
		})
	}
	group.Wait()
}

func TestAfterWebhook(t *testing.T) {
	t.Parallel()
	notify, _ := compileText(t, welcome).Node("notify")
	for status, want := range map[int]string{200: "done", 204: "done", 299: "done", 410: "done", 404: "sorry", 500: "sorry", 301: "sorry",
		0: "sorry"} {
		if got := notify.AfterWebhook(status); got != want {
			t.Errorf("%d: got %s, want %s", status, got, want)
		}
	}
	bare := &Compiled{Node: Node{Next: "on", OnStatus: map[string]string{"2xx": "yes", "202": "later"}}}
	for status, want := range map[int]string{200: "yes", 202: "later", 500: "on", 0: "on"} {
		if got := bare.AfterWebhook(status); got != want {
			t.Errorf("%d: got %s, want %s", status, got, want)
		}
	}
}

// Golden: a changed hash would assign all enrollments anew.
func TestArms(t *testing.T) {
	t.Parallel()
	c := &Compiled{arms: abtest.NewSplit("spring", 1, 1, 8)}
	var got []int
	for i := range 20 {
		got = append(got, c.Arm(fmt.Sprintf("profile-%d", i)))
	}
	golden := []int{2, 2, 2, 0, 2, 2, 2, 2, 2, 2, 2, 0, 2, 1, 2, 2, 2, 1, 0, 2}
	if d := cmp.Diff(golden, got); d != "" {
		t.Error(d)
	}
	counts := make([]int, 3)
	for i := range 100_000 {
		counts[c.Arm(fmt.Sprint(i))]++
	}
	for i, want := range []int{10_000, 10_000, 80_000} {
		if counts[i] < want-500 || counts[i] > want+500 {
			t.Errorf("arm %d got %d of 100,000, not about %d", i, counts[i], want)
		}
	}
	split, _ := compileText(t, welcome).Node("deal")
	if got := split.arms.Salt(); got != "flw_069hy00001r010000000000008/deal" {
		t.Errorf("default salt: %s", got)
	}
}

func TestDiff(t *testing.T) {
	t.Parallel()
	from, _ := Read([]byte(welcome))
	to, err := Read([]byte(strings.NewReplacer(
		`"for": "P3D"`, `"for": "P2D"`, `"sorry": {"type": "exit"}`, `"oops": {"type": "exit"}`, `, "goal": true`, ``,
		`["mon", "tue"]`, `["tue"]`, `, {"type": "audience", "every": "PT1H"}`, ``, `{"weight": 3`, `{"weight": 4`,
		`"triggers"`, `"overlap": "allow", "triggers"`).Replace(welcome)))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range Diff(from, to) {
		got = append(got, fmt.Sprintf("%s %s %s -> %s", d.Op, d.Pointer, d.From, d.To))
	}
	want := []string{
		`remove /exit_on/0/goal true -> `,
		`replace /nodes/deal/arms/1/weight 3 -> 4`,
		`remove /nodes/done/goal true -> `,
		`replace /nodes/morning/weekdays ["mon","tue"] -> ["tue"]`,
		`add /nodes/oops  -> {"type":"exit"}`,
		`replace /nodes/pause/for "P3D" -> "P2D"`,
		`remove /nodes/sorry {"type":"exit"} -> `,
		`add /overlap  -> "allow"`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if all := Diff(from, from); len(all) != 0 {
		t.Error("a definition differs from itself:", all)
	}
	if all := Diff(nil, to); len(all) == 0 {
		t.Error("a new definition has no differences")
	}
	empty, _ := Read([]byte(`{"triggers": []}`))
	none, _ := Read([]byte(`{}`))
	if all := Diff(empty, none); len(all) != 0 {
		t.Error("absent and empty triggers differ:", all)
	}
}

func TestDecodeKeepsNumbers(t *testing.T) {
	t.Parallel()
	d, err := Read([]byte(`{"nodes": {"a": {"data": {"id": 9007199254740993}}}}`))
	if err != nil || string(d.Nodes["a"].Data) != `{"id":9007199254740993}` {
		t.Errorf("%v %v", d, err)
	}
}

func FuzzCompile(f *testing.F) {
	f.Add([]byte(welcome))
	f.Add([]byte(`{"nodes": {"a": {"type": "branch", "cases": [{"if": "profile.a[?0].b.c(1)"}]}}}`))
	f.Add([]byte(`{"start": "a", "nodes": {"a": {"type": "wait_until", "next": "a", "weekdays": ["mon"]}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		g, err := Compile(raw, ourFlow, Facts{Columns: shopColumns})
		if err != nil {
			faultsIn(t, err)
			return
		}
		for _, id := range g.Order() {
			n, _ := g.Node(id)
			n.Arm("x")
			_, _ = n.Until(noon, map[string]any{"born": "2026-01-01"})
			for _, one := range n.Cases {
				if one.Cond != nil {
					_, _ = one.Cond.Eval(shopVars(t))
				}
			}
		}
	})
}

func FuzzCondition(f *testing.F) {
	for _, e := range []string{`profile.city == "x"`, `events["a"].last.b.exists(x, x > now)`,
		`profile[?"x"].orValue(1) < [1,2].map(y, y)[0]`} {
		f.Add(e)
	}
	vars := shopVars(f)
	compiler := newCompiler(shopColumns)
	f.Fuzz(func(_ *testing.T, expression string) {
		if c, _, faults := compiler.compile(everywhere, "", expression); len(faults) == 0 {
			_, _ = c.Eval(vars)
		}
	})
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		if _, err := Compile([]byte(welcome), ourFlow, Facts{Columns: shopColumns}); err != nil {
			b.Fatal(err)
		}
	}
}

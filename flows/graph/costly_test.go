package graph

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A document with nothing but faults is checked as quickly as another.
func TestCheckingIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector takes longer")
	}
	t.Parallel()
	fill := func(head string, unit func(i int) string, tail string) string {
		var b strings.Builder
		b.WriteString(head)
		for i := 0; ; i++ {
			one := unit(i)
			if b.Len()+len(one)+len(tail) >= MaxDefinition {
				break
			}
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(one)
		}
		return b.String() + tail
	}
	long := strings.Repeat
	rest := `"triggers": [], "recurrence": {"policy": "once"}, "start": "a"`
	for name, document := range map[string]string{
		"one long name and another": `{"start": "` + long("x", 120_000) + `", "nodes": {"` + long("y", 120_000) + `": {"type": "exit"}}}`,
		"nodes that lead to long names": fill(`{`+rest+`, "nodes": {`, func(i int) string {
			return fmt.Sprintf(`"%s%d": {"type": "delay", "for": "P1D", "next": "%s"}`, long("y", 500), i, long("x", 500))
		}, `}}`),
		"small nodes": fill(`{`+rest+`, "nodes": {`,
			func(i int) string { return fmt.Sprintf(`"n%d": {"type": "delay", "next": "m%d"}`, i, i) }, `}}`),
		"unknown fields": fill(`{`+rest+`, "nodes": {"a": {"type": "exit", `, func(i int) string { return fmt.Sprintf(`"f%d": 1`, i) },
			`}}}`),
		"wrong types":    fill(`{`+rest+`, "nodes": {`, func(i int) string { return fmt.Sprintf(`"n%d": 1`, i) }, `}}`),
		"empty nodes":    fill(`{`+rest+`, "nodes": {`, func(i int) string { return fmt.Sprintf(`"n%d": {}`, i) }, `}}`),
		"half of a node": fill(`{`+rest+`, "nodes": {`, func(i int) string { return fmt.Sprintf(`"n%d": {"x": 1}`, i) }, `}}`),
		"repeated names": fill(`{`+rest+`, "nodes": {"a": {"type": "exit"}}, "layout": {`, func(i int) string { return `"a": 1` }, `}}`),
		"repeated nodes": fill(`{`+rest+`, "nodes": {`, func(i int) string { return `"a": {}` }, `}}`),
		"triggers": fill(`{"recurrence": {"policy": "once"}, "start": "a", "nodes": {}, "triggers": [`,
			func(i int) string { return `{}` }, `]}`),
		"wrong triggers": fill(`{"recurrence": {"policy": "once"}, "start": "a", "nodes": {}, "triggers": [`,
			func(i int) string { return `1` }, `]}`),
		"exits": fill(`{`+rest+`, "nodes": {}, "exit_on": [`, func(i int) string { return `{}` }, `]}`),
		"names": fill(`{"triggers": [], "start": "a", "nodes": {}, "recurrence": {"policy": "fields", "fields": [`,
			func(i int) string { return fmt.Sprintf(`"%d"`, i) }, `]}}`),
		"a branch": fill(`{`+rest+`, "nodes": {"a": {"type": "branch", "cases": [`,
			func(i int) string { return fmt.Sprintf(`{"if": "a%d", "next": "b"}`, i) }, `]}}}`),
		"costly cases": fill(`{`+rest+`, "nodes": {`, func(i int) string {
			return fmt.Sprintf(`"n%d": {"type": "branch", "cases": [{"if": "%s", "next": "b"}]}`, i, long("trigger.x || ", 300)+"true")
		}, `}}`),
		"wrong chars": fill(`{`+rest+`, "nodes": {`, func(i int) string {
			return fmt.Sprintf(`"n%d": {"type": "branch", "cases": [{"if": "%s", "next": "b"}]}`, i, long("? ", 2000))
		}, `}}`),
		"many conditions": fill(`{`+rest+`, "nodes": {`, func(i int) string {
			return fmt.Sprintf(`"n%d": {"type": "branch", "cases": [{"if": "trigger.name == 'x'", "next": "b"}]}`, i)
		}, `}}`),
		"a chain": fill(`{`+rest+`, "nodes": {`, func(i int) string {
			return fmt.Sprintf(`"n%d": {"type": "delay", "for": "P1D", "next": "n%d"}`, i, i+1)
		}, `}}`),
		"long columns": fill(`{`+rest+`, "nodes": {`, func(i int) string {
			return fmt.Sprintf(`"n%d": {"type": "webhook", "columns": ["%s"], "next": "a"}`, i, long("c", 4000))
		}, `}}`),
	} {
		done := make(chan int, 1)
		start := time.Now()
		go func() {
			var facts Facts
			for i := range 500 {
				facts.Columns = append(facts.Columns, Column{Name: fmt.Sprintf("column_%d_%s", i, long("q", 40)), Type: "text"})
			}
			_, err := Compile([]byte(document), Flow{}, facts)
			n := 0
			if err != nil {
				n = len(err.Error())
			}
			done <- n
		}()
		select {
		case n := <-done:
			t.Logf("%-30s %8s %d", name, time.Since(start).Round(time.Millisecond), n)
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("%s took %s", name, took)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s takes longer than a minute", name)
		}
	}
}

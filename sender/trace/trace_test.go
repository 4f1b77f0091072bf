package trace

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A trace is bounded, and a secret is recognised before its text is cut.
func TestATraceIsBounded(t *testing.T) {
	t.Parallel()
	trace := New([]byte(`{"password":"` + strings.Repeat("p", 50) + `"}`))
	trace.SentBody(strings.Repeat("x", mostStepText-20)+strings.Repeat("p", 50), 7)
	for range mostSteps {
		trace.Received(PartBody, strings.Repeat("y", 1000))
	}
	steps, truncated := trace.Steps()
	total := 0
	for _, s := range steps {
		total += len(s.Text)
	}
	if !truncated || total > mostTraceText || len(steps) > mostSteps || strings.Contains(steps[0].Text, "pp") || steps[0].Bytes != 7 {
		t.Errorf("%d bytes in %d steps, truncated %v", total, len(steps), truncated)
	}
	var none *Trace
	none.Connected("a")
	none.Secret("b")
	if got := none.Redact("c"); got != "c" {
		t.Error(got)
	}
}

// The work for a trace is bounded, whatever a server sends: the sizes of texts count as they
// are before secrets are removed, and only so many secrets are added.
func TestTheWorkForATraceIsBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("p", 4000)
	trace := New([]byte(`{"password":"` + long + `"}`))
	for range mostSteps {
		trace.ReceivedBody(strings.Repeat(long+" ", 4), 16004)
	}
	if steps, truncated := trace.Steps(); len(steps) > 1+mostTraceText/16004 || !truncated {
		t.Errorf("%d steps of 16,004 bytes were searched", len(steps))
	}

	trace = New([]byte(`{"password":"` + long + `"}`))
	trace.ReceivedBody(strings.Repeat(long, 7)+strings.Repeat("x", 1000)+long[:3500]+strings.Repeat(long, 100), 1)
	if steps, truncated := trace.Steps(); strings.Contains(steps[0].Text, "p") || !truncated {
		t.Errorf("a part of a secret is shown: %.100s", steps[0].Text)
	}

	trace = New(nil)
	began := time.Now()
	for i := range 10_000 {
		trace.Secret(fmt.Sprintf("secret-%d", i))
	}
	trace.Received(PartBody, "secret-9999")
	steps, truncated := trace.Steps()
	if len(steps) != 0 || !truncated || trace.Redact("secret-9999") != "[redacted]" || trace.Redact("") != "" {
		t.Error("a secret that was not added is shown", steps)
	}
	trace = New(nil)
	many := make([]string, 5000)
	for i := range many {
		many[i] = fmt.Sprintf("secret-%d", i)
	}
	trace.Secret(`["` + strings.Join(many, `","`) + `"]`)
	trace.Received(PartBody, "x")
	if steps, _ := trace.Steps(); len(steps) != 0 {
		t.Error("more secrets are searched than mostForms")
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("10,000 secrets took %v", took)
	}
}

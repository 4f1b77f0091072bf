package intake_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lemma"
	"lemma/flows/admission"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
	"lemma/pgtest"
	"lemma/webhooks"
)

// If too many bulks of a client wait, further ones are refused and counted.
func TestBulksThatWaitAreRefused(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.HourAfter("go"))
	ctx, stop := context.WithCancel(bg)
	var waiting sync.WaitGroup
	for range 16 {
		ctx, waits := pgtest.Waits(ctx)
		waiting.Go(func() {
			if place, err := b.Bulks().Acquire(ctx, b.Workspace, 2); err == nil {
				<-ctx.Done()
				place.Leave()
			}
		})
		<-waits
	}
	bg, cancel := context.WithTimeout(bg, 20*time.Second) // for a bulk that waits after all
	defer cancel()
	if _, err := b.RecordAll(bg, b.Workspace,
		[]intake.Event{{ProfileKey: "c1", Name: "x"}, {ProfileKey: "c2", Name: "x"}}); !admission.IsOverloaded(err) {
		t.Error(err)
	}
	if _, err := b.EnrollAll(bg, b.Workspace, flow, []intake.Enrolling{{ProfileKey: "c1"}, {ProfileKey: "c2"}},
		false); !admission.IsOverloaded(err) {
		t.Error(err)
	}
	stop()
	waiting.Wait()
	if n := flowstest.Counted(b.Metrics.Events.WithLabelValues(admission.CodeOverloaded)); n != 2 {
		t.Errorf("%v events are counted", n)
	}
	if n := flowstest.Counted(b.Metrics.Triggers.WithLabelValues(admission.CodeOverloaded)); n != 2 {
		t.Errorf("%v triggers are counted", n)
	}
}

// If too many events wait, further ones are refused and counted.
func TestEventsThatWaitAreRefused(t *testing.T) {
	b := setup(t, 0)
	free := make(chan struct{})
	b.SetGather(func() { <-free })
	var waiting sync.WaitGroup
	var refused atomic.Int32
	for range 2_010 { // two are recorded, 2,000 wait
		waiting.Go(func() {
			_, err := b.Record(bg, b.Workspace, intake.Event{ProfileKey: "c1", Name: "x"})
			if admission.IsOverloaded(err) && strings.Contains(err.Error(), "try again") && refused.Add(1) == 8 {
				close(free)
			}
		})
	}
	waiting.Wait()
	if n := flowstest.Counted(b.Metrics.Events.WithLabelValues(admission.CodeOverloaded)); n != 8 || refused.Load() != 8 {
		t.Errorf("%d are refused, %v are counted", refused.Load(), n)
	}
}

// A trigger of a flow whose live version cannot be read is refused with that reason, and
// the event is still recorded.
func TestATriggerOfAVersionThatCannotBeRead(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.HourAfter("go"))
	b.Exec(`update flow_versions set definition = '{"no":1}' where flow_id = $1`, flow)
	b.Execution.Versions.Drop(flow, 1)
	if r := b.RecordEvent("c1", "go"); len(r.Results) != 1 || r.Results[0].Reason != enrollment.ConditionError {
		t.Errorf("%+v", r)
	}
}

// An event that might end an enrollment whose version cannot be read is recorded, and does
// not change the enrollment.
func TestAnEventForAVersionThatCannotBeRead(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.ForAnHour)
	b.RecordEvent("c1", "cart")
	b.Settle()
	b.Exec(`update flow_versions set definition = '{"no":1}' where flow_id = $1`, flow)
	b.Execution.Versions.Drop(flow, 1)
	if r := b.RecordEvent("c1", "bought"); r.Woken != 0 || r.Exited != 0 {
		t.Errorf("%+v", r)
	}
}

// A webhook message that exceeds the outbox's limit is not written, and the enrollment
// continues as after a message that was given up. The same holds for an answer that is no
// longer stored.
func TestMessagesThatCannotBeAnswered(t *testing.T) {
	b := setup(t, 1)
	hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer hook.Close()
	e, _, err := b.Deps.Webhooks.Create(bg, b.Workspace, webhooks.NewEndpoint{ID: lemma.NewID(), Name: "crm", URL: hook.URL})
	b.Must(err)
	definition := func(columns string) string {
		return `{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"per_event"},"start":"call","nodes":{
			"call":{"type":"webhook","endpoint_id":"` + lemma.FormatID(lemma.PrefixEndpoint, e.ID) + `"` + columns + `,"next":"done",
				"on_error":"lost"},
			"done":{"type":"exit"},"lost":{"type":"exit"}}}`
	}
	large := b.Live(definition(`,"columns":["name"]`))
	b.ExecDB(`update customers set name = $1`, strings.Repeat("\x01", webhooks.MaxBody/4)) // each is six bytes in JSON
	b.RecordEvent("c1", "go")
	b.Settle()
	b.WantTrace(b.Enrollment(large, "c1").ID, "enrolled@ checked@ skipped@call completed@lost")
	b.ExecDB(`update customers set name = 'N1'`)
	_, err = b.Archive(bg, b.Workspace, large, nil)
	b.Must(err)
	flow := b.Live(definition(""))
	b.RecordEvent("c1", "go")
	b.Settle()
	b.Exec(`delete from outbox where workspace_id = $1`, b.Workspace)
	b.Pass(execution.AnswerWithin + time.Hour)
	b.Settle()
	b.WantTrace(b.Enrollment(flow, "c1").ID, "enrolled@ checked@ webhook@call answered@call completed@lost")
}

// Properties are stored without white space, which counts for no limit. A backslash before
// u0000 is no NUL.
func TestPropertiesAreStoredWithoutWhiteSpace(t *testing.T) {
	b := setup(t, 0)
	long := strings.Repeat("x", intake.MaxProperties-len(`{"a":""}`))
	for what, c := range map[string]struct {
		given, stored string // empty: refused
	}{
		"white space":              {"\n{ \"a\" : [ 1,\t2 ] }\n", `{"a":[1,2]}`},
		"much white space":         {`{` + strings.Repeat(" ", intake.MaxProperties) + `"a": 1}`, `{"a":1}`},
		"as much as is allowed":    {`{ "a" : "` + long + `" }`, `{"a":"` + long + `"}`},
		"more":                     {`{"a":"` + long + `x"}`, ``},
		"a path of Windows":        {`{"a":"C:\\u0000dir"}`, `{"a":"C:\\u0000dir"}`},
		"a NUL":                    {`{"a":"\u0000"}`, ``},
		"a NUL after a backslash":  {`{"a":"\\\u0000"}`, ``},
		"a name with a NUL in one": {`{"a":{"\u0000":1}}`, ``},
	} {
		event := intake.Event{ProfileKey: what, Name: "go", Properties: []byte(c.given)}
		if _, err := event.Check(time.Now()); (err == nil) != (c.stored != "") {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := b.RecordAll(bg, b.Workspace, []intake.Event{event}); err != nil {
			t.Fatal(err)
		}
		got := pgtest.Column[string](t, b.Pool, `select properties::text from trigger_events where profile_key = $1`, what)
		if strings.Join(got, "") != c.stored {
			t.Errorf("%s: %.100q", what, got)
		}
	}
}

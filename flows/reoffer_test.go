package flows_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
	"lemma/pgtest"
)

// largeOrders enrolls profiles whose order is large, which is known at the entry.
const largeOrders = `{"audience_id":"$audience",
	"triggers":[{"type":"event","event":"ordered","condition":"profile.country == 'US' && trigger.properties.amount > 100"}],
	"recurrence":$recurrence,$overlap"start":"wait","nodes":{"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`

// largeOrders makes a flow whose data source does not answer.
func (b *bundle) largeOrders(recurrence, overlap string) uuid.UUID {
	b.T.Helper()
	flow := b.Live(strings.NewReplacer("$recurrence", recurrence, "$overlap", overlap).Replace(largeOrders))
	b.ExecDB(`alter table customers rename to gone`)
	return flow
}

func (b *bundle) order(amount int) intake.Result {
	b.T.Helper()
	return b.RecordEvent("c1", "ordered", flowstest.WithID(fmt.Sprint("order ", amount)),
		flowstest.Properties(fmt.Sprintf(`{"amount":%d,"month":%d}`, amount, amount%2))).Results[0]
}

// answers lets the data source answer, and all enter.
func (b *bundle) answers() {
	b.T.Helper()
	b.ExecDB(`alter table gone rename to customers`)
	b.opens()
	b.TimeOut()
}

// amounts are the orders that were checked at the entry, in this order, and what came
// of each.
func (b *bundle) amounts(flow uuid.UUID) string {
	b.T.Helper()
	return pgtest.One[string](b.T, b.Pool, `
		select coalesce(string_agg((s.data::jsonb->'trigger'->'properties'->>'amount') || ' ' || e.status, ', ' order by e.id), '')
		from enrollments e join enrollment_steps s on s.enrollment_id = e.id and s.step = 0 where e.flow_id = $1`, flow)
}

// The order of 5 waits at the entry, since the data source is down, and refuses those
// that come after it. It is refused itself, and the newest of the others is offered
// again, then the one before, until one enters. That one refuses what is left.
func TestATriggerBehindARefusedEnrollmentIsOfferedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		recurrence, overlap string
		reason              string
	}{
		"per event":              {`{"policy":"per_event"}`, "", enrollment.AlreadyActive},
		"once":                   {`{"policy":"once"}`, "", enrollment.AlreadyEnrolled},
		"once, with overlap":     {`{"policy":"once"}`, `"overlap":"allow",`, enrollment.AlreadyEnrolled},
		"by fields":              {`{"policy":"fields","fields":["month"]}`, "", enrollment.AlreadyEnrolled},
		"by fields, and overlap": {`{"policy":"fields","fields":["month"]}`, `"overlap":"allow",`, enrollment.AlreadyEnrolled},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 1)
			flow := b.largeOrders(c.recurrence, c.overlap)
			b.order(5)
			b.Settle()
			for _, amount := range []int{301, 501, 7} {
				if r := b.order(amount); r.Reason != c.reason {
					t.Fatalf("%+v", r)
				}
			}
			b.answers()
			if got, want := b.amounts(flow), "5 refused, 7 refused, 501 active"; got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			counts, err := b.Counts(bg, b.Workspace, flow, 0)
			b.Must(err)
			if counts.Refusals[c.reason] != 1 || counts.Refusals[enrollment.Filtered] != 2 || counts.Active != 1 || counts.Refused != 2 {
				t.Errorf("%+v", counts)
			}
			e, err := b.Explain(bg, b.Workspace, flow, "c1")
			b.Must(err)
			var entered uuid.UUID
			for _, one := range e.Enrollments {
				if one.Status == enrollment.Waiting {
					entered = one.ID
				}
			}
			for _, r := range e.Refusals {
				if r.Reason == c.reason && (r.EnrollmentID == nil || *r.EnrollmentID != entered) || r.EventKey == nil {
					t.Errorf("%s is refused by %s: %+v", entered, e.Summary, r)
				}
			}
			if n := flowstest.Counted(b.Metrics.Triggers.WithLabelValues(enrollment.Enrolled)); n != 3 {
				t.Errorf("%v are counted as enrolled", n)
			}
			b.Invariants()
		})
	}
}

// The version that was published meanwhile filters the newest trigger and not the one before.
func TestATriggerIsOfferedAgainByTheLiveVersion(t *testing.T) {
	b := setup(t, 1)
	flow := b.largeOrders(`{"policy":"per_event"}`, "")
	b.order(5)
	b.order(501)
	b.order(301)
	b.ExecDB(`alter table gone rename to customers`) // to publish
	b.PublishNext(flow, strings.NewReplacer("$recurrence", `{"policy":"per_event"}`, "$overlap", "",
		`profile.country == 'US' && trigger.properties.amount > 100`, `trigger.properties.amount > 400`).Replace(largeOrders), flows.InFlight{})
	b.opens()
	b.TimeOut()
	if got, want := b.amounts(flow), "5 refused, 501 active"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	b.Invariants()
}

// Two enrollments wait at their entry, since an earlier version allowed overlap. The first
// is refused, and the triggers behind it then wait behind the other one.
func TestTriggersWaitBehindTheEnrollmentThatRefusesThemNow(t *testing.T) {
	b := setup(t, 1)
	flow := b.largeOrders(`{"policy":"per_event"}`, `"overlap":"allow",`)
	first, second := *b.order(5).EnrollmentID, *b.order(6).EnrollmentID
	for i := 8; enrollment.ShardOf(first) == enrollment.ShardOf(second); i++ {
		b.Must(flowstest.Second(b.Exit(bg, b.Workspace, second, "")))
		second = *b.order(i).EnrollmentID
	}
	b.ExecDB(`alter table gone rename to customers`) // to publish
	b.PublishNext(flow, strings.NewReplacer("$recurrence", `{"policy":"per_event"}`, "$overlap", "").Replace(largeOrders), flows.InFlight{})
	for _, amount := range []int{401, 301, 7} {
		if r := b.order(amount); r.Reason != enrollment.AlreadyActive || *r.EnrollmentID != first {
			t.Fatalf("%+v", r)
		}
	}
	b.opens()
	later := func(at string) {
		b.Exec(`update flow_shards set retry_at = $3::timestamptz where flow_id = $1 and shard = $2`, flow,
			enrollment.ShardOf(second), at)
	}
	later("infinity")
	b.Settle()
	b.WantCount(3, `select count(*) from refusals where workspace_id = $1 and reason = 'already_active' and enrollment_id = $2`,
		b.Workspace, second)
	if n := flowstest.Counted(b.Metrics.Triggers.WithLabelValues(enrollment.AlreadyActive)); n != 4 {
		t.Errorf("%v triggers are refused: only the newest is offered again", n)
	}
	later("now")
	b.TimeOut()
	if got := b.amounts(flow); !strings.HasSuffix(got, "7 refused, 301 active") {
		t.Errorf("the order of 301 qualifies: %s", got)
	}
	b.Invariants()
}

// Two enrollments of one profile are refused in one transaction: of the triggers behind
// both the newest enrolls, and the others wait behind it in their order.
func TestTheNewestTriggerBehindSeveralEnrollmentsIsOfferedFirst(t *testing.T) {
	b := setup(t, 1)
	recurrence := `{"policy":"fields","fields":["month"]}`
	flow := b.largeOrders(recurrence, `"overlap":"allow",`)
	order := func(amount, month int) intake.Result {
		return b.RecordEvent("c1", "ordered", flowstest.Properties(fmt.Sprintf(`{"amount":%d,"month":%d}`, amount, month))).Results[0]
	}
	first := *order(5, 0).EnrollmentID
	month, second := 1, *order(5, 1).EnrollmentID
	for enrollment.ShardOf(first) != enrollment.ShardOf(second) { // one chunk
		b.Must(flowstest.Second(b.Exit(bg, b.Workspace, second, "")))
		month++
		second = *order(5, month).EnrollmentID
	}
	order(301, 0)
	order(401, month)
	order(7, month)
	b.ExecDB(`alter table gone rename to customers`) // to publish
	b.PublishNext(flow, strings.NewReplacer("$recurrence", recurrence, "$overlap", "").Replace(largeOrders), flows.InFlight{})
	b.opens()
	b.TimeOut()
	if got := b.amounts(flow); !strings.HasSuffix(got, "7 refused, 401 active") {
		t.Errorf("the order of 401 is the newest that qualifies: %s", got)
	}
	b.Invariants()
}

// What entered long ago refuses its triggers for good: they are not offered again when
// a later enrollment is refused.
func TestATriggerBehindAnEnteredEnrollmentStaysRefused(t *testing.T) {
	b := setup(t, 1)
	flow := b.largeOrders(`{"policy":"per_event"}`, "")
	b.order(500)
	b.order(501)
	b.answers()
	b.Must(flowstest.Second(b.Exit(bg, b.Workspace, b.Enrollment(flow, "c1").ID, "")))
	b.order(5)
	b.Settle()
	if got, want := b.amounts(flow), "500 exited, 5 refused"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	b.Invariants()
}

// A paused or draining flow does not enroll, and so offers nothing again.
func TestADrainingFlowOffersNothingAgain(t *testing.T) {
	b := setup(t, 1)
	flow := b.largeOrders(`{"policy":"per_event"}`, "")
	b.order(5)
	b.order(500)
	b.Must(flowstest.Second(b.Drain(bg, b.Workspace, flow, nil)))
	b.answers()
	if got, want := b.amounts(flow), "5 refused"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	b.WantCount(1, `select count(*) from refusals where workspace_id = $1 and reason = 'already_active'`, b.Workspace)
	b.Invariants()
}

// A trigger comes while a worker refuses what stands in its way: it waits for the
// worker, and enrolls. One that was refused before is seen by the worker.
func TestATriggerBesideARefusalAtTheEntry(t *testing.T) {
	for _, stage := range []string{"evaluated", "locked", "acted"} {
		t.Run(stage, func(t *testing.T) {
			b := setup(t, 1)
			flow := b.largeOrders(`{"policy":"per_event"}`, "")
			b.order(5)
			b.ExecDB(`alter table gone rename to customers`)
			before := b.Waits()
			worker := b.StopAt(stage)
			<-worker.Reached
			trigger := flowstest.Start(func() error {
				_, err := b.Record(bg, b.Workspace, intake.Event{ProfileKey: "c1", Name: "ordered", Properties: []byte(`{"amount":500}`)})
				return err
			})
			if stage == "evaluated" { // nothing is locked: it is refused
				<-trigger.Done
			} else {
				b.Until(before, trigger.Done)
			}
			b.Must(worker.End())
			<-trigger.Done
			b.Must(trigger.Err)
			b.Settle()
			if got, want := b.amounts(flow), "5 refused, 500 active"; got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			b.Invariants()
		})
	}
}

// A trigger is refused by an enrollment at its entry, and its transaction has not
// committed when a worker comes to refuse the enrollment: the worker waits for it. So it
// does after a rollback to a version that refuses no enrollment at its entry.
func TestARefusalAtTheEntryBesideATrigger(t *testing.T) {
	withAudience := strings.NewReplacer("$recurrence", `{"policy":"per_event"}`, "$overlap", "").Replace(largeOrders)
	for name, first := range map[string]string{"the live version": withAudience, "an earlier version without an audience is live": `{
		"triggers":[{"type":"event","event":"ordered"}],"recurrence":{"policy":"per_event"},
		"start":"wait","nodes":{"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 1)
			flow := b.Live(first)
			if first != withAudience {
				b.PublishNext(flow, withAudience, flows.InFlight{})
			}
			b.order(5)
			if first != withAudience {
				b.Must(flowstest.Second(b.Rollback(bg, b.Workspace, flow, nil, nil, flows.InFlight{}, nil)))
			}
			node, tracer := b.Traced()
			reached, leave := make(chan struct{}), make(chan struct{})
			tracer.Stop = func(sql string) {
				if strings.Contains(sql, "delete from enrollment_keys") {
					close(reached)
					<-leave
				}
			}
			trigger := flowstest.Start(func() error {
				_, err := node.Record(bg, b.Workspace, intake.Event{ProfileKey: "c1", Name: "ordered", Properties: []byte(`{"amount":500}`)})
				return err
			})
			b.Until(b.Waits(), reached)
			before := b.Waits()
			worker := flowstest.Start(func() error { return flowstest.Second(b.RunOnce(bg)) })
			b.Until(before, worker.Done)
			close(leave)
			<-trigger.Done
			<-worker.Done
			b.Must(trigger.Err)
			b.Must(worker.Err)
			b.Settle()
			if got, want := b.amounts(flow), "5 refused, 500 active"; got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			b.Invariants()
		})
	}
}

// The live version, into which the trigger is offered again, is compiled before.
func TestNoTransactionIsOpenWhileAVersionIsCompiledToOfferAgain(t *testing.T) {
	b := setup(t, 1)
	flow := b.largeOrders(`{"policy":"per_event"}`, "")
	b.order(5)
	b.order(500)
	b.ExecDB(`alter table gone rename to customers`)
	b.PublishNext(flow, strings.NewReplacer("$recurrence", `{"policy":"per_event"}`, "$overlap", "").Replace(largeOrders),
		flows.InFlight{Mode: "stay"})
	n := b.Another()
	compiled := b.CompilesAlone(n)
	b.Must(flowstest.Second(n.RunOnce(bg)))
	if c := compiled(); c != 2 {
		t.Errorf("%d versions were compiled", c)
	}
	b.Settle()
	if got, want := b.amounts(flow), "5 refused, 500 active"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	b.Invariants()
}

// payable is largeOrders, and the payment of an order ends its enrollment.
var payable = strings.Replace(largeOrders, `"start"`,
	`"exit_on":[{"event":"paid","condition":"event.properties.amount == trigger.properties.amount && now - event.at < duration('24h')",
		"goal":true}],"start"`, 1)

func (b *bundle) payable() uuid.UUID {
	b.T.Helper()
	flow := b.Live(strings.NewReplacer("$recurrence", `{"policy":"per_event"}`, "$overlap", "").Replace(payable))
	b.ExecDB(`alter table customers rename to gone`)
	return flow
}

func (b *bundle) pay(amount int) error {
	return flowstest.Second(b.Record(bg, b.Workspace,
		intake.Event{ProfileKey: "c1", Name: "paid", Properties: fmt.Appendf(nil, `{"amount":%d}`, amount)}))
}

// An order was paid before it is offered again: it is refused, and the one before it
// enrolls. A payment from before its order does not count, nor one that the condition
// finds too old when it is recorded.
func TestATriggerThatAnEventOfExitOnFollowedIsNotOfferedAgain(t *testing.T) {
	b := setup(t, 1)
	flow := b.payable()
	b.order(5)
	b.Must(b.pay(301))
	b.order(301)
	b.order(501)
	b.order(601)
	b.Must(b.pay(601))
	b.Must(b.pay(501))
	b.RecordEvent("c1", "paid", flowstest.Properties(`{"amount":301}`), flowstest.At(time.Now().Add(-25*time.Hour)))
	b.answers()
	if got, want := b.amounts(flow), "5 refused, 301 active"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	b.WantCount(2, `select count(*) from refusals where workspace_id = $1 and reason = 'filtered'
		and detail = 'the event paid of exit_on was received after the trigger'`, b.Workspace)
	b.Invariants()
}

// An order is paid while it is offered again: the payment is received before it, or ends
// the enrollment.
func TestAnEventOfExitOnBesideATriggerThatIsOfferedAgain(t *testing.T) {
	for stage, want := range map[string]string{"evaluated": "5 refused", "acted": "5 refused, 500 exited"} {
		t.Run(stage, func(t *testing.T) {
			b := setup(t, 1)
			flow := b.payable()
			b.order(5)
			b.order(500)
			b.ExecDB(`alter table gone rename to customers`)
			before := b.Waits()
			worker := b.StopAt(stage)
			b.Reached(worker)
			payment := flowstest.Start(func() error { return b.pay(500) })
			b.Until(before, payment.Done)
			b.Must(worker.End())
			<-payment.Done
			b.Must(payment.Err)
			b.Settle()
			if got := b.amounts(flow); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			b.Invariants()
		})
	}
}

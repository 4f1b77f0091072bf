package chaos

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma/dev/catcher"
)

// wantOutcome is the outcome that docs/concepts/sending.md documents for a fault.
type wantOutcome struct {
	Status, Reason, First, Second string
	Bodies, Copies                int // received, and kept by the server
}

// serverCase is how the mail server answers messages to some addresses.
type serverCase struct {
	name   string // prefix of the addresses
	at     catcher.Stage
	faults []catcher.Fault // by visit; afterwards the server accepts
	want   wantOutcome
}

var (
	late     = catcher.Fault{Delay: 10 * time.Minute} // the client waits for 15 s
	hang     = catcher.Fault{Hang: true}
	drop     = catcher.Fault{Close: true}
	busy     = catcher.Refuse("451 4.3.0 try again later")
	slowDown = catcher.Refuse("454 4.7.0 too many mails from you")
	noSuch   = catcher.Refuse("550 5.1.1 no such user")
	spam     = catcher.Refuse("554 5.7.1 message refused as spam")
)

// table is the outcome table of docs/concepts/sending.md, one row for each case.
var table = []serverCase{
	{"well", catcher.Dot, nil, wantOutcome{"sent", "", "accepted", "", 1, 1}},

	// The body was sent and no answer arrived: unknown, and one more attempt.
	{"dropped-kept", catcher.Dot, []catcher.Fault{catcher.DropKept}, wantOutcome{"sent", "", "unknown", "accepted", 2, 2}},
	{"dropped-lost", catcher.Dot, []catcher.Fault{catcher.DropLost}, wantOutcome{"sent", "", "unknown", "accepted", 2, 1}},
	{"answered-late", catcher.Dot, []catcher.Fault{late}, wantOutcome{"sent", "", "unknown", "accepted", 2, 2}},
	{"answered-nonsense", catcher.Dot, []catcher.Fault{catcher.Garbage}, wantOutcome{"sent", "", "unknown", "accepted", 2, 2}},
	{"dropped-twice", catcher.Dot, []catcher.Fault{catcher.DropKept, catcher.DropKept},
		wantOutcome{"orphaned", "no_answer", "unknown", "unknown", 2, 2}},
	{"dropped-rejected", catcher.Dot, []catcher.Fault{catcher.DropLost, spam},
		wantOutcome{"orphaned", "unknown_then_rejected", "unknown", "rejected", 2, 0}},

	// Not accepted: retried later without a further attempt.
	{"busy-rcpt", catcher.Rcpt, []catcher.Fault{busy}, wantOutcome{"sent", "", "accepted", "", 1, 1}},
	{"busy-twice", catcher.Rcpt, []catcher.Fault{busy, busy}, wantOutcome{"sent", "", "accepted", "", 1, 1}},
	{"busy-data", catcher.Data, []catcher.Fault{busy}, wantOutcome{"sent", "", "accepted", "", 1, 1}},
	{"busy-dot", catcher.Dot, []catcher.Fault{busy}, wantOutcome{"sent", "", "accepted", "", 2, 1}},
	{"throttled-454", catcher.Rcpt, []catcher.Fault{slowDown}, wantOutcome{"sent", "", "accepted", "", 1, 1}},
	{"throttled-421", catcher.Rcpt, []catcher.Fault{catcher.Closing}, wantOutcome{"sent", "", "accepted", "", 1, 1}},
	{"throttled-dot", catcher.Dot, []catcher.Fault{catcher.Closing}, wantOutcome{"sent", "", "accepted", "", 2, 1}},
	{"gone-before", catcher.Data, []catcher.Fault{drop}, wantOutcome{"sent", "", "accepted", "", 1, 1}},
	{"held-before", catcher.Rcpt, []catcher.Fault{hang}, wantOutcome{"sent", "", "accepted", "", 1, 1}},

	// Rejected: not retried.
	{"rejected-rcpt", catcher.Rcpt, []catcher.Fault{noSuch}, wantOutcome{"failed", "recipient_unknown", "rejected", "", 0, 0}},
	{"rejected-dot", catcher.Dot, []catcher.Fault{spam}, wantOutcome{"failed", "message_rejected", "rejected", "", 1, 0}},
}

// profiles is the number of profiles with a case. One waits for 15 s if there is no answer.
func (c serverCase) profiles() int {
	for _, f := range c.faults {
		if f.Hang || f.Delay > 0 {
			return 1
		}
	}
	return 3
}

// script returns the faults of the case of an address.
func script(e catcher.Event, again int) catcher.Fault {
	for _, t := range table {
		if t.at == e.Stage && strings.HasPrefix(e.Recipient, t.name+".") && again <= len(t.faults) {
			return t.faults[again-1]
		}
	}
	return catcher.Fault{}
}

// One campaign contains all cases of the table. Each profile has the documented
// outcome, with exactly one request per attempt.
func TestServerAnswersHaveTheDocumentedOutcomes(t *testing.T) {
	t.Parallel()
	h := setup(t)
	var names, addresses []string
	for _, serverCase := range table {
		for i := range serverCase.profiles() {
			names = append(names, serverCase.name)
			addresses = append(addresses, fmt.Sprintf("%s.%d@shop.example", serverCase.name, i))
		}
	}
	people := h.customerOf(`
		insert into people select row_number() over (), address, name, false
		from unnest($1::text[], $2::text[]) as p (name, address)`, names, addresses)
	h.mail.setFaults(script)
	h.Provider = h.newProvider(15)
	h.startWorkers(2)

	id := h.send(people)
	h.completedSoon(id)
	h.verify(people, id)
	reached := map[string]int{}
	for _, f := range h.outcomes(id) {
		reached[h.verifyCase(f)]++
	}
	for _, serverCase := range table {
		if n := reached[serverCase.name]; n != serverCase.profiles() {
			t.Errorf("%d profiles had the case %s, want %d", n, serverCase.name, serverCase.profiles())
		}
	}
}

func (h *env) verifyCase(f outcome) string {
	h.t.Helper()
	name, _, _ := strings.Cut(f.Address, ".")
	for _, serverCase := range table {
		if serverCase.name != name {
			continue
		}
		got := wantOutcome{f.Status, f.Reason, f.First, f.Second, f.bodies, f.copies}
		if diff := cmp.Diff(serverCase.want, got); diff != "" {
			h.t.Errorf("%s: the table (-) and the outcome (+):\n%s", f.Address, diff)
		}
	}
	return name
}

// A server that refuses all messages pauses the campaign. After a resume each profile
// gets one message.
func TestAServerThatRefusesAllPausesTheCampaign(t *testing.T) {
	t.Parallel()
	h := setup(t)
	people := h.customer(300)
	h.mail.setFaults(func(e catcher.Event, _ int) catcher.Fault {
		if e.Stage == catcher.Mail {
			return catcher.Closing
		}
		return catcher.Fault{}
	})
	h.startWorkers(2, "LEMMA_PROVIDER_OUTAGE=1s")
	id := h.send(people)
	h.eventually("the campaign is paused", func() bool {
		h.makeAllDue()
		return h.campaign(id).Status == "paused"
	})
	if c := h.campaign(id); c.StatusReason != "provider_errors" || !strings.Contains(c.StatusDetail, "service_closing") {
		t.Errorf("it is paused for %q: %s", c.StatusReason, c.StatusDetail)
	}

	h.waitForCalls()
	h.mail.setFaults(func(catcher.Event, int) catcher.Fault { return catcher.Fault{} })
	_, err := h.campaigns.Resume(t.Context(), h.Workspace, id, uuid.Nil)
	h.Must(err)
	h.completedSoon(id)
	sum := h.verify(people, id)
	if got := fmt.Sprint(sum.Unknown, sum.Twice, sum.Status["sent"]); got != "0 0 276" {
		t.Errorf("unknown, twice, sent: %s", got)
	}
}

// origins are a campaign and a flow: a failing provider pauses both.
var origins = []struct {
	name  string
	start func(h *env, people int) (status func() (status, reason, detail string), resume func() error, verify func() totals)
}{
	{"campaign", func(h *env, n int) (func() (string, string, string), func() error, func() totals) {
		people := h.customer(n)
		id := h.send(people)
		return func() (string, string, string) {
				c := h.campaign(id)
				return string(c.Status), c.StatusReason, c.StatusDetail
			},
			func() error { _, err := h.campaigns.Resume(h.t.Context(), h.Workspace, id, uuid.Nil); return err },
			func() totals { return h.verify(people, id) }
	}},
	{"flow", func(h *env, n int) (func() (string, string, string), func() error, func() totals) {
		f := h.flows()
		flow := h.live(f, h.customer(n), shortFlow)
		h.Must(h.recordSignUps(f, 1, n))
		return func() (string, string, string) {
				now, err := f.Get(h.t.Context(), h.Workspace, flow)
				h.Must(err)
				return string(now.Status), now.StatusReason, now.StatusDetail
			},
			func() error {
				_, err := f.Resume(h.t.Context(), h.Workspace, flow, new(time.Duration), nil)
				return err
			},
			func() totals { return h.verifyFlow(flow) }
	}},
}

// A server outage that is shorter than LEMMA_PROVIDER_OUTAGE pauses nothing, and the rest is
// sent. The outage begins at the 60th message and lasts until a call has failed.
func TestAShortServerOutagePausesNothing(t *testing.T) {
	for _, o := range origins {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.startWorkers(2)
			release := h.mail.holdAfter(t, 60)
			status, _, verify := o.start(h, 600)
			h.waitForHeld(&h.mail.answers)
			h.mail.stopDuringCalls(release)
			h.eventually("a call has failed", func() bool {
				return h.Count(`select count(*) from provider_meters where last_error <> '' and opened_at is not null`) == 1
			})
			h.mail.restart(t)
			h.waitForEnd()
			if now, reason, detail := status(); now == "paused" || reason != "" {
				t.Errorf("it is %s for %s: %s", now, reason, detail)
			}
			verify()
			h.completed(h.send(h.customer(1))) // an acceptance after all failures
			h.eventually("the provider does not fail any more", func() bool {
				return h.Count(`select count(*) from provider_meters where failures > 0 or opened_at is not null`) == 0
			})
		})
	}
}

// A longer outage pauses what uses the server, with the first cause. After a resume
// the rest is sent.
func TestALongServerOutagePauses(t *testing.T) {
	for _, o := range origins {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.startWorkers(2, "LEMMA_PROVIDER_OUTAGE=2s")
			release := h.mail.holdAfter(t, 60)
			status, resume, verify := o.start(h, 600)
			h.waitForHeld(&h.mail.answers)
			h.mail.stopDuringCalls(release)
			h.eventually("it is paused", func() bool { now, _, _ := status(); return now == "paused" })
			_, reason, detail := status()
			first := h.text(`select first_error from provider_meters`)
			stopped := strings.HasPrefix(first, "connect") || // a connection ends at any stage before its first message
				strings.HasPrefix(first, "greeting_refused") || strings.HasPrefix(first, "ehlo_refused")
			if reason != "provider_errors" || !strings.Contains(detail, "the first failure was "+first) ||
				strings.Contains(detail, "connect_backoff") || !stopped {
				t.Errorf("it is paused for %s: %s; the first cause is %q", reason, detail, first)
			}
			h.waitForCalls()
			h.mail.restart(t)
			h.Must(resume())
			h.waitForEnd()
			verify()
		})
	}
}

// A server that refuses the sender pauses at once, and no notification fails.
func TestAServerThatRefusesTheSenderPausesAtOnce(t *testing.T) {
	for _, o := range origins {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.mail.setFaults(func(e catcher.Event, _ int) catcher.Fault {
				if e.Stage == catcher.Mail {
					return catcher.Refuse("550 5.7.1 unknown sender")
				}
				return catcher.Fault{}
			})
			h.startWorkers(2)
			status, resume, verify := o.start(h, 200)
			h.eventually("it is paused", func() bool { now, _, _ := status(); return now == "paused" })
			if _, reason, detail := status(); reason != "provider_refused" || !strings.Contains(detail, "sender_rejected (550)") {
				t.Errorf("it is paused for %s: %s", reason, detail)
			}
			h.waitForCalls() // a refusal after the resume pauses again
			h.mail.setFaults(func(catcher.Event, int) catcher.Fault { return catcher.Fault{} })
			h.Must(resume())
			h.waitForEnd()
			if sum := verify(); sum.Unknown != 0 || sum.Status["failed"] != 0 {
				t.Errorf("%d unknown, %d failed", sum.Unknown, sum.Status["failed"])
			}
		})
	}
}

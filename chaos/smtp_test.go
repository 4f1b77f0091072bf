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

// ending is what docs/concepts/sending.md says of a person whose mail meets a trouble.
type ending struct {
	Status, Reason, First, Second string
	Bodies, Copies                int // on the wire, and kept by the server
}

// trouble is what the mail server does to some people's mail.
type trouble struct {
	name string // what their addresses begin with
	at   catcher.Stage
	does []catcher.Fault // the first time, the second ...; after these it works
	ends ending
}

var (
	late     = catcher.Fault{Delay: 5 * time.Second} // the client waits for two
	hang     = catcher.Fault{Hang: true}
	drop     = catcher.Fault{Close: true}
	busy     = catcher.Refuse("451 4.3.0 try again later")
	slowDown = catcher.Refuse("454 4.7.0 too many mails from you")
	noSuch   = catcher.Refuse("550 5.1.1 nobody of that name")
	spam     = catcher.Refuse("554 5.7.1 we do not like it")
)

// table is the outcome table of docs/concepts/sending.md, one line for each proof.
var table = []trouble{
	{"well", catcher.Dot, nil, ending{"sent", "", "accepted", "", 1, 1}},

	// A byte of the body has left and no answer came: unknown, and one more try.
	{"dropped-kept", catcher.Dot, []catcher.Fault{catcher.DropKept}, ending{"sent", "", "unknown", "accepted", 2, 2}},
	{"dropped-lost", catcher.Dot, []catcher.Fault{catcher.DropLost}, ending{"sent", "", "unknown", "accepted", 2, 1}},
	{"answered-late", catcher.Dot, []catcher.Fault{late}, ending{"sent", "", "unknown", "accepted", 2, 2}},
	{"answered-nonsense", catcher.Dot, []catcher.Fault{catcher.Garbage}, ending{"sent", "", "unknown", "accepted", 2, 2}},
	{"dropped-twice", catcher.Dot, []catcher.Fault{catcher.DropKept, catcher.DropKept}, ending{"orphaned", "no_answer", "unknown", "unknown", 2, 2}},
	{"dropped-rejected", catcher.Dot, []catcher.Fault{catcher.DropLost, spam}, ending{"orphaned", "unknown_then_rejected", "unknown", "rejected", 2, 0}},

	// Surely not accepted: again later, and no attempt is spent.
	{"busy-rcpt", catcher.Rcpt, []catcher.Fault{busy}, ending{"sent", "", "accepted", "", 1, 1}},
	{"busy-twice", catcher.Rcpt, []catcher.Fault{busy, busy}, ending{"sent", "", "accepted", "", 1, 1}},
	{"busy-data", catcher.Data, []catcher.Fault{busy}, ending{"sent", "", "accepted", "", 1, 1}},
	{"busy-dot", catcher.Dot, []catcher.Fault{busy}, ending{"sent", "", "accepted", "", 2, 1}},
	{"throttled-454", catcher.Rcpt, []catcher.Fault{slowDown}, ending{"sent", "", "accepted", "", 1, 1}},
	{"throttled-421", catcher.Rcpt, []catcher.Fault{catcher.Closing}, ending{"sent", "", "accepted", "", 1, 1}},
	{"throttled-dot", catcher.Dot, []catcher.Fault{catcher.Closing}, ending{"sent", "", "accepted", "", 2, 1}},
	{"gone-before", catcher.Data, []catcher.Fault{drop}, ending{"sent", "", "accepted", "", 1, 1}},
	{"silent-before", catcher.Rcpt, []catcher.Fault{hang}, ending{"sent", "", "accepted", "", 1, 1}},

	// Rejected: never again.
	{"rejected-rcpt", catcher.Rcpt, []catcher.Fault{noSuch}, ending{"failed", "recipient_rejected", "rejected", "", 0, 0}},
	{"rejected-dot", catcher.Dot, []catcher.Fault{spam}, ending{"failed", "message_rejected", "rejected", "", 1, 0}},
}

// script does to each person what their address asks for.
func script(e catcher.Event, again int) catcher.Fault {
	for _, t := range table {
		if t.at == e.Stage && strings.HasPrefix(e.Recipient, t.name+".") && again <= len(t.does) {
			return t.does[again-1]
		}
	}
	return catcher.Fault{}
}

// One campaign meets every trouble that a mail server can make, side by side.
// Each person ends as the table says, with exactly one request per attempt.
func TestEachAnswerOfAServerMeansWhatTheTableSays(t *testing.T) {
	t.Parallel()
	const each = 3
	h := build(t)
	names := make([]string, len(table))
	for i, trouble := range table {
		names[i] = trouble.name
	}
	people := h.customerOf(`
		insert into people select row_number() over (), name || '.' || i || '@shop.example', name, false
		from generate_series(1, $1::int) i, unnest($2::text[]) name`, each, names)
	h.post.misbehave(script)
	h.startWorkers(2, "LEMMA_LEASE=4s", "LEMMA_CALL_TIMEOUT=2s")

	id := h.send(people)
	h.completedInNoTime(id, 90*time.Second)
	h.judge(people, id)
	met := map[string]int{}
	for _, f := range h.fates(id) {
		met[h.endsAsTheTableSays(f)]++
	}
	for _, name := range names {
		if met[name] != each {
			t.Errorf("%d people met %s, not %d", met[name], name, each)
		}
	}
}

func (h *house) endsAsTheTableSays(f fate) string {
	h.t.Helper()
	name, _, _ := strings.Cut(f.Address, ".")
	for _, trouble := range table {
		if trouble.name != name {
			continue
		}
		got := ending{f.Status, f.Reason, f.First, f.Second, f.bodies, f.copies}
		if diff := cmp.Diff(trouble.ends, got); diff != "" {
			h.t.Errorf("%s: the table (-) and what became of it (+):\n%s", f.Address, diff)
		}
	}
	return name
}

// A server that takes nothing at all pauses the campaign, loses nothing, and
// after a resume everybody gets one mail.
func TestAServerThatRefusesEverybodyPausesTheCampaign(t *testing.T) {
	t.Parallel()
	h := build(t)
	people := h.customer(300)
	h.post.misbehave(func(e catcher.Event, _ int) catcher.Fault {
		if e.Stage == catcher.Mail {
			return catcher.Closing
		}
		return catcher.Fault{}
	})
	h.startWorkers(2, append(h.unhurried(), "LEMMA_PROVIDER_OUTAGE=1s")...)
	id := h.send(people)
	h.until(60*time.Second, "the campaign is paused", func() bool {
		h.letTimePass()
		return h.campaign(id).Status == "paused"
	})
	if c := h.campaign(id); c.StatusReason != "provider_errors" || !strings.Contains(c.StatusDetail, "service_closing") {
		t.Errorf("it is paused for %q: %s", c.StatusReason, c.StatusDetail)
	}

	h.post.misbehave(func(catcher.Event, int) catcher.Fault { return catcher.Fault{} })
	_, err := h.campaigns.Resume(t.Context(), h.ws, id, uuid.Nil)
	h.must(err)
	h.completedInNoTime(id, 60*time.Second)
	sum := h.judge(people, id)
	if got := fmt.Sprint(sum.Doubts, sum.Twice, sum.Status["sent"]); got != "0 0 276" {
		t.Errorf("in doubt, twice, sent: %s", got)
	}
}

// origins are what a provider's failure can pause: a campaign, and a flow.
var origins = []struct {
	name  string
	start func(h *house, people int) (status func() (status, reason, detail string), resume func() error, judge func() tally)
}{
	{"campaign", func(h *house, n int) (func() (string, string, string), func() error, func() tally) {
		people := h.customer(n)
		id := h.send(people)
		return func() (string, string, string) {
				c := h.campaign(id)
				return string(c.Status), c.StatusReason, c.StatusDetail
			},
			func() error { _, err := h.campaigns.Resume(h.t.Context(), h.ws, id, uuid.Nil); return err },
			func() tally { return h.judge(people, id) }
	}},
	{"flow", func(h *house, n int) (func() (string, string, string), func() error, func() tally) {
		f := h.journeys()
		flow := h.live(f, h.customer(n), shortJourney)
		h.must(h.signUp(f, 1, n))
		return func() (string, string, string) {
				now, err := f.Get(h.t.Context(), h.ws, flow)
				h.must(err)
				return string(now.Status), now.StatusReason, now.StatusDetail
			},
			func() error { _, err := f.Resume(h.t.Context(), h.ws, flow, new(time.Duration), nil); return err },
			func() tally { return h.judgeJourneys(flow) }
	}},
}

// over waits until nothing is on its way any more, without helping.
func (h *house) over(within time.Duration) {
	h.t.Helper()
	h.until(within, "everything is at its end", func() bool {
		return h.count(`select count(*) from enrollments where status = 'active'`) == 0 &&
			h.count(`select count(*) from batches where status in ('ready', 'leased')`) == 0 &&
			h.count(`select count(*) from campaigns where status <> 'completed'`) == 0
	})
}

// A server that is gone for 300 ms pauses nothing: the rest is sent by itself.
func TestAServerThatIsGoneForAMomentPausesNothing(t *testing.T) {
	for _, o := range origins {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			h := build(t)
			h.post.slow(3 * time.Millisecond)
			h.startWorkers(2)
			status, _, judge := o.start(h, 600)
			h.lettersOut(60, 20*time.Second)
			h.post.goAway()
			h.quiet(300 * time.Millisecond)
			h.post.comeBack(t)
			taken := h.post.taken()
			h.over(60 * time.Second)
			if now, reason, detail := status(); now == "paused" || reason != "" {
				t.Errorf("it is %s for %s: %s", now, reason, detail)
			}
			judge()
			if taken >= 500 {
				t.Errorf("%d mails were out before the server went: this has shown nothing", taken)
			}
			if n := h.count(`select failures from provider_meters`); n != 0 || h.count(`select count(*) from provider_meters where opened_at is not null`) != 0 {
				t.Errorf("the provider still fails: %d", n)
			}
			if h.count(`select count(*) from provider_meters where last_error <> ''`) == 0 {
				t.Error("nobody met the failure: this has shown nothing")
			}
		})
	}
}

// A server that stays away pauses what needs it, with the first cause; after a
// resume the rest is sent.
func TestAServerThatStaysAwayPauses(t *testing.T) {
	for _, o := range origins {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			h := build(t)
			h.post.slow(3 * time.Millisecond)
			h.startWorkers(2, append(patient, "LEMMA_PROVIDER_OUTAGE=2s")...)
			status, resume, judge := o.start(h, 600)
			h.lettersOut(60, 20*time.Second)
			h.post.goAway()
			h.until(30*time.Second, "it is paused", func() bool { now, _, _ := status(); return now == "paused" })
			_, reason, detail := status()
			first := h.text(`select first_error from provider_meters`)
			if reason != "provider_errors" || !strings.Contains(detail, "the first failure was "+first) || strings.Contains(detail, "connect_backoff") ||
				!strings.HasPrefix(first, "connect") {
				t.Errorf("it is paused for %s: %s; the first cause is %q", reason, detail, first)
			}
			h.post.comeBack(t)
			h.must(resume())
			h.over(90 * time.Second)
			judge()
		})
	}
}

// A server that refuses the sender pauses at once, and nobody fails for it.
func TestAServerThatRefusesTheSenderPausesAtOnce(t *testing.T) {
	for _, o := range origins {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			h := build(t)
			h.post.misbehave(func(e catcher.Event, _ int) catcher.Fault {
				if e.Stage == catcher.Mail {
					return catcher.Refuse("550 5.7.1 we do not know this shop")
				}
				return catcher.Fault{}
			})
			h.startWorkers(2, h.unhurried()...)
			status, resume, judge := o.start(h, 200)
			h.until(2*time.Minute, "it is paused", func() bool { now, _, _ := status(); return now == "paused" })
			if _, reason, detail := status(); reason != "provider_refused" || !strings.Contains(detail, "sender_rejected (550)") {
				t.Errorf("it is paused for %s: %s", reason, detail)
			}
			h.post.misbehave(func(catcher.Event, int) catcher.Fault { return catcher.Fault{} })
			h.must(resume())
			h.over(3 * time.Minute)
			if sum := judge(); sum.Doubts != 0 || sum.Status["failed"] != 0 {
				t.Errorf("%d in doubt, %d failed", sum.Doubts, sum.Status["failed"])
			}
		})
	}
}

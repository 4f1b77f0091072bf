package chaos

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/pgtest"
	"lemma/suppression"
)

// eventTimes are settings for providers that report events: a second attempt waits for
// them for as long as a test may last.
var eventTimes = []string{"LEMMA_EVENT_WAIT=10m"}

// perKill is the number of profiles for each kill.
const perKill = 400

// kills is how often a worker is killed in a campaign: LEMMA_CHAOS_KILLS, or otherwise. With
// 50 kills a campaign has 20,000 profiles.
func (h *env) kills(otherwise int) int {
	h.t.Helper()
	text := os.Getenv("LEMMA_CHAOS_KILLS")
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	h.Must(err)
	return n
}

// overCarriers runs a test over carriers that report events.
func overCarriers(t *testing.T, test func(h *env, r *reporter)) {
	for _, c := range []struct {
		kind string
		open func(*env) *reporter
	}{{"ses", (*env).openSES}, {"http", (*env).openGateway}} {
		t.Run(c.kind, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			r := c.open(h)
			r.delay = 20 * time.Millisecond
			test(h, r)
		})
	}
}

// killedCampaign sends a campaign over a carrier while workers are killed: first all of
// them during a call, then one after another at random. meanwhile, if it is not nil, runs
// between the first kills and the next workers. It returns the totals.
func (h *env) killedCampaign(g *reporter, meanwhile func()) (uuid.UUID, totals) {
	h.t.Helper()
	kills, random := h.kills(4), h.random()
	people := h.customer(kills * perKill)
	workers := h.startWorkers(2, g.settings...)
	release := g.holdAfter(h.t, perKill/4+random.IntN(perKill/2))
	id := h.send(people)
	if meanwhile == nil {
		meanwhile = func() {}
	}
	h.killDuringCall(&g.answers, workers, meanwhile, g.settings...)
	release()
	for _, out := range killPoints(random, kills-1, kills*perKill*4/5) {
		h.eventually(fmt.Sprintf("%d messages are sent", out), func() bool { return g.received() >= out })
		workers[random.IntN(len(workers))].kill()
		h.startAgain(workers, g.settings...)
	}
	h.waitForAwaited(id)
	if g.silent && h.leasedByKilled() == 0 {
		h.t.Error("no call waits for its event: nothing was tested")
	}
	h.WantCount(0, `select count(*) from attempts where attempt = 2`) // all wait for newer events
	h.endEvents(g)
	if g.loses != nil && !h.sms {
		h.killSecondAttempts(g, workers)
	}
	h.completedSoon(id)
	sum := h.verify(people, id)
	settled := h.Count(`select count(*) from attempts where attempt = 1 and basis = 'evidence'`)
	h.t.Logf("%d kills: %d first attempts settled by events, %d with a second attempt", kills, settled,
		h.Count(`select count(*) from attempts where attempt = 2`))
	if settled+sum.Unknown == 0 {
		h.t.Error("no kill left a call without an answer: nothing was tested")
	}
	return id, sum
}

// waitForAwaited waits until a campaign has ended but for calls of killed workers, and the
// reaper has decided to wait for their events.
func (h *env) waitForAwaited(id uuid.UUID) {
	h.t.Helper()
	h.eventually("all is sent but what waits for events", func() bool {
		h.makeAllDue()
		return h.Count(`select count(*) from fanouts where campaign_id = $1 and finished_at is null`, id)+
			h.Count(`select count(*) from batches where status in ('ready', 'leased')`)-h.leasedByKilled() == 0
	})
	since := pgtest.One[time.Time](h.T, h.Pool, `select now()`)
	// It extends the leases of those that wait, for less than a minute. It gives rows back that
	// were not called: these are claimed, for longer, and sent first.
	h.eventually("the reaper has read the events of all calls", func() bool {
		h.makeAllDue()
		return h.Count(`select count(*) from batches where status = 'ready' or status = 'leased' and
			(lease_until < $1::timestamptz + $2::interval or lease_until > now() + interval '1 minute')`, since, reapEvery) == 0
	})
}

// endEvents waits until the events of all calls are stored, and that of a later message. Then
// it ends the time in which an event may be late: no second attempt was possible before.
func (h *env) endEvents(g *reporter) {
	h.t.Helper()
	loses, more := g.loses, g.more
	g.change(func() { g.silent, g.loses, g.more = false, nil, nil })
	h.completed(h.send(h.customerOf(`insert into people values (900000, 'last@shop.example', 'Last', false)`)))
	h.eventually("all events are stored", g.allStored)
	g.change(func() { g.loses, g.more = loses, more })
	h.Exec(`update batch_log set until = until - interval '1 hour' where event = 'window'`)
}

// killSecondAttempts kills all workers while a second attempt waits for its answer. That of
// the call that was killed first is certain: its event is lost.
func (h *env) killSecondAttempts(g *reporter, workers []*worker) {
	h.t.Helper()
	release := g.hold(h.t)
	h.killDuringCall(&g.answers, workers, func() {}, g.settings...)
	release()
}

// Every event arrives, in order: no profile gets two copies, and all are sent.
func TestKilledWorkersWithAllEvents(t *testing.T) {
	t.Parallel()
	overCarriers(t, func(h *env, r *reporter) {
		id, sum := h.killedCampaign(r, nil)
		h.wantAllSentOnce(id, sum)
	})
}

// Events arrive when the leases of the calls have ended and all other messages are sent:
// second attempts wait for them.
func TestKilledWorkersWithLateEvents(t *testing.T) {
	t.Parallel()
	overCarriers(t, func(h *env, r *reporter) {
		r.silent = true
		id, sum := h.killedCampaign(r, nil)
		h.wantAllSentOnce(id, sum)
	})
}

func (h *env) wantAllSentOnce(id uuid.UUID, sum totals) {
	h.t.Helper()
	h.wantSent(id)
	if sum.Twice != 0 {
		h.t.Errorf("%d profiles got two copies", sum.Twice)
	}
}

// wantSent wants all profiles sent that are not skipped. Only two kills, one in each
// attempt, may orphan one.
func (h *env) wantSent(id uuid.UUID) {
	h.t.Helper()
	wrong := 0
	for _, o := range h.outcomes(id) {
		killedTwice := o.Status == "orphaned" && o.First == "unknown" && o.Second == "unknown"
		if o.Status != "sent" && o.Status != "skipped" && !killedTwice {
			if wrong++; wrong <= 10 {
				h.t.Errorf("it is not sent: %v", o)
			}
		}
	}
	if wrong > 10 {
		h.t.Errorf("and %d more are not sent", wrong-10)
	}
}

// One event of ten is lost: as many profiles get two copies as calls were in flight at a
// kill and have a lost event. A call is in flight until its outcome is committed.
func TestKilledWorkersWithLostEvents(t *testing.T) {
	t.Parallel()
	overCarriers(t, func(h *env, r *reporter) {
		random := h.random()
		r.loses = func(a acceptance) bool { return a.held != nil || random.IntN(10) == 0 }
		id, _ := h.killedCampaign(r, nil)
		h.wantSent(id)
		h.wantComputedCopies(id, r)
	})
}

// wantComputedCopies compares the second copies with what the carrier saw: a first call
// that was accepted, whose event is lost, and whose outcome is unknown. A second attempt
// whose worker was killed before its call is no copy.
func (h *env) wantComputedCopies(id uuid.UUID, r *reporter) {
	h.t.Helper()
	computed, cut, without, twice := 0, 0, 0, 0
	for _, o := range h.outcomes(id) {
		lost := r.lost[o.Name]
		switch {
		case r.cut[o.Name] && o.First != "unknown" && (lost || o.Basis != "evidence"):
			h.t.Errorf("its worker was killed during the call, and there is no event: %v", o)
		case lost && o.First == "unknown":
			computed++
			if r.cut[o.Name] {
				cut++
			}
			if o.copies == 1 && o.Second == "unknown" {
				without++
			}
		case o.copies == 2:
			h.t.Errorf("a second copy, although the event of the first was not lost: %v", o)
		}
		if o.copies == 2 {
			twice++
		}
	}
	h.t.Logf("%d of %d events lost; of the calls in flight at a kill %d (%d of them without an answer): computed %d copies, seen %d",
		len(r.lost), r.received(), computed, cut, computed-without, twice)
	if twice != computed-without {
		h.t.Errorf("%d profiles got two copies, computed are %d", twice, computed-without)
	}
}

// Addresses are suppressed while the campaign is sent, by events of the carrier or by the
// API: an address is not called once it is suppressed, but for a window that was being
// opened. Some are suppressed while no worker runs: those are not called at all.
func TestKilledWorkersCallNoSuppressedAddress(t *testing.T) {
	t.Parallel()
	overCarriers(t, func(h *env, r *reporter) {
		random := h.random()
		list, people := suppression.New(h.Pool), h.kills(4)*perKill
		suppress := func(address string) {
			_, _, err := list.Add(h.t.Context(), h.Workspace,
				suppression.Entry{ID: lemma.NewID(), Channel: lemma.Email, Address: address, Cause: suppression.Manual})
			if err != nil {
				h.t.Error(err)
			}
			r.isSuppressed(address)
		}
		r.more = func(a acceptance) []event {
			if random.IntN(4) != 0 {
				return nil
			}
			address := fmt.Sprintf("p%d@shop.example", 1+random.IntN(people))
			if !r.onlyOwn && random.IntN(2) == 0 {
				return []event{{Type: "unsubscribed", Address: address}}
			}
			suppress(address)
			return nil
		}
		r.seeSuppressed(h)
		_, sum := h.killedCampaign(r, func() {
			r.change(func() {
				for i := 1; i <= people; i += 40 {
					suppress(fmt.Sprintf("p%d@shop.example", i))
				}
			})
		})
		h.wantNoneSuppressed(r, sum)
	})
}

func (h *env) wantNoneSuppressed(r *reporter, sum totals) {
	h.t.Helper()
	const age = time.Second // the last check is at most so old when a window has opened
	races := 0
	for _, a := range r.acceptances() {
		at, ok := r.visible[a.recipient]
		if !ok || a.at.Before(at) {
			continue
		}
		races++
		if before := h.windowOf(a).Sub(at); before > age {
			h.t.Errorf("%s was suppressed %v before its window opened", a.recipient, before)
		}
	}
	h.t.Logf("%d suppressed, %d skipped as suppressed, %d called by windows whose check was before the suppression",
		len(r.visible), sum.Skips["suppressed"], races)
	if sum.Skips["suppressed"] == 0 {
		h.t.Error("no address was suppressed before its window")
	}
}

// windowOf is when the window opened that called a.
func (h *env) windowOf(a acceptance) (opened time.Time) {
	h.t.Helper()
	origin, key, _ := lemma.ParseNotificationID(a.notification)
	h.Must(h.Pool.QueryRow(h.t.Context(), `
		select l.at from notifications n
		join batches b on b.workspace_id = n.workspace_id and b.origin_id = n.origin_id and b.root_id = n.batch_id
		join batch_log l on l.workspace_id = b.workspace_id and l.batch_id = b.id
		where n.workspace_id = $1 and n.origin_id = $2 and n.key = $3
		  and l.event = 'window' and n.ordinal between l.first and l.last and l.at <= $4
		order by l.at desc limit 1`, h.Workspace, origin, key, a.at).Scan(&opened))
	return opened
}

package chaos

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

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
// them during a call, then one after another at random. It returns the totals. It ends with
// messages that no kill can reach.
func (h *env) killedCampaign(g *reporter) (uuid.UUID, totals) {
	h.t.Helper()
	kills, random := h.kills(4), h.random()
	people := h.customer(kills * perKill)
	workers := h.startWorkers(3, g.settings...)
	id := h.send(people)
	for n, out := range killPoints(random, kills, kills*perKill*4/5) {
		pgtest.Eventually(h.t, 60*time.Second, fmt.Sprintf("%d messages are sent", out), func() bool { return g.received() >= out })
		if n == 0 {
			h.killDuringCall(&g.answers, workers, g.settings...)
			continue
		}
		i := random.IntN(len(workers))
		workers[i].kill()
		workers[i] = h.work(g.settings...)
	}
	h.completed(id, 2*time.Minute+time.Duration(kills)*10*time.Second)
	sum := h.verify(people, id)
	settled := h.Count(`select count(*) from attempts where attempt = 1 and basis = 'evidence'`)
	h.t.Logf("%d kills: %d first attempts settled by events, %d with a second attempt", kills, settled,
		h.Count(`select count(*) from attempts where attempt = 2`))
	if settled+sum.Unknown == 0 {
		h.t.Error("no kill left a call without an answer: nothing was tested")
	}
	return id, sum
}

// Every event arrives, in order: no profile gets two copies, and all are sent.
func TestKilledWorkersWithAllEvents(t *testing.T) {
	t.Parallel()
	overCarriers(t, func(h *env, r *reporter) {
		id, sum := h.killedCampaign(r)
		h.wantAllSentOnce(id, sum)
	})
}

// Events arrive later than leases expire: second attempts wait for them.
func TestKilledWorkersWithLateEvents(t *testing.T) {
	t.Parallel()
	overCarriers(t, func(h *env, r *reporter) {
		r.lag = 4 * time.Second // a lease is 2 s
		id, sum := h.killedCampaign(r)
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
		r.loses = func(acceptance) bool { return random.IntN(10) == 0 }
		id, _ := h.killedCampaign(r)
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
// opened.
func TestKilledWorkersCallNoSuppressedAddress(t *testing.T) {
	t.Parallel()
	overCarriers(t, func(h *env, r *reporter) {
		random := h.random()
		list, people := suppression.New(h.Pool), h.kills(4)*perKill
		r.more = func(a acceptance) []event {
			if random.IntN(4) != 0 {
				return nil
			}
			address := fmt.Sprintf("p%d@shop.example", 1+random.IntN(people))
			if !r.onlyOwn && random.IntN(2) == 0 {
				return []event{{Type: "unsubscribed", Address: address}}
			}
			_, _, err := list.Add(h.t.Context(), h.Workspace,
				suppression.Entry{ID: lemma.NewID(), Channel: lemma.Email, Address: address, Cause: suppression.Manual})
			if err != nil {
				h.t.Error(err)
			}
			return nil
		}
		_, sum := h.killedCampaign(r)
		h.wantNoneSuppressed(r, sum)
	})
}

func (h *env) wantNoneSuppressed(r *reporter, sum totals) {
	h.t.Helper()
	const age = time.Second // the last check of a window's addresses is at most so old
	suppressed := h.suppressions()
	races := 0
	for _, a := range r.acceptances() {
		at, ok := suppressed[a.recipient]
		if !ok || a.at.Before(at) {
			continue
		}
		races++
		opened := h.windowOf(a)
		if opened.Sub(at) > age+time.Second {
			h.t.Errorf("%s was called %v after it was suppressed", a.recipient, a.at.Sub(at))
		}
	}
	h.t.Logf("%d suppressed, %d skipped as suppressed, %d called by windows whose check was before the suppression",
		len(suppressed), sum.Skips["suppressed"], races)
	if sum.Skips["suppressed"] == 0 {
		h.t.Error("no address was suppressed before its window")
	}
}

// suppressions are the addresses that are suppressed, with the time since when.
func (h *env) suppressions() map[string]time.Time {
	h.t.Helper()
	rows, err := h.Pool.Query(h.t.Context(), `select address, created_at from suppressions where workspace_id = $1`, h.Workspace)
	h.Must(err)
	all := map[string]time.Time{}
	var address string
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&address, &at}, func() error { all[address] = at; return nil })
	h.Must(err)
	return all
}

// windowOf is when the window that called a was opened.
func (h *env) windowOf(a acceptance) time.Time {
	h.t.Helper()
	origin, key, _ := lemma.ParseNotificationID(a.notification)
	return pgtest.One[time.Time](h.T, h.Pool, `
		select max(l.at) from notifications n
		join batches b on b.workspace_id = n.workspace_id and b.origin_id = n.origin_id and b.root_id = n.batch_id
		join batch_log l on l.workspace_id = b.workspace_id and l.batch_id = b.id
		where n.workspace_id = $1 and n.origin_id = $2 and n.key = $3
		  and l.event = 'window' and n.ordinal between l.first and l.last and l.at <= $4`, h.Workspace, origin, key, a.at)
}

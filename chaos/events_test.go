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
)

// eventTimes are settings for providers that report events: a second attempt waits for
// them for as long as a test may last.
var eventTimes = []string{"LEMMA_EVENT_WAIT=60s"}

// perKill is the number of profiles for each kill.
const perKill = 400

// kills is how often a worker is killed in a campaign: LEMMA_CHAOS_KILLS, or 10. With 50
// kills a campaign has 20,000 profiles.
func (h *env) kills() int {
	h.t.Helper()
	text := os.Getenv("LEMMA_CHAOS_KILLS")
	if text == "" {
		return 10
	}
	n, err := strconv.Atoi(text)
	h.Must(err)
	return n
}

// killedCampaign sends a campaign over a gateway while workers are killed at random, and
// returns its totals. It ends with messages that no kill can reach.
func (h *env) killedCampaign(g *webhookGateway) (uuid.UUID, totals) {
	h.t.Helper()
	kills, random := h.kills(), h.random()
	people := h.customer(kills * perKill)
	settings := append([]string{"LEMMA_PUBLIC_URL=" + g.public}, eventTimes...)
	workers := h.startWorkers(3, settings...)
	id := h.send(people)
	for _, out := range killPoints(random, kills, kills*perKill*4/5) {
		pgtest.Eventually(h.t, 60*time.Second, fmt.Sprintf("%d messages are sent", out), func() bool { return g.received() >= out })
		i := random.IntN(len(workers))
		workers[i].kill()
		workers[i] = h.work(settings...)
	}
	h.completed(id, 120*time.Second)
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
	h := setup(t)
	g := h.openGateway()
	g.delay = 20 * time.Millisecond
	id, sum := h.killedCampaign(g)
	h.wantAllSentOnce(id, sum)
}

// Events arrive later than leases expire: second attempts wait for them.
func TestKilledWorkersWithLateEvents(t *testing.T) {
	h := setup(t)
	g := h.openGateway()
	g.delay, g.lag = 20*time.Millisecond, 4*time.Second // a lease is 2 s
	id, sum := h.killedCampaign(g)
	h.wantAllSentOnce(id, sum)
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
	for _, o := range h.outcomes(id) {
		killedTwice := o.Status == "orphaned" && o.First == "unknown" && o.Second == "unknown"
		if o.Status != "sent" && o.Status != "skipped" && !killedTwice {
			h.t.Errorf("it is not sent: %v", o)
		}
	}
}

// One event of ten is lost: a profile gets two copies only if the event of the first is
// lost and its answer too.
func TestKilledWorkersWithLostEvents(t *testing.T) {
	h := setup(t)
	g := h.openGateway()
	random := h.random()
	g.delay = 20 * time.Millisecond
	g.loses = func(acceptance) bool { return random.IntN(10) == 0 }
	id, _ := h.killedCampaign(g)

	most, twice := 0, 0
	for _, o := range h.outcomes(id) {
		possible := g.lost[o.Name] && o.First == "unknown"
		if possible {
			most++
		}
		if o.copies == 2 {
			twice++
			if !possible {
				t.Errorf("a second copy, although the event of the first was not lost: %v", o)
			}
		}
	}
	t.Logf("%d of %d events lost, %d of them of calls without an answer: %d profiles got two copies",
		len(g.lost), g.received(), most, twice)
	h.wantSent(id)
	if twice > most {
		t.Errorf("%d profiles got two copies, at most %d may", twice, most)
	}
}

// Recipients unsubscribe at the carrier while the campaign is sent: an address is not
// called once it is suppressed, but for a window that was being opened.
func TestKilledWorkersCallNoSuppressedAddress(t *testing.T) {
	h := setup(t)
	g := h.openGateway()
	random := h.random()
	people := h.kills() * perKill
	g.delay = 20 * time.Millisecond
	g.more = func(acceptance) []event {
		if random.IntN(4) != 0 {
			return nil
		}
		return []event{{Type: "unsubscribed", Address: fmt.Sprintf("p%d@shop.example", 1+random.IntN(people))}}
	}
	_, sum := h.killedCampaign(g)

	const age = time.Second // the last check of a window's addresses is at most so old
	suppressed := h.suppressions()
	races := 0
	for _, a := range g.acceptances() {
		at, ok := suppressed[a.recipient]
		if !ok || a.at.Before(at) {
			continue
		}
		races++
		opened := h.windowOf(a)
		if opened.Sub(at) > age+time.Second {
			t.Errorf("%s was called %v after it was suppressed", a.recipient, a.at.Sub(at))
		}
	}
	t.Logf("%d suppressed, %d skipped as suppressed, %d called by windows whose check was before the suppression",
		len(suppressed), sum.Skips["suppressed"], races)
	if sum.Skips["suppressed"] == 0 {
		t.Error("no address was suppressed before its window")
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

package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/flows"
	"lemma/flows/intake"
	"lemma/message"
	"lemma/notifications"
	"lemma/providers"
	"lemma/secrets"
	"lemma/webhooks"
)

// journeys is the room of flows, as the API has it.
func (h *house) journeys() *flows.Flows { return h.journeysOver(h.pool) }

func (h *house) journeysOver(pool *pgxpool.Pool) *flows.Flows {
	h.t.Helper()
	box, err := secrets.ParseKeys(h.key)
	h.must(err)
	log := slog.New(slog.DiscardHandler)
	return flows.New(flows.Deps{Pool: pool, Ledger: notifications.New(pool), Audiences: h.audiences, Templates: message.New(pool),
		Providers: providers.New(pool, box, nil), Webhooks: webhooks.New(webhooks.Deps{Pool: pool, Box: box, Log: log}, webhooks.Options{}), Log: log}, flows.Config{})
}

// shortJourney is a letter, two seconds, a fork, and another letter.
const shortJourney = `{"audience_id":"$audience","triggers":[{"type":"event","event":"signed_up"}],"recurrence":{"policy":"once"},"start":"hello","nodes":{
	"hello":{$send,"next":"wait"},"wait":{"type":"delay","for":"PT2S","next":"fork"},
	"fork":{"type":"branch","cases":[{"if":"trigger.properties.plan == 'free'","next":"free"}],"else":"paying"},
	"free":{$send,"next":"end"},"paying":{$send,"next":"end"},"end":{"type":"exit"}}}`

// live makes and publishes a flow for a customer's people.
func (h *house) live(f *flows.Flows, c *customer, text string) uuid.UUID {
	h.t.Helper()
	text = strings.NewReplacer("$audience", lemma.FormatID(lemma.PrefixAudience, c.audience),
		"$send", `"type":"send","channel":"email","from":{"email":"news@shop.example"},"provider_id":"`+lemma.FormatID(lemma.PrefixProvider, h.provider)+
			`","template_id":"`+lemma.FormatID(lemma.PrefixTemplate, h.template)+`"`).Replace(text)
	id := lemma.NewID()
	_, err := f.Create(h.t.Context(), h.ws, flows.NewFlow{ID: id, Name: "chaos", Definition: json.RawMessage(text)})
	h.must(err)
	_, err = f.Publish(h.t.Context(), h.ws, id, 1, nil, flows.InFlight{}, nil)
	h.must(err)
	return id
}

// signUp tells that people from one to another have signed up.
func (h *house) signUp(f *flows.Flows, from, to int) error {
	return h.signUpBy(h.t.Context(), f, from, to)
}

func (h *house) signUpBy(ctx context.Context, f *flows.Flows, from, to int) error {
	var all []intake.Event
	for i := from; i <= to; i++ {
		plan := "paying"
		if i%3 == 0 {
			plan = "free"
		}
		all = append(all, intake.Event{ID: fmt.Sprint("signed up ", i), ProfileKey: fmt.Sprint(i), Name: "signed_up", Properties: json.RawMessage(`{"plan":"` + plan + `"}`)})
	}
	_, err := f.Intake.RecordAll(ctx, h.ws, all)
	return err
}

// passed says how many steps have been taken in all.
func (h *house) passed() int {
	h.t.Helper()
	return h.count(`select coalesce(sum(processed), 0) from flow_node_counts where workspace_id = $1`, h.ws)
}

// forgetTurns lets the leases of whoever held a turn run out, and says how many
// there were. Those who are alive lose theirs as well, which harms nobody.
func (h *house) forgetTurns() int {
	h.t.Helper()
	tag, err := h.pool.Exec(h.t.Context(), `update flow_shards set lease_until = now() - interval '1 second' where lease_until > now()`)
	h.must(err)
	return int(tag.RowsAffected())
}

// forgetTheDead lets the leases of turns run out that were claimed ten seconds
// ago, when a turn takes a fraction of one: a worker that was killed may have had
// a claim on its way, which Postgres carries out after forgetTurns has looked.
func (h *house) forgetTheDead() {
	h.t.Helper()
	h.run(h.pool, `update flow_shards set lease_until = now() - interval '1 second' where lease_until between now() and now() + interval '50 seconds'`)
}

// arrived waits until nobody is on the way and no letter is.
func (h *house) arrived(within time.Duration) {
	h.t.Helper()
	h.t.Cleanup(func() {
		if h.t.Failed() {
			h.t.Logf("on the way: %s", h.text(`select coalesce(string_agg(concat_ws(' ', n, node, due, blocked_reason, status), '; '), 'nobody') from (
				select count(*) as n, e.node, e.resume_at <= now() as due, e.blocked_reason, f.status || coalesce(f.status_reason, '') as status
				from enrollments e join flows f on f.id = e.flow_id where e.status = 'active' group by 2, 3, 4, 5) one`))
			h.t.Logf("turns: %s", h.text(`select coalesce(string_agg(t::text, '; '), 'none') from flow_shards t`))
			h.t.Logf("batches: %s", h.text(`select coalesce(string_agg(concat_ws(' ', n, status, gate, due), '; '), 'none') from (
				select count(*) as n, status, gate, due_at <= now() as due from batches group by 2, 3, 4) one`))
		}
	})
	h.until(within, "everybody has arrived", func() bool {
		h.letTimePass()
		h.forgetTheDead()
		return h.count(`select count(*) from enrollments where status = 'active'`) == 0 && h.count(`select count(*) from batches where status in ('ready', 'leased')`) == 0
	})
}

func (h *house) text(sql string) (text string) {
	if err := h.pool.QueryRow(context.Background(), sql).Scan(&text); err != nil {
		return err.Error()
	}
	return text
}

// judgeJourneys asks which promise of flows is broken, and holds the letters of
// a flow against what the mail server received.
func (h *house) judgeJourneys(flow uuid.UUID) tally {
	h.t.Helper()
	question, err := os.ReadFile(filepath.Join("..", "flows", "flowstest", "testdata", "invariants.sql"))
	h.must(err)
	h.run(h.pool, `analyze enrollments, enrollment_steps, notifications, batches`)
	rows, err := h.pool.Query(h.t.Context(), string(question), h.ws)
	h.must(err)
	broken, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Fault, Who string }])
	h.must(err)
	for i, b := range broken {
		if i < 10 {
			h.t.Errorf("%s: %s", b.Fault, b.Who)
		}
	}
	if len(broken) > 10 {
		h.t.Errorf("and %d faults more", len(broken)-10)
	}
	return h.judgeLetters(flow)
}

func (h *house) judgeLetters(flow uuid.UUID) tally {
	h.t.Helper()
	rows, err := h.pool.Query(h.t.Context(), `select origin_id from flow_origins where flow_id = $1`, flow)
	h.must(err)
	origins, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	h.must(err)
	sum, wrong := tally{Status: map[string]int{}, Skips: map[string]int{}}, 0
	for _, origin := range origins {
		all := h.fates(origin)
		for _, f := range all {
			sum.add(f)
			for _, fault := range f.faults() {
				if wrong++; wrong <= 10 {
					h.t.Errorf("%s: %v", fault, f)
				}
			}
		}
		h.nobodyElse(origin, all)
	}
	if wrong > 10 {
		h.t.Errorf("and %d faults more", wrong-10)
	}
	h.t.Logf("%v, skipped %v, %d first attempts in doubt, %d got two copies", sum.Status, sum.Skips, sum.Doubts, sum.Twice)
	return sum
}

package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/intake"
	"lemma/message"
	"lemma/notifications"
	"lemma/providers"
	"lemma/webhooks"
)

// flows are the flows as the API uses them.
func (h *env) flows() *flows.Flows { return h.flowsOver(h.Pool) }

func (h *env) flowsOver(pool *pgxpool.Pool) *flows.Flows {
	h.t.Helper()
	log := slog.New(slog.DiscardHandler)
	return flows.New(flows.Deps{Pool: pool, Ledger: notifications.New(pool), Audiences: h.Audiences, Templates: message.New(pool),
		Providers: providers.New(pool, h.Box, nil), Log: log,
		Webhooks: webhooks.New(webhooks.Deps{Pool: pool, Box: h.Box, Log: log}, webhooks.Options{})}, flows.Config{})
}

// shortFlow sends a message, waits for two seconds, branches, and sends another message.
const shortFlow = `{"audience_id":"$audience","triggers":[{"type":"event","event":"signed_up"}],
	"recurrence":{"policy":"once"},"start":"hello","nodes":{
	"hello":{$send,"next":"wait"},"wait":{"type":"delay","for":"PT2S","next":"plan"},
	"plan":{"type":"branch","cases":[{"if":"trigger.properties.plan == 'free'","next":"free"}],"else":"paying"},
	"free":{$send,"next":"end"},"paying":{$send,"next":"end"},"end":{"type":"exit"}}}`

// live creates and publishes a flow for a customer's profiles.
func (h *env) live(f *flows.Flows, c *customer, text string) uuid.UUID {
	h.t.Helper()
	text = strings.NewReplacer("$audience", lemma.FormatID(lemma.PrefixAudience, c.audience),
		"$send", `"type":"send","channel":"email","from":{"email":"news@shop.example"},"provider_id":"`+
			lemma.FormatID(lemma.PrefixProvider, h.Provider)+`","template_id":"`+
			lemma.FormatID(lemma.PrefixTemplate, h.Template)+`"`).Replace(text)
	id := lemma.NewID()
	_, err := f.Create(h.t.Context(), h.Workspace, flows.NewFlow{ID: id, Name: "chaos", Definition: json.RawMessage(text)})
	h.Must(err)
	_, err = f.Publish(h.t.Context(), h.Workspace, id, 1, nil, flows.InFlight{}, nil)
	h.Must(err)
	return id
}

// recordSignUps records a sign-up event of each profile of a range.
func (h *env) recordSignUps(f *flows.Flows, from, to int) error {
	return h.recordSignUpsWith(h.t.Context(), f, from, to)
}

func (h *env) recordSignUpsWith(ctx context.Context, f *flows.Flows, from, to int) error {
	var all []intake.Event
	for i := from; i <= to; i++ {
		plan := "paying"
		if i%3 == 0 {
			plan = "free"
		}
		all = append(all, intake.Event{ID: fmt.Sprint("signed up ", i), ProfileKey: fmt.Sprint(i), Name: "signed_up",
			Properties: json.RawMessage(`{"plan":"` + plan + `"}`)})
	}
	_, err := f.Intake.RecordAll(ctx, h.Workspace, all)
	return err
}

// processed is how many steps were executed.
func (h *env) processed() int {
	h.t.Helper()
	return h.Count(`select coalesce(sum(processed), 0) from flow_node_counts where workspace_id = $1 and event <> $2`,
		h.Workspace, enrollment.CountSkipped)
}

// waitForCompletion waits until no enrollment is active and no message is pending.
func (h *env) waitForCompletion() {
	h.t.Helper()
	h.eventually("all enrollments have ended", func() bool {
		h.makeAllDue()
		return h.Count(`select count(*) from enrollments where status = 'active'`) == 0 &&
			h.Count(`select count(*) from batches where status in ('ready', 'leased')`) == 0
	})
}

// verifyFlow queries violations of the invariants of flows, and compares the messages
// of a flow with the mail server.
func (h *env) verifyFlow(flow uuid.UUID) totals {
	h.t.Helper()
	query, err := os.ReadFile(filepath.Join("..", "flows", "flowstest", "testdata", "invariants.sql"))
	h.Must(err)
	h.Exec(`analyze enrollments, enrollment_steps, notifications, batches`)
	rows, err := h.Pool.Query(h.t.Context(), string(query), h.Workspace)
	h.Must(err)
	broken, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Fault, Subject string }])
	h.Must(err)
	for i, b := range broken {
		if i < 10 {
			h.t.Errorf("%s: %s", b.Fault, b.Subject)
		}
	}
	if len(broken) > 10 {
		h.t.Errorf("and %d more violations", len(broken)-10)
	}
	return h.verifyMessages(flow)
}

func (h *env) verifyMessages(flow uuid.UUID) totals {
	h.t.Helper()
	rows, err := h.Pool.Query(h.t.Context(), `select origin_id from flow_origins where flow_id = $1`, flow)
	h.Must(err)
	origins, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	h.Must(err)
	sum, wrong := totals{Status: map[string]int{}, Skips: map[string]int{}}, 0
	for _, origin := range origins {
		all := h.outcomes(origin)
		for _, f := range all {
			sum.add(f)
			for _, fault := range f.violations() {
				if wrong++; wrong <= 10 {
					h.t.Errorf("%s: %v", fault, f)
				}
			}
		}
		h.verifyRecipients(origin, all)
	}
	if wrong > 10 {
		h.t.Errorf("and %d more violations", wrong-10)
	}
	h.t.Logf("%v, skipped %v, %d first attempts unknown, %d with two copies", sum.Status, sum.Skips, sum.Unknown, sum.Twice)
	return sum
}

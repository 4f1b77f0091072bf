package chaos

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/mail"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/abtest"
	"lemma/campaigns"
	"lemma/pgtest"
)

// experiment is a campaign with two variants, half of whose audience is the sample. Its
// workers are killed.
type experiment struct {
	*env
	people   *customer
	n        int // people at the start
	campaign uuid.UUID
	id       uuid.UUID
	plan     abtest.Plan
	workers  []*worker
	random   *rand.Rand
	killed   int
}

// Workers are killed while they read the audience, send the sample, evaluate, read the
// audience again and roll out. People join and leave before the rollout.
func TestKilledWorkersChooseOneWinner(t *testing.T) {
	t.Parallel()
	h := setup(t)
	kills := h.kills(8)
	evaluations := kills / 5 // each kills both workers, as does each reading
	senders := (kills - 4 - 2*evaluations) / 2
	x := h.experiment(kills * perKill)

	x.killReaders()
	x.killSenders(senders, 0)
	x.sampled()
	x.convert()
	x.killEvaluators(evaluations)
	x.people.proxy.freezeAfter(withinPeople * x.n)
	x.killReaders()
	x.killSenders(senders, h.mail.received())
	h.completed(x.campaign)
	x.verifyExperiment()
}

// experiment sends a campaign with an experiment to n people, with two workers. Its metric
// reads the customer's database.
func (h *env) experiment(n int) *experiment {
	h.t.Helper()
	x := &experiment{env: h, people: h.customer(n), n: n, random: h.random(), campaign: lemma.NewID()}
	x.people.ExecDB(`create table conversions (id int, at timestamptz not null default now() - interval '1 minute')`)
	x.people.ExecDB(`grant select on conversions to ` + pgx.Identifier{x.people.Role}.Sanitize())
	h.mail.keepAll(h.t, 2*n)
	h.mail.slow(10 * time.Millisecond)
	x.people.proxy.freezeAfter(withinPeople * n)
	x.workers = h.startWorkers(2)
	source := pgtest.One[uuid.UUID](h.t, h.Pool, `select data_source_id from audiences where id = $1`, x.people.audience)
	c, err := h.campaigns.Create(h.t.Context(), h.Workspace, campaigns.NewCampaign{ID: x.campaign, Name: "chaos",
		AudienceID: x.people.audience, TemplateID: h.Template, ProviderID: h.Provider, FromName: "Shop", FromEmail: "news@shop.example",
		Experiment: &campaigns.Experiment{SamplePercent: 50, Duration: time.Hour, MinSample: 100,
			Metric: &campaigns.Metric{DataSourceID: source, SQL: "select id from conversions where at < :cut_off_at"},
			Variants: []campaigns.Variant{{Name: "A", Weight: 50, Subject: "A, {{ name }}"},
				{Name: "B", Weight: 50, Subject: "B, {{ name }}"}}}})
	h.Must(err)
	x.id = *c.IterationID
	x.plan = x.iteration().Plan()
	_, err = h.campaigns.Send(h.t.Context(), h.Workspace, x.campaign, uuid.Nil)
	h.Must(err)
	return x
}

func (x *experiment) iteration() campaigns.Iteration {
	x.t.Helper()
	it, err := x.campaigns.GetIteration(x.t.Context(), x.Workspace, x.id)
	x.Must(err)
	return it
}

// killAll kills both workers and starts others.
func (x *experiment) killAll() {
	x.t.Helper()
	for _, w := range x.workers {
		w.kill()
		x.killed++
	}
	x.startAgain(x.workers)
}

// withinPeople is how many bytes of each profile are read until the audience freezes: it has
// 103, of which 49 are of the opt-outs. The rows of the metric have less than that together.
const withinPeople = 60

// killReaders kills all workers while the audience is read, whose source is frozen then.
func (x *experiment) killReaders() {
	x.t.Helper()
	x.eventually("the audience is being read", func() bool {
		return x.Count(`select count(*) from fanouts where campaign_id = $1 and leased_by is not null and finished_at is null`, x.campaign) == 1
	})
	x.killAll()
	x.people.proxy.thaw()
}

// killSenders kills one worker n times while half of the audience is sent to. Before it,
// the mail server had received that many messages.
func (x *experiment) killSenders(n, before int) {
	x.t.Helper()
	for _, out := range killPoints(x.random, n, x.n/2*4/5) {
		x.waitForMessages(before + out)
		i := x.random.IntN(len(x.workers))
		x.workers[i].kill()
		x.killed++
		x.workers[i] = x.work()
	}
}

// sampled waits until the sample has been written, and moves the cut-off to now.
func (x *experiment) sampled() {
	x.t.Helper()
	x.eventually("the sample is written", func() bool {
		return x.iteration().Status == campaigns.IterationRunning
	})
	x.people.proxy.freeze() // no evaluation ends
	x.Exec(`update iterations set cut_off_at = now() where id = $1`, x.id)
}

// convert makes one of ten people convert, and of those with the second variant three.
// 50 people join, and some of those that are not in the sample leave.
func (x *experiment) convert() {
	x.t.Helper()
	var converted, leaving []string
	for i := range x.n {
		key := fmt.Sprint(i + 1)
		a := x.plan.Assign(key)
		if i%10 == 0 || a.Variant == 1 && i%10 < 3 {
			converted = append(converted, key)
		}
		if a.Group == abtest.Rest && (i+1)%50 == 1 {
			leaving = append(leaving, key)
		}
	}
	x.people.ExecDB(`insert into conversions (id) select unnest($1::text[])::int`, converted)
	x.people.ExecDB(`delete from people where id = any ($1::text[]::int[])`, leaving)
	x.people.ExecDB(`insert into people select i, 'late' || i || '@shop.example', 'Name ' || i, false
		from generate_series($1::int + 1, $1::int + 50) i`, x.n)
}

// killEvaluators kills all workers n times while one of them evaluates.
func (x *experiment) killEvaluators(n int) {
	x.t.Helper()
	last := ""
	for range n {
		x.eventually("a worker evaluates", func() bool {
			token := pgtest.One[string](x.t, x.Pool, `select coalesce(evaluating_by, '') from iterations where id = $1`, x.id)
			is := token != "" && token != last
			if is {
				last = token
			}
			return is
		})
		x.killAll()
		x.Exec(`update iterations set evaluating_until = now() - interval '1 second' where id = $1 and evaluating_by = $2`, x.id, last)
	}
}

// verifyExperiment verifies that the campaign has one winner, and that every profile of
// the sample got its variant and every other profile the winner.
func (x *experiment) verifyExperiment() {
	x.t.Helper()
	x.verify(x.people, x.campaign)
	it := x.iteration()
	if it.Status != campaigns.IterationCompleted || it.Winner == nil || *it.Winner != 1 || it.DecidedBy != "evaluation" {
		x.t.Fatalf("%s, winner %v by %q: %s", it.Status, it.Winner, it.DecidedBy, it.StatusDetail)
	}
	for _, event := range []string{"started", "sampled", "decided", "rollout_started", "completed"} {
		x.WantCount(1, `select count(*) from iteration_log where iteration_id = $1 and event = $2`, x.id, event)
	}
	variants := x.variants(*it.Winner)
	got := map[string]int{}
	for _, r := range variants {
		got[r.content]++
		if want := x.content(it, r.profile); r.content != want {
			x.t.Errorf("profile %s has %s, want %s", r.profile, r.content, want)
		}
	}
	if d := cmp.Diff(map[string]int64{"A": it.Verdict.Variants[0].Recipients, "B": it.Verdict.Variants[1].Recipients},
		map[string]int64{"A": int64(got["A"]), "B": int64(got["B"])}); d != "" {
		x.t.Errorf("recipients in the verdict (-) and notifications of the sample (+):\n%s", d)
	}
	sent := x.verifySubjects(variants)
	x.t.Logf("%d kills: winner %s, %d notifications of A, %d of B, %d of the rollout; %d messages with the subject of their variant; %s",
		x.killed, it.Variants[*it.Winner].Name, got["A"], got["B"], got["rollout"], sent, it.Verdict.Sentence)
}

// assigned is the content of a notification: a variant's name, or rollout.
type assigned struct{ profile, content, subject string }

// variants reads the content of each notification that is not skipped, by its id.
func (x *experiment) variants(winner int) map[string]assigned {
	x.t.Helper()
	rows, err := x.Pool.Query(x.t.Context(), `
		select n.key, n.profile_key, case when i.rollout_id = b.content_id then 'rollout' else coalesce(v.name, '') end,
			coalesce(v.name, w.name)
		from notifications n
		join batches b on b.workspace_id = n.workspace_id and b.origin_id = n.origin_id and b.id = n.batch_id
		join iterations i on i.workspace_id = n.workspace_id and i.campaign_id = n.origin_id
		join iteration_variants w on w.workspace_id = i.workspace_id and w.iteration_id = i.id and w.ordinal = $3
		left join iteration_variants v on v.workspace_id = i.workspace_id and v.iteration_id = i.id and v.content_id = b.content_id
		where n.workspace_id = $1 and n.origin_id = $2`, x.Workspace, x.campaign, winner)
	x.Must(err)
	all := map[string]assigned{}
	var key uuid.UUID
	var a assigned
	_, err = pgx.ForEachRow(rows, []any{&key, &a.profile, &a.content, &a.subject}, func() error {
		all[lemma.FormatNotificationID(x.campaign, key)] = a
		return nil
	})
	x.Must(err)
	return all
}

// content is what a profile must have: by the plan, and the winner if it joined late.
func (x *experiment) content(it campaigns.Iteration, profile string) string {
	key, err := strconv.Atoi(profile)
	x.Must(err)
	if a := x.plan.Assign(profile); a.Group == abtest.Sample && key <= x.n {
		return it.Variants[a.Variant].Name
	}
	return "rollout"
}

// verifySubjects verifies that each message at the mail server has the subject of the
// variant that is recorded. It returns the number of messages.
func (x *experiment) verifySubjects(variants map[string]assigned) int {
	x.t.Helper()
	all := x.mail.Ledger()
	for _, e := range all {
		raw, kept := x.mail.Source(e.N)
		m, err := mail.ReadMessage(bytes.NewReader(raw))
		if err != nil || !kept {
			x.t.Fatalf("message %d: kept %t, %v", e.N, kept, err)
		}
		want := variants[notificationIn(e.MessageID)]
		if subject := m.Header.Get("Subject"); subject != want.subject+", Name "+want.profile {
			x.t.Errorf("profile %s got %q, want variant %s", want.profile, subject, want.subject)
		}
	}
	return len(all)
}

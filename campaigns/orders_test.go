package campaigns

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/abtest"
)

// orders are all orders of steps. Steps with one name keep their order: it is that of one
// process.
func orders(steps ...string) (all [][]string) {
	if len(steps) == 0 {
		return [][]string{nil}
	}
	for i, step := range steps {
		if slices.Contains(steps[:i], step) {
			continue
		}
		for _, rest := range orders(slices.Concat(steps[:i], steps[i+1:])...) {
			all = append(all, append([]string{step}, rest...))
		}
	}
	return all
}

// evaluator is an evaluation in its own process, which stops after its claim and after
// its read. Its snapshot is that the variant with its number is best.
type evaluator struct {
	*Campaigns
	number  int
	reached chan string
	proceed chan struct{}
	done    chan error
	steps   int
	ended   bool
}

func (b *bundle) evaluator(number int) *evaluator {
	e := &evaluator{Campaigns: New(b.deps, b.cfg), number: number, reached: make(chan string), proceed: make(chan struct{}),
		done: make(chan error, 1)}
	e.Hook = func(_ context.Context, at string, _ uuid.UUID) {
		if strings.HasPrefix(at, "evaluation") {
			e.reached <- at
			<-e.proceed
		}
	}
	return e
}

// step claims, reads or commits, and stops after it.
func (e *evaluator) step(b *bundle, it Iteration) {
	b.T.Helper()
	e.steps++
	switch {
	case e.ended:
		return
	case e.steps == 1:
		go func() { e.done <- e.Evaluate(context.Background(), b.Workspace, it.ID) }()
	case e.steps == 2: // the read
		b.favour(it, e.number)
		e.proceed <- struct{}{}
	default:
		e.proceed <- struct{}{}
	}
	select {
	case <-e.reached:
	case err := <-e.done:
		e.ended = true
		b.Must(err)
	}
}

// favour makes one variant convert best.
func (b *bundle) favour(it Iteration, best int) {
	b.T.Helper()
	var profiles []string
	for i := range it.Variants {
		members := b.members(it, len(it.Variants)*perVariant, i)
		if i == best {
			members = members[:len(members)*3/4]
		} else {
			members = members[:5] // the least that a comparison takes
		}
		profiles = append(profiles, members...)
	}
	b.Exec(`delete from trigger_events where workspace_id = $1`, b.Workspace)
	b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
		select $1, gen_random_uuid(), p, 'bought', $3, $3 from unnest($2::text[]) p`, b.Workspace, profiles, *it.StartedAt)
}

// perVariant is the size of an audience, for each variant, in which one of five can win.
const perVariant = 32

// minSample is the smallest size of a variant of pastCutOff: five recipients did not convert.
const minSample = 20

// pastCutOff is an iteration with n variants past its cut-off. The variants have about
// the same size, so that neither the check of the sample ratio nor a small sample ever blocks
// the choice.
func (b *bundle) pastCutOff(n int) (Campaign, Iteration) {
	b.T.Helper()
	e := Experiment{SamplePercent: 100, Metric: &Metric{Event: "bought"}, Duration: time.Hour, MinSample: minSample}
	for i := range n {
		e.Variants = append(e.Variants, Variant{Name: string(rune('A' + i)), Weight: 100 / n, Subject: fmt.Sprint("Variant ", i)})
	}
	e.Variants[0].Weight += 100 - 100/n*n
	fair := func(it Iteration) bool {
		sizes, weights := make([]int64, n), make([]int, n)
		for i := range n {
			sizes[i], weights[i] = int64(len(b.members(it, n*perVariant, i))), e.Variants[i].Weight
		}
		return slices.Min(sizes) >= minSample && abtest.SampleRatioMismatch(sizes, weights) > 0.05 // below srmLevel no winner is chosen
	}
	for {
		c, err := b.Create(context.Background(), b.Workspace, NewCampaign{ID: lemma.NewID(), Name: lemma.NewID().String(),
			AudienceID: b.Audience, TemplateID: b.Template, ProviderID: b.Provider, FromName: "Shop", FromEmail: "news@shop.example",
			Experiment: &e})
		b.Must(err)
		if !fair(b.iteration(c)) {
			continue
		}
		c, err = b.Send(context.Background(), b.Workspace, c.ID, uuid.Nil)
		b.Must(err)
		b.fanout(c.ID)
		b.endBatches()
		b.endTest(b.iteration(c))
		return c, b.iteration(c)
	}
}

// race runs steps in an order, and computes what must come out.
type race struct {
	*bundle
	campaign   Campaign
	it         Iteration
	evaluators []*evaluator

	holder  int // of the claim; -1: none
	expired bool
	status  Status
	winner  int // -1: none
	by      string
	ended   bool // the iteration has an end without a rollout
}

// person is the variant that a person selects.
const person = 2

func (b *bundle) race(evaluators, variants int) *race {
	c, it := b.pastCutOff(variants)
	r := &race{bundle: b, campaign: c, it: it, holder: -1, winner: -1, status: Sending}
	for i := range evaluators {
		r.evaluators = append(r.evaluators, b.evaluator(i))
	}
	return r
}

func (r *race) step(name string) {
	r.T.Helper()
	ctx := context.Background()
	decidable := r.winner < 0 && !r.ended && (r.holder < 0 || r.expired)
	allowed := decidable && (r.status == Sending || r.status == Paused)
	var err error
	switch name {
	case "expire":
		r.expireClaim(r.it)
		r.expired = r.holder >= 0
		return
	case "select":
		_, err = r.SelectWinner(ctx, r.Workspace, r.it.ID, r.it.Variants[person].Name, uuid.Nil)
		if allowed {
			r.decide(person, "person")
		}
	case "extend": // the cut-off has passed
		_, err = r.Extend(ctx, r.Workspace, r.it.ID, r.it.CutOffAt.Add(time.Hour), uuid.Nil)
		allowed = false
	case "stop":
		_, err = r.StopIteration(ctx, r.Workspace, r.it.ID, uuid.Nil)
		if allowed {
			r.ended, r.holder = true, -1
		}
	case "pause":
		_, err = r.Pause(ctx, r.Workspace, r.campaign.ID, uuid.Nil)
		allowed, r.status = true, Paused
	case "cancel":
		_, _, err = r.Cancel(ctx, r.Workspace, r.campaign.ID, uuid.Nil)
		allowed, r.status, r.holder, r.ended = true, Cancelled, -1, true
	default:
		r.evaluatorStep(r.evaluators[name[0]-'1'], decidable)
		return
	}
	if allowed != (err == nil) || err != nil && lemma.KindOf(err) != lemma.WrongStatus {
		r.T.Errorf("%s: %v, want allowed %t", name, err, allowed)
	}
}

func (r *race) evaluatorStep(e *evaluator, decidable bool) {
	r.T.Helper()
	e.step(r.bundle, r.it)
	switch {
	case e.steps == 1 && decidable && r.status == Sending:
		r.holder, r.expired = e.number, false
	case e.steps == 3 && r.holder == e.number:
		r.decide(e.number, "evaluation")
	}
}

func (r *race) decide(winner int, by string) {
	r.winner, r.by, r.holder = winner, by, -1
}

// check compares the iteration with what must have come out.
func (r *race) check(when string) {
	r.T.Helper()
	it := r.iteration(r.campaign)
	winner := -1
	if it.Winner != nil {
		winner = *it.Winner
	}
	if winner != r.winner || it.DecidedBy != r.by || (it.Status == IterationCancelled) != r.ended {
		r.T.Errorf("%s: %s, winner %d by %q; want winner %d by %q, cancelled %t", when, it.Status, winner, it.DecidedBy, r.winner, r.by, r.ended)
	}
	if r.winner >= 0 {
		r.decidedOnce(r.campaign, r.winner)
	}
}

// run takes the steps in an order, and then lets another process evaluate: what was left
// undecided is taken over. Orders that begin with the same steps check those once.
func (r *race) run(order []string, checked map[string]bool) {
	r.T.Helper()
	for i, step := range order {
		r.step(step)
		if steps := strings.Join(order[:i+1], " "); !checked[steps] {
			r.check(steps)
			checked[steps] = true
		}
	}
	if r.status == Paused {
		_, err := r.Resume(context.Background(), r.Workspace, r.campaign.ID, uuid.Nil)
		r.Must(err)
		r.status = Sending
	}
	r.expireClaim(r.it)
	r.favour(r.it, 1)
	r.evaluate()
	if r.winner < 0 && !r.ended {
		r.decide(1, "evaluation")
	}
	r.check(strings.Join(order, " ") + ", then a takeover")
	for _, e := range r.evaluators { // those that were stopped for good continue late
		for e.steps > 0 && e.steps < 3 {
			e.step(r.bundle, r.it)
		}
	}
	r.check(strings.Join(order, " ") + ", then the late ones")
}

func (b *bundle) races(evaluators, variants int, all [][]string) {
	b.T.Helper()
	checked := map[string]bool{}
	for _, order := range all {
		if b.T.Failed() {
			return
		}
		b.race(evaluators, variants).run(order, checked)
	}
	b.T.Logf("%d orders", len(all))
}

func orderly(cfg *Config) { cfg.Chunk, cfg.BatchSize = 1000, 1000 }

// CampaignIteration!WinnerOnce: two evaluators with different snapshots claim, read and
// commit in every order, and the claim expires at any time.
func TestTwoEvaluatorsInEveryOrder(t *testing.T) {
	experiments(t, 2*perVariant, orderly).races(2, 2, orders("1", "1", "1", "2", "2", "2", "expire"))
}

// An evaluator crashes after any of its steps; one of the orders expires its claim.
func TestAnEvaluatorCrashesAfterAnyStep(t *testing.T) {
	b := experiments(t, 2*perVariant, orderly)
	for _, crashed := range [][]string{{"1"}, {"1", "1"}} {
		b.races(2, 2, orders(append(crashed, "2", "2", "2", "expire")...))
		b.races(2, 2, orders(append(crashed, "2", "expire")...))
	}
}

// Five evaluators with different snapshots: each has taken over the claim of the one
// before it. They commit in every order; only the last one holds the claim.
func TestFiveEvaluatorsCommitInEveryOrder(t *testing.T) {
	var before []string
	for _, e := range []string{"1", "2", "3", "4", "5"} {
		before = append(before, e, e, "expire")
	}
	var all [][]string
	for _, commits := range orders("1", "2", "3", "4", "5") {
		all = append(all, slices.Concat(before, commits))
	}
	experiments(t, 5*perVariant, orderly).races(5, 5, all)
}

// An evaluator, a claim that expires, and a person: every order.
func TestAPersonAndAnEvaluatorInEveryOrder(t *testing.T) {
	for _, verb := range []string{"select", "stop", "extend", "pause", "cancel"} {
		t.Run(verb, func(t *testing.T) {
			experiments(t, 3*perVariant, orderly).races(1, 3, orders("1", "1", "1", "expire", verb))
		})
	}
}

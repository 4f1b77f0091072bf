package campaigns

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"

	"lemma"
	"lemma/abtest"
	"lemma/pgtest"
)

// wantVariant fails unless the assignment of a profile and the explanation of each of its
// notifications name a variant.
func (b *bundle) wantVariant(c Campaign, profile, variant, sentence string) {
	b.T.Helper()
	ctx := context.Background()
	var all []Assigned
	for _, to := range append([]string{""}, pgtest.Column[string](b.T, b.DB, `select email from customers where id = $1`, profile)...) {
		a, err := b.Assignment(ctx, b.Workspace, *c.IterationID, profile, to)
		b.Must(err)
		all = append(all, a)
	}
	for _, key := range pgtest.Column[uuid.UUID](b.T, b.Pool,
		`select key from notifications where origin_id = $1 and profile_key = $2 and batch_id is not null`, c.ID, profile) {
		a, err := b.AssignmentOf(ctx, b.Workspace, c.ID, key, profile)
		b.Must(err)
		all = append(all, *a)
	}
	for _, a := range all {
		if a.VariantName != variant || !strings.Contains(a.Sentence, sentence) {
			b.T.Errorf("%s: variant %q, %s", profile, a.VariantName, a.Sentence)
		}
	}
}

// assigned are the profiles of the table customers that the buckets lead to a variant of the sample.
func (b *bundle) assigned(it Iteration, variant int, where string) (all []string) {
	b.T.Helper()
	for _, p := range pgtest.Column[string](b.T, b.DB, `select id from customers where `+where) {
		if a := it.Plan().Assign(p); a.Group == abtest.Sample && a.Variant == variant {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		b.T.Fatal("no profile")
	}
	return all
}

// A profile that joins after the sample has the winner, whatever its buckets lead to.
func TestTheAssignmentOfAProfileThatJoinedIsTheWinner(t *testing.T) {
	b := experiments(t, 600)
	c, it := b.converting(0)
	b.evaluate()
	b.decidedOnce(c, 0)
	b.ExecDB(`insert into customers select 'new' || i, 'n' || i || '@shop.example', 'N' || i from generate_series(1, 40) i`)
	joined := b.assigned(it, 1, `id like 'new%'`)[:3]
	for _, p := range joined {
		b.wantVariant(c, p, "A", "gets the winner")
	}
	b.fanout(c.ID)
	b.endBatches()
	for _, p := range joined {
		b.wantVariant(c, p, "A", "s the winner") // has or gets
	}
	first := b.assigned(it, 1, `id not like 'new%'`)[:3]
	for _, p := range first {
		b.wantVariant(c, p, "B", "leads to variant B")
	}
	b.Must(b.Tick(context.Background()))
	b.wantEnded(c, first[0], "B")
	b.wantEnded(c, joined[0], "A")
}

// wantEnded fails unless the assignment of a profile after the test names its variant by its
// address, and none without it.
func (b *bundle) wantEnded(c Campaign, profile, variant string) {
	b.T.Helper()
	other := pgtest.One[string](b.T, b.DB, `select email from customers where id <> $1 limit 1`, profile)
	for to, want := range map[string]string{"": "", other: "",
		strings.ToUpper(pgtest.One[string](b.T, b.DB, `select email from customers where id = $1`, profile)): variant} {
		a, err := b.Assignment(context.Background(), b.Workspace, *c.IterationID, profile, to)
		if err != nil || a.VariantName != want {
			b.T.Errorf("%s at %q: %v, variant %q, want %q: %s", profile, to, err, a.VariantName, want, a.Sentence)
		}
	}
	if _, err := b.Assignment(context.Background(), b.Workspace, *c.IterationID, profile, "no address"); lemma.KindOf(err) != lemma.Invalid {
		b.T.Error(err)
	}
}

// A profile of a variant that was stopped before its notification was written gets the winner.
func TestTheAssignmentOfAStoppedVariantIsTheWinner(t *testing.T) {
	b := experiments(t, 400)
	c, it := b.guarded(Complaints)
	b.ExecDB(`insert into customers select 'new' || i, 'n' || i || '@shop.example', 'N' || i from generate_series(1, 40) i`)
	late, written := b.assigned(it, 1, `id like 'new%'`)[0], b.assigned(it, 1, `id not like 'new%'`)[0]
	b.endOf(it, 0)
	b.endOf(it, 1)
	b.complain(it, 1, 5, Complaints)
	b.guardrailDue(it)
	b.checkGuardrails()
	b.wantVariant(c, late, "", "gets the winner")
	b.wantVariant(c, written, "B", "leads to variant B")
}

// After the month of the notifications was dropped, an answer does not say that the profile has
// none. A split names the variant of the buckets.
func TestTheAssignmentAfterItsNotificationsWereDropped(t *testing.T) {
	for name, c := range map[string]struct {
		change      func(*Experiment)
		kept, after string // the variants of a profile whose buckets lead to B
	}{
		"split": {func(e *Experiment) { e.Metric, e.Duration, e.SamplePercent = nil, 0, 100 }, "B", "B"},
		"test":  {func(*Experiment) {}, "B", ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := experiments(t, 100)
			ctx := context.Background()
			tested, it := b.sampled(ab(c.change))
			if it.Metric != nil {
				_, err := b.StopIteration(ctx, b.Workspace, it.ID, uuid.Nil)
				b.Must(err)
				b.fanout(tested.ID)
			}
			b.Must(b.Tick(ctx))
			if !b.iteration(tested).isOver() {
				t.Fatal("the test has not ended")
			}
			profile := b.assigned(it, 1, "true")[0]
			of := func(address string) Assigned {
				a, err := b.Assignment(ctx, b.Workspace, it.ID, profile, address)
				b.Must(err)
				return a
			}
			own := "c" + profile + "@shop.example"
			if a := of(own); a.VariantName != c.kept {
				t.Errorf("variant %q: %s", a.VariantName, a.Sentence)
			}
			if a := of("other@shop.example"); a.VariantName != "" || !strings.Contains(a.Sentence, "it has no notification") {
				t.Errorf("at another address: variant %q: %s", a.VariantName, a.Sentence)
			}
			b.Exec(`drop table ` + pgtest.One[string](t, b.Pool,
				`select tableoid::regclass::text from notifications where origin_id = $1 limit 1`, tested.ID))
			const sentence = "the notifications of the campaign are not kept any more"
			if a := of(own); a.VariantName != c.after || !strings.Contains(a.Sentence, sentence) {
				t.Errorf("after the drop: variant %q: %s", a.VariantName, a.Sentence)
			}
			a := of("")
			if says := strings.Contains(a.Sentence, sentence); a.VariantName != c.after || says != (it.Metric != nil) ||
				strings.Contains(a.Sentence, "give the address") {
				t.Errorf("without an address, after the drop: variant %q: %s", a.VariantName, a.Sentence)
			}
		})
	}
}

// A campaign that wrote no notification has none to drop.
func TestTheAssignmentOfATestWithoutRecipients(t *testing.T) {
	b := experiments(t, 0)
	c, it := b.sampled(ab(func(e *Experiment) { e.Metric, e.Duration, e.SamplePercent = nil, 0, 100 }))
	b.Must(b.Tick(context.Background()))
	a, err := b.Assignment(context.Background(), b.Workspace, *c.IterationID, "1", "c1@shop.example")
	b.Must(err)
	if !b.iteration(c).isOver() || a.VariantName != "" || !strings.Contains(a.Sentence, "it has no notification") {
		t.Errorf("%s: variant %q: %s", it.Status, a.VariantName, a.Sentence)
	}
}

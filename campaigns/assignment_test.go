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

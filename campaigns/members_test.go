package campaigns

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5"

	"lemma"
)

// A profile that has a notification of the sample, or is in the holdout, and another
// address in the rollout gets no second message.
func TestTheRolloutSkipsTheSampleAtAnyAddress(t *testing.T) {
	const n = 600
	b := experiments(t, n)
	c, it := b.sampled(ab(func(e *Experiment) { e.HoldoutPercent = 10 }))
	first, out := b.members(it, n, 0), b.members(it, n, holdout)
	b.ExecDB(`update customers set email = 'new' || id || '@shop.example' where id = any($1)`, append(first[:5:5], out[:5]...))
	b.ExecDB(`insert into customers select id, 'second' || email, name, false from customers where id = any($1)`, first[5:10])
	b.convertBest(it, 1, 80)
	b.endTest(it)
	b.evaluate()
	b.fanout(c.ID)
	if twice := b.Count(`select count(*) from (select from notifications
		where origin_id = $1 and skip_reason is null group by profile_key having count(*) > 1) p`, c.ID); twice != 0 {
		t.Errorf("%d profiles have two messages", twice)
	}
	if sent := b.Count(`select count(*) from notifications where origin_id = $1 and profile_key = any($2) and skip_reason is null`,
		c.ID, out); sent != 0 {
		t.Errorf("%d messages to the holdout", sent)
	}
	if sent := b.Count(`select count(*) from notifications where origin_id = $1 and skip_reason is null`, c.ID); sent != n-len(out) {
		t.Errorf("%d messages, want %d", sent, n-len(out))
	}
}

// A profile with two addresses has two notifications and is one recipient, which converts
// once, by an event and by opens.
func TestAProfileWithTwoAddressesCountsOnce(t *testing.T) {
	const n = 600
	b := experiments(t, n)
	b.ExecDB(`insert into customers select id, 'second' || email, name from customers`)
	c, it := b.sampled(ab(func(e *Experiment) { e.SamplePercent, e.OnInconclusive = 100, Hold }))
	b.convert(b.members(it, n, 0)[:10], "bought")
	b.convert(b.members(it, n, 1)[:18], "bought")
	b.Exec(`insert into engagements (workspace_id, origin_id, key, content_id, opens, clicks, opened_at)
		select n.workspace_id, n.origin_id, n.key, b.content_id, 1, 0, now() from notifications n
		join batches b on b.workspace_id = n.workspace_id and b.origin_id = n.origin_id and b.id = n.batch_id
		where n.origin_id = $1 and n.profile_key = any($2)`, c.ID, b.members(it, n, 0)[:7])
	b.endTest(it)
	it = b.iteration(c)
	opens := it
	opens.Metric = &Metric{Type: UniqueOpens}
	until := it.CutOffAt.AddDate(0, 0, 1)
	all, err := b.measure(context.Background(), opens, until)
	b.Must(err)
	if *all[0].Converted != 7 || all[0].Recipients != int64(len(b.members(it, n, 0))) {
		t.Errorf("%d of %d recipients opened", *all[0].Converted, all[0].Recipients)
	}
	b.evaluate()
	got := b.iteration(c)
	for i, want := range []int64{10, 18} {
		if v := got.Verdict.Variants[i]; v.Converted != want || v.Recipients != int64(len(b.members(it, n, i))) {
			t.Errorf("%s: %d of %d recipients converted", v.Name, v.Converted, v.Recipients)
		}
	}
	if got.Winner != nil {
		t.Errorf("a winner without a significant difference: %s", got.Verdict.Sentence)
	}
}

// A measurement keeps the members only: a source may return any number of other keys.
func TestOtherKeysTakeNoMemory(t *testing.T) {
	t.Parallel()
	m := newMembers(100)
	size := len(m.slots)
	for h := range uint64(100) {
		if !m.add(1+h, int(h)%2) || !m.add(1+h, 1) {
			t.Fatal("no place")
		}
	}
	if m.add(1000, 0) {
		t.Error("there is a place for more than the most")
	}
	for range 100_000 {
		m.convert(max(rand.Uint64(), 1000))
	}
	for h := range uint64(10) {
		m.convert(1 + h)
	}
	if m.n != 100 || len(m.slots) != size {
		t.Errorf("%d members in %d slots", m.n, len(m.slots))
	}
	all := make([]Tally, 3)
	m.count(all)
	if all[0].Recipients != 50 || *all[0].Converted != 5 || all[1].Recipients != 50 || *all[1].Converted != 5 || all[2].Recipients != 0 {
		t.Errorf("%+v", all)
	}
}

// A sample with more profiles than a process keeps is refused with the number.
func TestASampleThatIsTooLarge(t *testing.T) {
	b := experiments(t, 100)
	_, it := b.sampled(ab(func(e *Experiment) { e.SamplePercent = 100 }))
	err := pgx.BeginFunc(context.Background(), b.Pool, func(tx pgx.Tx) error {
		if m, err := readMembers(context.Background(), tx, it, 100); err != nil || m.n != 100 || m.several {
			t.Errorf("%v: %+v", err, m)
		}
		_, err := readMembers(context.Background(), tx, it, 99)
		return err
	})
	if lemma.KindOf(err) != lemma.TooLarge || reasonOf(err) != "sample_too_large" {
		t.Error(err)
	}
}

// Events that are read before the members are kept, up to a number, and count. Later ones
// count some at a time, and the last of them at the end.
func TestEventsAreReadBeforeTheMembers(t *testing.T) {
	t.Parallel()
	const most = 2 * together
	read := make(chan *members, 1)
	found := conversions{read: read, maxEarly: most}
	ctx := context.Background()
	for h := range uint64(most - 1) {
		if err := found.add(ctx, 1+h); err != nil || found.members != nil || len(found.found) != int(1+h) {
			t.Fatalf("%v: %+v", err, found)
		}
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if err := found.add(gone, most); err == nil { // the last one waits for the members
		t.Error("no members, and more events are kept")
	}
	m := newMembers(10 * most)
	for h := range uint64(10 * most) {
		m.add(1+h, int(h%2))
	}
	read <- m
	for h := range uint64(together + 2) {
		if err := found.add(ctx, 1+most+h); err != nil || len(found.found) >= together {
			t.Fatalf("%v: %d are kept", err, len(found.found))
		}
	}
	if err := found.end(ctx); err != nil {
		t.Fatal(err)
	}
	all := make([]Tally, 3)
	m.count(all)
	if got := *all[0].Converted + *all[1].Converted; got != most+together+2 || all[0].Recipients+all[1].Recipients != 10*most {
		t.Errorf("%d of %d have converted", got, all[0].Recipients)
	}
}

// The members of more rows than Postgres sends as one are all read.
func TestMembersOfManyRows(t *testing.T) {
	b := experiments(t, 40)
	c, it := b.sampled(ab(func(e *Experiment) { e.SamplePercent = 100 }))
	const more = 2*membersPerRow + 1
	b.Exec(`insert into iteration_members (workspace_id, origin_id, id, ordinal, profiles)
		select $1, $2, gen_random_uuid(), i % 2, int8send(1000 + i) from generate_series(1, $3::int) i`, b.Workspace, c.ID, more)
	m, err := b.readMembers(context.Background(), it, func() {})
	b.Must(err)
	all := make([]Tally, 3)
	m.count(all)
	if m.n != 40+more || all[0].Recipients+all[1].Recipients != 40+more || all[2].Recipients != 0 {
		t.Errorf("%d members: %+v", m.n, all)
	}
}

// A chunk of which some recipients are stored already adds the others, under the hash
// by which they are found.
func TestMembersOfAPartlyRepeatedChunk(t *testing.T) {
	b := experiments(t, 0)
	ctx := context.Background()
	c := b.experiment(ab(func(e *Experiment) { e.SamplePercent = 100 }))
	p := b.plans(c.ID, 1)
	for _, part := range [][2]int{{0, 20}, {10, 40}} {
		chunk := p.Recipients
		for _, r := range someRecipients(c.ID, part[0], part[1]) {
			chunk = p.deals(append(chunk, r), len(chunk), r.ProfileKey)
		}
		b.Must(b.WriteChunk(ctx, p, chunk))
	}
	it := b.iteration(c)
	m, err := b.readMembers(ctx, it, func() {})
	b.Must(err)
	for _, r := range someRecipients(c.ID, 0, 40) {
		if !m.has(fingerprint(it)(r.ProfileKey)) {
			t.Errorf("%s is not remembered", r.ProfileKey)
		}
	}
	if m.n != 40 {
		t.Errorf("%d members", m.n)
	}
}

package campaigns

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

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
	b.convert(b.members(it, n, 1)[:14], "bought")
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
	for i, want := range []int64{10, 14} {
		if v := got.Verdict.Variants[i]; v.Converted != want || v.Recipients != int64(len(b.members(it, n, i))) {
			t.Errorf("%s: %d of %d recipients converted", v.Name, v.Converted, v.Recipients)
		}
	}
	if got.Winner != nil {
		t.Errorf("a winner without a significant difference: %s", got.Verdict.Sentence)
	}
}

// hashed is the hash of a profile: different ones differ in more than their last bits.
func hashed(profile uint64) uint64 { return (profile + 1) * 0x9e3779b97f4a7c15 }

// profilesOf are the profiles below n with a remainder, as iteration_members has them.
func profilesOf(n, by, remainder int) (profiles []byte) {
	for h := remainder; h < n; h += by {
		profiles = binary.LittleEndian.AppendUint64(profiles, hashed(uint64(h)))
	}
	return profiles
}

// A measurement keeps the members only: a source may return any number of other keys.
func TestOtherKeysTakeNoMemory(t *testing.T) {
	t.Parallel()
	m := newMembers(120)
	size := len(m.slots)
	for variant := range 2 {
		if !m.addAll(profilesOf(100, 2, variant), variant) {
			t.Fatal("no place")
		}
	}
	if !m.addAll(profilesOf(20, 1, 0), 1) {
		t.Fatal("no place for profiles that are repeated")
	}
	m.index()
	if m.n != 100 || !m.several {
		t.Errorf("%d members, and some are repeated: %t", m.n, m.several)
	}
	for range 1000 {
		strangers := make([]uint64, 100)
		for i := range strangers {
			strangers[i] = rand.Uint64()
		}
		m.convertAll(strangers)
	}
	for h := range uint64(10) {
		m.convertAll([]uint64{hashed(h), hashed(h)})
	}
	if len(m.slots) != size {
		t.Errorf("%d slots", len(m.slots))
	}
	all := make([]Tally, 3)
	m.count(all)
	if all[0].Recipients != 50 || *all[0].Converted != 5 || all[1].Recipients != 50 || *all[1].Converted != 5 || all[2].Recipients != 0 {
		t.Errorf("%+v", all)
	}
}

// A region has a free slot, so that a search ends. More profiles than the table was made for
// are refused.
func TestMembersNeverFillARegion(t *testing.T) {
	t.Parallel()
	m := newMembers(10)
	size := len(m.slots)
	if m.addAll(profilesOf(size, 1, 0), 0) {
		t.Error("there is a place for more than the table has")
	}
	m = newMembers(10)
	if !m.addAll(profilesOf(size-1, 1, 0), 0) {
		t.Fatal("no place")
	}
	m.index()
	if m.n != size-1 || m.has(hashed(uint64(size))) {
		t.Errorf("%d of %d slots", m.n, size)
	}
}

// A profile may be repeated more often than a region has slots, and its first variant stays.
func TestMembersThatAreRepeatedOften(t *testing.T) {
	t.Parallel()
	m := newMembers(300_000)
	if len(m.listed) < 2 {
		t.Fatal("one region")
	}
	for variant := range 2 {
		if !m.addAll(profilesOf(200_000, 2, variant), variant) {
			t.Fatal("no place")
		}
	}
	often := bytes.Repeat(profilesOf(1, 1, 0), 1000)
	for range 200 {
		if !m.addAll(often, 1) {
			t.Fatal("no place for a profile that is there")
		}
	}
	m.index()
	all := make([]Tally, 3)
	m.count(all)
	if m.n != 200_000 || !m.several || all[0].Recipients != 100_000 || all[1].Recipients != 100_000 {
		t.Errorf("%d members: %+v", m.n, all)
	}
}

// Several readers add profiles at the same time, some of them the same, and each is one member.
func TestReadersAddTheSameProfiles(t *testing.T) {
	t.Parallel()
	const n = 4_000_000
	m := newMembers(n + n/4)
	add := func(profiles []byte, variant int) error {
		for row := range slices.Chunk(profiles, 80) {
			if !m.addAll(row, variant) {
				return errors.New("no place")
			}
		}
		return nil
	}
	err := inReaders(context.Background(), make(chan struct{}, readers), []int{0, 1, 2, 3}, func(_ context.Context, part int) error {
		if err := add(profilesOf(n, 4, part), part%2); err != nil || part != 0 {
			return err
		}
		return add(profilesOf(n/4, 2, 0), 0)
	})
	m.index()
	all := make([]Tally, 3)
	m.count(all)
	if err != nil || m.n != n || all[0].Recipients != n/2 || all[1].Recipients != n/2 || !m.several {
		t.Errorf("%v: %d members, %+v", err, m.n, all)
	}
	for h := range uint64(2 * n) {
		if m.has(hashed(h)) != (h < n) {
			t.Fatalf("%d is a member: %t", h, h >= n)
		}
	}
}

// A sample with more profiles than a process keeps is refused with the number.
func TestASampleThatIsTooLarge(t *testing.T) {
	b := experiments(t, 100)
	_, it := b.sampled(ab(func(e *Experiment) { e.SamplePercent = 100 }))
	if m, err := b.readMost(context.Background(), it, 100); err != nil || m.n != 100 || m.several {
		t.Errorf("%v: %+v", err, m)
	}
	for _, most := range []int{99, 10} {
		_, err := b.readMost(context.Background(), it, most)
		if lemma.KindOf(err) != lemma.TooLarge || reasonOf(err) != "sample_too_large" {
			t.Error(err)
		}
	}
}

// Members that are deleted while they are read are not counted in part.
func TestMembersThatAreDeletedMeanwhile(t *testing.T) {
	b := experiments(t, 100)
	c, it := b.sampled(ab(func(e *Experiment) { e.SamplePercent = 100 }))
	late := New(b.deps, b.cfg)
	late.Hook = func(_ context.Context, at string, _ uuid.UUID) {
		if at == "members listed" {
			b.Exec(`delete from iteration_members where origin_id = $1 and ordinal = 1`, c.ID)
		}
	}
	if m, err := late.readMembers(context.Background(), it); err == nil {
		t.Errorf("%d members", m.n)
	}
}

// Events are read some at a time, those of one time together, and in parts of the time of
// which most may have none. A key with any character counts, and a part of it does not.
func TestEventsAreReadInParts(t *testing.T) {
	for _, key := range []string{"\x01\n\\,ä ", "x", "a\x1f", "\x1f"} {
		t.Run(fmt.Sprintf("%q", key), func(t *testing.T) { testEventsInParts(t, key) })
	}
}

func testEventsInParts(t *testing.T, key string) {
	b := experiments(t, 0)
	c, it := b.sampled(ab(func(e *Experiment) { e.SamplePercent = 100 }))
	const n, each = 500, 7
	b.Exec(`update iterations set started_at = now() - interval '1 hour', cut_off_at = now() - interval '1 minute' where id = $1`, it.ID)
	it = b.iteration(c)
	var keys []string
	m := newMembers(n + 5)
	for i := range n {
		keys = append(keys, fmt.Sprint(key, i))
		m.addAll(binary.LittleEndian.AppendUint64(nil, fingerprint(it)(keys[i])), 0)
	}
	for _, part := range []string{"", "a", "0", "1", "2"} { // of keys, and members that have no events
		m.addAll(binary.LittleEndian.AppendUint64(nil, fingerprint(it)(part)), 1)
	}
	m.index()
	b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
		select $1, gen_random_uuid(), p.key, 'bought', $3::timestamptz,
			case when i <= 30 then $3 else $3 + interval '1 minute' + interval '1 microsecond' * (i / $4::int) end
		from unnest($2::text[]) with ordinality as p (key, i)`, b.Workspace, keys[:n-10], it.StartedAt, each)
	b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
		select $1, gen_random_uuid(), p.key, 'bought', $3::timestamptz - interval '1 microsecond' * (i % 2),
			$4::timestamptz - interval '1 microsecond' * (i % 3)
		from unnest($2::text[]) with ordinality as p (key, i)`, b.Workspace, keys[n-10:], it.StartedAt, it.CutOffAt)
	b.Must(b.readSomeEvents(context.Background(), it, *it.CutOffAt, m, 3))
	all := make([]Tally, 3)
	m.count(all)
	// Of the last ten 2, 4, 8 and 10: odd ones are too early, 3, 6 and 9 too late.
	if want := int64(n - 10 + 4); *all[0].Converted != want || *all[1].Converted != 0 {
		t.Errorf("%d have converted, want %d; and %d parts of keys", *all[0].Converted, want, *all[1].Converted)
	}
}

// The parts of a period are adjacent, and their times are those of Postgres.
func TestPartsOfAPeriod(t *testing.T) {
	t.Parallel()
	from := time.Date(2026, 3, 1, 9, 0, 0, 1000, time.UTC)
	for _, p := range []period{{from, from.Add(time.Hour)}, {from, from.Add(5 * time.Microsecond)}, {from, from}} {
		at := p.from
		for _, part := range partsOf(p, 7) {
			if !part.from.Equal(at) || part.to.Before(at) || part.to.Nanosecond()%1000 != 0 {
				t.Errorf("%v in %v", part, p)
			}
			at = part.to
		}
		if !at.Equal(p.to) {
			t.Errorf("the parts of %v end at %v", p, at)
		}
	}
}

// The members of more rows than are read together are all read.
func TestMembersOfManyRows(t *testing.T) {
	b := experiments(t, 40)
	c, it := b.sampled(ab(func(e *Experiment) { e.SamplePercent = 100 }))
	const more = 2*membersPerPart + 1
	b.Exec(`insert into iteration_members (workspace_id, origin_id, id, ordinal, profiles)
		select $1, $2, gen_random_uuid(), i % 2, int8send(1000 + i) from generate_series(1, $3::int) i`, b.Workspace, c.ID, more)
	m, err := b.readMembers(context.Background(), it)
	b.Must(err)
	all := make([]Tally, 3)
	m.count(all)
	if m.n != 40+more || all[0].Recipients+all[1].Recipients != 40+more || all[2].Recipients != 0 {
		t.Errorf("%d members: %+v", m.n, all)
	}
}

// Hashes are stored in pages, and not in values of their own.
func TestMembersAreStoredInPages(t *testing.T) {
	const n = 2400
	b := experiments(t, n, func(c *Config) { c.Chunk = n })
	b.sampled(ab(func(e *Experiment) {
		e.SamplePercent, e.Variants[0].Weight, e.Variants[1].Weight = 100, 90, 10
	}))
	var hashes, longest, apart int
	b.Must(b.Pool.QueryRow(t.Context(), `
		select sum(octet_length(profiles)) / 8, max(octet_length(profiles)),
			(select pg_relation_size(c.reltoastrelid) from pg_class c where c.oid = 'iteration_members'::regclass)
		from iteration_members where workspace_id = $1`, b.Workspace).Scan(&hashes, &longest, &apart))
	if hashes != n || longest != 8000 || apart != 0 {
		t.Errorf("%d hashes, up to %d bytes in a row, %d bytes apart", hashes, longest, apart)
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
	m, err := b.readMembers(ctx, it)
	b.Must(err)
	for _, r := range someRecipients(c.ID, 0, 40) {
		if !m.has(fingerprint(it)(r.ProfileKey)) {
			t.Errorf("%s is not remembered", r.ProfileKey)
		}
	}
	if n := m.n; n != 40 {
		t.Errorf("%d members", n)
	}
}

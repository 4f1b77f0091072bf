package deliveries

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/events"
	"lemma/suppression"
)

// softBounced is an event about one of the messages to an address.
type softBounced struct {
	message int
	kind    events.Type
	minute  int
}

// The count of soft bounces of an address is the same for every order of the events of its
// messages, applied one by one or at once.
func TestSoftBouncesInEveryOrder(t *testing.T) {
	const soft, delivered, undelivered = events.TypeSoftBounced, events.TypeDelivered, events.TypeUndelivered
	for name, c := range map[string]struct {
		events []softBounced
		want   int
	}{
		"undelivered before it":              {[]softBounced{{0, undelivered, 1}, {0, soft, 2}}, 1},
		"complained":                         {[]softBounced{{0, events.TypeComplained, 1}, {0, soft, 2}}, 1},
		"twice":                              {[]softBounced{{0, soft, 1}, {0, soft, 2}, {0, undelivered, 0}, {1, soft, 3}}, 2},
		"delivered after all":                {[]softBounced{{0, soft, 1}, {0, delivered, 2}}, 0},
		"delivered before it":                {[]softBounced{{0, delivered, 1}, {0, soft, 2}, {0, undelivered, 3}}, 1},
		"the first of two before a delivery": {[]softBounced{{0, soft, 1}, {0, delivered, 2}, {0, soft, 3}, {1, soft, 4}}, 1},
		"opened, complained and delivered": {[]softBounced{{0, events.TypeOpened, 4}, {0, events.TypeComplained, 5}, {0, soft, 1},
			{0, delivered, 2}}, 0},
		"a message between two of the others": {[]softBounced{{0, soft, 1}, {1, soft, 2}, {1, delivered, 3}, {2, soft, 4}, {2, soft, 5}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			orders := permutations(len(c.events))
			var origins [3]uuid.UUID
			for i := range origins {
				origins[i] = lemma.NewID()
				b.insertN(2*len(orders), origins[i], "")
			}
			day := time.Now().Truncate(time.Minute).Add(-24 * time.Hour)
			of := func(address, n int) events.Report {
				e := c.events[n]
				return report(origins[e.message], address, e.kind, day.Add(time.Duration(e.minute)*time.Minute))
			}
			for step := range c.events { // the first half: one by one
				var all []events.Report
				for i, order := range orders {
					all = append(all, of(i, order[step]))
				}
				b.receive(all...)
				b.apply()
			}
			var all []events.Report // the other: at once
			for i, order := range orders {
				for _, n := range order {
					all = append(all, of(len(orders)+i, n))
				}
			}
			rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			b.receive(all...)
			b.apply()
			got := map[int]int{}
			for i := range 2 * len(orders) {
				got[b.softBounces(address(i))]++
			}
			if diff := cmp.Diff(map[int]int{c.want: 2 * len(orders)}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// softBounces is how many soft bounces of an address count.
func (b *bundle) softBounces(address string) (n int) {
	b.T.Helper()
	b.Must(b.Pool.QueryRow(b.T.Context(), `
		select count(*) from soft_bounces b, unnest(b.times) as t (at)
		where b.workspace_id = $1 and b.key = $2 and t.at > coalesce(b.delivered_at, '-infinity')`,
		b.Workspace, suppression.KeyOf(lemma.Email, address)).Scan(&n))
	return n
}

// permutations are all orders of 0 to n-1.
func permutations(n int) (all [][]int) {
	if n == 0 {
		return [][]int{nil}
	}
	for _, p := range permutations(n - 1) {
		for i := range n {
			all = append(all, slices.Insert(slices.Clone(p), i, n-1))
		}
	}
	return all
}

// Two transactions that count soft bounces of an address at the same time count all of
// them.
func TestSoftBouncesAtTheSameTime(t *testing.T) {
	b := setup(t)
	for n := range suppression.SoftBounceLimit {
		origin := lemma.NewID()
		b.insert(origin, "")
		b.receive(report(origin, 1, events.TypeSoftBounced, time.Now().Add(-time.Duration(n)*time.Hour)))
	}
	first, err := b.Pool.Begin(t.Context())
	b.Must(err)
	queued, err := events.Take(t.Context(), first, b.Workspace, 0, 2)
	b.Must(err)
	b.Must((&transaction{tx: first, ws: b.Workspace}).apply(t.Context(), queued))
	second := make(chan error, 1)
	go func() { _, err := b.Apply(context.Background()); second <- err }()
	b.WaitForLocks(1)
	b.Must(first.Commit(t.Context()))
	b.Must(<-second)
	if diff := cmp.Diff([]string{"email p1@shop.example soft_bounces"}, b.list(causes)); diff != "" {
		t.Error(diff)
	}
}

// A delivery that is dated ahead ends the count of the soft bounces before its receipt, and
// not of those after it.
func TestADeliveryThatIsDatedAhead(t *testing.T) {
	for name, c := range map[string]struct{ delivered, first int }{ // messages
		"of another message, reported after a soft bounce": {0, 1},
		"of a message that soft-bounces later":             {1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			origins := make([]uuid.UUID, suppression.SoftBounceLimit+1)
			for i := range origins {
				origins[i] = lemma.NewID()
				b.insert(origins[i], "")
			}
			if c.delivered == 0 {
				b.receive(report(origins[0], 1, events.TypeSoftBounced, time.Now().Add(-time.Hour)))
				b.apply()
			}
			b.receive(report(origins[c.delivered], 1, events.TypeDelivered, time.Now().AddDate(0, 10, 0)))
			b.apply()
			for _, origin := range origins[c.first:] {
				b.receive(report(origin, 1, events.TypeSoftBounced, time.Time{}))
				b.apply()
			}
			if n := b.softBounces(address(1)); n != suppression.SoftBounceLimit {
				t.Errorf("%d soft bounces count", n)
			}
			if diff := cmp.Diff([]string{"email p1@shop.example soft_bounces"}, b.list(causes)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A person who deletes the suppression begins the count anew: a report about a message that was
// counted before does not suppress the address again, and five further messages do.
func TestADeletedSuppressionIsCountedAnew(t *testing.T) {
	b := setup(t)
	bounce := func(origin uuid.UUID) {
		b.receive(report(origin, 1, events.TypeSoftBounced, time.Time{}))
		b.apply()
	}
	message := func() uuid.UUID {
		origin := lemma.NewID()
		b.insert(origin, "")
		bounce(origin)
		return origin
	}
	first := message()
	for range suppression.SoftBounceLimit - 1 {
		message()
	}
	var id uuid.UUID
	b.Must(b.Pool.QueryRow(t.Context(), `select id from suppressions where workspace_id = $1`, b.Workspace).Scan(&id))
	b.Must(suppression.New(b.Pool).Delete(t.Context(), b.Workspace, id))
	bounce(first)
	for range suppression.SoftBounceLimit - 1 {
		message()
	}
	if diff := cmp.Diff([]string{}, b.list(causes)); diff != "" {
		t.Error(diff)
	}
	message()
	if diff := cmp.Diff([]string{"email p1@shop.example soft_bounces"}, b.list(causes)); diff != "" {
		t.Error(diff)
	}
}

// A delivery is found behind many opens, and before many, whichever attempt they are of.
func TestASoftBounceAfterManyOpens(t *testing.T) {
	for name, c := range map[string]struct {
		delivered time.Duration
		attempt   int
	}{
		"before them": {time.Hour, 1}, "after them": {20 * time.Hour, 1}, "of the second attempt": {20 * time.Hour, 2},
		"of an unknown attempt, before them": {time.Hour, 0}, "of an unknown attempt, after them": {20 * time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			day := time.Now().Truncate(time.Minute).Add(-24 * time.Hour)
			all := []events.Report{report(b.origin, 1, events.TypeDelivered, day.Add(c.delivered))}
			for i := range 200 {
				all = append(all, report(b.origin, 1, events.TypeOpened, day.Add(2*time.Hour+time.Duration(i)*time.Minute)))
			}
			for i := range all {
				all[i].Attempt = c.attempt
			}
			b.receive(all...)
			b.apply()
			b.receive(report(b.origin, 1, events.TypeSoftBounced, day.Add(time.Minute)))
			b.apply()
			if n := b.softBounces(address(1)); n != 0 {
				t.Errorf("%d soft bounces count, though the message was delivered later", n)
			}
		})
	}
}

package webhooks

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// The sets of items select what a comparison of each item with each subscription selects.
func TestItemsOfSubscriptions(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	some := func(most int) map[string]string {
		m := map[string]string{}
		for range r.IntN(most + 1) {
			m[fmt.Sprint("k", r.IntN(4))] = fmt.Sprint(r.IntN(2))
		}
		return m
	}
	for range 500 {
		asked, to := entries{}, &subscribed{items: map[*waiting]itemSet{}}
		subscribers := make([]*subscriber, 1+r.IntN(4))
		for i := range subscribers {
			subscribers[i] = &subscriber{Subscription: Subscription{Metadata: some(3)}, to: to}
			asked.add(subscribers[i])
		}
		items := make([]map[string]string, r.IntN(150))
		e := &waiting{ofItems: make([][]int, len(items))}
		for i := range items {
			items[i] = some(5)
			e.ofItems[i] = asked.of(items[i])
		}
		for _, s := range subscribers {
			s.add(e, e.index())
		}
		for i, m := range items {
			want := false
			for _, s := range subscribers {
				has := 0
				for key, value := range s.Metadata {
					if m[key] == value { // no value is empty
						has++
					}
				}
				want = want || has == len(s.Metadata)
			}
			if got := to.items[e].has(i); got != want {
				t.Fatalf("item %d of %d, %v: %v, want %v", i, len(items), m, got, want)
			}
		}
	}
}

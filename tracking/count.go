package tracking

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// append stores the events, and leaves out those that were stored before. It adds floods
// to those that were stored before. Rows are written in the order of their keys, as in count.
func (a *application) append(ctx context.Context) error {
	slices.SortFunc(a.events, func(a, b *applied) int {
		return cmp.Or(bytes.Compare(a.of.origin[:], b.of.origin[:]), bytes.Compare(a.of.key[:], b.of.key[:]), bytes.Compare(a.id[:], b.id[:]))
	})
	var ids, origins, keys []uuid.UUID
	var kinds, machines []string
	var numbers, counts []int32
	var times []time.Time
	for _, e := range a.events {
		ids, origins, keys = append(ids, e.id), append(origins, e.of.origin), append(keys, e.of.key)
		kinds, machines = append(kinds, e.kind), append(machines, e.machine)
		numbers, counts, times = append(numbers, int32(e.of.link)), append(counts, int32(e.times)), append(times, e.at)
	}
	rows, _ := a.tx.Query(ctx, `
		insert into tracking_events as t (workspace_id, origin_id, key, id, type, link, times, machine, occurred_at)
		select $1, e.origin_id, e.key, e.id, e.type, e.link, e.times, nullif(e.machine, ''), e.at
		from unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::int[], $7::int[], $8::text[], $9::timestamptz[])
			as e (id, origin_id, key, type, link, times, machine, at)
		on conflict (workspace_id, origin_id, key, id) do update set times = t.times + excluded.times where t.machine = '`+flood+`'
		returning id`, a.ws, ids, origins, keys, kinds, numbers, counts, machines, times)
	stored, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("append %d opens and clicks: %w", len(a.events), err)
	}
	fresh := make(map[uuid.UUID]bool, len(stored))
	for _, id := range stored {
		fresh[id] = true
	}
	a.events = slices.DeleteFunc(a.events, func(e *applied) bool { return !fresh[e.id] })
	return nil
}

// Counts are the numbers of opens and clicks.
type Counts struct {
	Opens, UniqueOpens, Clicks, UniqueClicks int64 // without those of machines
	MachineOpens, MachineClicks              int64
	Conversions, Unsubscribes                int64 // of notifications
}

// place is a row of engagement_counts, and with a link one of link_counts.
type place struct {
	origin, content uuid.UUID
	link            int
}

func (p place) compare(o place) int {
	return cmp.Or(bytes.Compare(p.origin[:], o.origin[:]), bytes.Compare(p.content[:], o.content[:]), cmp.Compare(p.link, o.link))
}

// count adds the events to all counts. Rows are written in the order of their keys, so
// that two transactions do not wait for each other.
func (a *application) count(ctx context.Context) error {
	sums, byLink := map[place]*Counts{}, map[place]*Counts{}
	of := func(all map[place]*Counts, p place) *Counts {
		if all[p] == nil {
			all[p] = &Counts{}
		}
		return all[p]
	}
	for _, e := range a.events {
		sum := of(sums, place{e.of.origin, e.content, 0})
		switch {
		case e.kind == opened && e.machine == "":
			sum.Opens++
		case e.kind == opened:
			sum.MachineOpens += int64(e.times)
		case e.kind == clicked && e.machine == "":
			sum.Clicks++
			of(byLink, place{e.of.origin, e.content, e.of.link}).Clicks++
		case e.kind == clicked:
			sum.MachineClicks += int64(e.times)
			of(byLink, place{e.of.origin, e.content, e.of.link}).MachineClicks += int64(e.times)
		}
	}
	if err := a.countUnique(ctx, sums); err != nil {
		return err
	}
	if err := a.addSums(ctx, sums); err != nil {
		return err
	}
	return a.addLinks(ctx, byLink)
}

// engaged is what one notification adds.
type engaged struct {
	origin, key, content                     uuid.UUID
	opens, clicks, conversions, unsubscribes int32
	times                                    [4]*time.Time // of the first of each of moments; nil: none
}

// The moments of a notification that are kept.
const (
	openedAt = iota
	clickedAt
	machineOpenedAt
	machineClickedAt
)

// add adds an event, which is no probe.
func (g *engaged) add(e *applied) {
	if e.machine == "" {
		*g.numberOf(e.kind)++
	}
	var moment int
	switch {
	case e.kind == opened && e.machine == "":
		moment = openedAt
	case e.kind == clicked && e.machine == "":
		moment = clickedAt
	case e.kind == opened:
		moment = machineOpenedAt
	case e.kind == clicked:
		moment = machineClickedAt
	default:
		return
	}
	if g.times[moment] == nil || e.at.Before(*g.times[moment]) {
		g.times[moment] = &e.at
	}
}

// numberOf is the number to which an event of a type adds.
func (e *engaged) numberOf(kind string) *int32 {
	switch kind {
	case opened:
		return &e.opens
	case converted:
		return &e.conversions
	case unsubscribed:
		return &e.unsubscribes
	}
	return &e.clicks
}

// countUnique adds to the notifications, and counts those whose first event of a type this is.
func (a *application) countUnique(ctx context.Context, sums map[place]*Counts) error {
	byName := map[[2]uuid.UUID]*engaged{}
	for _, e := range a.events {
		if e.kind == probed {
			continue
		}
		name := [2]uuid.UUID{e.of.origin, e.of.key}
		if byName[name] == nil {
			byName[name] = &engaged{origin: e.of.origin, key: e.of.key, content: e.content}
		}
		byName[name].add(e)
	}
	all := slices.SortedFunc(maps.Values(byName), func(a, b *engaged) int {
		return cmp.Or(bytes.Compare(a.origin[:], b.origin[:]), bytes.Compare(a.key[:], b.key[:]))
	})
	var origins, keys, contents []uuid.UUID
	var opens, clicks, conversions, unsubscribes []int32
	var times [4][]*time.Time
	for _, e := range all {
		origins, keys, contents = append(origins, e.origin), append(keys, e.key), append(contents, e.content)
		opens, clicks = append(opens, e.opens), append(clicks, e.clicks)
		conversions, unsubscribes = append(conversions, e.conversions), append(unsubscribes, e.unsubscribes)
		for i, at := range e.times {
			times[i] = append(times[i], at)
		}
	}
	if len(all) == 0 {
		return nil
	}
	rows, _ := a.tx.Query(ctx, `
		insert into engagements as e (workspace_id, origin_id, key, content_id, opens, clicks, conversions, unsubscribes,
			opened_at, clicked_at, machine_opened_at, machine_clicked_at)
		select $1, r.* from unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::int[], $6::int[], $7::int[], $8::int[],
			$9::timestamptz[], $10::timestamptz[], $11::timestamptz[], $12::timestamptz[]) r
		on conflict (workspace_id, origin_id, key) do update set opens = e.opens + excluded.opens, clicks = e.clicks + excluded.clicks,
			conversions = e.conversions + excluded.conversions, unsubscribes = e.unsubscribes + excluded.unsubscribes,
			opened_at = least(e.opened_at, excluded.opened_at), clicked_at = least(e.clicked_at, excluded.clicked_at),
			machine_opened_at = least(e.machine_opened_at, excluded.machine_opened_at),
			machine_clicked_at = least(e.machine_clicked_at, excluded.machine_clicked_at)
		returning origin_id, key, opens, clicks, conversions, unsubscribes`, a.ws, origins, keys, contents, opens, clicks, conversions,
		unsubscribes, times[openedAt], times[clickedAt], times[machineOpenedAt], times[machineClickedAt])
	var now engaged
	into := []any{&now.origin, &now.key, &now.opens, &now.clicks, &now.conversions, &now.unsubscribes}
	_, err := pgx.ForEachRow(rows, into, func() error {
		e := byName[[2]uuid.UUID{now.origin, now.key}]
		sum := sums[place{e.origin, e.content, 0}]
		sum.UniqueOpens += first(e.opens, now.opens)
		sum.UniqueClicks += first(e.clicks, now.clicks)
		sum.Conversions += first(e.conversions, now.conversions)
		sum.Unsubscribes += first(e.unsubscribes, now.unsubscribes)
		return nil
	})
	return lemma.Wrap(err, "count %d notifications", len(all))
}

// first is 1 if the added events are the first of their notification.
func first(added, now int32) int64 {
	if added > 0 && now == added {
		return 1
	}
	return 0
}

func (a *application) addSums(ctx context.Context, sums map[place]*Counts) error {
	var origins, contents []uuid.UUID
	var numbers [8][]int64
	for _, p := range slices.SortedFunc(maps.Keys(sums), place.compare) {
		origins, contents = append(origins, p.origin), append(contents, p.content)
		c := sums[p]
		for i, n := range []int64{c.Opens, c.UniqueOpens, c.Clicks, c.UniqueClicks, c.MachineOpens, c.MachineClicks,
			c.Conversions, c.Unsubscribes} {
			numbers[i] = append(numbers[i], n)
		}
	}
	_, err := a.tx.Exec(ctx, `
		insert into engagement_counts as c (workspace_id, origin_id, content_id, opens, unique_opens, clicks, unique_clicks, machine_opens,
			machine_clicks, conversions, unsubscribes)
		select $1, r.* from unnest($2::uuid[], $3::uuid[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[],
			$10::bigint[], $11::bigint[]) r
		on conflict (workspace_id, origin_id, content_id) do update set opens = c.opens + excluded.opens,
			unique_opens = c.unique_opens + excluded.unique_opens, clicks = c.clicks + excluded.clicks,
			unique_clicks = c.unique_clicks + excluded.unique_clicks, machine_opens = c.machine_opens + excluded.machine_opens,
			machine_clicks = c.machine_clicks + excluded.machine_clicks, conversions = c.conversions + excluded.conversions,
			unsubscribes = c.unsubscribes + excluded.unsubscribes`,
		a.ws, origins, contents, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], numbers[6], numbers[7])
	return lemma.Wrap(err, "count opens and clicks")
}

func (a *application) addLinks(ctx context.Context, byLink map[place]*Counts) error {
	if len(byLink) == 0 {
		return nil
	}
	var origins, contents []uuid.UUID
	var numbers []int32
	var clicks, machines []int64
	for _, p := range slices.SortedFunc(maps.Keys(byLink), place.compare) {
		origins, contents = append(origins, p.origin), append(contents, p.content)
		numbers = append(numbers, int32(p.link))
		clicks, machines = append(clicks, byLink[p].Clicks), append(machines, byLink[p].MachineClicks)
	}
	_, err := a.tx.Exec(ctx, `
		insert into link_counts as c (workspace_id, origin_id, content_id, link, clicks, machine_clicks)
		select $1, r.* from unnest($2::uuid[], $3::uuid[], $4::int[], $5::bigint[], $6::bigint[]) r
		on conflict (workspace_id, origin_id, content_id, link) do update set clicks = c.clicks + excluded.clicks,
			machine_clicks = c.machine_clicks + excluded.machine_clicks`, a.ws, origins, contents, numbers, clicks, machines)
	return lemma.Wrap(err, "count clicks by link")
}

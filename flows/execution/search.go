package execution

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma/cache"
	"lemma/flows/enrollment"
)

// A profile may have millions of events of one name. So a chunk searches those that its waits have missed for
// a limited time, one wait after the other, and remembers how far it came with those that have many.

// question is a query for the first event of a name that an execution's wait accepts,
// recorded after one time and until another.
type question struct {
	*Execution
	name         string
	after, until time.Time
	wait         waitKey

	page, read int  // events of the last page, and of all that were read
	skipped    int  // events of the last page for which there was no time
	resumed    bool // another chunk began
	found      bool
	done       bool
}

// waitKey is one wait of an enrollment, in one version: another may accept other events.
type waitKey struct {
	enrollment uuid.UUID
	version    int
	node       string
	since      int64
}

func newQuestion(t *Execution, name string, after, until time.Time) *question {
	return &question{Execution: t, name: name, after: after, until: until,
		wait: waitKey{t.ID, t.Version, t.NodeID, after.UnixMicro()}}
}

// acceptance is called with the event of a query, and when it was received.
type acceptance func(t *Execution, key uuid.UUID, event *fact, received time.Time)

// search is the search of one chunk.
type search struct {
	*Evaluator
	q         enrollment.Querier
	most      time.Duration
	begun     time.Time
	read      cache.Moment
	evaluated time.Duration // evaluating conditions, without the reading of events
}

func (e *Evaluator) search(q enrollment.Querier, most time.Duration) *search {
	return &search{Evaluator: e, q: q, most: most, begun: time.Now(), read: e.searched.Now()}
}

// spent is the time since the search began.
func (s *search) spent() time.Duration { return time.Since(s.begun) }

// eventsPage is the number of events of each of several profiles that are read at a time, and those of the
// same time as the last.
const eventsPage = 100

// mostRead is how many events are read at a time: of several executions, or of one that has more than a page.
const mostRead = 10 * eventsPage

// How far searches came, in memory: those of a workspace, and of all. A chunk has one that is in progress,
// unless conditions take long.
const (
	searchedShare = 1024 * cache.EntryBytes
	searchedMost  = 4 * searchedShare
)

// firstAccepted finds the first accepted event for each execution, and returns those for which there was no
// time. Those that are first are searched before others. If there was time before, some events of the first
// one are searched at least, so that each chunk makes progress.
//
// Where a search ended, another begins: events of an active enrollment are committed in the order of their
// times (see orderEvents of package intake), so that none appears among those that were read.
func (s *search) firstAccepted(ctx context.Context, asked []*question, accept acceptance) (left []*Execution, err error) {
	for _, a := range asked {
		if after, known := s.searched.Get(a.wait); known && after.After(a.after) {
			a.after, a.resumed = after, true
		}
	}
	counts, err := s.count(ctx, asked)
	if err != nil {
		return nil, err
	}
	for first := s.most > 0; len(asked) > 0; {
		n := together(counts)
		some := make([]*question, 0, n)
		for i, a := range asked[:n] {
			if a.done = counts[i] == 0; !a.done {
				some = append(some, a)
			}
		}
		if asked, counts = asked[n:], counts[n:]; len(some) == 0 {
			continue
		}
		if err := s.searchSome(ctx, some, first, accept); err != nil {
			return nil, err
		}
		first = false
		for _, a := range some {
			if !a.done {
				left = append(left, a.Execution)
			}
		}
	}
	return left, nil
}

// together is how many of the first questions are searched together: those with a page of events at most, or one.
func together(counts []int) (n int) {
	for rows := 0; n < len(counts); n++ {
		rows += counts[n]
		if n > 0 && (counts[n] > eventsPage || rows > mostRead) {
			break
		}
		if counts[n] > eventsPage {
			return 1
		}
	}
	return n
}

// count returns how many events each question has to read, eventsPage+1 for more. Most have none.
func (s *search) count(ctx context.Context, asked []*question) ([]int, error) {
	counts := make([]int, len(asked))
	rows, _ := s.ask(ctx, `
		select r.i::int, e.n from unnest($2::text[], $3::text[], $4::timestamptz[], $5::timestamptz[])
			with ordinality as r (profile_key, name, after, until, i)
		cross join lateral (
			select count(*)::int as n from (
				select from trigger_events v
				where v.workspace_id = $1 and v.profile_key = r.profile_key
				  and (v.name, v.received_at) > (r.name, r.after) and (v.name, v.received_at) <= (r.name, r.until)
				order by v.name, v.received_at limit $6
			) v
		) e where e.n > 0`, asked, eventsPage+1)
	var i, n int
	_, err := pgx.ForEachRow(rows, []any{&i, &n}, func() error { counts[i-1] = n; return nil })
	if err != nil {
		return nil, fmt.Errorf("count awaited events: %w", err)
	}
	return counts, nil
}

// ask queries for questions, with a limit.
func (s *search) ask(ctx context.Context, query string, asked []*question, limit int) (pgx.Rows, error) {
	n := len(asked)
	profiles, names, after, until := make([]string, n), make([]string, n), make([]pgtype.Timestamptz, n), make([]pgtype.Timestamptz, n)
	for i, a := range asked {
		profiles[i], names[i] = a.ProfileKey, a.name
		after[i], until[i] = pgtype.Timestamptz{Time: a.after, Valid: true}, pgtype.Timestamptz{Time: a.until, Valid: true}
	}
	return s.q.Query(ctx, query, asked[0].WorkspaceID, profiles, names, after, until, limit)
}

// searchSome reads events page by page until there are no more, or no time: the first ones a page at least.
func (s *search) searchSome(ctx context.Context, some []*question, first bool, accept acceptance) error {
	defer s.remember(some)
	asked, page := some, eventsPage
	if len(some) == 1 {
		page = mostRead
	}
	for len(asked) > 0 && (first || s.spent() < s.most) {
		first = false
		if err := s.readPage(ctx, asked, page, accept); err != nil {
			return err
		}
		again := asked[:0:0]
		for _, a := range asked {
			if !a.done {
				again = append(again, a)
			}
		}
		asked = again
	}
	return nil
}

// readPage reads a page of events for each question. A page has all events of its last time, since the next one
// begins after it. The form is "name and time as a row" of enrollment/plans.go.
func (s *search) readPage(ctx context.Context, asked []*question, page int, accept acceptance) error {
	rows, _ := s.ask(ctx, `
		select r.i::int, e.key, coalesce(e.source_id, ''), e.occurred_at, e.received_at, e.properties
		from unnest($2::text[], $3::text[], $4::timestamptz[], $5::timestamptz[]) with ordinality as r (profile_key, name, after, until, i)
		cross join lateral (
			select v.key, v.source_id, v.occurred_at, v.received_at, v.properties from trigger_events v
			where v.workspace_id = $1 and v.profile_key = r.profile_key
			  and (v.name, v.received_at) > (r.name, r.after) and (v.name, v.received_at) <= (r.name, r.until)
			order by v.name, v.received_at fetch first ($6::int) rows with ties
		) e`, asked, page)
	for _, a := range asked {
		a.page, a.skipped = 0, 0
	}
	var i, before int
	var key pgtype.UUID
	var id, properties string
	var at, received time.Time
	stopped := false
	_, err := pgx.ForEachRow(rows, []any{&i, &key, &id, &at, &received, &properties}, func() error {
		if before > 0 && before != i {
			asked[before-1].forget()
		}
		before = i
		a := asked[i-1]
		switch stopped = stopped || s.evaluated >= s.most; {
		case a.found:
			return nil
		case stopped && !received.Equal(a.after): // the next page begins after those of one time
			a.skipped++
			return nil
		}
		if event := eventFact(a.name, id, at, properties); s.accepts(a, event, received) {
			event.forget()
			accept(a.Execution, key.Bytes, event, received)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("find awaited events: %w", err)
	}
	for _, a := range asked {
		a.done = a.found || a.skipped == 0 && a.page < page
	}
	return nil
}

// accepts reports whether an event ends the wait of a question, and adds up the time.
func (s *search) accepts(a *question, event *fact, received time.Time) bool {
	begun := time.Now()
	a.found = a.accepts(event.value(), received)
	s.evaluated += time.Since(begun)
	if !a.found {
		a.page, a.read, a.after = a.page+1, a.read+1, received
	}
	return a.found
}

// remember keeps how far questions came that are not answered, and those that had been begun: what else the chunk
// does for their enrollments may fail. What one chunk has begun and ended is quickly done again: it must not
// displace what others are in the middle of.
func (s *search) remember(some []*question) {
	for _, a := range some {
		if a.resumed || a.read > 0 && !a.done {
			s.searched.Put(s.read, a.WorkspaceID, a.wait, a.after, 0)
		}
	}
}
